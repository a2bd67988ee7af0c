"""What the node's container runtime can do for delivery: what files, the cluster and our own container say of it."""
