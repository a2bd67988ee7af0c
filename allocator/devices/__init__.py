"""Which devices a Pod gets on one node."""
