"""What the kubelet of this node keeps in files: devices and CPUs that it gave away, and how it is configured."""
