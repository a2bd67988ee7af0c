"""A Pod's request, read from its containers, labels and annotations."""
