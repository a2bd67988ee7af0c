"""The rule of one choice of CPUs: policies, and the CPUs that others hold."""

from typing import NamedTuple

from allocator.vocabulary.cpupolicy import ExclusivePolicy
from allocator.vocabulary.cputopology import CpuTopology


class TakeRule(NamedTuple):
    """The inputs of one choice that its steps share.

    Attributes:
        topology: the machine.
        exclusive: what to avoid.
        held_cores: CPUs of cores held with PCPULevel.
        held_nodes: CPUs of NUMA nodes held with NUMANodeLevel.
        full: whole cores first.
        level: the same number of CPUs in every NUMA node, or all that it has.
        even: the same number of CPUs in each NUMA node, if one does not suffice.
        sign: 1 if fewer free CPUs come first, -1 if more do.
    """

    topology: CpuTopology
    exclusive: ExclusivePolicy
    held_cores: int
    held_nodes: int
    full: bool
    level: bool
    even: bool
    sign: int
