"""The pure core of koordgate: what a Pod asks for, what a node has, who holds what, and the decision `place()`."""
