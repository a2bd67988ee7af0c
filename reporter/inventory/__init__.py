"""What a node has besides GPUs, from sysfs and procfs: PCI devices of other types, CPUs and memory."""
