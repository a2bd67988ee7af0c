"""`koordgate devices`: what there is, and taking a device out of service."""
