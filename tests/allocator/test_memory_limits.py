"""Memory limits: which nodes keep them, how much each container may use, and what is written for what keeps them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, MIB, app, ask, container, gpu, init, node, pod, request, sidecar, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.devices.delivery import DeliveryRules, delivery_of
from allocator.fractions import regions
from allocator.memorylimits import limit_annotations, memory_limits
from allocator.place import Placement, place
from allocator.reasons import changes
from allocator.request.original import read_asks
from allocator.vocabulary.asks import ContainerAsk, PodRequest, Wishes
from allocator.vocabulary.delivery import NOTHING_TOLD, LimitProvider, NodeDelivery, NodeRuntime, Way, read_limits
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_SHARING, Phase, required_plugins
from allocator.vocabulary.outcome import Refusal

TOOLKIT, FRACTIONS = LimitProvider.NVIDIA_TOOLKIT, LimitProvider.NVIDIA_FRACTIONS
ODD = 15 * GIB + 12_345_677  # no whole number of MiB, and no multiple of 100


def card(minor: int, memory: int = ODD) -> Device:
    return replace(gpu(minor), capacity={"gpu-core": 100, "gpu-memory": memory, "gpu-memory-ratio": 100})


def limited(*containers: ContainerAsk, **about: Any) -> PodRequest:
    return request(*containers, wishes=Wishes(limits=True, **about))


def given_limits(asked: PodRequest, *devices: Device) -> dict[str, tuple[int, ...]]:
    """Container -> what it holds and what it may use in MiB, where the Pod is placed on these cards."""
    placed = place(replace(asked, wishes=replace(asked.wishes, limits=False)), node(*devices))
    assert isinstance(placed, Placement)
    return {name: (limit.held, limit.most) for name, (_, limit) in memory_limits(asked, placed.shares, devices).items()}


# --- which nodes

KEPT, NO_CALL = "", "the driver is 580.1: install R615 or later"
# what the node's runtime tells, the Pod's RuntimeClass, and a part of why limits are not kept ("": they are)
TOOLKITS: dict[str, tuple[NodeRuntime | None, str, str]] = {
    "nothing is told": (None, "", "let koordgate's reporter run there"),
    "not told of limits": (NodeRuntime(default_shows=True, mode="auto"), "", "let koordgate's reporter run there"),
    "the driver cannot": (NodeRuntime(default_shows=True, mode="auto", no_limits=NO_CALL), "", NO_CALL),
    "mode auto": (NodeRuntime(default_shows=True, mode="auto", no_limits=KEPT), "", KEPT),
    "mode cdi": (NodeRuntime(default_shows=True, mode="cdi", no_limits=KEPT), "", KEPT),
    "mode jit-cdi by RuntimeClass": (NodeRuntime(handlers=("nvidia",), mode="jit-cdi", no_limits=KEPT), "nvidia", KEPT),
    "mode legacy": (NodeRuntime(default_shows=True, mode="legacy", no_limits=KEPT), "", 'set mode = "auto"'),
    "mode csv": (NodeRuntime(default_shows=True, mode="csv", no_limits=KEPT), "", "is in mode csv"),
    "mode not known": (NodeRuntime(default_shows=True, no_limits=KEPT), "", "let koordgate's reporter run there"),
    "another RuntimeClass, mode auto": (NodeRuntime(default_shows=True, mode="auto", no_limits=KEPT), "kata", KEPT),
    "NVIDIA's NRI plugin, mode legacy": (
        NodeRuntime(nri=True, kinds=("nvidia.com/gpu",), mode="legacy", no_limits=KEPT),
        "",
        KEPT,
    ),
    "the operator alone": (NodeRuntime(default_shows=True, fractions=True), "", "let koordgate's reporter run there"),
}


def judged(runtime: NodeRuntime | None, provider: LimitProvider, runtime_class: str = "") -> Refusal | None:
    """The refusal of a Pod that requires limits, by a node with this runtime."""
    delivery = delivery_of(runtime, "", DeliveryRules(runtime_class="nvidia", handler="nvidia", limits=provider))
    asked = limited(app("main", ask(core=50, ratio=50)), runtime_class=runtime_class)
    found = place(asked, replace(node(gpu(0)), delivery=delivery))
    return found if isinstance(found, Refusal) else None


@pytest.mark.parametrize(("runtime", "runtime_class", "why"), TOOLKITS.values(), ids=TOOLKITS)
def test_a_pod_that_requires_limits_is_placed_only_where_nvidias_hook_sets_them(
    runtime: NodeRuntime | None, runtime_class: str, why: str
) -> None:
    refused = judged(runtime, TOOLKIT, runtime_class)
    assert (refused is None) == (not why)
    if refused is not None:
        assert refused.short == "the node does not keep memory limits, which the Pod requires"
        assert refused.message.startswith(f"node-1: {refused.short}: ")
        assert why in refused.message


def test_or_where_the_fractioning_operator_is_ready() -> None:
    ready = NodeRuntime(default_shows=True, mode="legacy", fractions=True)
    assert judged(ready, FRACTIONS) is None
    for other in (NodeRuntime(default_shows=True, mode="auto", no_limits=KEPT), NodeRuntime(default_shows=True)):
        refused = judged(other, FRACTIONS)
        assert refused is not None
        assert "gpu-sharing.nvidia.com/Ready is not True): install it" in refused.message


def test_where_nothing_keeps_limits_no_node_takes_a_pod_that_requires_them() -> None:
    refused = judged(NodeRuntime(default_shows=True, mode="auto", fractions=True, no_limits=KEPT), LimitProvider.NONE)
    assert refused is not None
    assert "limits.provider is none" in refused.message


def test_other_pods_and_pods_without_gpus_go_anywhere() -> None:
    on = replace(node(gpu(0)), delivery=NodeDelivery(plain=Way(None)))
    assert on.delivery.plain.no_limits is None
    free = node(gpu(0))
    assert free.delivery is NOTHING_TOLD
    assert isinstance(place(request(app("main", ask(ratio=50))), free), Placement)
    assert isinstance(place(limited(), free), Placement)


def test_explain_says_that_the_pod_would_fit_without_its_requirement() -> None:
    found = changes(limited(app("main", ask(ratio=50))), node(gpu(0)), {})
    assert [one.text for one in found] == ["drop the requirement of memory limits (koordgate.io/limits)"]


# --- how much

HALF, THIRD = ask(core=50, ratio=50), ask(core=33, ratio=33)
ODD_HALF, ODD_THIRD = ODD * 50 // 100 // MIB, ODD * 33 // 100 // MIB
# the containers; the cards; for each container what it holds and may use, in MiB
NUMBERS: dict[str, tuple[list[ContainerAsk], list[Device], dict[str, tuple[int, int]]]] = {
    "half of an odd card, rounded down": ([app("a", HALF)], [card(0)], {"a": (ODD_HALF, ODD_HALF)}),
    "a whole card": ([app("a", ask(core=100, ratio=100))], [card(0)], {"a": (ODD // MIB, ODD // MIB)}),
    "bytes": ([app("a", ask(memory=3 * MIB + 5))], [card(0)], {"a": (3, 3)}),
    "two containers on one card": (
        [app("a", HALF), app("b", THIRD)],
        [card(0)],
        {"a": (ODD_HALF, ODD_HALF), "b": (ODD_THIRD, ODD_THIRD)},
    ),
    "two unequal cards: the smaller part": (
        [app("a", ask(core=50, ratio=50, count=2))],
        [card(0), card(1, 8 * GIB)],
        {"a": (4096, 4096)},
    ),
    "init containers hold the card in turn": (
        [init("first", ask(core=100, ratio=90)), sidecar("side", ask(core=10, ratio=10)), app("a", HALF)],
        [card(0, 10 * GIB)],
        {"first": (9216, 9216), "side": (1024, 1024), "a": (5120, 5120)},
    ),
    "less than a MiB": ([app("a", ask(memory=MIB - 1))], [card(0)], {"a": (0, 0)}),
}


@pytest.mark.parametrize(("asks", "cards", "limits"), NUMBERS.values(), ids=NUMBERS)
def test_a_container_may_use_what_is_held_for_it_on_each_card_in_whole_mib(
    asks: list[ContainerAsk], cards: list[Device], limits: dict[str, tuple[int, int]]
) -> None:
    assert given_limits(limited(*asks), *cards) == limits


def test_a_limit_above_the_request_is_capped_by_the_card_and_never_below_what_is_held() -> None:
    small = card(1, 8 * GIB)
    for above, most in ((6 * GIB + 1, 6144), (99 * GIB, 8192), (GIB, 4096), (0, 4096)):
        asked = replace(limited(app("a", ask(core=50, ratio=50, count=2))), memory_limits=(("a", above), ("b", GIB)))
        assert given_limits(asked, card(0), small) == {"a": (4096, most)}


def test_containers_of_a_group_may_use_their_parts() -> None:
    said = '{"gpu":{"users":["a","b"],"weights":{"a":3},"slot":50}}'
    obj = pod(container("a"), container("b"), annotations={DEVICE_SHARING: said})
    assert given_limits(read_asks(obj).request, card(0, 80 * GIB)) == {"a": (30720, 30720), "b": (10240, 10240)}


def test_a_card_that_is_gone_leaves_no_limit_to_those_who_used_it_in_turn() -> None:
    asked = limited(init("first", HALF), app("a", THIRD))
    placed = place(replace(asked, wishes=Wishes()), node(card(0)))
    assert isinstance(placed, Placement)
    assert {one.held for _, one in memory_limits(asked, placed.shares, []).values()} == {0}
    other = Share("rdma", "NIC-0", 0, {"rdma": 50}, ("a",))
    assert memory_limits(asked, [other], []) == {}


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Pods of up to four containers that run in any order, alone or in groups, with odd amounts."""
    early, apps, names = list[Any](), list[Any](), list[str]()
    for name in "abcd"[: draw(st.integers(1, 4))]:
        amount: dict[str, Any] = draw(
            st.sampled_from(
                [{"gpu-memory-ratio": draw(st.integers(1, 60))}, {"gpu-memory": draw(st.integers(1, 2**33))}]
            )
        )
        if draw(st.booleans()):
            amount = {"gpu-core": draw(st.integers(1, 50)), **amount}
        kind = draw(st.sampled_from([Phase.INIT, Phase.SIDECAR, Phase.APP]))
        made = (sidecar_container if kind is Phase.SIDECAR else container)(
            name, limits={f"kubernetes.io/{tail}": str(much) for tail, much in amount.items()}
        )
        (apps if kind is Phase.APP else early).append(made)
        names.append(name)
    grouped = '{"gpu":{}}' if draw(st.booleans()) else '{"gpu":{"regions":"GroupEach"}}'
    annotations = {DEVICE_SHARING: grouped} if draw(st.booleans()) else {}
    return pod(*(apps or [container("idle")]), init=early, annotations=annotations)


