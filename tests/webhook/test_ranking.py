"""Which nodes a Pod may go to, best first: as `place()` and the preference say of every node, through any history."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import machines_cpu
import pytest
from builders import GIB, app, ask, gpu, gpus, holding, part, request
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import asks, device_lists
from trials import examples
from world import BEGINNING, rank

from allocator.index.cluster import ClusterIndex
from allocator.index.preference import FIGURES, Filled
from allocator.index.rows import CPU_ROW, query_of, type_rows
from allocator.place import Placement, place
from allocator.request.devices import _hinted
from allocator.vocabulary.asks import (
    UNSTATED,
    ContainerAsk,
    DeviceAsk,
    DeviceOrder,
    ExclusiveLevel,
    GangSize,
    Joint,
    Operator,
    PartitionSpec,
    PodRequest,
    Preference,
    Requirement,
    Scope,
    Selector,
    Strategy,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.cpunode import BindPolicy, CpuAsk, ExclusivePolicy, NumaExclusive, NumaPolicy, QosClass
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.device import Device, Place, VirtualFunction, link
from allocator.vocabulary.devicetype import BUILT_IN, FPGA_TYPE, FULL, RDMA_TYPE, DeviceType, Unit, own_type
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_ORDER, Phase
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import KubeletCpus, NodeTopology, NumaZone
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import MemoryStore, Record
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.contradiction import Contradictions, compact
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.scheduling.verdicts import Verdicts
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.nodes import NodeFacts
from webhook.view.podinfo import OtherPod, PodInfo

NPU = own_type("npu", "example.com/npu", Unit.DEVICES, "NPU_VISIBLE_DEVICES")
QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
DISK = own_type("disk", "example.com/disk", Unit.PERCENT)
CPU_TYPE = own_type("cpu", "example.com/cpu", Unit.DEVICES)  # an administrator may call one so
TYPES = BUILT_IN.with_types((NPU, QUEUE, DISK, CPU_TYPE))
EXCLUSIVE = [policy for policy in ExclusivePolicy if policy is not ExclusivePolicy.DEFAULT]  # which reads as None
KEEP_S = 5.0
REQUESTS = (("cpu", 2000), ("memory", GIB), ("pods", 1))  # of each Pod of ours
LEVEL = 10  # nodes whose scores differ by less are equally good
SMALL = machines_cpu.build(1, 1, 2, 2, machines_cpu.siblings_far)
TWO_NODES = machines_cpu.build(2, 1, 2, 2, machines_cpu.siblings_near)


class Clock:
    """A clock in seconds; only the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ranking_of(view: ClusterView, preference: Preference = Preference.PACKING, clock: Clock | None = None) -> Ranking:
    return Ranking(view, TYPES, preference, Assumed(clock or Clock(), KEEP_S))


def asking(of: PodRequest, uid: str = "new", node: str = "") -> PodInfo:
    """A Pod that asks this."""
    return PodInfo(uid, "default", f"pod-{uid}", node, False, False, "koord-scheduler", True, of, requests=REQUESTS)


@dataclass
class Model:
    """A cluster as plain data, from which a view can be made at any time.

    Attributes:
        nodes: labels and software classes.
        devices: the Device objects.
        topologies: the NodeResourceTopologies.
        held: the ledger.
        loads: by node, the CPUs and the GiB of memory that it has, and of each what one Pod of others requests.
        blocked: nodes whose record cannot be read.
    """

    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    devices: dict[str, NodeDevices] = field(default_factory=dict)
    topologies: dict[str, NodeTopology] = field(default_factory=dict)
    held: dict[str, dict[str, Holding]] = field(default_factory=dict)
    loads: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)

    def view(self) -> ClusterView:
        seen = SeenObjects(lambda: BEGINNING)
        made = ClusterView(seen, Ledger(MemoryStore(), watched=seen.changes.touch))
        for name in sorted({*self.nodes, *self.devices, *self.topologies, *self.held, *self.loads, *self.blocked}):
            self.show(made, name)
        return made

    def show(self, view: ClusterView, name: str) -> None:
        """Report everything about a node to a view."""
        if name in self.nodes:
            view.nodes.put(name, self.nodes[name])
        else:
            view.nodes.drop(name)
        if name in self.devices:
            view.nodes.put_devices(self.devices[name])
        else:
            view.nodes.drop_devices(name)
        if name in self.topologies:
            view.nodes.put_topology(self.topologies[name])
        else:
            view.nodes.drop_topology(name)
        if name in self.blocked:
            view.nodes.block(name, self.blocked[name])
        else:
            view.nodes.unblock(name)
        cpus, memory, taken = self.loads.get(name, (0, 0, 0))
        view.loads.put_node(name, {"cpu": 1000 * cpus, "memory": GIB * memory} if cpus else {})
        other = (("cpu", 1000 * taken), ("memory", GIB * taken), ("pods", 1))
        made = OtherPod.requesting(f"uid-{name}", name if cpus else "", other)
        view.pods.put_other("default", f"other-{name}", made)
        ledger = view.held
        assert isinstance(ledger, Ledger)
        record = ledger.record(name)
        if dict(record.holdings) != self.held.get(name, {}):
            ledger.observe(Record(name, (record.revision or 0) + 1, dict(self.held.get(name, {}))))

    def give(self, name: str, of: PodRequest, uid: str) -> None:
        """Let a Pod hold its placement by `place()`, if there is one."""
        placed = place(of, self.view().snapshot(name))
        if isinstance(placed, Placement):
            held = Holding(uid, "default", f"pod-{uid}", 0, placed.shares, placed.cpus, of.wishes.gang)
            self.held.setdefault(name, {})[uid] = held


def device(kind: DeviceType, minor: int, amount: int = FULL, **about: object) -> Device:
    made = Device(kind.name, f"{kind.name}-{minor}", minor, healthy=True, capacity={kind.tails[0]: amount})
    return replace(made, **about)  # type: ignore[arg-type] # fields of a Device


def of_node(name: str, devices: Iterable[Device], kubelet: Iterable[str] = ()) -> NodeDevices:
    ordered = sorted(devices, key=lambda one: (one.type, one.order))
    return NodeDevices(name, tuple(ordered), frozenset(kubelet))


def topology_of(name: str, cpu: CpuTopology, reserved: int = 0, policy: NumaPolicy = NumaPolicy.NONE) -> NodeTopology:
    has = {at: {"cpu": 1000 * cpus.bit_count(), "memory": 8 * GIB} for at, cpus in cpu.nodes.items()}
    zones = {at: NumaZone(amounts, amounts) for at, amounts in has.items()}
    return NodeTopology(name, cpu, kubelet=KubeletCpus(reserved=reserved), numa_policy=policy, zones=zones)


# --- random clusters and requests


