"""The DaemonSet: what a node has, how healthy it is, and cpusets made real (to come)."""
