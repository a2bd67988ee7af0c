"""Which nodes can hold a Pod, the best first: the index filters and orders all nodes, `place()` decides.

The index excludes no node that `place()` would accept, and orders the others; a node is named only after `place()` has
accepted it. The placement on a named node is assumed until the bind comes or some seconds have passed, so that the Pods
that follow are not sent to the same devices.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from allocator.devices.words import describe, plural
from allocator.index.cluster import ClusterIndex
from allocator.index.packed import PackedError
from allocator.index.query import Want
from allocator.index.rows import CPU_ROW, NUMA_ROW, load_row, query_of, query_with_load, type_rows, want_of
from allocator.index.search import NodeSearch
from allocator.index.table import RowError, TypeRow
from allocator.place import place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.gangs import MOST_MEMBERS, largest
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.preference import DeviceOrder, Preference
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.verdicts import PlaceVerdict, Verdicts
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

MOST_TOLD: Final = 16  # most nodes that get the full reason why the Pod does not fit
_SAMPLE: Final = 4  # of more excluded nodes than that, those that `place()` judges too at each call


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer for one Pod.

    Attributes:
        named: nodes that can hold it, the best first, up to the requested number.
        refused: if no node can, the reason for each. kube-scheduler reports these only for a Pod that fits nowhere.
    """

    named: tuple[str, ...]
    refused: Mapping[str, Refusal]

    def reasons(self) -> Iterator[tuple[str, bool, str]]:
        """Each refused node, whether permanently, and why: in full for few nodes, else in a few shared words."""
        full = len(self.refused) <= MOST_TOLD
        for node, refusal in self.refused.items():
            yield node, refusal.permanent, refusal.message if full or not refusal.short else refusal.short


