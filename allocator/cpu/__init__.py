"""The CPUs of a node as sets, their topology, and the choice of exact CPUs for a Pod."""
