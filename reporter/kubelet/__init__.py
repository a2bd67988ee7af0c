"""The kubelet of this node: the devices and CPUs that it allocated, and its configuration."""
