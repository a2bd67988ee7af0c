"""Taking over the CPUs that the kubelet's static policy gave out."""