@st.composite
def node_devices(draw: st.DrawFn, name: str) -> NodeDevices:
    """Devices of several types, in NUMA nodes and on PCIe roots; some are unusable."""

    def placed(one: Device) -> Device:
        return replace(
            one,
            numa_node=draw(st.sampled_from([None, 0, 1])),
            pcie=draw(st.sampled_from([None, "a", "b"])),
            healthy=one.healthy and draw(st.integers(0, 7)) > 0,
        )

    devices = [placed(one) for one in (draw(device_lists(4)) if draw(st.booleans()) else [])]
    for kind, amounts in (
        (RDMA_TYPE, [FULL]),
        (NPU, [FULL]),
        (DISK, [FULL, 50]),
        (QUEUE, [1, 5, 40]),
        (CPU_TYPE, [FULL]),
    ):
        for minor in range(draw(st.integers(0, 2))):
            made = placed(device(kind, minor, draw(st.sampled_from(amounts))))
            if kind is RDMA_TYPE:
                functions = [
                    VirtualFunction(at, f"{minor}:{at}", {"net": "a"}) for at in range(draw(st.integers(0, 2)))
                ]
                made = replace(made, functions=tuple(functions))
            devices.append(made)
    ids = [one.id for one in devices]
    kubelet = draw(st.lists(st.sampled_from(ids), max_size=1)) if ids and draw(st.integers(0, 3)) == 0 else []
    return of_node(name, devices, kubelet)


@st.composite
def topologies(draw: st.DrawFn, name: str) -> NodeTopology:
    cpu = draw(st.sampled_from([SMALL, TWO_NODES]))
    reserved = draw(st.sampled_from([0, 0, 1, 0b110]))
    return topology_of(name, cpu, reserved, draw(st.sampled_from([NumaPolicy.NONE, NumaPolicy.NONE, *NumaPolicy])))


@st.composite
def cpu_asks(draw: st.DrawFn) -> CpuAsk:
    own = draw(st.booleans())
    count = draw(st.integers(1, 9)) if own else 0
    required = draw(st.sampled_from([None, None, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])) if own else None
    policy = draw(st.sampled_from([None, *NumaPolicy]))
    return CpuAsk(
        qos=draw(st.sampled_from([QosClass.LSE, QosClass.LSR])) if own else QosClass.LS,
        count=count,
        milli=count * 1000 or draw(st.sampled_from([500, 3000, 20_000])),
        memory=draw(st.sampled_from([0, GIB, 9 * GIB, 100 * GIB])),
        required=required,
        preferred=required,
        exclusive=draw(st.sampled_from([None, *EXCLUSIVE])) if own else None,
        numa_policy=None if policy is NumaPolicy.NONE else policy,
        single_numa_exclusive=draw(st.sampled_from([None, *NumaExclusive])),
    )


def plain_asks() -> st.SearchStrategy[DeviceAsk]:
    """Requests for types with one amount."""
    parts = st.sampled_from([1, 30, 50, 100])
    return st.one_of(
        *(
            st.builds(DeviceAsk, st.just(kind), st.integers(1, 2), st.tuples(parts))
            for kind in (RDMA_TYPE, FPGA_TYPE, DISK)
        ),
        *(st.builds(DeviceAsk, st.just(kind), st.integers(1, 2), st.just((FULL,))) for kind in (NPU, CPU_TYPE)),
        st.builds(DeviceAsk, st.just(QUEUE), st.just(1), st.tuples(st.sampled_from([1, 3, 5, 41, 2**62]))),
        st.builds(DeviceAsk, st.just(RDMA_TYPE), st.just(1), st.tuples(parts), st.just(True)),
    )


def hints(kind: DeviceType) -> st.SearchStrategy[TypeHint]:
    """Any hint for the type."""
    minors = Selector((Requirement("koordgate.io/minor", Operator.IN, ("0", "1", "2")),))
    net = Selector((Requirement("net", Operator.EXISTS),))
    return st.builds(
        TypeHint,
        selector=st.sampled_from([None, None, minors]),
        functions=st.sampled_from([None, net, Selector()] if kind is RDMA_TYPE else [None]),
        strategy=st.sampled_from([None, None, *Strategy] if len(kind.tails) == 1 else [None]),
        scope=st.sampled_from([None, None, *Scope]),
        exclusive=st.sampled_from([None, *ExclusiveLevel]),
    )


@st.composite
def wishes(draw: st.DrawFn, kinds: list[DeviceType]) -> Wishes:
    """Any wishes of a Pod for these types: hints, joint types, partitions, an order, a gang."""
    names = [kind.name for kind in kinds]
    joint = draw(st.none() | st.builds(Joint, st.permutations(names).map(tuple), st.booleans()))
    return Wishes(
        hints=tuple((kind.name, draw(hints(kind))) for kind in kinds if draw(st.integers(0, 3))),
        joint=joint if len(kinds) > 1 else None,
        partition=draw(st.sampled_from([None, None, None, PartitionSpec()])),
        order=draw(st.sampled_from(["", "", "leastUsed", "minor"])),
        gang=draw(st.sampled_from(["", "", "default/g"])),
        waiting=draw(st.sampled_from([0, 0, 1, 3])),
    )


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """Containers of every phase, each requesting one or two types; CPUs; wishes."""
    phases = sorted(draw(st.lists(st.sampled_from(list(Phase)), max_size=3)), key=lambda phase: phase is Phase.APP)
    containers = [
        ContainerAsk(f"c{index}", phase, of)
        for index, phase in enumerate(phases)
        for of in draw(st.lists(asks(3) | plain_asks(), min_size=1, max_size=2, unique_by=lambda one: one.type.name))
    ]
    if not containers:
        return PodRequest((), draw(cpu_asks()))
    return draw(wished(containers, wishful=draw(st.booleans())))


@st.composite
def wished(draw: st.DrawFn, containers: list[ContainerAsk], *, wishful: bool = True) -> PodRequest:
    """A Pod of these containers, with or without wishes and CPUs."""
    kinds = list(PodRequest(tuple(containers)).types())
    how = draw(wishes(kinds)) if wishful else Wishes()
    spread = [replace(one, ask=_hinted(one.ask, how.hint(one.ask.type.name))) for one in containers]
    return PodRequest(tuple(spread), draw(st.none() | cpu_asks()), how)


def single_requests() -> st.SearchStrategy[PodRequest]:
    """Pods of one container that requests one type: the effect of each wish by itself."""
    one = (asks(3) | plain_asks()).map(lambda of: [ContainerAsk("main", Phase.APP, of)])
    return one.flatmap(wished)


NAMES = ("n1", "n2", "n3", "bare")
CANDIDATES = [*NAMES, "nowhere"]


Change = Callable[[Model], str]


def put_devices(made: NodeDevices) -> Change:
    def happen(model: Model) -> str:
        model.devices[made.node] = made
        return made.node

    return happen


def turn(name: str, minor: int) -> Change:
    """A device becomes unhealthy, or recovers."""

    def happen(model: Model) -> str:
        there = model.devices.get(name, of_node(name, ()))
        listed = [replace(one, healthy=one.healthy is not (one.minor == minor)) for one in there.devices]
        model.devices[name] = replace(there, devices=tuple(listed))
        return name

    return happen


def put_topology(name: str, topology: NodeTopology | None) -> Change:
    def happen(model: Model) -> str:
        model.topologies.pop(name, None)
        if topology is not None:
            model.topologies[name] = topology
        return name

    return happen