def at_once(obj: dict[str, Any]) -> list[set[str]]:
    """The sets of containers that run at the same time."""
    early = obj["spec"].get("initContainers", [])
    listed = [*early, *obj["spec"]["containers"]]
    phases = [Phase.SIDECAR if "restartPolicy" in one else Phase.INIT for one in early]
    phases += [Phase.APP] * (len(listed) - len(early))
    return [{listed[at]["name"] for at in region} for region in regions(phases)]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(pods(), min_size=1, max_size=6), st.lists(st.integers(2**32, 2**36), min_size=1, max_size=3))
def test_the_limits_of_all_that_runs_at_once_never_exceed_a_card(
    objects: Sequence[dict[str, Any]], sizes: Sequence[int]
) -> None:
    on = node(*(card(minor, size) for minor, size in enumerate(sizes)))
    used = dict.fromkeys((device.id for device in on.devices), 0)
    for number, obj in enumerate(objects):
        reading = read_asks(obj, implied=False)
        placed = None if reading.problems else place(reading.request, on)
        if not isinstance(placed, Placement):
            continue
        limits = memory_limits(reading.request, placed.shares, on.devices)
        for device in used:
            used[device] += max(
                sum(limit.most for name, (cards, limit) in limits.items() if name in running and device in cards)
                for running in at_once(obj)
            )
        on = on.with_holding(Holding(f"uid-{number}", "default", f"p{number}", 0, placed.shares))
    for held in on.devices:
        assert used[held.id] * MIB <= held.capacity["gpu-memory"]


