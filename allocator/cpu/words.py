"""Amounts of CPU and NUMA nodes in a user's words."""

from collections.abc import Iterable

from allocator.vocabulary.cpunode import MILLI


def cpu_amount(milli: int) -> str:
    """Write thousandths of a CPU for people: "1 CPU", "2 CPUs", "0.5 CPUs"."""
    whole, part = divmod(milli, MILLI)
    amount = f"{whole}.{part:03}".rstrip("0") if part else str(whole)
    return f"{amount} {'CPU' if milli == MILLI else 'CPUs'}"


def not_free(milli: int, numa: Iterable[int]) -> str:
    """Say that so many thousandths of a CPU are not free in these NUMA nodes."""
    return f"{cpu_amount(milli)} {'is' if milli == MILLI else 'are'} not free in {numa_nodes(numa)}"


def numa_nodes(numa: Iterable[int]) -> str:
    """Name NUMA nodes: "NUMA node 0", "NUMA nodes 0, 1"."""
    named = sorted(numa)
    return f"NUMA node{'' if len(named) == 1 else 's'} {', '.join(map(str, named))}"
