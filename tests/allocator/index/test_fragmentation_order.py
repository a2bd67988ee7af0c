"""The whole order of the preference fragmentation, through any history: as a new index has it, and as it is defined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Final, Literal

import pytest
from builders import app, ask, gpu, gpus, holding, nic, nics, part, request
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.fragmentation import fragmentation
from allocator.index.cluster import ClusterIndex
from allocator.index.fragments import STEP
from allocator.index.query import MAX_AMOUNT
from allocator.index.rows import groups_of, load_row, query_with_load, type_rows
from allocator.index.search import NodeFigures, NodeSearch
from allocator.index.table import NO_GROUP
from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, PodRequest, Preference
from allocator.vocabulary.cpunode import CpuAsk, QosClass
from allocator.vocabulary.device import Partition, PartitionTable, Place, Wiring, link
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.mix import NO_MIX, Mix, TypicalRequest, mix_of
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class

WAY = Preference.FRAGMENTATION
IDLE = 64  # nodes that do not change: among so many, the few that changed are computed again one by one
NAMES = ("n1", "n2", "n3")
LANES: Mapping[str, Sequence[tuple[int, int]]] = {
    "none": (),
    "pairs": ((0, 1), (2, 3)),
    "line": ((0, 1), (1, 2), (2, 3)),
    "all": tuple((a, b) for b in range(4) for a in range(b)),
}
PERCENTS = (10, 30, 50, 100, 200, 300)
CPUS = (None, 4_000, 7_900, 8_000, 8_100, 64_000)


@dataclass(frozen=True)
class Machine:
    """A node, its CPUs in thousandths (None: not stated), and what other Pods request of them."""

    node: NodeSnapshot
    cpu: int | None
    others: int = 0
    ours: Mapping[str, int] = field(default_factory=dict)

    @property
    def requested(self) -> int:
        return self.others + sum(self.ours.values())

    def left(self, taken: int = 0) -> int | None:
        return None if self.cpu is None else max(self.cpu - self.requested - taken, 0)


@dataclass(frozen=True)
class Step:
    """What happens: to which node, what, and figures from which the details follow."""

    name: str
    what: str
    percent: int
    cpu: int | None
    lanes: str
    cards: int
    mix: Mix


MIXES = st.lists(
    st.builds(
        lambda percent, cpu, weight: TypicalRequest(cpu, 0, gpus(percent), weight=weight),
        st.sampled_from(PERCENTS),
        st.integers(0, 6_000),
        st.integers(1, 20),
    ),
    max_size=4,
).map(mix_of)
WHATS = ("add", "bind", "bind", "bind", "release", "load", "resize", "break", "drop", "learn")
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(NAMES),
        st.sampled_from(WHATS),
        st.sampled_from(PERCENTS),
        st.sampled_from(CPUS),
        st.sampled_from(sorted(LANES)),
        st.integers(1, 4),
        MIXES,
    ),
    min_size=1,
    max_size=14,
)


def new_machine(step: Step) -> Machine:
    devices = tuple(gpu(minor, device_id=f"{step.name}-{minor}") for minor in range(step.cards))
    lanes = {(devices[a].id, devices[b].id): 12 for a, b in LANES[step.lanes] if b < step.cards}
    wiring = Wiring(link([Place(one.id) for one in devices], lanes)) if lanes else Wiring()
    return Machine(NodeSnapshot(step.name, devices, wiring=wiring), step.cpu)


def bound(node: NodeSnapshot, of: DeviceAsk, uid: str) -> NodeSnapshot | None:
    outcome = place(request(app("main", of)), node)
    return node.with_holding(Holding(uid, "d", uid, 0, outcome.shares)) if isinstance(outcome, Placement) else None


def after(machine: Machine | None, step: Step, number: int) -> Machine | None:
    """The node after a step; None where it is not there."""
    if machine is None:
        return None if step.what == "drop" else new_machine(step)
    match step.what:
        case "drop":
            machine = None
        case "load":
            machine = replace(machine, others=(step.cpu or 0) // 2)
        case "resize":
            machine = replace(machine, cpu=step.cpu)
        case "release" if machine.ours:
            uid = sorted(machine.ours)[number % len(machine.ours)]
            ours = {one: cpu for one, cpu in machine.ours.items() if one != uid}
            machine = replace(machine, node=machine.node.without((uid,)), ours=ours)
        case "bind" if (node := bound(machine.node, gpus(step.percent), f"p{number}")) is not None:
            machine = replace(machine, node=node, ours={**machine.ours, f"p{number}": step.percent * 10})
        case "break" if not machine.node.holdings:
            broken, *others = machine.node.devices
            devices = (replace(broken, healthy=not broken.healthy), *others)
            machine = replace(machine, node=replace(machine.node, devices=devices))
    return machine


def new_index() -> ClusterIndex:
    kind = GPU_TYPE
    return ClusterIndex({kind.name: fullness(kind)}, {kind.name: size_class(kind)})


def idle_machine(number: int) -> Machine:
    return new_machine(
        Step(f"idle-{number:02d}", "add", 100, CPUS[number % 3], sorted(LANES)[number % 4], 1 + number % 4, NO_MIX)
    )


def index_with_idle_nodes() -> ClusterIndex:
    index = new_index()
    for number in range(IDLE):
        put(index, idle_machine(number))
    return index


def put(index: ClusterIndex, machine: Machine) -> None:
    load = load_row({"cpu": machine.cpu or 0}, {"cpu": machine.requested})
    index.put(machine.node.name, [*type_rows(machine.node, makes_and_groups=True), load])


Compared = tuple[list[str], dict[str, int], dict[str, NodeFigures]]


def compared(index: ClusterIndex, names: Sequence[str], of: DeviceAsk, cpu: int, members: int) -> Compared:
    query = query_with_load(request(app("main", of)), [("cpu", cpu)])
    search = NodeSearch(index, query, list(names))
    return (
        list(search.best_first(WAY, {}, members, smallest=True)),
        search.standing(WAY, {}, members, smallest=True),
        search.parts(WAY, {}, members, smallest=True),
    )


def usable_of(node: NodeSnapshot) -> int:
    return sum(node.is_usable(one) for one in node.devices)


def spare(count: int, nodes: Sequence[NodeSnapshot], mix: Mix) -> bool:
    """Whether of the nodes of so many usable cards more are idle than the Pods need that take all of them."""
    asked = {one.ask.count: 0 for one in mix.requests if one.ask is not None}
    for one in mix.requests:
        if one.ask is not None:
            asked[one.ask.count] += one.ask.count * one.weight
    if count not in asked:
        return False
    alike = [node for node in nodes if usable_of(node) == count]
    idle = sum(not node.holdings for node in alike)
    return 8 * idle > len(alike) and Fraction(idle, len(alike)) > Fraction(asked[count], sum(asked.values()))


def defined(
    machine: Machine, nodes: Sequence[NodeSnapshot], mix: Mix, of: DeviceAsk, cpu: int
) -> tuple[int, int, int, int]:
    """Growth in steps, the broken group, the sizes of the node that is begun and of one kept idle, each as defined."""
    node = machine.node
    then = bound(node, of, "new")
    assert then is not None
    growth = fragmentation(then, machine.left(cpu), None, mix) - fragmentation(node, machine.left(), None, mix)
    idle = {one.id for one in node.devices if one.id not in node.used and node.is_usable(one)}
    usable = usable_of(node)
    untouched = 0 if node.holdings or spare(usable, nodes, mix) else usable
    opened = {share.id for share in then.holdings["new"].shares} & idle
    if not opened:
        return growth // max(STEP * mix.weight, 1), 0, 0, untouched
    groups = groups_of(node.devices, node, partitioned=False)
    of_group = [
        sum(one.id in idle and group == mine for one, group in zip(node.devices, groups, strict=True))
        for mine in set(groups)
    ]
    broken = min((size for size in of_group if size >= len(opened)), default=NO_GROUP)
    size = MAX_AMOUNT if machine.cpu is None else three_digits(machine.cpu)
    return growth // max(STEP * mix.weight, 1), broken, size, untouched


def three_digits(amount: int) -> int:
    dropped = max(len(f"{amount:b}") - 3, 0)
    return amount >> dropped << dropped


@given(STEPS, st.sampled_from(PERCENTS), st.integers(0, 3_000), st.sampled_from([1, 1, 2]))
@settings(max_examples=examples(40))
def test_after_any_history_nodes_have_the_order_of_a_new_index_and_the_figures_of_the_definitions(
    steps: list[Step], percent: int, cpu: int, members: int
) -> None:
    kept, mix, of = index_with_idle_nodes(), NO_MIX, gpus(percent)
    idle = [name for name in kept.names if name]
    now: dict[str, Machine] = {}
    for number, step in enumerate(steps):
        if step.what == "learn":
            mix = step.mix
            kept.typify(mix)
        elif (machine := after(now.get(step.name), step, number)) is None:
            now.pop(step.name, None)
            kept.drop(step.name)
        else:
            now[step.name] = machine
            put(kept, machine)
        if step.percent == 30:  # several nodes change before the next look
            continue
        fresh = index_with_idle_nodes()
        fresh.typify(mix)
        for name in sorted(now, reverse=True):
            put(fresh, now[name])
        order, standing, parts = compared(kept, [*idle, *now], of, cpu, members)
        assert compared(fresh, [*sorted(now), *idle], of, cpu, members) == (order, standing, parts)
        fitting = {name for name in now if bound(now[name].node, of, "new")}
        assert fitting == parts.keys() - set(idle)
        if members == 1:
            found = {name: (one.growth, one.broken, one.begun, one.idle) for name, one in parts.items() if name in now}
            nodes = [*(one.node for one in now.values()), *(idle_machine(number).node for number in range(IDLE))]
            assert found == {name: defined(now[name], nodes, mix, of, cpu) for name in fitting}
        keys = {
            name: (-one.room, one.growth, one.broken, one.begun, one.opened, one.idle, one.score, name)
            for name, one in parts.items()
        }
        assert order == sorted(parts, key=lambda name: keys[name])


def test_a_gang_breaks_a_group_of_as_many_devices_as_a_node_may_have_where_it_takes_all_of_them() -> None:
    index, sizes = new_index(), {"a": (128,), "b": (64, 64), "c": (100, 28), "d": (1, 127)}
    for name, groups in sizes.items():
        ends = [sum(groups[:at]) for at in range(len(groups) + 1)]
        table = PartitionTable(tuple(Partition(tuple(range(*pair))) for pair in pairwise(ends)))
        node = replace(of_node(name, 128), wiring=Wiring(partitions=table))
        index.put(name, [*type_rows(node, makes_and_groups=True, partitioned={"gpu"}), load_row({}, {})])
    rows = index.positions(["a", "b", "c", "d"])
    for count, times, broken in (
        (64, 1, [128, 64, 100, 127]),
        (64, 2, [128, 129 + 64, 129 + 100, 129 + 127]),
        (65, 1, [128, 129, 100, 127]),
        (65, 2, [129 + 128, 129 + 129, 129 + 100, 129 + 127]),
        (42, 3, [128, 129 + 64, 129 + 100, 127]),
    ):
        query = query_with_load(request(app("main", ask(count, core=100, ratio=100))), [])
        assert index.broken(query, rows, times).tolist() == broken, (count, times)


def test_a_gang_of_parts_breaks_the_group_of_one_part() -> None:
    index = new_index()
    index.put("a", [*type_rows(replace(of_node("a", 2, 2), wiring=Wiring()), makes_and_groups=True), load_row({}, {})])
    rows = index.positions(["a"])
    for of, broken in ((gpus(50), 1), (gpus(100), 129 + 1), (nics(50), 1), (nics(100), 129 + 1)):
        assert index.broken(query_with_load(request(app("main", of)), []), rows, 2).tolist() == [broken]


def test_a_node_that_does_not_state_its_cpus_is_begun_after_all_others() -> None:
    index = new_index()
    for number, used in enumerate(((), (50,), (100,))):
        node = of_node(f"n{number}", 2)
        held = {f"p{at}": holding(f"p{at}", part(node.devices[at], percent)) for at, percent in enumerate(used)}
        index.put(node.name, type_rows(replace(node, holdings=held), makes_and_groups=True))
    query, rows = query_with_load(request(app("main", gpus(50))), []), index.positions(["n0", "n1", "n2"])
    assert index.begun(query, rows).tolist() == [2**53 - 1, 0, 2**53 - 1]
    index.put("n0", [*type_rows(of_node("n0", 2), makes_and_groups=True), load_row({"cpu": 1}, {})])
    assert index.begun(query, rows).tolist() == [1, 0, 2**53 - 1]


def of_node(name: str, cards: int, boards: int = 0, *, broken: int = 0) -> NodeSnapshot:
    """A node of so many GPUs, some of them unhealthy, and so many NICs."""
    there = [gpu(minor, device_id=f"{name}-{minor}", healthy=minor >= broken) for minor in range(cards)]
    return NodeSnapshot(name, (*there, *(nic(minor, device_id=f"{name}-nic-{minor}") for minor in range(boards))))


def test_an_idle_device_is_opened_where_those_in_use_do_not_suffice() -> None:
    index = new_index()
    for name, used in (("a", 0), ("b", 1), ("c", 3)):
        node = of_node(name, 4)
        holdings = {f"p{card.minor}": holding(f"p{card.minor}", part(card, 50)) for card in node.devices[:used]}
        index.put(name, [*type_rows(replace(node, holdings=holdings), makes_and_groups=True), load_row({}, {})])
    rows = index.positions(["a", "b", "c"])
    opened = [
        index.opened(query_with_load(request(app("main", ask(count, core=25, ratio=25))), []), rows).tolist()
        for count in (1, 2, 3, 4)
    ]
    assert opened == [[80, 0, 0], [80, 80, 0], [80, 80, 0], [80, 80, 80]]


BOTH: Final = request(app("main", gpus(100)), app("beside", nics(100)))
TYPICAL: Final = mix_of([TypicalRequest(1_000, 0, gpus(400)), TypicalRequest(1_000, 0, gpus(100), weight=20)])

# What is asked, and the mix; what `idle` is for 8 GPUs and 2 NICs, 4 and 8, 4 and 2 of which 1 GPU is broken, 2 and 1

KEPT_IDLE: Final[dict[str, tuple[PodRequest, Mix, list[int]]]] = {
    "the devices of the type count": (request(app("main", gpus(100))), NO_MIX, [8, 4, 3, 2]),
    "those of another type": (request(app("main", nics(30))), NO_MIX, [2, 8, 2, 1]),
    "those of all types that are asked for": (BOTH, NO_MIX, [10, 12, 5, 3]),
    "no device is asked for": (PodRequest((), CpuAsk(QosClass.LSR, 2, 2000, 0)), NO_MIX, [1, 1, 1, 1]),
    "a typical request asks for all cards": (request(app("main", gpus(100))), TYPICAL, [8, 0, 3, 2]),
    "a typical request of another type": (request(app("main", nics(30))), TYPICAL, [2, 8, 2, 1]),
    "a typical request of one of two types": (BOTH, TYPICAL, [10, 12, 5, 3]),
}


@pytest.mark.parametrize(("of", "mix", "expected"), KEPT_IDLE.values(), ids=KEPT_IDLE)
def test_idle_nodes_are_told_by_the_usable_devices_that_are_asked_for(
    of: PodRequest, mix: Mix, expected: list[int]
) -> None:
    index, nodes = new_index(), [of_node("a", 8, 2), of_node("b", 4, 8), of_node("c", 4, 2, broken=1)]
    used = bound(of_node("used", 4, 2), gpus(50), "p")
    assert used is not None
    for node in (*nodes, used):
        index.put(node.name, [*type_rows(node, makes_and_groups=True), load_row({}, {})])
    index.typify(mix)
    rows = index.positions(["used", "a", "b", "c"])
    assert index.idle(query_with_load(of, []), rows).tolist() == [0, *expected[:3]]
    index.put("b", [*type_rows(of_node("b", 2, 1), makes_and_groups=True), load_row({}, {})])
    assert index.idle(query_with_load(of, []), rows).tolist() == [0, expected[0], expected[3], expected[2]]


def test_an_idle_node_of_as_many_devices_as_there_may_be_is_kept() -> None:
    index = new_index()
    for name, cards in (("a", 128), ("b", 127)):
        index.put(name, [*type_rows(of_node(name, cards), makes_and_groups=True), load_row({}, {})])
    index.typify(mix_of([TypicalRequest(0, 0, gpus(12_800)), TypicalRequest(0, 0, gpus(12_700))]))
    told = index.idle(query_with_load(request(app("main", gpus(100))), []), index.positions(["a", "b"]))
    assert told.tolist() == [0, 0]


# Of eight nodes of 4 cards so many are idle; the requests of the mix for 4 cards and for one; are the idle ones kept?

FOUR, ONE = TypicalRequest(0, 0, gpus(400)), TypicalRequest(0, 0, gpus(100))
SPARED: Final[dict[str, tuple[int, Mix, Literal["kept", "spare"]]]] = {
    "all are idle": (8, mix_of([FOUR, replace(ONE, weight=15)]), "spare"),
    "more than an eighth, and than the requests' part": (3, mix_of([FOUR, replace(ONE, weight=15)]), "spare"),
    "no more than the requests' part": (2, mix_of([FOUR, replace(ONE, weight=12)]), "kept"),
    "more than the requests' part": (2, mix_of([FOUR, replace(ONE, weight=13)]), "spare"),
    "no more than an eighth": (1, mix_of([FOUR, replace(ONE, weight=400)]), "kept"),
    "all are asked for whole": (8, mix_of([FOUR]), "kept"),
    "none is asked for whole": (8, mix_of([ONE]), "kept"),
}


@pytest.mark.parametrize(("idle", "mix", "expected"), SPARED.values(), ids=SPARED)
def test_idle_nodes_are_kept_as_far_as_pods_need_them_that_take_a_whole_one(idle: int, mix: Mix, expected: str) -> None:
    index = new_index()
    names = [f"n{number}" for number in range(8)]
    for number, name in enumerate(names):
        node = bound(of_node(name, 4), gpus(50), "p") if number >= idle else of_node(name, 4)
        assert node is not None
        index.put(name, [*type_rows(node, makes_and_groups=True), load_row({}, {})])
    index.put("large", [*type_rows(of_node("large", 8), makes_and_groups=True), load_row({}, {})])
    index.typify(mix)
    rows = index.positions([*names, "large"])
    told = index.idle(query_with_load(request(app("main", gpus(50))), []), rows).tolist()
    assert told == [4 if expected == "kept" else 0] * idle + [0] * (8 - idle) + [8]
