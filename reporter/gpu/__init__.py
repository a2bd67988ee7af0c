"""A node's GPUs: what NVML reports, how healthy they are, and their entries of the Device object.

NVML is read in a process of its own (`worker`), with a deadline (`guarded`), so that a library that hangs or crashes
stops nothing else. Its answers are plain values (`facts`); everything that follows from them is pure (`health`,
`entries`).
"""
