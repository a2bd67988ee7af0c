"""What a node has besides GPUs: PCI devices of other types, CPUs and memory, as sysfs and procfs tell it."""
