"""Formats that are stored in the cluster, one module each; nothing else reads or writes them."""