# --- what is written


def written(provider: LimitProvider, *above: tuple[str, int], name: str = "main") -> dict[str, str] | str:
    asked = replace(limited(app(name, ask(core=50, ratio=50, count=2))), memory_limits=above)
    devices = [card(1, 8 * GIB), card(0, 8 * GIB)]
    placed = place(replace(asked, wishes=Wishes()), node(*devices))
    assert isinstance(placed, Placement)
    return limit_annotations(asked, placed.shares, devices, provider)


def test_nvidias_toolkit_is_told_a_request_of_nothing_unless_the_container_may_borrow() -> None:
    request_, limit = (f"nvidia-gpu-memory-{what}.koordgate.io/main" for what in ("request", "limit"))
    assert written(TOOLKIT) == {request_: "0", limit: "4096"}
    assert written(TOOLKIT, ("main", 6 * GIB)) == {request_: "4096", limit: "6144"}


def test_the_fractioning_operator_is_told_the_cards_and_both_amounts() -> None:
    base = "nvidia.com/container.main"
    expected = {
        f"{base}.gpus.devices": f"{card(0).id},{card(1).id}",
        f"{base}.gpu-compute.mode": "time-slicing",
        f"{base}.gpu-memory.request": "4096Mi",
        f"{base}.gpu-memory.limit": "4096Mi",
    }
    assert written(FRACTIONS) == expected
    assert written(FRACTIONS, ("main", 6 * GIB)) == expected | {f"{base}.gpu-memory.limit": "6144Mi"}