def put_node(name: str, order: str, classes: tuple[Device, ...]) -> Change:
    def happen(model: Model) -> str:
        model.nodes[name] = NodeFacts({DEVICE_ORDER: order}, classes)
        return name

    return happen


def bind(name: str, of: PodRequest, uid: str) -> Change:
    def happen(model: Model) -> str:
        model.give(name, of, uid)
        return name

    return happen


def release(name: str, uid: str) -> Change:
    def happen(model: Model) -> str:
        model.held.get(name, {}).pop(uid, None)
        return name

    return happen


def load(name: str, figures: tuple[int, int, int]) -> Change:
    def happen(model: Model) -> str:
        model.loads[name] = figures
        return name

    return happen


def go(name: str) -> Change:
    def happen(model: Model) -> str:
        kept: tuple[dict[str, Any], ...] = (model.nodes, model.devices, model.topologies, model.held, model.loads)
        for one in kept:
            one.pop(name, None)
        return name

    return happen


def block(name: str) -> Change:
    """A record becomes unreadable, or readable again."""

    def happen(model: Model) -> str:
        if model.blocked.pop(name, None) is None:
            model.blocked[name] = "spoilt"
        return name

    return happen


LOADS = st.tuples(st.sampled_from([4, 8]), st.sampled_from([16, 32]), st.sampled_from([0, 1, 4, 9]))
THERE, UIDS = st.sampled_from(NAMES[:3]), st.sampled_from("abcdef")
CHANGES = st.one_of(
    st.builds(bind, THERE, requests(), UIDS),
    st.builds(bind, THERE, requests(), UIDS),
    st.builds(release, THERE, UIDS),
    st.builds(turn, THERE, st.integers(0, 2)),
    THERE.flatmap(node_devices).map(put_devices),
    THERE.flatmap(lambda name: st.builds(put_topology, st.just(name), st.none() | topologies(name))),
    st.builds(
        put_node, THERE, st.sampled_from(["", "minor", "leastUsed"]), st.sampled_from([(), (device(QUEUE, 9, 10),)])
    ),
    st.builds(load, THERE, LOADS),
    st.builds(go, THERE),
    st.builds(block, THERE),
)


@st.composite
def models(draw: st.DrawFn) -> Model:
    model = Model()
    for name in NAMES:
        model.nodes[name] = NodeFacts({})
    for name in NAMES[:3]:
        model.devices[name] = draw(node_devices(name))
        if draw(st.booleans()):
            model.topologies[name] = draw(topologies(name))
    for change in draw(st.lists(CHANGES, max_size=5)):
        change(model)
    return model


# --- the ranking compared with `place()`, `score()` and a new ranking


def judged(view: ClusterView, of: PodRequest, names: Iterable[str] = CANDIDATES, uid: str = "new") -> dict[str, bool]:
    """The answer of `place()` for each node; nothing fits on a blocked one."""
    return {
        name: not view.nodes.blocked(name) and isinstance(place(of, view.snapshot(name).without([uid])), Placement)
        for name in names
    }


@given(models(), requests() | single_requests(), st.sampled_from(list(Preference)))
@settings(max_examples=examples(100))
def test_a_node_that_place_takes_is_named_and_one_that_it_refuses_is_not(
    model: Model, of: PodRequest, preference: Preference
) -> None:
    ranking = ranking_of(model.view(), preference)
    named = rank(ranking, asking(of), CANDIDATES, None).named
    fits = judged(model.view(), of)
    assert sorted(named) == sorted(name for name, fit in fits.items() if fit)
    away = [name for name, fit in fits.items() if not fit]
    ranked = rank(ranking, asking(of), away, None)
    assert sorted(ranked.refused) == sorted(away)
    assert all(reason for _, _, reason in ranked.reasons())


@given(models(), requests(), st.sampled_from("abc"))
@settings(max_examples=40)
def test_what_a_pod_holds_already_counts_as_free_for_it(model: Model, of: PodRequest, uid: str) -> None:
    model.give("n1", of, uid)
    ranked = rank(ranking_of(model.view()), asking(of, uid), CANDIDATES, None)
    fits = judged(model.view(), of, uid=uid)
    assert sorted(ranked.named) == sorted(name for name, fit in fits.items() if fit)


@given(models(), requests(), st.integers(1, 4))
@settings(max_examples=40)
def test_the_first_few_are_the_first_of_all(model: Model, of: PodRequest, most: int) -> None:
    ranking = ranking_of(model.view())
    named = rank(ranking, asking(of), CANDIDATES, None).named
    few = rank(ranking, asking(of), CANDIDATES, most)
    assert few.named == named[:most]
    assert bool(few.refused) == (not named)


STEPS = st.lists(
    st.tuples(st.lists(CHANGES, min_size=1, max_size=2), requests()),
    min_size=1,
    max_size=3,
)


@given(models(), STEPS, st.sampled_from(list(Preference)))
@settings(max_examples=60)
def test_after_any_changes_a_ranking_is_as_a_new_one(
    model: Model, steps: list[tuple[list[Change], PodRequest]], preference: Preference
) -> None:
    view = model.view()
    ranking = ranking_of(view, preference)
    for happened, of in steps:
        for change in happened:
            model.show(view, change(model))
        for most in (None, 2):
            ranked = rank(ranking, asking(of), CANDIDATES, most)
            anew = rank(ranking_of(model.view(), preference), asking(of), CANDIDATES, most)
            assert ranked == anew
        view.check_invariants()


SHARES = st.sampled_from([25, 50, 100])


