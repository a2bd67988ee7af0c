"""What koordgate would do in namespaces in which it only observes."""
