"""What goes on beside requests: reconciliation, records of nodes that are gone, waking, Events."""