@st.composite
def like_nodes(draw: st.DrawFn) -> Model:
    """Nodes of one make each, with ordinary Pods on them or not."""
    model = Model()
    for number in range(draw(st.integers(1, 6))):
        name = f"n{draw(st.integers(10, 99))}-{number}"
        cards = [
            gpu(minor, 400 * GIB // 4, device_id=f"{name}-{minor}") for minor in range(draw(st.sampled_from([1, 2, 4])))
        ]
        nics = [device(RDMA_TYPE, minor, id=f"{name}-nic-{minor}") for minor in range(2)]
        model.devices[name] = of_node(name, [*cards, *nics])
        for uid in range(draw(st.integers(0, 5))):
            of = request(app("main", gpus(draw(SHARES))))
            model.give(name, of, f"{name}-{uid}")
        if draw(st.integers(0, 3)):
            model.loads[name] = draw(LOADS)
    return model


PLAIN = st.one_of(
    SHARES.map(gpus),
    st.sampled_from([gpus(200), gpus(400), ask(2, core=50, ratio=50)]),
    st.sampled_from([DeviceAsk(RDMA_TYPE, 1, (50,)), DeviceAsk(RDMA_TYPE, 2, (100,))]),
)


def packed(view: ClusterView, asked: PodRequest, names: Iterable[str]) -> dict[str, int]:
    """How tightly each node is packed with the Pod, in the levels that count; the index's tests compute the scores."""
    index = ClusterIndex({kind.name: fullness(kind) for kind in TYPES.types})
    for name in names:
        index.put(name, type_rows(view.snapshot(name)))
    scores = index.packing(index.positions(list(names)), query_of(asked)).tolist()
    return {name: score // LEVEL for name, score in zip(names, scores, strict=True)}


@given(like_nodes(), PLAIN)
@settings(max_examples=examples(80))
def test_packing_puts_the_best_first_and_of_equals_the_first_by_name(model: Model, of: DeviceAsk) -> None:
    asked = request(app("main", of))
    view = model.view()
    ranking = ranking_of(view)
    named = rank(ranking, asking(asked), list(model.devices), None).named
    levels = packed(view, asked, named)
    assert list(named) == sorted(named, key=lambda name: (-levels[name], name))
    standing = ranking.standing(asking(asked), [*model.devices, "nowhere"])
    assert sorted(standing) == sorted(named)
    assert list(named) == sorted(named, key=lambda name: (standing[name], name))
    assert {*standing.values()} == {*range(len({*standing.values()}))}, "levels are numbered from 0, none left out"


def classes_after(model: Model, view: ClusterView, name: str, placed: Placement) -> list[Filled]:
    """Each class of a node with the Pod on it, recounted: its devices' and what it has for all Pods."""
    on = view.snapshot(name)
    on = on.with_holding(Holding("new", "default", "new", 0, placed.shares))
    classes = []
    for kind in (BUILT_IN.by_name["gpu"], RDMA_TYPE):
        usable = [one for one in on.devices if one.type == kind.name and on.is_usable(one)]
        for tail in fullness(kind):
            total = sum(one.capacity[tail] for one in usable)
            classes.append(Filled(total - sum(on.free(one, (tail,))[0] for one in usable), total))
    cpus, memory, taken = model.loads.get(name, (0, 0, 0))
    classes.append(Filled(min(1000 * taken + 2000, 1000 * cpus), 1000 * cpus))
    classes.append(Filled(min(taken + 1, memory) * GIB, memory * GIB))
    return classes


@given(like_nodes(), PLAIN, st.sampled_from(list(FIGURES)))
@settings(max_examples=examples(120))
def test_the_patents_preferences_put_the_exactly_best_first(model: Model, of: DeviceAsk, way: Preference) -> None:
    asked = request(app("main", of))
    view = model.view()
    ranking = Ranking(view, TYPES, way, Assumed(Clock(), KEEP_S), order=DeviceOrder.MINOR)
    named = rank(ranking, asking(asked), list(model.devices), None).named
    exact = {}
    for name in named:
        placed = place(asked, view.snapshot(name))
        assert isinstance(placed, Placement)
        exact[name] = FIGURES[way](classes_after(model, view, name, placed))
    assert list(named) == sorted(named, key=lambda name: (exact[name], name))
    numbers = {figure: number for number, figure in enumerate(sorted(set(exact.values())))}
    assert ranking.standing(asking(asked), list(model.devices)) == {
        name: numbers[figure] for name, figure in exact.items()
    }


def loaded(count: int) -> Model:
    """Nodes of two cards, 8 CPUs and 32 GiB."""
    model = many(count, cards=2)
    model.loads = dict.fromkeys(model.devices, (8, 32, 0))
    return model


LEAST = Preference.LEAST_REQUESTED


def test_ordinary_pods_that_come_and_go_change_the_order() -> None:
    model = loaded(3)
    view = model.view()
    names, of = list(model.devices), request(app("main", gpus(50)))
    rankings = {way: ranking_of(view, way) for way in (LEAST, Preference.PACKING)}
    told = []
    for n00, n01 in ((0, 0), (7, 0), (7, 6), (0, 6)):
        model.loads |= {"n00": (8, 32, n00), "n01": (8, 32, n01)}
        for name in names:
            model.show(view, name)
        told.append([rank(rankings[way], asking(of), names, 1).named[0] for way in rankings])
    assert told == [["n00", "n00"], ["n01", "n00"], ["n02", "n00"], ["n00", "n00"]]


def test_only_the_classes_of_the_settings_count() -> None:
    model = loaded(3)
    model.loads |= {"n00": (8, 32, 7), "n01": (64, 32, 2)}
    model.give("n02", request(app("main", gpus(50))), "other")
    names, of = list(model.devices), request(app("main", gpus(50)))
    first = {}
    for counted in ((), ("gpu",), ("memory",), ("cpu",), ("rdma",)):
        ranking = Ranking(model.view(), TYPES, LEAST, Assumed(Clock(), KEEP_S), counted=counted)
        first[counted] = rank(ranking, asking(of), names, 1).named[0]
    assert first == {(): "n01", ("gpu",): "n00", ("memory",): "n02", ("cpu",): "n01", ("rdma",): "n02"}


def test_what_a_pod_requests_counts_from_the_moment_it_is_sent_somewhere() -> None:
    model = loaded(3)
    model.loads["n02"] = (8, 32, 3)
    view, names = model.view(), list(model.devices)
    ranking = ranking_of(view, LEAST)
    sent = []
    for number in range(5):
        pod = asking(request(app("main", gpus(1))), f"p{number}")
        view.pods.put(pod)
        sent.append(send(ranking, pod, names))
        if number == 0:
            ranking.assumed.drop(pod.uid, "n00")  # the bind is decided: the ledger says so before the Pod does
            model.give("n00", pod.request, pod.uid)
            model.show(view, "n00")
    assert sent == ["n00", "n01", "n00", "n01", "n02"]
    shares = model.held["n00"]["p0"].shares
    view.pods.put(replace(asking(request(app("main", gpus(1))), "p0"), node="n00", shares=shares))
    assert ranking.standing(asking(request(app("main", gpus(1)))), names) == {"n00": 0, "n01": 0, "n02": 1}


def test_the_company_of_its_gang_precedes_what_is_requested() -> None:
    model = loaded(4)
    model.loads |= {"n00": (8, 32, 2), "n01": (8, 32, 7), "n02": (8, 32, 6), "n03": (8, 32, 1)}
    view, names = model.view(), list(model.devices)
    for number, node in enumerate(["n01", "n02", "", ""]):
        view.pods.put(replace(pod_of(f"p{number}", gang="default/g"), node=node))
    expected = {LEAST: ("n02", "n01", "n03", "n00"), Preference.MOST_BALANCED: ("n01", "n02", "n00", "n03")}
    for way, order in expected.items():
        ranking = ranking_of(view, way)
        pod = pod_of("p3", gang="default/g")
        assert rank(ranking, pod, names, None).named == order
        assert rank(ranking, pod, names, 1).named == order[:1]
        assert ranking.standing(pod, names) == {name: number for number, name in enumerate(order)}


def test_of_equally_good_nodes_the_one_comes_first_that_opens_the_smallest_device() -> None:
    model = loaded(3)
    for name, memory in (("n00", 80), ("n01", 16), ("n02", 24)):
        model.devices[name] = of_node(name, [gpu(0, memory * GIB, device_id=name)])
    names, of = list(model.devices), asking(request(app("main", gpus(50))))
    for way in FIGURES:
        assert rank(ranking_of(model.view(), way), of, names, None).named == ("n01", "n02", "n00")
        ranking = Ranking(model.view(), TYPES, way, Assumed(Clock(), KEEP_S), order=DeviceOrder.MOST_USED)
        assert rank(ranking, of, names, None).named == ("n00", "n01", "n02")
        assert ranking.standing(of, names) == dict.fromkeys(names, 0)


def test_a_pod_that_asks_for_cpus_alone_goes_where_least_is_requested() -> None:
    names = ["n1", "n2", "n3"]
    model = Model(topologies={name: topology_of(name, TWO_NODES) for name in names})
    model.loads = {"n1": (8, 32, 4), "n2": (8, 32, 1), "n3": (4, 32, 0)}
    of = PodRequest((), CpuAsk(QosClass.LSR, 2, 2000, 0))
    assert rank(ranking_of(model.view(), LEAST), asking(of), names, None).named == ("n2", "n3", "n1")


def test_a_node_that_place_alone_can_judge_is_compared_by_what_is_known_of_it() -> None:
    model = Model(devices={name: of_node(name, [device(QUEUE, 0, 2**60)]) for name in ("n1", "n2")})
    model.loads = {"n1": (8, 32, 4), "n2": (8, 32, 1)}
    of = asking(request(app("main", DeviceAsk(QUEUE, 1, (1,)))))
    ranking = ranking_of(model.view(), LEAST)
    assert rank(ranking, of, ["n1", "n2"], None).named == ("n2", "n1")
    assert ranking.standing(of, ["n1", "n2"]) == {"n2": 0, "n1": 1}


def test_nodes_that_place_alone_refuses_leave_no_gap_in_the_levels() -> None:
    """The index knows nothing of hints: for it the node without the wanted card is the best."""
    model = loaded(3)
    model.devices["n00"] = of_node("n00", [gpu(0, device_id="n00-0")])
    model.loads |= {"n01": (8, 32, 8), "n02": (8, 32, 9)}
    second = TypeHint(selector=Selector((Requirement("koordgate.io/minor", Operator.IN, ("1",)),)))
    of = asking(replace(request(app("main", gpus(50))), wishes=Wishes(hints=(("gpu", second),))))
    ranking = ranking_of(model.view(), LEAST)
    assert ranking.standing(asking(request(app("main", gpus(50)))), ["n00", "n01", "n02"])["n00"] == 0
    assert ranking.standing(of, ["n00", "n01", "n02"]) == {"n01": 0, "n02": 1}


def test_what_a_pod_holds_itself_does_not_count_where_nodes_are_compared() -> None:
    for way in Preference:
        model = loaded(3)
        model.give("n01", request(app("main", gpus(50))), "other")
        view, names, pod = model.view(), list(model.devices), asking(request(app("main", gpus(100))))
        view.pods.put(pod)
        ranking = ranking_of(view, way)
        other, before = asking(pod.request, "more"), ranking.standing(pod, names)
        assume(ranking, pod, "n02")
        assert ranking.standing(pod, names) == before
        sent = ranking.standing(other, names)
        assert sent != before
        model.give("n00", pod.request, pod.uid)
        model.show(view, "n00")
        assert ranking.standing(pod, [*names, "nowhere"]) == before
        assert ranking.standing(other, names) != sent


def test_among_many_excluded_nodes_a_wrong_one_is_found_within_some_calls() -> None:
    """The index is corrupted by hand, because no operation is known that corrupts it."""
    model = many(100)
    model.devices["n60"] = of_node("n60", [gpu(at, device_id=f"n60-{at}") for at in range(2)])
    counted: list[int] = []
    found = Contradictions(lambda: counted.append(1))
    ranking = Ranking(model.view(), TYPES, Preference.PACKING, Assumed(Clock(), KEEP_S), found)
    ranking.catch_up()
    ranking._index.put("n60", ())
    of = request(app("main", gpus(200)))
    answers = [rank(ranking, asking(of), list(model.devices), 1).named for _ in range(100 // 4)]
    assert sorted(answers) == [()] * 24 + [("n60",)]
    assert counted == [1]


def test_a_node_that_the_index_wrongly_excludes_is_offered_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The index is corrupted by hand, because no operation is known that corrupts it."""
    model = many(4)
    counted: list[int] = []
    view = model.view()
    found = Contradictions(lambda: counted.append(1))
    ranking = Ranking(view, TYPES, Preference.PACKING, Assumed(Clock(), KEEP_S), found)
    of = request(app("main", gpus(100)))
    names = sorted(model.devices, reverse=True)
    ranking.catch_up()
    for name in names[:3]:
        ranking._index.put(name, ())
    assert rank(ranking, asking(of), names, None).named == ("n00",), "who is found needs no explanation"
    assert counted == []
    ranking._index.put("n00", ())
    assert rank(ranking, asking(of), names, None) == Ranked(("n00", "n01", "n02", "n03"), {})
    assert rank(ranking, asking(of), names, 1) == Ranked(("n00",), {})
    assert len(counted) == 8
    lines = [record.__dict__ for record in caplog.records if record.levelname == "ERROR"]
    assert [line["node"] for line in lines] == ["n00", "n01", "n02", "n03"], "each is logged once"
    node = json.loads(lines[0]["snapshot"])
    assert (node["name"], node["devices"][0]["id"]) == ("n00", "n00-0")
    assert json.loads(lines[0]["request"])["containers"][0]["ask"] == {
        "type": "gpu",
        "count": 1,
        "amounts": [100, None, 100],
    }


@given(models(), requests() | single_requests())
@settings(max_examples=40)
def test_any_request_and_node_can_be_written_down(model: Model, of: PodRequest) -> None:
    assert json.loads(compact(of, 10**6)).keys() <= {"containers", "cpu", "wishes"}
    for name in CANDIDATES:
        assert json.loads(compact(model.view().snapshot(name), 10**6))["name"] == name


def test_a_log_line_names_what_is_held_and_leaves_defaults_out() -> None:
    shares = (Share("gpu", "GPU-1", 1, {"gpu-core": 50}), Share("gpu", "GPU-2", 2, {}, ("a", "b"), alone=True))
    written = json.loads(compact(Holding("uid-1", "team", "train", 7, shares)))
    first = {"type": "gpu", "id": "GPU-1", "minor": 1, "amounts": {"gpu-core": 50}}
    second = {"type": "gpu", "id": "GPU-2", "minor": 2, "amounts": {}, "containers": ["a", "b"], "alone": True}
    assert written == {"uid": "uid-1", "namespace": "team", "name": "train", "since": 7, "shares": [first, second]}


def test_what_is_written_down_is_bounded() -> None:
    text = compact(many(1, cards=64).view().snapshot("n00"), 500)
    assert text.startswith('{"name":"n00"')
    assert 500 < len(text) < 550
    assert compact("x" * 16_382) == f'"{"x" * 16_382}"'
    assert compact("x" * 16_383) == f'"{"x" * 16_383}... (16385 characters)'


def test_of_contradictions_256_are_remembered_as_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = Contradictions(lambda: None)
    nodes = [NodeSnapshot(f"n{number}", ()) for number in range(257)]

    def logged(*reported: NodeSnapshot) -> int:
        caplog.clear()
        for one in reported:
            found(request(app("main", gpus(100))), one)
        return len(caplog.records)

    assert [logged(*nodes[:256]), logged(*nodes[:256]), logged(nodes[256]), logged(*nodes)] == [256, 0, 1, 257]


def test_a_request_of_no_devices_and_no_cpus_of_its_own_goes_where_nothing_is_known() -> None:
    """place() accepts such a Pod anywhere: singleNUMANodeExclusive alone requests no alignment."""
    of = PodRequest((), CpuAsk(QosClass.LS, 0, 1000, 0, single_numa_exclusive=NumaExclusive.PREFERRED))
    names = [f"n{number:02}" for number in range(40)]
    ranked = rank(ranking_of(ClusterView(SeenObjects(lambda: BEGINNING))), asking(of), names, None)
    assert list(ranked.named) == names
    assert ranked.refused == {}


def test_a_type_of_ones_own_may_be_called_as_the_cpus_are() -> None:
    """In the index the CPUs of a node are an additional row."""
    assert CPU_ROW not in TYPES.by_name
    model = Model(
        devices={"n1": of_node("n1", [device(CPU_TYPE, 0), device(CPU_TYPE, 1)])},
        topologies={"n1": topology_of("n1", SMALL)},
    )
    both = PodRequest((app("main", DeviceAsk(CPU_TYPE, 2, (FULL,))),), CpuAsk(QosClass.LSR, 4, 4000, 0))
    ranking = ranking_of(model.view())
    assert rank(ranking, asking(both), ["n1"], None).named == ("n1",)
    assert not ranking._unindexed


@pytest.mark.parametrize("count", [2**53, (2**63 - 1) // 1000, 2**63 - 1])
def test_more_cpus_than_the_index_counts_are_refused_and_break_nothing(count: int) -> None:
    model = Model(topologies={"n1": topology_of("n1", SMALL)})
    of = PodRequest((), CpuAsk(QosClass.LSR, count, count * 1000, 0))
    ranked = rank(ranking_of(model.view()), asking(of), ["n1"], None)
    assert "too few CPUs" in ranked.refused["n1"].short


def test_a_device_of_more_than_the_index_counts_is_judged_by_place_alone() -> None:
    model = Model(devices={"n1": of_node("n1", [device(QUEUE, 0, 2**60)])})
    for amount, fits in ((2**59, True), (2**61, False)):
        of = request(app("main", DeviceAsk(QUEUE, 1, (amount,))))
        assert rank(ranking_of(model.view()), asking(of), ["n1"], None).named == (("n1",) if fits else ())


# --- reasons


def many(count: int, *, cards: int = 1) -> Model:
    names = [f"n{number:02}" for number in range(count)]
    return Model(
        devices={name: of_node(name, [gpu(at, device_id=f"{name}-{at}") for at in range(cards)]) for name in names}
    )


@pytest.mark.parametrize("count", [16, 17])
def test_few_nodes_are_reported_in_full_and_many_in_words_that_are_alike(count: int) -> None:
    model = many(count)
    of = request(app("main", gpus(200)))
    ranked = rank(ranking_of(model.view()), asking(of), list(model.devices), 1)
    reasons = {node: reason for node, _, reason in ranked.reasons()}
    assert len(reasons) == count
    if count > 16:
        assert set(reasons.values()) == {"only 1 of 2 whole GPUs is free"}
    else:
        assert all(reason.startswith(f"{node}: ") for node, reason in reasons.items())
        assert all("the most free is gpu 0" in reason for reason in reasons.values())


def test_among_many_too_a_node_that_is_blocked_says_who_must_act() -> None:
    model = many(30)
    model.blocked["n07"] = "its record is spoilt: an administrator must mend it"
    ranked = rank(ranking_of(model.view()), asking(request(app("main", gpus(200)))), list(model.devices), 1)
    told = {node: (permanent, reason) for node, permanent, reason in ranked.reasons()}
    assert told["n07"] == (True, model.blocked["n07"])
    assert told["n08"] == (False, "only 1 of 2 whole GPUs is free")


def test_too_few_cpus_are_reported_as_such_among_many() -> None:
    names = [f"n{number:02}" for number in range(20)]
    model = Model(topologies={name: topology_of(name, SMALL) for name in names})
    of = PodRequest((), CpuAsk(QosClass.LSR, 5, 5000, 0))
    ranked = rank(ranking_of(model.view()), asking(of), names, 1)
    assert {reason for _, _, reason in ranked.reasons()} == {"too few CPUs for 5"}


def test_too_few_cpus_in_one_numa_node_are_told_of_as_such() -> None:
    names = [f"n{number:02}" for number in range(20)]
    model = Model(topologies={name: topology_of(name, TWO_NODES) for name in names})
    asked = TWO_NODES.all.bit_count() // 2 + 1
    of = PodRequest((), CpuAsk(QosClass.LSR, asked, 1000 * asked, 0, numa_policy=NumaPolicy.SINGLE_NUMA_NODE))
    ranked = rank(ranking_of(model.view()), asking(of), names, 1)
    assert {reason for _, _, reason in ranked.reasons()} == {f"too few CPUs for {asked} in one NUMA node"}


# --- assumed


def assume(ranking: Ranking, pod: PodInfo, node: str) -> None:
    placed = ranking.verdict(node, ranking.wanted(pod), pod.uid)
    assert isinstance(placed, Placement)
    held = Holding(pod.uid, pod.namespace, pod.name, 0, placed.shares, placed.cpus, pod.request.wishes.gang)
    ranking.assumed.put(node, held)


def send(ranking: Ranking, pod: PodInfo, names: list[str]) -> str:
    """The node that filter names for a Pod without preferences; "" if it names none."""
    named = rank(ranking, pod, names, 1).named
    if not named:
        return ""
    assume(ranking, pod, named[0])
    return named[0]


def pod_of(uid: str, percent: int = 100, gang: str = "") -> PodInfo:
    of = request(app("main", gpus(percent)))
    return asking(replace(of, wishes=Wishes(gang=gang)), uid)


def test_what_was_sent_somewhere_is_as_good_as_taken_until_its_time_is_over() -> None:
    model, clock = many(2), Clock()
    ranking = ranking_of(model.view(), clock=clock)
    names = list(model.devices)
    assert [send(ranking, pod_of(uid), names) for uid in "abc"] == ["n00", "n01", ""]
    clock.now = KEEP_S - 0.1
    assert ranking.assumed.expire() == []
    assert send(ranking, pod_of("c"), names) == ""
    clock.now = KEEP_S
    assert ranking.assumed.expire() == ["n00", "n01"]
    assert send(ranking, pod_of("c"), names) == "n00"


def test_parts_of_a_card_are_assumed_as_parts() -> None:
    ranking = ranking_of(many(1).view())
    assert [send(ranking, pod_of(uid, 50), ["n00"]) for uid in "abc"] == ["n00", "n00", ""]


def test_cpus_are_assumed_too() -> None:
    model = Model(topologies={"n1": topology_of("n1", SMALL)})
    ranking = ranking_of(model.view())
    of = PodRequest((), CpuAsk(QosClass.LSR, 2, 2000, 0))
    assert [send(ranking, asking(of, uid), ["n1"]) for uid in "abc"] == ["n1", "n1", ""]


def test_a_pod_that_is_asked_about_again_goes_elsewhere_first_and_back_where_nothing_else_is() -> None:
    model = many(2)
    model.give("n00", request(app("main", gpus(50))), "other")  # the better one for a half
    ranking = ranking_of(model.view())
    pod = pod_of("a", 50)
    names = list(model.devices)
    assert send(ranking, pod, names) == "n00"
    assert send(ranking, pod, names) == "n01"
    assert send(ranking, pod, names) == "n00"
    assert [send(ranking, pod, ["n00"]) for _ in range(2)] == ["n00", "n00"]


def test_where_a_pod_was_sent_before_is_free_for_others_when_it_goes_elsewhere() -> None:
    model = many(2)
    ranking = ranking_of(model.view())
    names = list(model.devices)
    assert [send(ranking, pod_of("a"), names) for _ in range(2)] == ["n00", "n01"]
    assert send(ranking, pod_of("b"), names) == "n00"


def test_a_bind_or_an_end_takes_the_assumption_away() -> None:
    ranking = ranking_of(many(1).view())
    pod = pod_of("a")
    assert send(ranking, pod, ["n00"]) == "n00"
    assert ranking.assumed.node_of("a") == "n00"
    assert ranking.assumed.drop("a") == "n00"
    assert (ranking.assumed.drop("a"), ranking.assumed.node_of("a")) == ("", "")
    assert send(ranking, pod_of("b"), ["n00"]) == "n00"


def test_what_the_ledger_says_counts_and_not_what_was_assumed_of_the_same_pod() -> None:
    model = many(1, cards=2)
    view = model.view()
    ranking = ranking_of(view)
    send(ranking, pod_of("a"), ["n00"])  # assumed on card 0
    cards = model.devices["n00"].devices
    model.held["n00"] = {"a": holding("a", part(cards[1], 100))}
    model.show(view, "n00")
    assert ranking.snapshot("n00").used.keys() == {"n00-1"}
    assert [send(ranking, pod_of(uid), ["n00"]) for uid in "bc"] == ["n00", ""]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([40, 50, 100]), st.sampled_from([0, 1, 3])), max_size=12
    )
)
def test_what_is_assumed_never_overfills_a_device(steps: list[tuple[str, int, int]]) -> None:
    model, clock = many(2, cards=2), Clock()
    view = model.view()
    ranking = ranking_of(view, clock=clock)
    for uid, percent, seconds in steps:
        clock.now += seconds
        ranking.assumed.expire()
        send(ranking, pod_of(uid, percent), list(model.devices))
        for name in model.devices:
            ranking.snapshot(name).check_invariants()
        known = {uid: node for uid, (node, _, _) in ranking.assumed._by_uid.items()}
        assert {uid: name for name in model.devices for uid in ranking.assumed.on(name)} == known


# --- gangs


def gang_view(model: Model, members: Mapping[str, str], percent: int = 100) -> tuple[ClusterView, dict[str, PodInfo]]:
    """A view that knows the Pods of a gang, each with its node or ""."""
    view = model.view()
    pods = {uid: replace(pod_of(uid, percent, "default/g"), node=node) for uid, node in members.items()}
    for one in pods.values():
        view.pods.put(one)
    return view, pods


def test_the_first_of_a_gang_goes_to_a_node_with_room_for_all() -> None:
    model = many(2)
    wide = [gpu(at, device_id=f"wide-{at}") for at in range(4)]
    model.devices["wide"] = of_node("wide", wide)
    model.give("n01", request(app("main", gpus(50))), "other")
    view, pods = gang_view(model, dict.fromkeys("abc", ""))
    ranking = ranking_of(view)
    names = list(model.devices)
    assert rank(ranking, pod_of("alone"), names, None).named == ("n00", "wide")
    assert [send(ranking, pods[uid], names) for uid in "abc"] == ["wide"] * 3


def test_members_go_where_most_of_their_gang_are_bound_or_sent() -> None:
    model = many(3, cards=4)
    view, pods = gang_view(model, {"a": "n02", "b": "n02", "c": "n01", "d": "", "e": ""})
    for uid, node in (("a", "n02"), ("b", "n02"), ("c", "n01")):
        model.give(node, pods[uid].request, uid)
        model.show(view, node)
    ranking = ranking_of(view)
    names = list(model.devices)
    assert rank(ranking, pods["d"], names, None).named == ("n02", "n01", "n00")
    assert [send(ranking, pods[uid], names) for uid in "de"] == ["n02", "n02"]


def test_a_gang_begins_in_the_nvlink_group_that_holds_all_that_wait() -> None:
    cards = [gpu(at, numa_node=at // 4) for at in range(8)]
    lanes = {(a.id, b.id): 4 for a in cards for b in cards if a.id < b.id and a.numa_node == b.numa_node}
    model = Model()
    links = link([Place(card.id, card.numa_node) for card in cards], lanes)
    model.devices["n1"] = replace(of_node("n1", cards), links=links)
    model.held["n1"] = {"other": holding("other", part(cards[0], 100))}
    view, pods = gang_view(model, dict.fromkeys("abcd", ""))
    ranking = ranking_of(view)
    assert [send(ranking, pods[uid], ["n1"]) for uid in "abcd"] == ["n1"] * 4
    assert [held.shares[0].minor for held in ranking.assumed.on("n1").values()] == [4, 5, 6, 7]


def test_a_gang_that_fits_nowhere_as_a_whole_still_begins() -> None:
    model = many(2)
    view, pods = gang_view(model, dict.fromkeys("abc", ""))
    ranking = ranking_of(view)
    assert [send(ranking, pods[uid], list(model.devices)) for uid in "abc"] == ["n00", "n01", ""]


def by_cards(**nodes: int) -> Model:
    """Nodes with so many cards each."""
    model = Model()
    for name, cards in nodes.items():
        model.devices[name] = of_node(name, [gpu(at, device_id=f"{name}-{at}") for at in range(cards)])
    return model


def arriving(model: Model, count: int, percent: int, size: GangSize, said: GangSize = UNSTATED) -> list[str]:
    """Where the Pods of a gang are sent that come one after another, each bound before the next is known.

    Args:
        model: the cluster.
        count: of the Pods.
        percent: that each asks for.
        size: as the PodGroup states it.
        said: as the Pods' annotations state it.
    """
    view = model.view()
    view.groups.put("scheduling.x-k8s.io", "default/g", size)
    view.groups.put("scheduling.x-k8s.io", "default/other", GangSize(9, 9))
    ranking = ranking_of(view)
    found = []
    for at in range(count):
        made = pod_of(f"pod-{at}", percent, "default/g")
        made = replace(made, request=replace(made.request, wishes=replace(made.request.wishes, size=said)))
        view.pods.put(made)
        found.append(send(ranking, made, list(model.devices)))
        if found[-1]:
            model.give(found[-1], made.request, made.uid)
            model.show(view, found[-1])
            view.pods.put(replace(made, node=found[-1]))
    return found


FOUR, NONE = GangSize(4, 4), UNSTATED
ARRIVING: dict[str, tuple[dict[str, int], int, GangSize, GangSize, list[str]]] = {
    "nobody states the size": ({"a": 2, "b": 8}, 200, NONE, NONE, ["a", "b", "b", "b"]),
    "a PodGroup states it": ({"a": 2, "b": 8}, 200, FOUR, NONE, ["b"] * 4),
    "the Pods state it": ({"a": 2, "b": 8}, 200, NONE, FOUR, ["b"] * 4),
    "the larger of both counts": ({"a": 4, "b": 8}, 200, GangSize(2, 2), FOUR, ["b"] * 4),
    "what is to come counts, not only what is needed": ({"a": 4, "b": 8}, 200, GangSize(2, 4), NONE, ["b"] * 4),
    "no node holds all: the one that holds most": ({"a": 2, "b": 4, "c": 6}, 200, FOUR, NONE, ["c", "c", "c", "a"]),
    "the rest goes where it fits whole": ({"a": 2, "b": 4, "c": 4}, 200, FOUR, NONE, ["b", "b", "c", "c"]),
    "several hold all: as without a gang": ({"a": 8, "b": 8}, 200, FOUR, NONE, ["a"] * 4),
    "a size that nothing holds": ({"a": 2, "b": 4}, 200, GangSize(1000, 1000), NONE, ["b", "b", "a", ""]),
}


@pytest.mark.parametrize(("cards", "percent", "size", "said", "expected"), ARRIVING.values(), ids=ARRIVING)
def test_a_gang_that_arrives_one_by_one_is_steered_by_its_size(
    cards: dict[str, int], percent: int, size: GangSize, said: GangSize, expected: list[str]
) -> None:
    assert arriving(by_cards(**cards), 4, percent, size, said) == expected


def test_more_members_wait_than_the_size_says() -> None:
    model = by_cards(a=2, b=4)
    view, pods = gang_view(model, dict.fromkeys("abcd", ""))
    view.groups.put("scheduling.k8s.io", "default/g", GangSize(2, 2))
    ranking = ranking_of(view)
    assert [send(ranking, pods[uid], list(model.devices)) for uid in "abcd"] == ["b"] * 4
    assert ranking.wanted(pods["a"]).wishes.waiting == 0  # all others were sent


# --- nodes that come and go between two questions


def test_a_node_that_joins_after_a_question_is_named_in_its_place() -> None:
    model = many(3)
    late = model.devices.pop("n01")
    view = model.view()
    ranking = ranking_of(view)
    names = ["n02", "n01", "n00"]
    of = request(app("main", gpus(100)))
    assert rank(ranking, asking(of), names, None).named == ("n00", "n02")
    model.devices["n01"] = late
    model.show(view, "n01")
    assert rank(ranking, asking(of), names, None).named == ("n00", "n01", "n02")
    del model.devices["n00"]
    model.show(view, "n00")
    assert rank(ranking, asking(of), names, None).named == ("n01", "n02")


# --- what is remembered


def test_verdicts_are_bounded_whatever_is_asked() -> None:
    model = many(4)
    ranking = ranking_of(model.view())
    ranking._verdicts = verdicts = Verdicts(most=50_000)
    names = list(model.devices)
    for number in range(300):
        of = request(app("main", ask(core=number % 100 + 1, memory=GIB + number)))
        assert len(rank(ranking, asking(of), names, None).named) == len(names)
        assert 0 < verdicts.weight <= 50_000


def test_candidates_that_are_no_nodes_of_ours_leave_nothing_behind() -> None:
    ranking = ranking_of(many(1).view())
    of = request(app("main", gpus(100)))
    for number in range(50):
        rank(ranking, asking(of), [f"strange-{number}"], None)
        ranking.snapshot(f"strange-{number}")
    assert ranking._snapshots.keys() <= {"n00"}
    assert ranking._verdicts._numbers.keys() <= {"n00"}


def test_a_node_that_is_gone_leaves_nothing_behind() -> None:
    model = many(2)
    view = model.view()
    ranking = ranking_of(view)
    of = request(app("main", gpus(100)))
    rank(ranking, asking(of), list(model.devices), None)
    del model.devices["n00"]
    model.show(view, "n00")
    assert rank(ranking, asking(of), ["n00", "n01"], None).named == ("n01",)
    assert len(ranking._index) == 1
    assert ranking._snapshots.keys() == ranking._verdicts._numbers.keys() == {"n01"}


# The sizes of the cards that would be opened: node -> its cards, each with its memory in GiB and its held part

Cards = Mapping[str, list[tuple[int, int]]]
SIZES: dict[str, tuple[Cards, DeviceAsk, str, list[str]]] = {
    "half a card": ({"a": [(80, 0)], "b": [(16, 0)], "c": [(24, 0)]}, gpus(50), "", ["b", "c", "a"]),
    "a whole card": ({"a": [(80, 0)], "b": [(16, 0)], "c": [(24, 0)]}, gpus(100), "", ["b", "c", "a"]),
    "a little memory": ({"a": [(80, 0)], "b": [(16, 0)], "c": [(24, 0)]}, ask(memory=4 * GIB), "", ["b", "c", "a"]),
    "the smallest does not suffice": (
        {"a": [(80, 0)], "b": [(16, 0)], "c": [(24, 0)]},
        ask(memory=20 * GIB),
        "",
        ["c", "a"],
    ),
    "a card in use opens nothing": ({"a": [(80, 50)], "b": [(16, 0)], "c": [(24, 0)]}, gpus(50), "", ["a", "b", "c"]),
    "a large card on a node in use": ({"a": [(80, 100), (80, 0)], "b": [(16, 0)]}, gpus(50), "", ["b", "a"]),
    "the smallest card of a node": ({"a": [(80, 0), (16, 0)], "b": [(24, 0)]}, gpus(50), "", ["a", "b"]),
    "of two, one is opened": ({"a": [(80, 50), (80, 0)], "b": [(24, 0), (24, 0)]}, ask(2, ratio=9), "", ["b", "a"]),
    "cards of one make": ({"a": [(80, 0)], "b": [(80, 0)]}, gpus(50), "", ["a", "b"]),
    "without regard to size": ({"a": [(80, 0)], "b": [(16, 0)]}, gpus(50), "mostUsed", ["a", "b"]),
}


@pytest.mark.parametrize(("cards", "of", "order", "expected"), SIZES.values(), ids=SIZES)
def test_the_smallest_card_that_suffices_is_opened_wherever_it_is(
    cards: Cards, of: DeviceAsk, order: str, expected: list[str]
) -> None:
    model = Model()
    for name, each in cards.items():
        made = [gpu(at, memory * GIB, device_id=f"{name}-{at}") for at, (memory, _) in enumerate(each)]
        model.devices[name] = of_node(name, made)
        shares = [part(one, percent) for one, (_, percent) in zip(made, each, strict=True) if percent]
        model.held[name] = {"other": holding("other", *shares)} if shares else {}
    wanted = asking(request(app("a", of), wishes=Wishes(order=order)))
    names = sorted(cards)
    assert list(rank(ranking_of(model.view()), wanted, names, None).named) == expected
    assert list(rank(ranking_of(model.view()), wanted, names, 1).named) == expected[:1]
