"""The Node Resource Interface: how a container runtime asks a plugin about its containers.

NRI is ttrpc over one unix socket that carries two connections (containerd/nri, docs and pkg). No library speaks it in
Python. Nothing of NRI leaves this room: others see `reporter.enforcer.model`.
"""
