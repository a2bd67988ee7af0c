"""A node's GPUs: what NVML says of them, how healthy they are, and what the Device object says of both.

NVML is asked in a process of its own (`worker`), by `guarded` with a deadline, so that a library that hangs or crashes
stops nothing else. What comes back are plain values (`facts`); what follows from them is pure (`health`, `inventory`).
"""
