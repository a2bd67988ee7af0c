"""What is published about a node: objects (pure builders), when they are written (pure), and the writers."""
