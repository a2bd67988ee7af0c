"""`koordgate snapshot`: what matters of a cluster's objects, in one file."""
