"""Hypothesis strategies: quantities, resource maps, requests, nodes, and JSON of any shape."""

from typing import Any

from builders import ask, gpu, nic, node, request
from hypothesis import strategies as st

from allocator.vocabulary.asks import (
    ContainerAsk,
    DeviceAsk,
    ExclusiveLevel,
    Joint,
    PodRequest,
    Scope,
    Selector,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.cpunode import (
    REFUSING,
    BindPolicy,
    CpuAsk,
    CpuNode,
    CpuShare,
    ExclusivePolicy,
    KubeletAsk,
    NumaExclusive,
    NumaPolicy,
    NumaShare,
    NumaStrategy,
    QosClass,
    Zone,
)
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.device import VirtualFunction
from allocator.vocabulary.devicetype import BUILT_IN, RDMA_TYPE
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Function, Holding, Share
from allocator.vocabulary.names import Phase
from allocator.vocabulary.node import NodeSnapshot

INT64 = 2**63 - 1

# JSON


def json_values() -> st.SearchStrategy[Any]:
    """Any content of a JSON text, including numbers that only Python's parser accepts."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=12,
    )


def json_near(keys: list[str], leaves: list[Any]) -> st.SearchStrategy[Any]:
    """JSON of a format's own keys and values, wrongly combined, which gets further into a reader."""
    values = st.sampled_from(leaves) | json_values()
    return st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=6),
        max_leaves=20,
    )


# Quantities and resource maps

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@st.composite
def quantity_texts(draw: st.DrawFn) -> str:
    """Text in the grammar of Kubernetes' quantities, of any size and precision."""
    number = draw(st.from_regex(r"[+-]?([0-9]{1,20}(\.[0-9]{0,12})?|\.[0-9]{1,12})", fullmatch=True))
    return number + draw(st.sampled_from(SUFFIXES) | st.from_regex(r"[eE][+-]?[0-9]{1,2}", fullmatch=True))


def amounts() -> st.SearchStrategy[Any]:
    """Values of a resource map: mostly reasonable amounts, any quantity, and any text."""
    sane = st.sampled_from([0, 1, 2, 30, 50, 99, 100, 101, 150, 200, 300, 12800, 12900, 2**30])
    return (
        sane
        | sane.map(str)
        | st.sampled_from(["8Gi", "0.5", "1e2", "100m", "-1", "NaN"])
        | st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(), quantity_texts(), st.text(max_size=10))
    )


def resource_maps() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from([*sorted(BUILT_IN.resources), "cpu", "memory"]), amounts(), max_size=4)


@st.composite
def pod_specs(draw: st.DrawFn) -> dict[str, Any]:
    """A Pod's spec with any requests; its types are correct, as the API server ensures."""

    def containers(prefix: str, restarts: list[Any]) -> list[dict[str, Any]]:
        made = []
        for index in range(draw(st.integers(0, 2))):
            one: dict[str, Any] = {"name": f"{prefix}{index}"}
            resources = {key: draw(resource_maps()) for key in ("requests", "limits") if draw(st.booleans())}
            if resources:
                one["resources"] = resources
            restart = draw(st.sampled_from(restarts))
            if restart is not None:
                one["restartPolicy"] = restart
            made.append(one)
        return made

    spec: dict[str, Any] = {"containers": containers("app", [None])}
    first = containers("init", [None, "Always"])
    if first:
        spec["initContainers"] = first
    if draw(st.integers(0, 9)) == 0:
        spec["resources"] = {"requests": draw(resource_maps())}
    return spec


# Devices and requests

GIB = 2**30
MEMORIES = (80 * GIB, 24 * GIB, 15472384 * 1024, 8_589_934_591, 1_000_003, 101, 3)


@st.composite
def device_lists(draw: st.DrawFn, most: int = 8) -> list[Any]:
    """Cards of a node: mixed memories, odd byte counts, minors with gaps, some unhealthy."""
    minors = draw(st.lists(st.integers(0, 15), min_size=draw(st.integers(1, most)), max_size=most, unique=True))
    # Ids do not sort as minors do, so that an order by the wrong one shows.
    return [
        gpu(
            minor,
            draw(st.sampled_from(MEMORIES)),
            device_id=f"GPU-{minor * 7 % 16:02d}",
            healthy=draw(st.integers(0, 15)) < 15,
        )
        for minor in minors
    ]


