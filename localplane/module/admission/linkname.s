// Go allows a function without a body, as go:linkname needs it, only beside an assembly file.
