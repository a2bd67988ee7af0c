"""What goes on beside requests: reconciliation, publishing, waking, Events."""