@st.composite
def asks(draw: st.DrawFn, most_cards: int = 4) -> DeviceAsk:
    """A request as `read_pod` returns it: a whole card, part of one, or bytes."""
    count = draw(st.sampled_from([1, 1, 1, *range(1, most_cards + 1)]))
    kind = draw(st.sampled_from(["whole", "part", "part", "ratio", "bytes", "bytes"]))
    if kind == "whole":
        return ask(count, core=100, ratio=100)
    percent = draw(st.sampled_from([1, 5, 10, 20, 25, 33, 34, 40, 50, 51, 67, 99, 100]))
    core = 0 if kind == "ratio" else draw(st.sampled_from([0, 0, 1, 10, 20, 30, 33, 50, 60, 100]))
    if kind == "bytes":
        memory = draw(st.sampled_from([*MEMORIES, 3, 3, 101])) * percent // 100
        return ask(count, core=core, memory=max(memory, 1))
    return ask(count, core=core, ratio=percent)


@st.composite
def pod_requests(draw: st.DrawFn, most: int = 4, most_cards: int = 4) -> PodRequest:
    phases = draw(st.lists(st.sampled_from(list(Phase)), min_size=1, max_size=most))
    phases.sort(key=lambda phase: phase is Phase.APP)  # so that names are in the Pod's order
    return request(*(ContainerAsk(f"c{index}", phase, draw(asks(most_cards))) for index, phase in enumerate(phases)))


# Holdings of any shape that the formats can state

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
BUS_IDS = st.from_regex(r"0000:[0-9a-f]{2}:00\.[0-9a-f]", fullmatch=True)


