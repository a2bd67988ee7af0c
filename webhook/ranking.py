"""Which nodes can hold a Pod, the best first: the index looks ahead over all nodes, `place()` has the last word.

The index turns away no node that `place()` would take, and puts the others in order; each node that is named is then
placed on for real. What was named is assumed until the bind comes or some seconds have passed, so that Pods that follow
at once are not sent to devices that are as good as gone.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from allocator.asks import DeviceAsk, PodRequest
from allocator.cpu.node import CpuNode, cpu_use
from allocator.cpu.policy import BindPolicy
from allocator.device import Device
from allocator.devices import describe, plural
from allocator.devicetype import DeviceType, DeviceTypes
from allocator.holdings import Holding, NodeSnapshot
from allocator.index.cluster import ClusterIndex
from allocator.index.packed import Packed, PackedError
from allocator.index.query import MAX_AMOUNT, Amount, PartOf, Query, RatioFrom, Want
from allocator.index.table import RowError, Rows, TypeRow
from allocator.outcome import Refusal
from allocator.place import Placement, place
from allocator.preference import Preference
from allocator.score import MAX_SCORE, score
from webhook.cluster import ClusterView
from webhook.podinfo import PodInfo

_MOST_REQUESTS: Final = 4096  # distinct requests remembered; beyond it the older half is forgotten and learnt again
_MOST_VERDICTS: Final = 150_000  # likewise of verdicts, some 500 bytes each
_SCORE_STEP: Final = 10  # nodes whose scores differ by less are equally good
_MOST_TOLD: Final = 16  # nodes of which it is told in full why they do not fit
CPU_ROW: Final = "(CPUs)"  # in the index, all CPUs of a node as one device; no device type is named so
_FREE: Final = "free"
_WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `place()` says of one request on one node, with its score (0-100) where it fits."""

    outcome: Placement | Refusal
    score: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer for one Pod.

    Attributes:
        named: nodes that can hold it, the best first; not more than were asked for.
        refused: of the others those that cannot, and why; not those that were not needed.
    """

    named: tuple[str, ...]
    refused: Mapping[str, Refusal]

    def reasons(self) -> Iterator[tuple[str, bool, str]]:
        """Each refused node, whether for good, and why: in full where they are few, else in words that are alike."""
        full = len(self.refused) <= _MOST_TOLD
        for node, refusal in self.refused.items():
            yield node, refusal.permanent, refusal.message if full or not refusal.short else refusal.short


class Assumed:
    """Where Pods were sent that are not bound yet.

    Args:
        clock: seconds, of any beginning.
        keep: seconds after which a bind is not to be expected any more.
        touched: called with the node on which something changed.
    """

    def __init__(self, clock: Callable[[], float], keep: float, touched: Callable[[str], None]) -> None:
        self._clock = clock
        self._keep = keep
        self._touched = touched
        self._by_uid: OrderedDict[str, tuple[str, Holding, float]] = OrderedDict()
        self._on: dict[str, dict[str, Holding]] = {}

    def put(self, node: str, holding: Holding) -> None:
        """A Pod was sent to a node, where it would hold this."""
        self.drop(holding.uid)
        self._by_uid[holding.uid] = (node, holding, self._clock() + self._keep)
        self._on.setdefault(node, {})[holding.uid] = holding
        self._touched(node)

    def drop(self, uid: str) -> str:
        """A Pod is bound, refused, gone, or sent elsewhere; returns where it was sent before, "" for nowhere."""
        node, _, _ = self._by_uid.pop(uid, ("", None, 0.0))
        if node:
            self._forget(node, uid)
        return node

    def node_of(self, uid: str) -> str:
        """Where a Pod was sent; "" for nowhere."""
        known = self._by_uid.get(uid)
        return known[0] if known else ""

    def expire(self) -> list[str]:
        """Forget what is too old; returns the nodes that it was on."""
        now = self._clock()
        nodes = []
        while self._by_uid:
            uid, (node, _, until) = next(iter(self._by_uid.items()))
            if until > now:
                break
            del self._by_uid[uid]
            self._forget(node, uid)
            nodes.append(node)
        return nodes

    def _forget(self, node: str, uid: str) -> None:
        held = self._on[node]
        del held[uid]
        if not held:
            del self._on[node]
        self._touched(node)

    def on(self, node: str) -> Mapping[str, Holding]:
        """What is assumed on a node, by UID."""
        return self._on.get(node, {})


class Ranking:
    """Filters and orders nodes.

    Args:
        cluster: what is known.
        types: of devices.
        preference: by what nodes are compared.
        assumed: where Pods were sent that are not bound yet.
    """

    def __init__(self, cluster: ClusterView, types: DeviceTypes, preference: Preference, assumed: Assumed) -> None:
        self._cluster = cluster
        self._preference = preference
        self.assumed = assumed
        self._index = ClusterIndex({kind.name: fullness(kind) for kind in types.types})
        self._unindexed: set[str] = set()  # nodes with figures that the index cannot hold: `place()` alone decides
        self._snapshots: dict[str, NodeSnapshot] = {}
        self._verdicts: dict[str, dict[int, Verdict]] = {}
        self._requests: OrderedDict[PodRequest, int] = OrderedDict()  # the one asked for last is the last
        self._numbers = itertools.count()
        self._judged = 0  # verdicts remembered, over all nodes
        self._alphabet: Rows | None = None  # by row of the index: its node's place in the order of names

    def rank(self, pod: PodInfo, names: list[str], most: int | None) -> Ranked:
        """Find nodes for a Pod.

        Args:
            pod: with a readable request.
            names: the candidates.
            most: how many to name, of the best; None for all that fit.
        """
        before = self.assumed.drop(pod.uid)  # asked again: what was made of it is not to be
        self.catch_up()
        search = _Search(pod, names, self._index, before, self._open(pod))
        refused: dict[str, Refusal] = {}
        named: list[str] = []
        for name in self._best_first(search):
            verdict = self.verdict(name, pod.request, pod.uid)
            if isinstance(verdict.outcome, Refusal):
                refused[name] = verdict.outcome
                continue
            named.append(name)
            if most is not None and len(named) >= most:
                break
        return Ranked(tuple(named), self._why_not(search, refused))

    def _open(self, pod: PodInfo) -> set[str]:
        """Nodes of which the index cannot know that they fit."""
        return self._unindexed.union(self._cluster.nodes_holding(pod.uid))

    def _best_first(self, search: "_Search") -> Iterator[str]:
        """The nodes that may fit: those with most of the Pod's gang, then by score, then by name."""
        fitting = np.flatnonzero(search.may)
        if not len(fitting):
            return
        rows, names = search.rows[fitting], search.names
        levels = self._index.scores(self._preference, rows, search.query) // _SCORE_STEP
        if search.pod.request.wishes.gang:
            levels = levels + self._gang_levels(search, fitting)
        alphabet = self._by_name()
        late: list[str] = []
        for level in np.unique(levels)[::-1]:
            group = fitting[levels == level]
            for at in group[np.argsort(alphabet[search.rows[group]], kind="stable")]:
                name = names[at]
                if name == search.before:
                    late.append(name)
                else:
                    yield name
        yield from late  # a node on which it failed before goes last

    def _gang_levels(self, search: "_Search", fitting: Rows) -> Rows:
        """Raise the nodes where others of the Pod's gang are, and those with room for all that still wait."""
        mates: dict[str, int] = {}
        waiting = 1
        for uid, node in self._cluster.gang(search.pod.request.wishes.gang).items():
            at = node or self.assumed.node_of(uid)
            if at:
                mates[at] = mates.get(at, 0) + 1
            elif uid != search.pod.uid:
                waiting += 1
        names, counts = search.names, self._index.counts(search.query)[:, search.rows[fitting]]
        room = np.ones(len(fitting), np.bool_)
        for want, count in zip(search.query.wants, counts, strict=True):
            room &= count >= waiting * want.count
        with_mates = np.fromiter((mates.get(names[at], 0) for at in fitting), np.intp, len(fitting))
        return (with_mates * 2 + room) * (MAX_SCORE // _SCORE_STEP + 1)

    def _by_name(self) -> Rows:
        if self._alphabet is None:
            names = self._index.names
            alphabet = np.empty(len(names), np.intp)
            alphabet[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
            self._alphabet = alphabet
        return self._alphabet

    def _why_not(self, search: "_Search", refused: dict[str, Refusal]) -> dict[str, Refusal]:
        """Say of each node that the index turned away why; in full where they are few."""
        away = np.flatnonzero(~search.may)
        if len(away) <= _MOST_TOLD:
            for at in away.tolist():
                outcome = self.verdict(search.names[at], search.pod.request, search.pod.uid).outcome
                if isinstance(outcome, Refusal):
                    refused[search.names[at]] = outcome
            return refused
        wants = search.query.wants
        counts = self._index.counts(search.query)[:, search.rows[away]]
        short = counts < np.array([want.count for want in wants])[:, None]
        first = short.argmax(axis=0)
        told: dict[tuple[int, int], Refusal] = {}
        found = counts[first, np.arange(len(away))]
        for at, want, count in zip(away.tolist(), first.tolist(), found.tolist(), strict=True):
            refusal = told.get((want, count))
            if refusal is None:
                refusal = told[want, count] = _turned_away(search.pod.request, wants[want], count)
            refused[search.names[at]] = refusal
        return refused

    def verdict(self, node: str, request: PodRequest, uid: str) -> Verdict:
        """What `place()` says of a request on a node; what the Pod itself holds there already counts as free."""
        self.catch_up()
        if blocked := self._cluster.blocked(node):
            return Verdict(Refusal(f"{node}: {blocked}", permanent=True, short=blocked), 0)
        snapshot = self.snapshot(node)
        if uid in snapshot.holdings:
            return self._judge(request, snapshot.without([uid]))
        number = self._number(request)
        verdicts = self._verdicts.setdefault(node, {})
        verdict = verdicts.get(number)
        if verdict is None:
            verdict = verdicts[number] = self._judge(request, snapshot)
            self._judged += 1
        return verdict

    def _judge(self, request: PodRequest, snapshot: NodeSnapshot) -> Verdict:
        outcome = place(request, snapshot)
        return Verdict(outcome, 0 if isinstance(outcome, Refusal) else score(outcome, snapshot, self._preference))

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it stands, with what is assumed on it."""
        snapshot = self._snapshots.get(node)
        if snapshot is None:
            snapshot = self._cluster.snapshot(node)
            assumed = self.assumed.on(node)
            if assumed:
                snapshot = snapshot.holding_all({**assumed, **snapshot.holdings})
            self._snapshots[node] = snapshot
        return snapshot

    def _number(self, request: PodRequest) -> int:
        """A small number for a request, the same for equal ones: the key under which verdicts are remembered."""
        number = self._requests.get(request)
        if number is None:
            number = self._requests[request] = next(self._numbers)
        else:
            self._requests.move_to_end(request)
        if len(self._requests) > _MOST_REQUESTS or self._judged > _MOST_VERDICTS:
            self._forget_half()
        return number

    def _forget_half(self) -> None:
        """Forget the requests not asked for longest, and the verdicts on them."""
        gone = {self._requests.popitem(last=False)[1] for _ in range(len(self._requests) // 2)}
        self._judged = 0
        for node, verdicts in self._verdicts.items():
            kept = {number: verdict for number, verdict in verdicts.items() if number not in gone}
            self._verdicts[node] = kept
            self._judged += len(kept)

    def catch_up(self) -> None:
        """Take in what changed since the last call; each answer does, at the start it takes a while."""
        touched = self._cluster.touched
        while touched:
            node = touched.pop()
            self._snapshots.pop(node, None)
            self._judged -= len(self._verdicts.pop(node, ()))
            if self._cluster.knows(node):
                self._put(node)
            else:
                self._index.drop(node)
                self._unindexed.discard(node)
                self._alphabet = None

    def _put(self, node: str) -> None:
        known = len(self._index)
        self._unindexed.discard(node)
        try:
            self._index.put(node, type_rows(self.snapshot(node)))
        except (RowError, PackedError):
            self._index.put(node, ())
            self._unindexed.add(node)
        if len(self._index) != known:
            self._alphabet = None


class _Search:
    """One Pod among these candidates: their rows, and which may fit."""

    __slots__ = ("before", "may", "names", "pod", "query", "rows")

    def __init__(self, pod: PodInfo, names: list[str], index: ClusterIndex, before: str, unknown: set[str]) -> None:
        self.pod = pod
        self.names = names
        self.before = before  # the node to which the Pod was sent last, and was not bound
        self.rows = index.positions(names)
        self.query = query_of(pod.request)
        self.may = index.fitting(self.query)[self.rows]
        if unknown:
            for at, name in enumerate(names):
                if name in unknown:
                    self.may[at] = True


def _turned_away(request: PodRequest, want: Want, count: int) -> Refusal:
    """Say in a few words how far a node is from a want."""
    if want.type == CPU_ROW:
        told = f"too few CPUs for {want.amounts[0][1]}"
    else:
        ask = next(c.ask for c in request.containers if c.ask.type.name == want.type and _want(c.ask) == want)
        told = f"{count} {plural(ask.type)} fit {describe(ask)}"
    return Refusal(told, short=told)


def query_of(request: PodRequest) -> Query:
    """Turn a request into what each node must have: necessary for `place()`, and where it is plain, sufficient."""
    wants = [_want(container.ask) for container in request.containers]
    cpu = request.cpu
    if cpu is not None and cpu.count:
        tail = _WHOLE if cpu.required is BindPolicy.FULL_PCPUS else _FREE
        wants.append(Want(CPU_ROW, 1, ((tail, min(cpu.count, MAX_AMOUNT)),)))
    return Query(tuple(dict.fromkeys(wants)))


def _want(ask: DeviceAsk) -> Want:
    kind = ask.type
    amounts: list[tuple[str, Amount]] = []
    for tail, amount in zip(kind.tails, ask.amounts, strict=True):
        if amount is not None:
            amounts.append((tail, min(amount, MAX_AMOUNT)))
        elif kind.memory is not None:
            size, ratio = kind.memory
            if tail == size:
                amounts.append((tail, PartOf(ask.amount(ratio) or 0)))
            else:
                amounts.append((tail, RatioFrom(size, min(ask.amount(size) or 0, MAX_AMOUNT))))
    return Want(kind.name, ask.count, tuple(amounts))


def fullness(kind: DeviceType) -> tuple[str, ...]:
    """The resources that tell how full a device is: bytes say again what percent say."""
    return tuple(tail for tail in kind.tails if kind.memory is None or tail != kind.memory[0])


def type_rows(node: NodeSnapshot) -> list[TypeRow]:
    """Pack a node for the index: each type's devices, and its CPUs as one device."""
    by_type: dict[str, list[Device]] = {}
    for device in node.devices:
        by_type.setdefault(device.type, []).append(device)
    rows = [_devices_row(kind, devices, node) for kind, devices in by_type.items()]
    if node.cpu is not None:
        rows.append(_cpu_row(node, node.cpu))
    return rows


def _devices_row(kind: str, devices: list[Device], node: NodeSnapshot) -> TypeRow:
    used = node.used
    usable = in_use = 0
    bit = 1
    for device in devices:
        if device.healthy and device.id not in node.kubelet_held:
            usable |= bit
        if device.id in used:
            in_use |= bit
        bit <<= 1
    return TypeRow(kind, packed_classes(devices, used), usable, in_use)


def packed_classes(devices: list[Device], used: Mapping[str, Mapping[str, int]]) -> tuple[Packed, ...]:
    """Pack what devices of one type have, and have free, by class (seed document 2)."""
    classes = []
    for tail in devices[0].capacity:
        totals = [device.capacity[tail] for device in devices]
        frees = [
            max(device.capacity[tail] - used[device.id].get(tail, 0), 0) if device.id in used else device.capacity[tail]
            for device in devices
        ]
        classes.append(Packed.of(tail, totals, frees))
    return tuple(classes)


def _cpu_row(node: NodeSnapshot, cpu: CpuNode) -> TypeRow:
    taken = cpu_use(cpu, (holding.cpus for holding in node.holdings.values() if holding.cpus is not None)).taken
    every = cpu.topology.all & ~cpu.reserved
    free = every & ~taken
    classes = (
        Packed.of(_FREE, [every.bit_count()], [free.bit_count()]),
        Packed.of(_WHOLE, [cpu.topology.whole(every).bit_count()], [cpu.topology.whole(free).bit_count()]),
    )
    return TypeRow(CPU_ROW, classes, usable=1, in_use=int(taken != 0))
