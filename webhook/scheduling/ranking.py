"""Which nodes can hold a Pod, the best first: the index filters and orders all nodes, `place()` decides.

The index excludes no node that `place()` would accept, and orders the others; a node is named only after `place()` has
accepted it. The placement on a named node is assumed until the bind comes or some seconds have passed, so that the Pods
that follow are not sent to the same devices.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from allocator.bind import ENDING
from allocator.budget import Budget, Steps
from allocator.devices.words import fitting
from allocator.index.cluster import ClusterIndex
from allocator.index.packed import PackedError
from allocator.index.query import Want
from allocator.index.rows import CPU_ROW, NUMA_ROW, load_row, query_of, query_with_load, type_rows, want_of
from allocator.index.search import NodeFigures, NodeSearch
from allocator.index.table import RowError, TypeRow
from allocator.place import MAX_STEPS, place
from allocator.vocabulary.asks import MAX_MEMBERS, DeviceOrder, PodRequest, Preference, largest
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.mix import NO_MIX, Mix
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import at_once, with_breaks
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.fairness import CHEAP_STEPS, MAX_ENDED, MAX_S, Checkpoints, Effort
from webhook.scheduling.verdicts import PlaceVerdict, Verdicts
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

MAX_TOLD: Final = 16  # most nodes that get the full reason why the Pod does not fit
_SAMPLE: Final = 4  # of more excluded nodes than that, those that `place()` judges too at each call
_LONG: Final = f"one search lasts {MAX_S} s at most, and the next one goes on from here"
_SHARED_STEPS: Final = 100  # from which a refusal holds for all nodes that are alike; less is soon found out again
_ALIKE_STEPS: Final = 10  # to find such a refusal


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer for one Pod."""

    named: tuple[str, ...]  # nodes that can hold it, the best first, up to the requested number
    # if no node can, the reason for each. kube-scheduler reports these only for a Pod that fits nowhere.
    refused: Mapping[str, Refusal]
    # why not all nodes were judged; "" if they were. Of the nodes that were not, which may be thousands, only a few are
    # in `refused`.
    interrupted: str = ""

    def reasons(self) -> Iterator[tuple[str, bool, str]]:
        """Each refused node, whether permanently, and why: in full for few nodes, else in a few shared words."""
        full = len(self.refused) <= MAX_TOLD
        for node, refusal in self.refused.items():
            yield node, refusal.permanent, refusal.message if full or not refusal.short else refusal.short


