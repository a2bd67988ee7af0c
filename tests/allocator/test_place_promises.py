"""Every placement keeps every promise: counted again from scratch, without the allocator's code.

Random servers have types with topology, NUMA nodes, CPUs with reserved ones, and holdings of earlier Pods. Random Pods
have devices, CPUs, hints, joint types, partitions and policies.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from builders import GIB, ask, gpu, holding, nic, nics, node
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from machines import wired
from machines_cpu import build, shuffled, siblings_far, siblings_near
from trials import examples

from allocator.place import Placement, place
from allocator.signature import depends_on_names, renamed, signature_of
from allocator.vocabulary.asks import (
    ContainerAsk,
    DeviceAsk,
    DeviceOrder,
    ExclusiveLevel,
    Joint,
    Operator,
    PartitionSpec,
    PodRequest,
    Requirement,
    Scope,
    Selector,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.cpunode import (
    BindPolicy,
    CpuAsk,
    CpuNode,
    CpuShare,
    ExclusivePolicy,
    KubeletAsk,
    NumaExclusive,
    NumaPolicy,
    NumaStrategy,
    QosClass,
    Zone,
)
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.device import Device, VirtualFunction
from allocator.vocabulary.devicetype import FULL, Unit, own_type
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import Phase
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import built_in

QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
TOPOLOGIES = (
    build(1, 1, 4, 2, siblings_far),
    build(2, 1, 4, 2, siblings_near),
    build(2, 2, 2, 2, shuffled),
    build(2, 1, 4, 1, siblings_far),
)
EXCLUSIVE = (ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
FAST = Selector((Requirement("speed", Operator.IN, ("fast",)),))


# Nodes


@st.composite
def devices(draw: st.DrawFn, numas: int) -> list[Device]:
    def place_of(minor: int) -> dict[str, Any]:
        if draw(st.integers(0, 9)) == 0:
            return {}
        return {"numa_node": minor // 2 % numas, "pcie": f"pci{minor // 2}"}

    def healthy() -> bool:
        return draw(st.integers(0, 11)) > 0

    made = [
        gpu(minor, draw(st.sampled_from([80 * GIB, 101])), healthy=healthy(), **place_of(minor))
        for minor in range(draw(st.integers(0, 8)))
    ]
    for minor in range(draw(st.integers(0, 4))):
        functions = [
            VirtualFunction(at, f"0000:{minor}f:00.{at}", {"speed": "fast" if at % 2 else "slow"})
            for at in range(draw(st.integers(0, 3)))
        ]
        made.append(nic(minor, *functions, healthy=healthy(), **place_of(2 * minor)))
    made += [
        Device("queue", f"queue-{minor}", minor, healthy(), {"queue": draw(st.integers(1, 250))})
        for minor in range(draw(st.integers(0, 2)))
    ]
    return made


@st.composite
def cpu_nodes(draw: st.DrawFn, topology: CpuTopology) -> CpuNode:
    told = st.builds(Zone, st.none() | st.integers(0, 20_000), st.none() | st.integers(0, 64))
    zones = {at: draw(told) for at in topology.nodes}
    return CpuNode(
        topology,
        reserved=draw(st.just(0) | st.integers(0, 2 ** len(topology.cpus) - 1)),
        bind=draw(st.none() | st.sampled_from([BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])),
        whole_cores=draw(st.booleans()),
        strategy=draw(st.sampled_from(NumaStrategy)),
        policy=draw(st.sampled_from([NumaPolicy.NONE, *NumaPolicy])),
        default_exclusive=draw(st.sampled_from(EXCLUSIVE)),
        zones=zones if draw(st.booleans()) else {},
        kubelet_policy=draw(st.sampled_from([NumaPolicy.NONE, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE])),
        kubelet_by_container=draw(st.booleans()),
    )


@st.composite
def nodes(draw: st.DrawFn) -> NodeSnapshot:
    topology = draw(st.sampled_from(TOPOLOGIES))
    made = draw(devices(len(topology.nodes)))
    table = built_in("nvidia", "H100") if draw(st.booleans()) else None
    on = node(
        *made,
        kubelet=draw(st.sets(st.sampled_from([device.id for device in made]), max_size=1)) if made else (),
        wiring=wired(made, partitions=table, honour_partitions=draw(st.booleans())),
        cpu=draw(st.none() | cpu_nodes(topology)),
        order=draw(st.sampled_from(["", *DeviceOrder])),
    )
    for index in range(draw(st.integers(0, 4))):
        answer = place(draw(requests()), on)
        if isinstance(answer, Placement):
            gang = draw(st.sampled_from(["", "default/train"]))
            on = on.with_holding(holding(f"other-{index}", *answer.shares, cpus=answer.cpus, gang=gang))
    return on


# Pods


def device_asks() -> st.SearchStrategy[DeviceAsk]:
    counts = st.integers(1, 3)
    parts, sizes = st.sampled_from([1, 30, 50, FULL]), st.sampled_from([1, 50, GIB])
    return st.one_of(
        st.builds(lambda count: ask(count, core=FULL, ratio=FULL), counts),
        st.builds(lambda count, core, ratio: ask(count, core=core, ratio=ratio), counts, parts, parts),
        st.builds(lambda count, core, memory: ask(count, core=core, memory=memory), counts, parts, sizes),
        st.builds(nics, parts, counts),
        st.builds(lambda percent: nics(percent, every=True), parts),
        st.builds(lambda amount: DeviceAsk(QUEUE, 1, (amount,)), st.integers(1, 250)),
    )


@st.composite
def container_asks(draw: st.DrawFn) -> tuple[ContainerAsk, ...]:
    phases = draw(st.lists(st.sampled_from([Phase.APP, *Phase]), min_size=draw(st.integers(0, 1)), max_size=3))
    phases.sort(key=lambda phase: phase is Phase.APP)
    asks = []
    for index, phase in enumerate(phases):
        wanted = draw(st.lists(device_asks(), min_size=1, max_size=2, unique_by=lambda one: one.type.name))
        asks += [ContainerAsk(f"c{index}", phase, one) for one in wanted]
    return tuple(asks)


def hints() -> st.SearchStrategy[TypeHint]:
    ids = Selector((Requirement("koordgate.io/minor", Operator.NOT_IN, ("0",)),))
    return st.builds(
        TypeHint,
        st.none() | st.just(ids),
        st.none() | st.sampled_from([FAST, Selector()]),
        st.none(),
        st.none() | st.sampled_from(Scope),
        st.none() | st.sampled_from(ExclusiveLevel),
    )


def wishes() -> st.SearchStrategy[Wishes]:
    named = st.dictionaries(st.sampled_from(["gpu", "rdma", "queue"]), hints(), max_size=2)
    joints = st.builds(Joint, st.permutations(["gpu", "rdma"]).map(tuple), st.booleans())
    return st.builds(
        Wishes,
        named.map(lambda of: tuple(of.items())),
        st.none() | joints,
        st.none() | st.none() | st.builds(PartitionSpec, st.booleans(), st.sampled_from([None, None, 100 * GIB])),
        st.sampled_from(["", "", *DeviceOrder]),
        st.sampled_from(["", "default/train"]),
    )


@st.composite
def cpu_asks(draw: st.DrawFn) -> CpuAsk:
    policy = draw(st.none() | st.sampled_from([one for one in NumaPolicy if one is not NumaPolicy.NONE]))
    apart = draw(st.none() | st.sampled_from(NumaExclusive))
    memory = draw(st.integers(0, 40))
    if draw(st.booleans()):
        count = draw(st.integers(1, 9))
        binds = st.none() | st.sampled_from([BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])
        required = draw(binds)
        preferred = required or draw(binds)
        exclusive = draw(st.none() | st.sampled_from(EXCLUSIVE))
        parts = draw(st.sampled_from([(), (count,), (1,) * count]))
        given_by_kubelet = tuple(KubeletAsk(Phase.APP, part) for part in parts)
        return CpuAsk(
            QosClass.LSR,
            count,
            1000 * count,
            memory,
            1000 * count,
            required,
            preferred,
            exclusive,
            policy,
            apart,
            given_by_kubelet,
        )
    milli = draw(st.just(0) | st.integers(0, 9000))
    burst = draw(st.none() | st.just(BindPolicy.CONSTRAINED_BURST))
    given_by_kubelet = (KubeletAsk(Phase.APP, milli // 1000),) if milli and milli % 1000 == 0 else ()
    return CpuAsk(QosClass.LS, 0, milli, memory, milli + 500, None, burst, None, policy, apart, given_by_kubelet)


def requests() -> st.SearchStrategy[PodRequest]:
    return st.builds(PodRequest, container_asks(), st.none() | cpu_asks(), st.just(Wishes()) | wishes())


# What must hold


def needed(one: DeviceAsk, device: Device, hint: TypeHint) -> Mapping[str, int]:
    """The amounts that a request takes of a device: what follows in the other unit rounds down."""
    if hint.exclusive is ExclusiveLevel.DEVICE:
        return device.capacity
    told = dict(zip(one.type.tails, one.amounts, strict=True))
    if one.type.memory is not None:
        size, ratio = one.type.memory
        total = device.capacity[size]
        if told[size] is None:
            told[size] = total * (told[ratio] or 0) // 100
        elif told[ratio] is None:
            told[ratio] = 100 * (told[size] or 0) // total
    return {tail: amount or 0 for tail, amount in told.items()}


def peak(of: PodRequest, share: Share, device: Device, hint: TypeHint) -> dict[str, int]:
    """The peak of what the Pod uses of a device: each init container with the sidecars before it, then the others."""
    mine = [c for c in of.containers if c.ask.type.name == share.type]
    steps: list[list[ContainerAsk]] = []
    sidecars: list[ContainerAsk] = []
    for c in mine:
        if c.phase is Phase.SIDECAR:
            sidecars.append(c)
        elif c.phase is Phase.INIT:
            steps.append([*sidecars, c])
    steps.append(sidecars + [c for c in mine if c.phase is Phase.APP])
    return {
        tail: max(sum(needed(c.ask, device, hint)[tail] for c in step if c.name in share.containers) for step in steps)
        for tail in device.capacity
    }


def check_devices(of: PodRequest, on: NodeSnapshot, answer: Placement) -> None:
    by_id = {device.id: device for device in on.devices}
    assert len({share.id for share in answer.shares}) == len(answer.shares)
    held = [share for held in on.holdings.values() for share in held.shares]
    lonely = {share.id for share in held if share.alone}
    closed = {by_id[one].pcie for one in lonely} - {None}
    busy = {by_id[one].pcie for one in [*on.used, *on.kubelet_held]} - {None}
    for share in answer.shares:
        device, hint = by_id[share.id], of.wishes.hint(share.type) or TypeHint()
        assert (share.type, share.minor) == (device.type, device.minor)
        assert device.healthy
        assert device.id not in on.kubelet_held
        assert device.pcie not in closed
        assert device.id not in lonely | {one.id for one in held if one.unshared}
        assert share.alone == (hint.exclusive is ExclusiveLevel.PCIE)
        assert not (share.alone and (device.pcie in busy or device.id in on.used))
        assert share.unshared == (hint.exclusive is ExclusiveLevel.DEVICE)
        assert not (share.unshared and device.id in on.used)
        assert hint.selector is None or device.minor != 0
        assert dict(share.amounts) == peak(of, share, device, hint)
        check_functions(device, share, hint, on)
    taken = [function.bus_id for share in answer.shares for function in share.functions]
    assert len(set(taken)) == len(taken)
    for kind in of.types():
        check_scope([by_id[share.id] for share in answer.shares if share.type == kind.name], of)
    for c in of.containers:
        mine = [share for share in answer.shares if share.type == c.ask.type.name and c.name in share.containers]
        beside = of.wishes.joint is not None and c.ask.type.name == of.wishes.joint.types[1]
        assert len(mine) == c.ask.count or ((c.ask.every or beside) and len(mine) > c.ask.count)
        for share in mine:
            asked = needed(c.ask, by_id[share.id], TypeHint())
            assert all(share.amounts[tail] >= amount for tail, amount in asked.items())
        check_partition([by_id[share.id] for share in mine], on, of, c)


def check_functions(device: Device, share: Share, hint: TypeHint, on: NodeSnapshot) -> None:
    if hint.functions is None:
        assert share.functions == ()
        return
    (function,) = share.functions
    taken = {one.bus_id for held in on.holdings.values() for other in held.shares for one in other.functions}
    matching = [one for one in device.functions if hint.functions == Selector() or one.labels["speed"] == "fast"]
    assert function.bus_id == min(one.bus_id for one in matching if one.bus_id not in taken)


def check_scope(mine: list[Device], of: PodRequest) -> None:
    """All devices of a type that a Pod has."""
    scope = (of.wishes.hint(mine[0].type) or TypeHint()).scope
    if scope is None or len(mine) < 2:
        return
    assert scope is not Scope.DEVICE
    if scope is Scope.PCIE:
        assert len({device.pcie for device in mine}) == 1
        assert mine[0].pcie is not None
    if scope in {Scope.PCIE, Scope.NUMA_NODE}:
        assert len({device.numa_node for device in mine}) == 1
        assert mine[0].numa_node is not None


def check_partition(mine: list[Device], on: NodeSnapshot, of: PodRequest, c: ContainerAsk) -> None:
    if c.ask.type.name != "gpu" or not (of.wishes.partition is not None or on.wiring.honour_partitions):
        return
    if (c.ask.amount("gpu-core"), c.ask.amount("gpu-memory-ratio")) != (FULL, FULL):
        return
    assert on.wiring.partitions is not None
    cut = {one.minors: one for one in on.wiring.partitions.partitions}
    found = cut[tuple(sorted(device.minor for device in mine))]
    ring = of.wishes.partition.ring_bandwidth if of.wishes.partition else None
    assert ring is None or (found.bandwidth is not None and found.bandwidth >= ring)


def check_joint(of: PodRequest, on: NodeSnapshot, answer: Placement) -> None:
    """The devices of the second type are beside those of the first: the container's own, or else the Pod's."""
    joint = of.wishes.joint
    if joint is None or not joint.same_pcie or not {"gpu", "rdma"} <= {kind.name for kind in of.types()}:
        return
    where = {device.id: device.pcie for device in on.devices}

    def roots(kind: str, *containers: str) -> set[str | None]:
        return {where[one.id] for one in answer.shares if one.type == kind and {*one.containers} & {*containers}}

    first, second = joint.types
    leads = {c.name for c in of.containers if c.ask.type.name == first}
    for c in of.containers:
        if c.ask.type.name == second:
            beside = roots(first, c.name) if c.name in leads else roots(first, *leads)
            assert roots(second, c.name) == beside
            assert None not in beside


def check_cpus(of: PodRequest, on: NodeSnapshot, share: CpuShare | None) -> None:
    assert (share is None) == (of.cpu is None)
    if share is None or of.cpu is None:
        return
    assert share.qos == of.cpu.qos
    assert share.cpus.bit_count() == of.cpu.count
    if on.cpu is None:
        return
    others = 0
    for held in on.holdings.values():
        others |= held.cpus.cpus if held.cpus else 0
    assert share.cpus & (others | on.cpu.reserved) == 0
    assert share.cpus & ~on.cpu.topology.all == 0
    cores = [core & share.cpus for core in on.cpu.topology.cores if core & share.cpus]
    must = of.cpu.required or (on.cpu.bind if share.cpus else None)
    if must is BindPolicy.FULL_PCPUS:
        assert all(core in on.cpu.topology.cores for core in cores)
    elif must is BindPolicy.SPREAD_BY_PCPUS:
        assert all(core.bit_count() == 1 for core in cores)
    check_kubelet(of.cpu, on.cpu, others, share)
    check_pools(on, share)
    check_wishes(of, on, share)
    for one in share.numa:
        inside = on.cpu.topology.nodes[one.node]
        assert one.milli == 1000 * (inside & share.cpus).bit_count() or not share.cpus
        zone = on.cpu.zones.get(one.node)
        stood = [s for held in on.holdings.values() if held.cpus for s in held.cpus.numa if s.node == one.node]
        if zone is None or zone.memory is None:
            assert not one.memory
        else:
            assert one.memory + sum(s.memory for s in stood) <= zone.memory or not one.memory
    if share.numa and any(on.cpu.zones.get(at) and on.cpu.zones[at].memory is not None for at in on.cpu.topology.nodes):
        assert sum(one.memory for one in share.numa) in {0, of.cpu.memory}


def check_kubelet(ask: CpuAsk, cpu: CpuNode, others: int, share: CpuShare) -> None:
    """No SMTAlignmentError, and no TopologyAffinityError."""
    if cpu.whole_cores:
        assert all(one.cpus % cpu.topology.threads_per_core == 0 for one in ask.of_kubelet)
    if cpu.kubelet_policy is not NumaPolicy.SINGLE_NUMA_NODE or not ask.of_kubelet:
        return
    if cpu.kubelet_by_container:
        largest = max((inside & ~cpu.reserved & ~others).bit_count() for inside in cpu.topology.nodes.values())
        assert all(one.cpus <= largest for one in ask.of_kubelet)
    elif share.cpus:
        assert len({at for at, inside in cpu.topology.nodes.items() if inside & share.cpus}) == 1


def check_pools(on: NodeSnapshot, share: CpuShare) -> None:
    """Pods on a shared pool keep enough CPUs for their thousandths in each NUMA node, and at least one."""
    assert on.cpu is not None
    shares = [share, *(held.cpus for held in on.holdings.values() if held.cpus)]
    for at, inside in on.cpu.topology.nodes.items():
        left = inside & ~on.cpu.reserved
        for one in shares:
            left &= ~one.cpus
        pooled = [stood for one in shares if not one.cpus for stood in one.numa if stood.node == at]
        assert sum(stood.milli for stood in pooled) <= 1000 * left.bit_count()
        assert left or not pooled or not share.cpus & inside


def check_wishes(of: PodRequest, on: NodeSnapshot, share: CpuShare) -> None:
    """A NUMA policy gives up no preference that another NUMA node would have kept."""
    ask, cpu = of.cpu, on.cpu
    assert ask is not None
    assert cpu is not None
    stood = [at for at, inside in cpu.topology.nodes.items() if inside & share.cpus]
    if len(stood) != 1 or of.containers or ask.memory or ask.single_numa_exclusive or not share.numa:
        return
    free = cpu.topology.all & ~cpu.reserved
    for one in on.holdings.values():
        free &= ~(one.cpus.cpus if one.cpus else 0)
    held = [one.cpus for one in on.holdings.values() if one.cpus]
    wished = kept(share, held, cpu)
    event(f"wishes kept: {wished}")
    for at, inside in cpu.topology.nodes.items():
        if any(one.node == at for other in held if not other.cpus for one in other.numa):
            continue  # some of its CPUs may have to stay in the shared pool
        here = [core & free & inside for core in cpu.topology.cores]
        if share.bind is BindPolicy.FULL_PCPUS:
            could = sum(core.bit_count() for core, of in zip(here, cpu.topology.cores, strict=True) if core == of)
        else:
            could = sum(1 for core in here if core)
        idle = not any(exclusive_with(share, other) and other.cpus & inside for other in held)
        assert wished or could < ask.count or not idle, (at, share)


def exclusive_with(share: CpuShare, other: CpuShare) -> bool:
    return share.exclusive is other.exclusive is not ExclusivePolicy.NONE


def kept(share: CpuShare, held: list[CpuShare], cpu: CpuNode) -> bool:
    """Whether all preferences are kept: the bind policy, and no core or NUMA node held with the same policy."""
    topology = cpu.topology
    cores = [core & share.cpus for core in topology.cores if core & share.cpus]
    full = share.bind is BindPolicy.FULL_PCPUS
    if full:
        broken = sum(1 for core in cores if core not in topology.cores)
        as_bound = broken <= (share.cpus.bit_count() % topology.threads_per_core > 0)
    else:
        as_bound = all(core.bit_count() == 1 for core in cores)
    groups: Iterable[int] = topology.nodes.values()
    if share.exclusive is ExclusivePolicy.PCPU_LEVEL:
        groups = () if full else topology.cores
    return as_bound and not any(
        group & share.cpus and group & other.cpus for other in held if exclusive_with(share, other) for group in groups
    )


def check_numa(of: PodRequest, on: NodeSnapshot, answer: Placement) -> None:
    """SingleNUMANode: CPUs, memory and the devices that state a NUMA node are in one NUMA node."""
    policy = (of.cpu.numa_policy if of.cpu else None) or (on.cpu.policy if on.cpu else None)
    if policy is not NumaPolicy.SINGLE_NUMA_NODE:
        return
    where = {device.id: device.numa_node for device in on.devices}
    at = {where[share.id] for share in answer.shares} - {None}
    if answer.cpus is not None and on.cpu is not None:
        at |= {one.node for one in answer.cpus.numa}
        at |= {numa for numa, inside in on.cpu.topology.nodes.items() if inside & answer.cpus.cpus}
    assert len(at) <= 1


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(nodes(), requests())
def test_a_placement_keeps_every_promise(on: NodeSnapshot, of: PodRequest) -> None:
    on.check_invariants()
    answer = place(of, on)
    event(type(answer).__name__)
    if isinstance(answer, Refusal):
        assert answer.message.startswith("node-1: ")
        assert answer.short
        return
    after = on.with_holding(holding("uid", *answer.shares, cpus=answer.cpus))
    after.check_invariants()
    check_devices(of, on, answer)
    check_joint(of, on, answer)
    check_cpus(of, on, answer.cpus)
    check_numa(of, on, answer)
    assert place(of, after.without(["uid"])) == answer


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(st.data(), st.sampled_from([topology for topology in TOPOLOGIES if len(topology.nodes) > 1]))
def test_pods_that_ask_cpus_alone_keep_every_promise_of_theirs_one_after_the_other(
    data: st.DataObject, topology: CpuTopology
) -> None:
    on = node(cpu=data.draw(cpu_nodes(topology)))
    for index in range(data.draw(st.integers(1, 6))):
        ask = replace(data.draw(cpu_asks()), single_numa_exclusive=None, memory=data.draw(st.sampled_from([0, 0, 9])))
        of = PodRequest((), ask)
        answer = place(of, on)
        if isinstance(answer, Placement):
            check_cpus(of, on, answer.cpus)
            check_numa(of, on, answer)
            on = on.with_holding(holding(f"uid-{index}", cpus=answer.cpus))
            on.check_invariants()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(st.data(), st.sampled_from([topology for topology in TOPOLOGIES if len(topology.nodes) > 1]))
def test_a_numa_policy_gives_up_no_wish_that_another_numa_node_keeps(
    data: st.DataObject, topology: CpuTopology
) -> None:
    held = []
    left = topology.all
    for index in range(3):
        cpus = left & data.draw(st.integers(0, topology.all)) & data.draw(st.integers(0, topology.all))
        left &= ~cpus
        held.append(holding(f"other-{index}", cpus=CpuShare("LSR", cpus, None, data.draw(st.sampled_from(EXCLUSIVE)))))
    policy = data.draw(st.sampled_from([one for one in NumaPolicy if one is not NumaPolicy.NONE]))
    bind = data.draw(st.sampled_from([BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]))
    count = data.draw(st.integers(1, 4))
    ask = CpuAsk(QosClass.LSR, count, 1000 * count, 0, preferred=bind, exclusive=data.draw(st.sampled_from(EXCLUSIVE)))
    strategy = data.draw(st.sampled_from(NumaStrategy))
    on, of = node(holdings=held, cpu=CpuNode(topology, strategy=strategy, policy=policy)), PodRequest((), ask)
    answer = place(of, on)
    if isinstance(answer, Placement):
        check_cpus(of, on, answer.cpus)


@settings(max_examples=examples(75), deadline=None, suppress_health_check=SLOW)
@given(nodes(), requests(), st.randoms(use_true_random=False))
def test_the_answer_does_not_hang_on_the_order_in_which_holdings_are_reported(
    on: NodeSnapshot, of: PodRequest, chance: random.Random
) -> None:
    told = place(of, on)
    assert place(of, on) == told
    assert place(of, on.holding_all(dict(chance.sample(sorted(on.holdings.items()), len(on.holdings))))) == told


@settings(max_examples=examples(75), deadline=None, suppress_health_check=SLOW)
@given(nodes(), requests())
def test_a_permanent_refusal_holds_on_the_empty_node_too(on: NodeSnapshot, of: PodRequest) -> None:
    answer = place(of, on)
    if isinstance(answer, Refusal) and answer.permanent:
        empty = on.holding_all({})
        assert isinstance(place(of, empty), Refusal)
        assert isinstance(place(of, replace(empty, kubelet_held=frozenset())), Refusal)


def like_another(on: NodeSnapshot) -> NodeSnapshot:
    """A node that differs in its name, in the ids of its devices, and in who holds what."""
    ids = {device.id: f"x-{len(on.devices) - number}" for number, device in enumerate(on.devices)}
    links = on.wiring.links
    held = {}
    for uid, one in on.holdings.items():
        shares = tuple(taken._replace(id=ids[taken.id], containers=("main",)) for taken in one.shares)
        held[f"x-{uid}"] = replace(one, uid=f"x-{uid}", namespace="x", name="x", since=1, shares=shares)
    return NodeSnapshot(
        "another-node",
        tuple(replace(device, id=ids[device.id], why_not="x") for device in on.devices),
        held,
        frozenset(ids[one] for one in on.kubelet_held),
        replace(on.wiring, links=replace(links, ids=tuple(ids[one] for one in links.ids))),
        on.cpu,
        on.order,
        on.isolation,
        on.delivery,
    )


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(nodes(), requests())
def test_a_refusal_holds_in_its_words_on_every_node_that_is_alike(on: NodeSnapshot, of: PodRequest) -> None:
    other = like_another(on)
    assert signature_of(other) == signature_of(on)
    if depends_on_names(of, on):
        return
    told, there = place(of, on), place(of, other)
    if isinstance(told, Refusal):
        assert there == renamed(told, on.name, other.name)
        event("refused")
    else:
        assert isinstance(there, Placement)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW)
@given(nodes(), nodes(), requests(), st.sets(st.sampled_from(["devices", "holdings", "cpu", "wiring", "order"])))
def test_nodes_on_which_a_request_fares_differently_are_not_alike(
    on: NodeSnapshot, another: NodeSnapshot, of: PodRequest, parts: set[str]
) -> None:
    changed = replace(on, **{part: getattr(another, part) for part in parts})
    if signature_of(changed) == signature_of(on) and not depends_on_names(of, on) and not depends_on_names(of, changed):
        assert isinstance(place(of, changed), Refusal) is isinstance(place(of, on), Refusal)
        event("alike")
