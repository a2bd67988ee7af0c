"""How full the devices of a cluster are, what of them nobody can use, and which moves of Pods would help (pure)."""
