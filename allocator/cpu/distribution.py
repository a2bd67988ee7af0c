"""How many CPUs each NUMA node gives if several give some: pure numbers."""

from collections.abc import Sequence


def level_shares(sizes: Sequence[int], count: int, unit: int) -> list[tuple[int, int]]:
    """Divide a number over all NUMA nodes, in units, as evenly as their sizes allow; the larger ones get the remainder.

    Returns pairs of index and share, without empty shares.
    """
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], -index))
    shares: dict[int, int] = {}
    left = count
    for rank, index in enumerate(order):
        fair = left // ((len(order) - rank) * unit) * unit
        shares[index] = min(fair, sizes[index] // unit * unit)
        left -= shares[index]
    for index in sorted(order, key=lambda index: (shares[index], -sizes[index], index)):  # no whole unit is over
        more = min(left, sizes[index] - shares[index])
        shares[index] += more
        left -= more
    return [(index, share) for index, share in shares.items() if share]


def even_shares(sizes: Sequence[int], count: int, unit: int) -> list[tuple[int, int]]:
    """Divide a number evenly over the fewest NUMA nodes that have enough, two or more; the largest are used first.

    Among all equal divisions this leaves the free CPUs most even, which the kubelet's distribute-cpus-across-numa
    compares. Each unit of the remainder goes to one of the largest.
    Returns pairs of index and share; empty if no such division exists.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for nodes in range(2, len(order) + 1):
        share = count // (nodes * unit) * unit
        rest = count - share * nodes
        shares = []
        for index in order[:nodes]:
            more = min(unit, rest)
            rest -= more
            shares.append((index, share + more))
        if all(size <= sizes[index] for index, size in shares):
            return [(index, size) for index, size in shares if size]
    return []
