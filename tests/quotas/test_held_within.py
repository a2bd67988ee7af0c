"""What a bind gives a Pod in sum never exceeds what its quotas counted, and an empty node suffices for that."""

import json
from collections import Counter
from typing import Any

from builders import GIB, container, gpu, held, nic, node, part, pod, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples
from world import asks

from allocator.bind import PodToBind, bind
from allocator.place import Placement, place
from allocator.quantity import to_int
from allocator.request.original import read_asks
from allocator.request.quotaamounts import counted_in_all
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_ORDER
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE
from koordgate.breaks import at_once
from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy, translate
from webhook.quotas.limits import NamespaceLimits

Raw = dict[str, Any]
POLICY = TranslationPolicy("kubernetes.io", charges=True)
DOMAIN = "quota.koordgate.io"


def counted(obj: Raw) -> dict[str, int]:
    """What Kubernetes counts of a Pod, by what its containers request: the greatest sum of any step of its life."""
    spec = obj["spec"]
    steady: Counter[str] = Counter()
    peaks: Counter[str] = Counter()
    for one in spec.get("initContainers", ()):
        amounts = stated(one)
        peaks |= steady + amounts
        if one.get("restartPolicy") == "Always":
            steady += amounts
    for one in spec["containers"]:
        steady += stated(one)
    return dict(peaks | steady)


def stated(one: Raw) -> Counter[str]:
    requests = one.get("resources", {}).get("requests", {})
    return Counter({name.partition("/")[2]: to_int(a) for name, a in requests.items() if name.startswith(DOMAIN)})


def taken(shares: tuple[Share, ...]) -> dict[str, int]:
    """What a holding takes in sum, in the units of quotas."""
    total: Counter[str] = Counter()
    for share in shares:
        total.update(share.amounts)
        if share.type == "gpu":
            total["gpu"] += max(share.amounts["gpu-core"], share.amounts["gpu-memory-ratio"])
    return dict(total)


def admitted(obj: Raw, memory: int | None = None) -> Raw:
    translation = translate(obj, POLICY, memory)
    assert translation.problems == ()
    return patch.apply(obj, translation.operations)


def request_of(obj: Raw, memory: int | None = None) -> PodRequest:
    return read_asks(admitted(obj, memory)).request


def asked(amounts: Raw, *, first: tuple[Raw, ...] = (), **about: Any) -> Raw:
    """A Pod of one app and these init containers."""
    init = [container(f"i{at}", limits=one) for at, one in enumerate(first)]
    return pod(container("a", limits=amounts), init=init, **about)


WHOLE = {"kubernetes.io/gpu": 100}
EIGHT = {"kubernetes.io/gpu": 96, "kubernetes.io/gpu.shared": 8}
FREE = node(*[gpu(minor) for minor in range(8)])


def test_what_an_init_container_holds_on_other_cards_is_counted() -> None:
    obj = admitted(asked(WHOLE, first=(EIGHT,)))
    assert counted(obj) == {"gpu": 184, "gpu-core": 184, "gpu-memory-ratio": 184}
    assert [stated(one)["gpu"] for one in (*obj["spec"]["initContainers"], *obj["spec"]["containers"])] == [184, 100]
    placed = place(read_asks(obj).request, FREE)
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["gpu"] == 184


def test_what_follows_on_the_same_card_counts_once() -> None:
    for first in (WHOLE, {"kubernetes.io/gpu": 60}):
        assert counted(admitted(asked(WHOLE, first=(first, first))))["gpu"] == 100
    halves = pod(
        *[container(name, limits={"kubernetes.io/gpu": 50}) for name in "ab"],
        init=[container("i", limits={"kubernetes.io/gpu": 80})],
    )
    assert counted(admitted(halves))["gpu"] == 100
    halves["spec"]["initContainers"][0]["resources"]["limits"] = {
        "kubernetes.io/gpu": 80,
        "kubernetes.io/gpu.shared": 2,
    }
    assert counted(admitted(halves))["gpu"] == 100


def test_init_containers_beside_a_sidecar_count_what_they_need_beside_it() -> None:
    obj = pod(
        container("a", limits={"kubernetes.io/gpu": 30}),
        init=[
            sidecar_container("s", limits={"kubernetes.io/gpu": 60}),
            container("i", limits={"kubernetes.io/gpu": 50}),
        ],
    )
    done = admitted(obj)
    assert counted(done)["gpu"] == 110  # 60 and 50 exceed one card
    assert isinstance(place(read_asks(done).request, FREE), Placement)
    obj["spec"]["initContainers"][1]["resources"]["limits"] = {"kubernetes.io/gpu": 80}
    done = admitted(obj)
    assert counted(done)["gpu"] == 140
    placed = place(read_asks(done).request, FREE)
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["gpu"] == 140


