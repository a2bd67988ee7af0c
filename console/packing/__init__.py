"""`koordgate packing`: what of the free devices nobody can use. `koordgate defrag`: moves of Pods that help."""
