"""The DaemonSet: reports a node's devices and their health, and sets containers' cpusets."""