class Ranking:
    """Filters and orders nodes.

    Args:
        cluster: what is known of the cluster.
        types: the device types.
        preference: how nodes are compared.
        assumed: where Pods were sent that are not bound yet.
        contradicted: called with a request and a node that the index excludes and `place()` accepts.
        order: of devices, for Pods that name none; SMALLEST lets nodes compare by the sizes of their devices too.
        counted: the classes that count in the patent's preferences; empty for all.
    """

    def __init__(
        self,
        cluster: ClusterView,
        types: DeviceTypes,
        preference: Preference,
        assumed: Assumed,
        contradicted: Callable[[PodRequest, NodeSnapshot], None] = lambda _request, _node: None,
        order: DeviceOrder = DeviceOrder.SMALLEST,
        counted: Iterable[str] = (),
    ) -> None:
        self._cluster = cluster
        self._contradicted = contradicted
        self._preference = preference
        self.assumed = assumed
        self._order = order
        self._index = ClusterIndex(
            {kind.name: fullness(kind) for kind in types.types},
            {kind.name: size_class(kind) for kind in types.types},
            counted,
        )
        self._unindexed: set[str] = set()  # nodes with amounts that the index cannot hold: `place()` alone decides
        self._blocked: set[str] = set()  # nodes on which nothing may be placed
        self._snapshots: dict[str, NodeSnapshot] = {}
        self._verdicts = Verdicts()
        self._changed = cluster.changes.reader(cluster.nodes.known())
        self._reassumed = assumed.changes.reader()
        self._counts_load = preference is not Preference.PACKING
        self._reloaded = cluster.loads.changes.reader() if self._counts_load else None
        self._sampled = 0  # of excluded nodes, how many `place()` has judged so far

    def rank(self, pod: PodInfo, names: list[str], most: int | None, shunned: AbstractSet[str] = frozenset()) -> Ranked:
        """Find nodes for a Pod.

        Args:
            pod: with a readable request.
            names: the candidates.
            most: the most nodes to name, the best; None names all that fit.
            shunned: nodes that are ordered after all others.
        """
        before = self.assumed.drop(pod.uid)  # filtered again, so the bind that was assumed will not come
        self.catch_up()
        # The index cannot exclude these: it lacks their amounts, or counts what the Pod itself holds there.
        open_to = self._unindexed.union(self._cluster.held.nodes_of(pod.uid))
        search = self._search(pod, names, open_to)
        request = self.wanted(pod)
        refused: dict[str, Refusal] = {}
        named: list[str] = []
        for name in self._best_first(search, pod, before, shunned):
            outcome = self.verdict(name, request, pod.uid)
            if isinstance(outcome, Refusal):
                refused[name] = outcome
                continue
            named.append(name)
            if most is not None and len(named) >= most:
                break
        if named:
            return Ranked(tuple(named), {})
        away, accepted = self._why_away(search, pod)
        return Ranked(tuple(accepted[:most]), {} if accepted else refused | away)

    def _best_first(self, search: NodeSearch, pod: PodInfo, before: str, shunned: AbstractSet[str]) -> Iterator[str]:
        """The nodes that may fit: by members of the gang, room for those that wait, preference, name; shunned last."""
        mates, waiting = self._gang(pod)
        late: list[str] = []
        again = False
        for name in search.best_first(self._preference, mates, waiting, smallest=self._smallest(pod)):
            if name == before:
                again = True
            elif name in shunned:
                late.append(name)
            else:
                yield name
        yield from late
        if again:  # a node on which it failed before goes last
            yield before

    def _search(self, pod: PodInfo, names: list[str], open_to: Collection[str]) -> NodeSearch:
        query = query_with_load(pod.request, pod.requests) if self._counts_load else query_of(pod.request)
        return NodeSearch(self._index, query, names, open_to)

    def standing(self, pod: PodInfo, names: list[str]) -> dict[str, int]:
        """Compare nodes for a Pod as `rank` orders them; what the Pod itself holds counts as free.

        Args:
            pod: with a readable request.
            names: the candidates.

        Returns:
            For each node that can hold the Pod, how many levels of nodes are better; equally good ones have one number.
        """
        self.catch_up()
        places = (self.assumed.node_of(pod.uid), *self._cluster.held.nodes_of(pod.uid))
        held = [node for node in dict.fromkeys(places) if self._cluster.nodes.knows(node)]
        for node in held:
            self._put(node, self._snapshot(node).without([pod.uid]))
        mates, waiting = self._gang(pod)
        search = self._search(pod, names, self._unindexed)
        found = search.standing(self._preference, mates, waiting, smallest=self._smallest(pod))
        for node in held:
            self._put(node, self._snapshot(node))
        request = self.wanted(pod)
        fitting = {
            name: level
            for name, level in found.items()
            if not isinstance(self.verdict(name, request, pod.uid), Refusal)
        }
        numbers = {level: number for number, level in enumerate(sorted({*fitting.values()}))}
        return {name: numbers[level] for name, level in fitting.items()}

    def _smallest(self, pod: PodInfo) -> bool:
        return (pod.request.wishes.order or self._order) == DeviceOrder.SMALLEST

    def send(self, pod: PodInfo, node: str) -> Holding | None:
        """Assume that a Pod comes to a node; returns what it will hold there, None where it does not fit."""
        outcome = self.verdict(node, self.wanted(pod), pod.uid)
        if isinstance(outcome, Refusal):
            return None
        gang = pod.request.wishes.gang
        holding = Holding(pod.uid, pod.namespace, pod.name, 0, outcome.shares, outcome.cpus, gang)
        self.assumed.put(node, holding)
        return holding

    def wanted(self, pod: PodInfo) -> PodRequest:
        """What a Pod asks for now; one of a gang leaves room for the others of the gang that still wait."""
        _, waiting = self._gang(pod)
        request = pod.request
        return replace(request, wishes=replace(request.wishes, waiting=waiting - 1)) if waiting > 1 else request

    def _gang(self, pod: PodInfo) -> tuple[Mapping[str, int], int]:
        """The nodes that others of the gang are bound or were sent to, counted; and how many wait, with the Pod.

        Those that wait are the Pods that are known to wait, or what is missing to the gang's size if that is more.
        """
        mates: Counter[str] = Counter()
        waiting = 1
        gang, stated = pod.request.wishes.gang, pod.request.wishes.size
        if not gang:
            return mates, waiting
        for uid, node in self._cluster.pods.gang(gang).items():
            at = node or self.assumed.node_of(uid)
            if at:
                mates[at] += 1
            elif uid != pod.uid:
                waiting += 1
        total = largest([stated, self._cluster.groups.size(gang)]).total
        return mates, min(max(waiting, total - mates.total()), MOST_MEMBERS)

    def _why_away(self, search: NodeSearch, pod: PodInfo) -> tuple[dict[str, Refusal], list[str]]:
        """Explain for each node that the index excludes why it does; in full where they are few.

        `place()` judges these nodes as well: all if they are few, otherwise some, others with each call.

        Returns:
            The refusals, and the nodes that `place()` accepts nevertheless, by name; without a bug there are none.
        """
        away = sorted(search.away)
        few = len(away) <= MOST_TOLD
        judged = away if few else [away[(self._sampled + at) % len(away)] for at in range(_SAMPLE)]
        self._sampled += _SAMPLE
        outcomes = {name: self.verdict(name, pod.request, pod.uid) for name in judged}
        refusals = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refusal)}
        accepted = sorted(outcomes.keys() - refusals.keys())
        for name in accepted:
            self._contradicted(pod.request, self._snapshot(name).without([pod.uid]))
        if few or accepted:
            return refusals, accepted
        wants = query_of(pod.request).wants
        alike: dict[tuple[int, int], Refusal] = {}
        refused = {}
        for name, want, count in search.shortfalls():
            refusal = alike.get((want, count))
            if refusal is None:
                refusal = alike[want, count] = _turned_away(pod.request, wants[want], count)
            refused[name] = refusal
        refused |= {name: self._blocked_refusal(name) for name in self._blocked & refused.keys()}
        return refused, []

    def verdict(self, node: str, request: PodRequest, uid: str) -> PlaceVerdict:
        """The verdict of `place()` on a request on a node; what the Pod itself holds there counts as free."""
        self.catch_up()
        if node in self._blocked:
            return self._blocked_refusal(node)
        snapshot = self._snapshot(node)
        if uid in snapshot.holdings:
            return place(request, snapshot.without([uid]))
        if not self._cluster.nodes.knows(node):
            return place(request, snapshot)  # no change would be published that makes it stale
        known = self._verdicts.get(request, node)
        return self._verdicts.put(request, node, place(request, snapshot)) if known is None else known

    def _blocked_refusal(self, node: str) -> Refusal:
        why = self._cluster.nodes.blocked(node)
        return Refusal(f"{node}: {why}", permanent=True, short=why)

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it is now, with the assumed placements."""
        self.catch_up()
        return self._snapshot(node)

    def _snapshot(self, node: str) -> NodeSnapshot:
        snapshot = self._snapshots.get(node)
        if snapshot is None:
            snapshot = self._cluster.snapshot(node)
            assumed = self.assumed.on(node)
            if assumed:
                snapshot = snapshot.holding_all({**assumed, **snapshot.holdings})
            if self._cluster.nodes.knows(node):
                self._snapshots[node] = snapshot
        return snapshot

    def catch_up(self) -> None:
        """Take in what changed since the last call; every answer does this, and the first takes in all nodes."""
        for node in self._reassumed.drain():
            self._changed.note(node)  # so that a node that changed in both ways is looked at once
        for node in self._changed.drain():
            self._snapshots.pop(node, None)
            self._verdicts.forget(node)
            (self._blocked.add if self._cluster.nodes.blocked(node) else self._blocked.discard)(node)
            if self._cluster.nodes.knows(node):
                self._put(node, self._snapshot(node))
            else:
                self._index.drop(node)
                self._unindexed.discard(node)
        for node in self._reloaded.drain() if self._reloaded is not None else ():
            if self._cluster.nodes.knows(node):
                self._put(node, self._snapshot(node))

    def _put(self, node: str, snapshot: NodeSnapshot) -> None:
        self._unindexed.discard(node)
        load = [self._load(node, snapshot)] if self._counts_load else []
        try:
            self._index.put(node, [*type_rows(snapshot), *load])
        except (RowError, PackedError):
            self._index.put(node, load)
            self._unindexed.add(node)

    def _load(self, node: str, snapshot: NodeSnapshot) -> TypeRow:
        return load_row(self._cluster.loads.allocatable(node), self._cluster.requested(node, snapshot.holdings))


def _turned_away(request: PodRequest, want: Want, count: int) -> Refusal:
    """Say in a few words how far a node is from a want."""
    if want.type in {CPU_ROW, NUMA_ROW}:
        where = " in one NUMA node" if want.type == NUMA_ROW else ""
        message = f"too few CPUs for {want.amounts[0][1]}{where}"
    else:
        ask = next(c.ask for c in request.containers if c.ask.type.name == want.type and want_of(c.ask) == want)
        message = f"{count} {plural(ask.type)} fit {describe(ask)}"
    return Refusal(message, short=message)
