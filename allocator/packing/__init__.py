"""How full the devices of a cluster are, and what of them nobody can use (pure)."""