class Ranking:
    """Filters and orders nodes.

    `assumed`: where Pods were sent that are not bound yet. `contradicted`: called with a request and a node that the
    index excludes and `place()` accepts. `order`: of devices, for Pods that name none; SMALLEST lets nodes compare by
    the sizes of their devices too. `counted`: the classes that count in the patent's preferences; empty for all. `mix`:
    says which requests are typical now, for the preference that asks for them.
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
        mix: Callable[[], Mix] = lambda: NO_MIX,
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
        self._by_fragments = preference is Preference.FRAGMENTATION
        self._partitioned = frozenset(kind.name for kind in types.types if kind.partitioned)
        self._now_typical, self._mix = mix, NO_MIX
        self._reloaded = cluster.loads.changes.reader() if self._counts_load else None
        self._version = 0  # counts changes of the index
        self._sampled = 0  # of excluded nodes, how many `place()` has judged so far

    def search(
        self, pod: PodInfo, names: Sequence[str], most: int | None, shunned: AbstractSet[str], effort: Effort
    ) -> Steps[Ranked]:
        """Find nodes for a Pod.

        A search that is ended names what it found. Where it found nothing, a few of the nodes that it did not judge are
        refused with that reason. What it judged is remembered, so that the next search for the Pod goes on from there.

        Others run while changed nodes are taken in. Nothing is read before none is left, and then in one step.
        `most`: the most nodes to name, the best; None names all that fit.
        """
        before = self.assumed.drop(pod.uid)  # filtered again, so the bind that was assumed will not come
        yield from self.take_in()
        # The index cannot exclude these: it lacks their amounts, or counts what the Pod itself holds there.
        open_to = self._unindexed.union(self._cluster.held.nodes_of(pod.uid))
        search, version = self._search(pod, names, open_to), self._version
        found = yield from self._judge_in_order(self._best_first(search, pod, before, shunned), pod, most, effort)
        if found.named:
            return found
        yield from self.take_in()
        if self._version != version:  # others ran meanwhile
            search = self._search(pod, names, open_to)
        away, accepted = yield from self._why_away(search, pod, effort)
        if accepted:
            return Ranked(tuple(accepted[:most]), {}, found.interrupted)
        refused = {**found.refused, **away}
        return _interrupted(names, refused, found.interrupted) if found.interrupted else Ranked((), refused)

    def _judge_in_order(self, order: Iterator[str], pod: PodInfo, most: int | None, effort: Effort) -> Steps[Ranked]:
        """Judge nodes until enough are found, or until the search is ended."""
        request = self.wanted(pod)
        named: list[str] = []
        refused: dict[str, Refusal] = {}
        kept, ended, checkpoints = False, 0, Checkpoints(effort)
        while (name := next(order, None)) is not None:
            outcome = self.verdict(name, request, pod.uid, effort)
            if not isinstance(outcome, Refusal):
                named.append(name)
                if most is not None and len(named) >= most:
                    break
            else:
                refused[name] = outcome
                ended += outcome.unfinished
                if effort.why and ended >= MAX_ENDED:
                    return Ranked(tuple(named), refused, effort.why)
            if checkpoints.due():
                if not kept:  # others may change the index
                    order, kept = iter(list(order)), True
                if (yield 0):
                    return Ranked(tuple(named), refused, effort.why or _LONG)
        return Ranked(tuple(named), {} if named else refused)

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

    def _search(self, pod: PodInfo, names: Sequence[str], open_to: Collection[str]) -> NodeSearch:
        query = query_with_load(pod.request, pod.requests) if self._counts_load else query_of(pod.request)
        if self._by_fragments and self._mix is not (mix := self._now_typical()):
            self._mix = mix
            self._index.typify(mix)
        return NodeSearch(self._index, query, names, open_to)

    def standing(self, pod: PodInfo, names: Sequence[str]) -> dict[str, int]:
        """Compare nodes for a Pod at once, as `compare` does."""
        return at_once(self.compare(pod, names, Effort()))

    def compare(self, pod: PodInfo, names: Sequence[str], effort: Effort) -> Steps[dict[str, int]]:
        """Compare nodes for a Pod as `search` orders them; what the Pod itself holds counts as free.

        A comparison that is ended leaves out the nodes that it did not judge.
        Returns for each node that can hold the Pod, how many levels of nodes are better; equally good ones have one
        number.
        """
        yield from self.take_in()
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
        fitting = {}
        checkpoints = Checkpoints(effort)
        for name, level in found.items():
            if not isinstance(self.verdict(name, request, pod.uid, effort), Refusal):
                fitting[name] = level
            if checkpoints.due() and (yield 0):
                break
        numbers = {level: number for number, level in enumerate(sorted({*fitting.values()}))}
        return {name: numbers[level] for name, level in fitting.items()}

    def parts(self, pod: PodInfo, names: Sequence[str]) -> dict[str, NodeFigures]:
        """The figures by which `compare` orders these nodes, of each that may hold a Pod that holds nothing yet."""
        self.catch_up()
        mates, waiting = self._gang(pod)
        search = self._search(pod, names, self._unindexed)
        return search.parts(self._preference, mates, waiting, smallest=self._smallest(pod))

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

    def keeps(self, pod: PodInfo, node: str, effort: Effort) -> bool:
        """Whether a Pod was sent to a node and still fits there; it is then expected there for as long again."""
        if self.assumed.node_of(pod.uid) != node:
            return False
        if isinstance(self.verdict(node, self.wanted(pod), pod.uid, effort), Refusal):
            return False
        self.assumed.renew(pod.uid)
        return True

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
        return mates, min(max(waiting, total - mates.total()), MAX_MEMBERS)

    def _why_away(
        self, search: NodeSearch, pod: PodInfo, effort: Effort
    ) -> Steps[tuple[dict[str, Refusal], list[str]]]:
        """Explain for each node that the index excludes why it does; in full where they are few.

        `place()` judges these nodes as well: all if they are few, otherwise some, others with each call.
        Returns the refusals, and the nodes that `place()` accepts nevertheless, by name; without a bug there are none.
        """
        away = sorted(search.away)
        few = len(away) <= MAX_TOLD
        judged = away if few else [away[(self._sampled + at) % len(away)] for at in range(_SAMPLE)]
        self._sampled += _SAMPLE
        shortfalls = list(search.shortfalls()) if away else []
        outcomes: dict[str, PlaceVerdict] = {}
        checkpoints = Checkpoints(effort)
        for name in judged:
            outcomes[name] = self.verdict(name, pod.request, pod.uid, effort)
            if checkpoints.due() and (yield 0):
                break
        refusals = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refusal)}
        accepted = sorted(outcomes.keys() - refusals.keys())
        for name in accepted:
            self._contradicted(pod.request, self._snapshot(name).without([pod.uid]))
        if len(outcomes) == len(away) or accepted:
            return refusals, accepted
        wants = query_of(pod.request).wants
        alike: dict[tuple[int, int], Refusal] = {}
        refused = {}
        for name, want, count in shortfalls:
            refusal = alike.get((want, count))
            if refusal is None:
                refusal = alike[want, count] = _turned_away(pod.request, wants[want], count)
            refused[name] = refusal
        refused |= {name: self._blocked_refusal(name) for name in self._blocked & refused.keys()}
        return refused, []

    def verdict(self, node: str, request: PodRequest, uid: str, effort: Effort | None = None) -> PlaceVerdict:
        """The verdict of `place()` on a request on a node; what the Pod itself holds there counts as free.

        `effort`: what a decision may take; what this one took is added to it.
        """
        effort = effort or Effort()
        self.catch_up()
        if node in self._blocked:
            return self._blocked_refusal(node)
        snapshot = self._snapshot(node)
        if uid in snapshot.holdings:
            if snapshot.holdings[uid].ending:
                return ENDING
            return _judge(request, snapshot.without([uid]), effort)[0]
        if not self._cluster.nodes.knows(node):
            return _judge(request, snapshot, effort)[0]  # no change would be published that makes it stale
        return self._remembered(request, snapshot, effort) or self._judged(request, snapshot, effort)

    def _remembered(self, request: PodRequest, node: NodeSnapshot, effort: Effort) -> PlaceVerdict | None:
        known = self._verdicts.get(request, node.name)
        if known is not None:
            effort.steps += 1
            return known
        told = self._verdicts.get_alike(request, node)
        effort.steps += _ALIKE_STEPS if told is not None else 0
        if told is None and effort.most_steps <= CHEAP_STEPS and self._verdicts.is_short(request, node.name):
            return _cut_short(node, effort)
        return told

    def _judged(self, request: PodRequest, node: NodeSnapshot, effort: Effort) -> PlaceVerdict:
        before = effort.steps
        outcome, certain = _judge(request, node, effort)
        if certain:
            self._verdicts.put(request, node.name, outcome)
            if isinstance(outcome, Refusal) and effort.steps - before >= _SHARED_STEPS:
                self._verdicts.put_alike(request, node, outcome)
        elif effort.most_steps >= CHEAP_STEPS:
            self._verdicts.put_short(request, node.name)
        return outcome

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
        """Take in what changed since the last call; every answer does this."""
        for _ in self.take_in():  # without `at_once`: this is asked for each node, and mostly has nothing to do
            pass

    async def catch_up_slowly(self) -> None:
        """Take in what changed, with breaks: at the start, and after many changes, these are all nodes.

        A node that changes during a break is taken in once more.
        """
        await with_breaks(self.take_in())

    def take_in(self) -> Steps[None]:
        """Take in what changed, and yield after each node; in the step in which it ends, nothing is left."""
        while True:
            for node in self._reassumed.drain():
                self._changed.note(node)  # so that a node that changed in both ways is looked at once
            if node := self._changed.take():
                self._snapshots.pop(node, None)
                self._verdicts.forget(node)
                (self._blocked.add if self._cluster.nodes.blocked(node) else self._blocked.discard)(node)
                if self._cluster.nodes.knows(node):
                    self._put(node, self._snapshot(node))
                else:
                    self._version += 1
                    self._index.drop(node)
                    self._unindexed.discard(node)
            elif node := self._reloaded.take() if self._reloaded is not None else "":
                if self._cluster.nodes.knows(node):
                    self._put(node, self._snapshot(node))
            else:
                return
            yield 0

    def _put(self, node: str, snapshot: NodeSnapshot) -> None:
        self._version += 1
        self._unindexed.discard(node)
        load = [self._load(node, snapshot)] if self._counts_load else []
        try:
            rows = type_rows(snapshot, makes_and_groups=self._by_fragments, partitioned=self._partitioned)
            self._index.put(node, [*rows, *load])
        except (RowError, PackedError):
            self._index.put(node, load)
            self._unindexed.add(node)

    def _load(self, node: str, snapshot: NodeSnapshot) -> TypeRow:
        return load_row(self._cluster.loads.allocatable(node), self._cluster.requested(node, snapshot.holdings))


def _interrupted(names: Sequence[str], refused: Mapping[str, Refusal], why: str) -> Ranked:
    """The answer of a search that found nothing: of the nodes that were not judged, a few say why."""
    text = f"the search ended after {len(refused)} of {len(names)} nodes, before this one: {why}"
    others = islice((name for name in names if name not in refused), MAX_TOLD)
    told = dict.fromkeys(others, Refusal(text, short=text, unfinished=True))
    return Ranked((), {**refused, **told}, why)


def _judge(request: PodRequest, node: NodeSnapshot, effort: Effort) -> tuple[PlaceVerdict, bool]:
    """Judge a node; returns the verdict, and whether it is the one that the bind will get.

    With fewer steps than the bind has, it is only if these sufficed for all that the decision wanted to look at.
    """
    budget = Budget(effort.most_steps)
    outcome = place(request, node, None, budget)
    effort.steps += int(effort.most_steps - budget.left)
    if not budget.short or effort.most_steps >= MAX_STEPS:
        return outcome, True
    return _cut_short(node, effort), False


def _cut_short(node: NodeSnapshot, effort: Effort) -> Refusal:
    """The refusal of a Pod for whose namespace more steps would be needed than it has."""
    return Refusal(f"{node.name}: {effort.why}", short=effort.why, unfinished=True)


def _turned_away(request: PodRequest, want: Want, count: int) -> Refusal:
    """Say in a few words how far a node is from a want."""
    if want.type in {CPU_ROW, NUMA_ROW}:
        where = " in one NUMA node" if want.type == NUMA_ROW else ""
        message = f"too few CPUs for {want.amounts[0][1]}{where}"
    else:
        ask = next(c.ask for c in request.containers if c.ask.type.name == want.type and want_of(c.ask) == want)
        message = fitting(count, ask)
    return Refusal(message, short=message)