def test_devices_that_serve_several_containers_are_taken_where_the_first_choice_would_exceed_the_count() -> None:
    obj = asked({"kubernetes.io/gpu": 30}, first=({"kubernetes.io/gpu": 80},))
    cards = [gpu(0), gpu(1)]
    on = node(*cards, holdings=held(part(cards[0], 60), part(cards[1], 15)))
    for request, sum_held in ((read_asks(obj).request, 110), (request_of(obj), 80)):
        placed = place(request, on)
        assert isinstance(placed, Placement)
        assert taken(placed.shares)["gpu"] == sum_held


def test_the_reason_names_the_limit_and_what_to_do() -> None:
    obj = asked({"kubernetes.io/gpu": 60}, first=({"kubernetes.io/gpu-memory-ratio": 80},))
    devices = [gpu(0), gpu(1)]
    # The first card has compute for the app and little memory, the other has memory and no compute.
    others = held(part(devices[0], 40), part(devices[1], 0)._replace(amounts={"gpu-core": 100}))
    tight = node(*devices, holdings=others)
    assert isinstance(place(read_asks(obj).request, tight), Placement)
    refused = place(request_of(obj), tight)
    assert isinstance(refused, Refusal)
    assert not refused.permanent
    assert refused.message == (
        "node-1: i0 1 x (memory 80 %), a 1 x (core 60 %, memory 60 %): all containers together: the Pod would hold "
        "more than quotas count of the Pod (quota.koordgate.io/gpu 80): its init containers must use devices of its "
        "other containers, and too little of these is free; let the init containers ask for less, or wait until other "
        "Pods end"
    )
    assert "quota.koordgate.io/gpu 80" in refused.short


def test_a_set_of_several_cards_stays_within_the_sum() -> None:
    two = {"kubernetes.io/gpu": 100, "kubernetes.io/gpu.shared": 2}
    obj = asked({"kubernetes.io/gpu": 60, "kubernetes.io/gpu.shared": 2}, first=(two,))
    assert counted(admitted(obj))["gpu"] == 100
    cards = [gpu(minor) for minor in range(3)]
    for one in cards:
        snapshot = node(*cards, holdings=held(part(one, 60)))
        placed = place(request_of(obj), snapshot)
        assert isinstance(placed, Placement)
        assert taken(placed.shares)["gpu"] == 100
    # Two cards have compute for the app and little memory, the others have memory and no compute.
    obj = asked(
        {"kubernetes.io/gpu-core": 120, "kubernetes.io/gpu-memory-ratio": 20, "kubernetes.io/gpu.shared": 2},
        first=({"kubernetes.io/gpu-memory-ratio": 160, "kubernetes.io/gpu.shared": 2},),
    )
    cards = [gpu(minor) for minor in range(4)]
    busy = [part(one, 80)._replace(amounts={"gpu-core": 40, "gpu-memory-ratio": 80}) for one in cards[:2]]
    busy += [part(one, 0)._replace(amounts={"gpu-core": 100}) for one in cards[2:]]
    snapshot = node(*cards, holdings=held(*busy))
    placed = place(read_asks(obj).request, snapshot)
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["gpu"] == 280
    refused = place(request_of(obj), snapshot)
    assert isinstance(refused, Refusal)
    assert "more than quotas count of the Pod (quota.koordgate.io/gpu 160)" in refused.message


def test_a_pod_that_was_counted_for_other_cards_does_not_get_more_of_these() -> None:
    request = request_of(asked({"kubernetes.io/gpu-memory": "10Gi"}), memory=80 * GIB)
    assert isinstance(place(request, FREE), Placement)
    refused = place(request, node(gpu(0, 24 * GIB)))
    assert isinstance(refused, Refusal)
    assert "what it asks is more than quotas count of the Pod (quota.koordgate.io/gpu 13) on these GPUs" in (
        refused.message
    )
    assert "create it again" in refused.message
    half = request_of(asked({"kubernetes.io/gpu": 50}), memory=24 * GIB)
    assert isinstance(place(half, node(gpu(0, 24 * GIB))), Placement)
    assert isinstance(place(half, FREE), Refusal)
    assert isinstance(place(request_of(asked({"kubernetes.io/gpu": 50})), FREE), Placement)


