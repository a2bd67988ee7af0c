"""What a Pod asks for, read from its containers, labels and annotations."""
