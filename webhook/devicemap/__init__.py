"""The device map: who holds which device and which CPU, as one document and as a page that draws it."""
