"""Formats that stand in the cluster, one module each; nothing else reads or writes them."""
