"""Pods that a kubelet would refuse after the bind are refused before it.

The kubelet gives CPUs and devices of plugins by itself, whatever a Pod's label says: its CPU manager's static policy to
each container of a Guaranteed Pod that requests whole CPUs, its device manager to each that requests a plugin's
resource. With the option full-pcpus-only it refuses a Pod (SMTAlignmentError) if a container's number is not a multiple
of the threads of a core, or if so many CPUs are not free beside those of the containers before it (CPU proposal,
"Resource spec"; Kubernetes, pkg/kubelet/cm/cpumanager). Its topology manager refuses a Pod (TopologyAffinityError) by
the policies Restricted and SingleNUMANode: whatever is given at once must be free in one set of NUMA nodes, as small as
each resource by itself would need on an empty machine (Kubernetes, pkg/kubelet/cm/topologymanager). It gives to the
whole Pod at once, or to one container after the other; this module follows it.

Not everything that it chooses can be known, as that depends on its version and its options. What holds of each choice
that it may make is demanded, so that a Pod may be refused that a kubelet would have accepted, but not the reverse.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Final, NamedTuple

from allocator.cpu.words import cpu_amount
from allocator.request.cpuamounts import peak
from allocator.vocabulary.cpunode import MILLI, CpuAsk, CpuNode, CpuUse, KubeletAsk, NumaPolicy
from allocator.vocabulary.cputopology import MAX_COMBINED
from allocator.vocabulary.names import Phase
from allocator.vocabulary.outcome import Refusal

_CPU: Final = "cpu"


def refused_by_kubelet(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse) -> Refusal | None:
    """Return why a node's kubelet would reject a Pod, regardless of its CPUs; None if it would not."""
    if not ask.of_kubelet:
        return None
    # The kubelet may have given Pods of ours other CPUs, which are reserved here; then it takes theirs for free. More
    # free CPUs can only lead a second container astray.
    views = (use, use._replace(taken=0)) if use.taken and len(ask.of_kubelet) > 1 else (use,)
    for seen in views:
        refused = _broken_core(ask, node, seen) if node.whole_cores else None
        if refused is None and node.kubelet_policy is not NumaPolicy.NONE:
            refused = _unaligned(ask, node, seen)
        if refused is not None:
            return refused.on(name)
    return None


def aligned_by_kubelet(ask: CpuAsk, node: CpuNode) -> bool:
    """Whether a node's topology manager aligns anything of a Pod."""
    return any(_demands(one, node) for one in ask.of_kubelet)


class _Why(NamedTuple):
    """Why the kubelet refuses a Pod: in full, in short, and whether it always will."""

    message: str
    short: str
    permanent: bool = False

    def on(self, name: str) -> Refusal:
        return Refusal(f"{name}: {self.message}", permanent=self.permanent, short=self.short)


class _Reusable(NamedTuple):
    """CPUs or devices of init containers that ended, which the kubelet gives again.

    It takes as many of them as it likes, so that their number lies within bounds.
    """

    least: int = 0  # how many there are at least
    most: int = 0  # how many there are at most
    same: bool = False  # whether all are those that the kubelet would take if `least` were asked

    def after(self, one: KubeletAsk, amount: int, left: int, *, first: bool = False) -> "_Reusable":
        """What is reusable when a container got this amount.

        `first`: whether the kubelet gives what is reusable before anything else.
        """
        if first:
            count = max(self.least, amount) if one.phase is Phase.INIT else max(self.least - amount, 0)
            return _Reusable(count, count)
        if one.phase is not Phase.INIT:
            return NOTHING if self.takes(amount) else _Reusable(max(self.least - amount, 0), min(self.most, left))
        if not self.most:
            return _Reusable(amount, amount, same=True)
        return self if self.takes(amount) else _Reusable(max(self.least, amount), min(self.most + amount, left))

    def takes(self, amount: int) -> bool:
        """Whether a container that asks for this amount surely gets exactly what is reusable."""
        return self.same and amount == self.least


NOTHING: Final = _Reusable()


