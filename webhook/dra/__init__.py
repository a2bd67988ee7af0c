"""Dynamic resource allocation (DRA): reviews of claims' allocations, their reservations, and taints for DRA."""
