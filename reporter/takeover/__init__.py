"""Allocated CPUs written into the state of the kubelet's CPU manager, and taken out again."""
