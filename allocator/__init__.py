"""The pure core of koordgate: what a Pod asks, what a node has, who holds what, and the one decision `place()`."""
