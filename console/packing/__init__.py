"""`koordgate packing`: what of the free devices nobody can use, why, and what a larger Pod would need."""