@st.composite
def shares(draw: st.DrawFn, kind: str, identity: str, minor: int) -> Share:
    amounts = {tail: draw(st.integers(0, 2**50)) for tail in BUILT_IN.by_name[kind].tails}
    functions = st.builds(Function, st.integers(-1, 4), BUS_IDS)
    return Share(
        kind,
        identity,
        minor,
        amounts,
        tuple(draw(st.lists(NAMES, max_size=3, unique=True))),
        tuple(draw(st.lists(functions, max_size=2, unique_by=lambda one: one.bus_id))),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@st.composite
def cpu_shares(draw: st.DrawFn) -> CpuShare:
    at = sorted(draw(st.sets(st.integers(0, 15), max_size=3)))
    return CpuShare(
        draw(st.sampled_from(QosClass)),
        draw(st.just(0) | st.integers(0, 2**64 - 1)),
        draw(st.none() | st.sampled_from(BindPolicy)),
        draw(st.sampled_from(ExclusivePolicy)),
        tuple(NumaShare(one, draw(st.integers(0, 10**6)), draw(st.integers(0, 2**50)), one // 2) for one in at),
    )


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    kinds = draw(st.lists(st.sampled_from(sorted(BUILT_IN.by_name)), max_size=4))
    return Holding(
        draw(st.uuids()).hex,
        draw(st.text(st.characters(codec="utf-8"), max_size=5)),
        draw(NAMES),
        draw(st.integers(0, 4_000_000_000)),
        tuple(draw(shares(kind, f"{kind}-{minor}", minor)) for minor, kind in enumerate(kinds)),
        draw(st.none() | cpu_shares()),
        draw(st.just("") | NAMES.map("default/{}".format)),
        draw(st.just(0) | st.integers(1, WITHOUT_LIMIT)),
        draw(st.just("") | NAMES),
    )


# A node of several NUMA nodes in any state, and Pods that are aligned on it

_EXCLUSIVE = tuple(one for one in ExclusivePolicy if one is not ExclusivePolicy.DEFAULT)  # which readers resolve


@st.composite
def cpu_rules(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a `CpuNode`: the rules of a node and of its kubelet."""
    return {
        "policy": draw(st.sampled_from(NumaPolicy)),
        "strategy": draw(st.sampled_from(NumaStrategy)),
        "bind": draw(st.sampled_from([None, None, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])),
        "whole_cores": draw(st.sampled_from([False, False, True])),
        "kubelet_policy": draw(st.sampled_from([NumaPolicy.NONE, NumaPolicy.NONE, *REFUSING])),
        "kubelet_by_container": draw(st.booleans()),
        "reserved": draw(st.sampled_from([0, 0, 0b11, 0b1000])),
    }


@st.composite
def server_nodes(draw: st.DrawFn, cpu: CpuTopology) -> NodeSnapshot:
    """Four to eight cards and two to four NICs on two NUMA nodes; some unhealthy, the kubelet's, or without a place."""
    cards, nics = draw(st.sampled_from([(4, 2), (8, 4)]))
    homeless = draw(st.sampled_from([None, None, None, 0]))

    def about(minor: int, many: int, each: int) -> dict[str, Any]:
        at = minor * 2 // many
        return {
            "numa_node": None if minor == homeless else at,
            "pcie": f"pci{minor // each}",
            "healthy": draw(st.integers(0, 11)) > 0,
        }

    devices = [gpu(minor, **about(minor, cards, 2)) for minor in range(cards)]
    devices += [nic(minor, VirtualFunction(0, f"0000:{minor}0:00.1"), **about(minor, nics, 1)) for minor in range(nics)]
    kubelet = draw(st.sets(st.sampled_from([one.id for one in devices]), max_size=1))
    zones = draw(st.sampled_from([{}, {at: Zone(1000 * cpus.bit_count(), 8 * GIB) for at, cpus in cpu.nodes.items()}]))
    rules = draw(cpu_rules())
    return node(*devices, kubelet=kubelet, cpu=draw(st.sampled_from([None, *[CpuNode(cpu, zones=zones, **rules)] * 7])))


@st.composite
def aligned_cpus(draw: st.DrawFn) -> CpuAsk:
    """CPUs of its own, thousandths of a shared pool, or a burst; with or without alignment."""
    own = draw(st.integers(0, 2)) > 0
    count = draw(st.sampled_from([1, 2, 2, 4, 6, 9])) if own else 0
    milli = count * 1000 or draw(st.sampled_from([0, 500, 3000, 9000]))
    required = draw(st.sampled_from([None, None, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])) if own else None
    burst = None if own else draw(st.sampled_from([None, None, BindPolicy.CONSTRAINED_BURST]))
    return CpuAsk(
        qos=draw(st.sampled_from([QosClass.LSE, QosClass.LSR])) if own else QosClass.LS,
        count=count,
        milli=milli,
        memory=draw(st.sampled_from([0, 0, GIB, 9 * GIB])),
        limit_milli=milli,
        required=required,
        preferred=required or burst,
        exclusive=draw(st.sampled_from([None, *_EXCLUSIVE])) if own else None,
        numa_policy=draw(st.sampled_from([None, *(one for one in NumaPolicy if one is not NumaPolicy.NONE)])),
        single_numa_exclusive=draw(st.sampled_from([None, None, *NumaExclusive])),
        of_kubelet=draw(st.sampled_from([(), (KubeletAsk(Phase.APP, count),)])) if count else (),
    )


@st.composite
def aligned_requests(draw: st.DrawFn) -> PodRequest:
    """Cards, NICs beside them or of all roots, and CPUs, with hints; at least one of them."""
    containers = []
    for name in draw(st.sampled_from(["a", "a", "ab"])):
        if draw(st.integers(0, 3)):
            percent = draw(st.sampled_from([20, 50, 100]))
            count = draw(st.sampled_from([1, 1, 2, 2, 3, 4]))
            containers.append(ContainerAsk(name, Phase.APP, ask(count, core=percent, ratio=percent)))
        if draw(st.integers(0, 3)) == 0:
            every = draw(st.booleans())
            containers.append(
                ContainerAsk(name, Phase.APP, DeviceAsk(RDMA_TYPE, 1, (draw(st.sampled_from([20, 100])),), every))
            )
    cpu = draw(st.none() | aligned_cpus() if containers else aligned_cpus())
    hints = {
        "gpu": TypeHint(
            scope=draw(st.sampled_from([None, None, Scope.NUMA_NODE, Scope.PCIE])),
            exclusive=draw(st.sampled_from([None, None, None, *ExclusiveLevel])),
        ),
        "rdma": TypeHint(functions=draw(st.sampled_from([None, None, Selector()]))),
    }
    both = {one.ask.type.name for one in containers} == {"gpu", "rdma"}
    joint = Joint(("gpu", "rdma"), draw(st.booleans())) if both and draw(st.booleans()) else None
    how = Wishes(
        hints=tuple(hints.items()) if draw(st.booleans()) else (),
        joint=joint,
        order=draw(st.sampled_from(["", "", "", "leastUsed", "minor"])),
    )
    return request(*containers, cpu=cpu, wishes=how)