def test_a_pod_that_states_nothing_for_quotas_is_not_limited() -> None:
    obj = asked(WHOLE, first=(EIGHT,))
    assert read_asks(obj).request.most == ()
    assert read_asks(admitted(obj), implied=False).request.most == ()
    assert isinstance(place(read_asks(obj).request, FREE), Placement)


def test_an_older_count_that_is_too_low_is_refused_and_not_exceeded() -> None:
    obj = admitted(asked(WHOLE, first=(EIGHT,)))
    for key in ("requests", "limits"):
        obj["spec"]["initContainers"][0]["resources"][key][f"{DOMAIN}/gpu"] = "96"
    refused = place(read_asks(obj).request, FREE)
    assert isinstance(refused, Refusal)
    assert f"({DOMAIN}/gpu 100)" in refused.message


def test_devices_beside_others_are_counted_as_many_as_there_may_be() -> None:
    joint = {DEVICE_JOINT_ALLOCATE: json.dumps({"deviceTypes": ["gpu", "rdma"]})}
    both = {"nvidia.com/gpu": 4, "kubernetes.io/rdma": 1}
    assert counted(admitted(asked(both)))["rdma"] == 1
    done = admitted(asked(both, annotations=joint))
    assert counted(done)["rdma"] == 4
    devices = [*(gpu(at, pcie=f"p{at // 2}") for at in range(4)), *(nic(at, pcie=f"p{at}") for at in range(2))]
    placed = place(read_asks(done).request, node(*devices))
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["rdma"] == 2
    apart = pod(
        container("a", limits={"nvidia.com/gpu": 2}),
        container("b", limits={"kubernetes.io/rdma": 1}),
        annotations=joint,
    )
    assert counted(admitted(apart))["rdma"] == 2


def test_a_pod_cannot_get_more_by_an_annotation_that_came_later() -> None:
    done = admitted(asked({"nvidia.com/gpu": 2, "kubernetes.io/rdma": 30}))
    done["metadata"]["annotations"][DEVICE_JOINT_ALLOCATE] = json.dumps({"deviceTypes": ["gpu", "rdma"]})
    devices = [gpu(0, pcie="p0"), gpu(1, pcie="p1"), nic(0, pcie="p0"), nic(1, pcie="p1")]
    placed = place(read_asks(done).request, node(*devices))
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["rdma"] == 30


def test_what_takes_every_device_is_not_limited_by_what_was_counted_of_one() -> None:
    hint = {DEVICE_ALLOCATE_HINT: json.dumps({"rdma": {"allocateStrategy": "ApplyForAll"}})}
    request = request_of(asked({"kubernetes.io/rdma": 20}, annotations=hint))
    placed = place(request, node(*(nic(minor) for minor in range(3))))
    assert isinstance(placed, Placement)
    assert taken(placed.shares)["rdma"] == 60


def test_an_allocation_in_annotations_is_adopted_only_within_what_was_counted() -> None:
    request = request_of(asked({"kubernetes.io/gpu": 40}), memory=80 * GIB)

    def adopted(percent: int) -> Holding | Refusal:
        said = Holding("u", "default", "p", 1, (part(FREE.devices[0], percent, "a"),))
        decide = bind(PodToBind("u", "default", "p", request, lambda _: said), lambda _: FREE, 5, "m")
        return at_once(decide({}))[1].outcome

    assert isinstance(adopted(40), Holding)
    refused = adopted(41)
    assert isinstance(refused, Refusal)
    assert f"{DOMAIN}/gpu 41 is more than quotas count of the Pod (40)" in refused.message


# Any Pod, any node

SOME = st.sampled_from(
    [
        {"nvidia.com/gpu": 1},
        {"nvidia.com/gpu": 2},
        {"nvidia.com/gpu": 3},
        {"nvidia.com/gpu": 1, "kubernetes.io/rdma": 30},
        {"kubernetes.io/rdma": 60},
        {},
    ]
)
PERCENT = st.sampled_from([10, 30, 40, 50, 60, 80, 90])