def test_the_enforcer_is_told_the_same_and_with_library_or_daemon_the_cores_too() -> None:
    told = written(TOOLKIT)
    assert isinstance(told, dict)
    assert written(LimitProvider.CGROUP) == told
    for provider in (LimitProvider.HAMI_CORE, LimitProvider.MPS):
        assert written(provider) == told | {"gpu-core-limit.koordgate.io/main": "50"}


def test_cores_that_were_not_asked_for_are_not_limited_and_less_than_a_percent_is_refused() -> None:
    free = limited(app("a", ask(memory=4 * GIB)))
    said = '{"gpu":{"users":["a","b"],"weights":{"a":999},"slot":50}}'
    parts = read_asks(pod(container("a"), container("b"), annotations={DEVICE_SHARING: said})).request
    for asked, cores in ((free, {"a": None}), (parts, {"a": 50, "b": 0})):
        placed = place(replace(asked, wishes=Wishes()), node(card(0, 80 * GIB)))
        assert isinstance(placed, Placement)
        devices = [card(0, 80 * GIB)]
        limits = memory_limits(asked, placed.shares, devices)
        assert {name: limit.cores for name, (_, limit) in limits.items()} == cores
        for provider in (LimitProvider.CGROUP, LimitProvider.HAMI_CORE):
            told = limit_annotations(asked, placed.shares, devices, provider)
            refused = 0 in cores.values() and provider is LimitProvider.HAMI_CORE
            assert isinstance(told, str) is refused
            assert "container b has less than 1 % of a card's cores" in told or not refused


@pytest.mark.parametrize(("provider", "most"), [(TOOLKIT, 63), (FRACTIONS, 34), (LimitProvider.MPS, 53)])
def test_the_keys_of_annotations_are_no_longer_than_kubernetes_allows(provider: LimitProvider, most: int) -> None:
    made = written(provider, name="a" * most)
    assert isinstance(made, dict)
    waits = required_plugins("a" * most)  # of the limiters that the enforcer brings; written with the cards
    keys = [*made, *([waits] if provider is LimitProvider.MPS else [])]
    assert max(len(key.rpartition("/")[2]) for key in keys) == 63
    told = written(provider, name="a" * (most + 1))
    assert isinstance(told, str)
    assert told.endswith(f"give it one of {most} characters at most")


def test_what_cannot_be_stated_is_refused_with_the_cure() -> None:
    asked, shares = limited(app("a", HALF), app("b", HALF)), [Share("gpu", "GPU-0", 0, {}, ("a", "b"))]
    told = limit_annotations(asked, shares, [], TOOLKIT)
    assert isinstance(told, str)
    assert told.startswith("container a has less than 1 MiB of a card, too little for the memory limit")
    assert told.endswith("; ask for more memory")
    assert "limits.provider is none" in str(limit_annotations(asked, shares, [], LimitProvider.NONE))
    assert limit_annotations(asked, [], [], LimitProvider.NONE) == {}


@pytest.mark.parametrize("provider", [TOOLKIT, FRACTIONS])
def test_what_was_written_is_read_for_people(provider: LimitProvider) -> None:
    made = written(provider)
    assert isinstance(made, dict)
    assert read_limits(made) == {"main": 4096}
    assert read_limits(dict.fromkeys(made, "much") | {"nvidia-gpu-memory-limit.example.org/main": "1"}) == {}
