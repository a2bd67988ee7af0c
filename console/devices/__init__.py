"""`koordgate devices`: shows devices, and takes one out of service."""