def _broken_core(ask: CpuAsk, node: CpuNode, use: CpuUse) -> _Why | None:
    """Find a container whose CPUs are not whole cores, or not free beside those of the containers before it."""
    topology = node.topology
    threads = topology.cpus_per_core
    asked = [one for one in ask.of_kubelet if one.cpus]
    for one in asked:
        if one.cpus % threads:
            why = (
                f"a container requests {one.cpus} CPUs, and the kubelet takes only multiples of {threads}, whole cores "
                "(SMTAlignmentError)"
            )
            short = f"a container's CPUs are no multiple of {threads} per core (SMTAlignmentError)"
            return _Why(why, short, permanent=True)
    free = (_free_to_kubelet(node, use) & ~topology.cores_of(node.kubelet_reserved)).bit_count()
    # Devices may lead containers that ask for as many CPUs to other ones.
    settled = not any(one.devices for one in ask.of_kubelet)
    reusable = NOTHING
    for one in asked:
        if one.cpus > free:
            why = (
                f"a container requests {one.cpus} CPUs, but {free} are free on whole cores beside those of the "
                "containers before it, as the kubelet counts (SMTAlignmentError)"
            )
            return _Why(why, "too few CPUs on whole cores for a container (SMTAlignmentError)")
        if not (settled and reusable.takes(one.cpus)):
            free -= one.cpus
        reusable = reusable.after(one, one.cpus, free + reusable.most)
    return None


def _free_to_kubelet(node: CpuNode, use: CpuUse) -> int:
    """The CPUs that the kubelet may give, an administrator's reservation included: it does not know it."""
    return node.topology.all & ~(node.reserved & ~node.not_kubelets) & ~use.taken


def _demands(one: KubeletAsk, node: CpuNode) -> dict[str, int]:
    """What the topology manager aligns of a container: its CPUs, and devices whose NUMA nodes are known."""
    known = {name for zone in node.zones.values() for name, amount in zone.others if amount}
    found = {name: amount for name, amount in one.devices if name in known}
    return {_CPU: one.cpus, **found} if one.cpus and node.kubelet_gives_cpus else found


@dataclass(slots=True)
class _Stock:
    """A resource in each NUMA node, as the kubelet sees it while it serves a Pod."""

    has: Sequence[int]  # what each NUMA node has, in their order
    # what is free in each, with what is reusable; in all together if where containers got theirs is unknown
    free: list[int]
    reused_first: bool = False  # whether what is reusable is given before anything else
    at: int = 0  # the NUMA node of what is reusable
    reusable: _Reusable = NOTHING  # how much is

    @property
    def known(self) -> bool:
        """Whether it is known what is free in each NUMA node."""
        return len(self.free) == len(self.has)

    def width(self, amount: int) -> int:
        """The fewest NUMA nodes with this amount, free or not; all that have any if even these have less."""
        together = accumulate(sorted(self.has, reverse=True))
        bearing = sum(1 for has in self.has if has)
        return next((width for width, has in enumerate(together, 1) if has >= amount), bearing)

    def give(self, one: KubeletAsk, amount: int, at: int) -> None:
        """Give a container what it asks in a NUMA node."""
        if one.phase is not Phase.INIT:
            self.free[at] -= amount
        self.reusable = self.reusable.after(one, amount, self.free[at], first=self.reused_first)
        self.at = at

    def give_anywhere(self, one: KubeletAsk, amount: int) -> None:
        """Give a container what it asks, nobody knows where."""
        left = sum(self.free) - (0 if one.phase is Phase.INIT else amount)
        if one.phase is Phase.INIT or self.reusable.most:
            self.reusable = _Reusable(0, left)
        self.free = [left]


def _unaligned(ask: CpuAsk, node: CpuNode, use: CpuUse) -> _Why | None:
    """Follow the topology manager as it looks for NUMA nodes for the Pod, or for one container after the other."""
    by_container, single = node.kubelet_by_container, node.kubelet_policy is NumaPolicy.SINGLE_NUMA_NODE
    stocks = _stocks(node, use)
    by_socket = node.kubelet_by_socket and len(node.topology.sockets) < len(node.topology.nodes)
    whom = "a container" if by_container else "the Pod as a whole"
    rule = f"topology manager policy {node.kubelet_policy}: TopologyAffinityError"
    for one in ask.of_kubelet if by_container else (_together(ask.of_kubelet),):
        demands = _demands(one, node)
        if not demands:
            continue
        parts = [(stocks[name], amount) for name, amount in demands.items()]
        widths = {stock.width(amount) for stock, amount in parts}
        width = 1 if single else max(widths)
        never = widths != {width}
        if never or not _give(one, parts, width, by_socket=by_socket):
            where = "one NUMA node" if width == 1 else f"{width} NUMA nodes"
            why = f"the kubelet would not find {_amounts(demands)} in {where} for {whom} ({rule})"
            what = "CPUs" if demands.keys() == {_CPU} else "CPUs or devices"
            short = f"too few {what} in {where} for {whom} ({rule})"
            return _Why(f"{why}; not even if all were free" if never else why, short, permanent=never)
    return None


