"""What the cluster is told of a node: the objects (pure builders), and the writer that applies them only on change."""
