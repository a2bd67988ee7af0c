"""The rule of one choice of CPUs: policies, and the CPUs that others hold."""

from typing import NamedTuple

from allocator.vocabulary.cpupolicy import ExclusivePolicy
from allocator.vocabulary.cputopology import CpuTopology


class TakeRule(NamedTuple):
    """The inputs of one choice that its steps share."""

    topology: CpuTopology
    exclusive: ExclusivePolicy
    held_cores: int  # CPUs of cores held with PCPULevel
    held_nodes: int  # CPUs of NUMA nodes held with NUMANodeLevel
    full: bool  # whole cores first
    level: bool  # the same number of CPUs in every NUMA node, or all that it has
    even: bool  # the same number of CPUs in each NUMA node, if one does not suffice
    sign: int  # 1 if fewer free CPUs come first, -1 if more do
