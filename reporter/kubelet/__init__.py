"""The kubelet of this node: the devices and CPUs that it gave away, and its configuration."""
