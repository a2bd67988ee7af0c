"""What this replica knows of the cluster."""
