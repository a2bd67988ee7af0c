"""Whether Pods have what was allocated to them."""