@st.composite
def shared(draw: st.DrawFn) -> Raw:
    """Parts of one or of several cards, in percent or in bytes."""
    count = draw(st.sampled_from([1, 1, 2, 3, 4]))
    percent = draw(PERCENT)
    kind = draw(st.sampled_from(["both", "apart", "memory", "bytes"]))
    if kind == "both":
        amounts: Raw = {"kubernetes.io/gpu-core": percent * count, "kubernetes.io/gpu-memory-ratio": percent * count}
    elif kind == "apart":
        amounts = {
            "kubernetes.io/gpu-core": percent * count,
            "kubernetes.io/gpu-memory-ratio": draw(PERCENT) * count,
        }
    elif kind == "memory":
        amounts = {"kubernetes.io/gpu-memory-ratio": percent * count}
    else:
        amounts = {"kubernetes.io/gpu-memory": (percent * 80 * GIB // 100 + 1) * count}
    return {**amounts, "kubernetes.io/gpu.shared": count}


@st.composite
def pods(draw: st.DrawFn) -> Raw:
    """Pods in one dialect, with init containers and sidecars."""
    amounts = draw(st.sampled_from([SOME, shared(), shared()]))
    init = [
        draw(st.sampled_from([container, container, sidecar_container]))(f"i{at}", limits=draw(amounts))
        for at in range(draw(st.integers(0, 3)))
    ]
    apps = [container(f"a{at}", limits=draw(amounts)) for at in range(draw(st.integers(1, 3)))]
    annotations = {DEVICE_ORDER: draw(st.sampled_from(["smallest", "mostUsed", "leastUsed", "minor"]))}
    policy = draw(st.sampled_from([None, None, None, "DeviceLevel", "PCIeLevel"]))
    if policy:
        annotations[DEVICE_ALLOCATE_HINT] = json.dumps({"gpu": {"exclusivePolicy": policy}})
    if draw(st.integers(0, 3)) == 0:
        scope = draw(st.sampled_from([{}, {"requiredScope": "SamePCIe"}]))
        annotations[DEVICE_JOINT_ALLOCATE] = json.dumps({"deviceTypes": ["gpu", "rdma"], **scope})
    return pod(*apps, init=init, annotations=annotations)


@st.composite
def nodes(draw: st.DrawFn) -> NodeSnapshot:
    """Cards and NICs of which others hold parts."""
    memory = draw(st.sampled_from([80, 80, 24])) * GIB
    cards = [gpu(minor, memory, pcie=f"p{minor // 2}") for minor in range(draw(st.integers(1, 8)))]
    nics = [nic(minor, pcie=f"p{minor}") for minor in range(draw(st.integers(1, 4)))]
    busy: list[tuple[Device, int]] = draw(st.lists(st.tuples(st.sampled_from(cards), PERCENT), max_size=4))
    fitting = {card.id: (card, percent) for card, percent in busy}
    return node(*cards, *nics, holdings=held(*(part(card, percent) for card, percent in fitting.values())))


@settings(max_examples=examples(500), deadline=None)
@given(pods(), nodes(), st.sampled_from([None, 80 * GIB, 24 * GIB]))
def test_what_a_bind_gives_never_exceeds_what_is_counted(obj: Raw, on: NodeSnapshot, memory: int | None) -> None:
    translation = translate(obj, POLICY, memory)
    if translation.problems:
        return
    done = patch.apply(obj, translation.operations)
    asking = read_asks(done)
    if asking.problems or not asking.request.containers:
        return
    claim = PodToBind("u", "default", "p", asking.request)
    change = bind(claim, lambda holdings: on.holding_all({**on.holdings, **holdings}), 5, "m")
    outcome = at_once(change({}))[1].outcome
    if not isinstance(outcome, Holding):
        return
    most, has = counted(done), taken(outcome.shares)
    for name, amount in counted_in_all(read_asks(obj).request, memory).items():
        assert amount is None or amount == most.get(name.removeprefix(f"{DOMAIN}/"), 0), name
    for name in ("gpu", "gpu-core", "gpu-memory-ratio", "gpu-memory", "rdma"):
        limited = NamespaceLimits(frozenset({f"{DOMAIN}/{name}"}))
        webhooks = PodWebhooks(POLICY, "", lambda _pod: (memory or 0, memory or 0), limits=lambda _, of=limited: of)  # type: ignore[misc]
        answer = webhooks.validate(asks(done))
        assert not answer.allowed or has.get(name, 0) <= most.get(name, 0)
        assert answer.allowed or "only known when it is bound" in answer.message


IDLE = node(*(gpu(minor, pcie=f"p{minor // 4}") for minor in range(16)), *(nic(at, pcie=f"p{at}") for at in range(16)))


@settings(max_examples=examples(500), deadline=None)
@given(pods(), st.sampled_from([None, 80 * GIB]))
def test_an_idle_node_holds_a_pod_within_what_is_counted_if_it_holds_it_at_all(obj: Raw, memory: int | None) -> None:
    translation = translate(obj, POLICY, memory)
    if translation.problems:
        return
    request = read_asks(patch.apply(obj, translation.operations)).request
    within = place(request, IDLE)
    if isinstance(within, Refusal) and not within.unfinished:
        assert isinstance(place(read_asks(obj).request, IDLE), Refusal), within.message
