"""`koordgate explain`: why a Pod is on no node and what would help, or why it is on its node."""
