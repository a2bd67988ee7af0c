"""`koordgate cleanup`: what koordgate left in a cluster, and its removal."""