def _stocks(node: CpuNode, use: CpuUse) -> dict[str, _Stock]:
    """The CPUs, and the resources that zones report, of the NUMA nodes in their order."""
    nodes = node.topology.nodes
    free = _free_to_kubelet(node, use)
    cpus = _Stock([of.bit_count() for of in nodes.values()], [(of & free).bit_count() for of in nodes.values()])
    stocks = {_CPU: cpus}
    for name in {name for zone in node.zones.values() for name, _ in zone.others}:
        has = [dict(node.zones[at].others).get(name, 0) if at in node.zones else 0 for at in nodes]
        held = [use.others.get((at, name), 0) for at in nodes]
        left = [max(one - other, 0) for one, other in zip(has, held, strict=True)]
        stocks[name] = _Stock(has, left, reused_first=True)
    return stocks


def _together(asks: Sequence[KubeletAsk]) -> KubeletAsk:
    """What a Pod asks as a whole."""
    names = sorted({name for one in asks for name, _ in one.devices})
    devices = [(name, peak((one.phase, dict(one.devices).get(name, 0)) for one in asks)) for name in names]
    return KubeletAsk(Phase.APP, peak((one.phase, one.cpus) for one in asks), tuple(devices))


def _amounts(demands: Mapping[str, int]) -> str:
    return " and ".join(
        cpu_amount(amount * MILLI) if name == _CPU else f"{amount} {name}" for name, amount in demands.items()
    )


def _give(one: KubeletAsk, parts: Sequence[tuple[_Stock, int]], width: int, *, by_socket: bool) -> bool:
    """Give a container all that it asks in one set of NUMA nodes; False if none may have it.

    What an init container had is given again: the set must contain the NUMA nodes where that is (Kubernetes,
    pkg/kubelet/cm/cpumanager). Among single NUMA nodes the kubelet takes the lowest. Which larger set it takes depends
    on an option of its topology manager that nobody reports.
    """
    reused = {stock.at for stock, _ in parts if stock.reusable.most}
    if not all(stock.known for stock, _ in parts):
        if not all(_surely(stock, amount, width, alone=len(parts) == 1) for stock, amount in parts):
            return False
    elif width == 1:
        numas = range(len(parts[0][0].has))
        fits = [at for at in numas if all(stock.free[at] >= amount for stock, amount in parts)]
        if not fits or len(reused) > 1 or not reused.issubset(fits):
            return False
        surely = any(stock.reusable.least for stock, _ in parts)
        chosen = reused if surely else reused | {fits[0]}
        if len(chosen) == 1 and not by_socket:
            for stock, amount in parts:
                stock.give(one, amount, *chosen)
            return True
    elif not any(
        all(_has(stock, some, amount) for stock, amount in parts) for some in _sets(parts, width) if reused <= set(some)
    ):
        return False
    for stock, amount in parts:
        stock.give_anywhere(one, amount)
    return True


def _sets(parts: Sequence[tuple[_Stock, int]], width: int) -> Iterable[tuple[int, ...]]:
    """Sets of NUMA nodes of which one has all, if any has."""
    stock = parts[0][0]
    numas = range(len(stock.has))
    if len(numas) <= MAX_COMBINED:
        return combinations(numas, width)
    # More are allowed to the topology manager by an option; not every set is tried.
    return (tuple(sorted(numas, key=lambda at: (at != stock.at or not stock.reusable.most, -stock.free[at]))[:width]),)


def _has(stock: _Stock, some: Iterable[int], amount: int) -> bool:
    """Whether NUMA nodes that all have some of a resource have this amount free."""
    return all(stock.has[at] for at in some) and sum(stock.free[at] for at in some) >= amount


def _surely(stock: _Stock, amount: int, width: int, *, alone: bool) -> bool:
    """Whether some `width` NUMA nodes have this amount free, wherever earlier containers got theirs."""
    bearing = sum(1 for has in stock.has if has)
    if width == bearing and (alone or all(stock.has)):
        return sum(stock.free) >= amount
    # The fullest NUMA nodes have at least their part of all, rounded up.
    return alone and not stock.reusable.most and sum(stock.free) * width > (amount - 1) * bearing
