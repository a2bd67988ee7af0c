"""What holds for the fractions and quotas of all Pods: sums, exactness, order, one card, and reading again."""

import copy
import json
from collections.abc import Iterator
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from builders import app, ask, container, gpu, node, pod, request, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from sharings import CARD, Raw, resources
from trials import examples

from allocator.amounts import pod_amounts
from allocator.fractions import divide, divide_among, regions
from allocator.index.cluster import ClusterIndex
from allocator.index.rows import query_of, type_rows
from allocator.memorylimits import device_quotas
from allocator.place import Placement, place
from allocator.request.original import read_asks
from allocator.request.quotaamounts import charges
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, Member, PodRequest, Quotas
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_SHARING, Phase
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.podallocated import read_quotas, write_quotas
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate

POLICY = TranslationPolicy("kubernetes.io", charges=True)
NAMES = "abcdef"
TAILS = ("gpu-core", "gpu-memory", "gpu-memory-ratio")


@st.composite
def weighted(draw: st.DrawFn) -> list[Fraction]:
    """Fractions whose sum is 1 at most."""
    weights = draw(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
    total = max(sum(weights), 1) + draw(st.sampled_from([0, 0, 1, 500]))
    return [Fraction(weight, total) for weight in weights]


@settings(max_examples=examples(300))
@given(st.integers(0, 2**40), weighted())
def test_divided_amounts_are_exact_and_within_one_unit_of_their_fractions(total: int, parts: list[Fraction]) -> None:
    found = divide(total, parts)
    assert sum(found) == floor(total * sum(parts))
    assert all(abs(amount - total * part) < 1 for amount, part in zip(found, parts, strict=True))
    assert all(amount >= 0 for amount in found)


@settings(max_examples=examples(200))
@given(st.integers(0, 2**40), weighted(), st.randoms(use_true_random=False))
def test_of_different_fractions_none_gets_more_for_its_place(total: int, parts: list[Fraction], random: Any) -> None:
    """Places decide between equal remainders only."""
    distinct = list(dict.fromkeys(parts))
    order = random.sample(range(len(distinct)), len(distinct))
    exact = {total * part - floor(total * part) for part in distinct}
    if len(exact) == len(distinct):
        moved = divide(total, [distinct[at] for at in order])
        assert [moved[order.index(at)] for at in range(len(distinct))] == divide(total, distinct)


@st.composite
def phases(draw: st.DrawFn, most: int = 6) -> list[Phase]:
    """When the containers of a Pod run, in the Pod's order; at least one is an app."""
    count = draw(st.integers(1, most))
    apps = draw(st.integers(1, count))
    early = [draw(st.sampled_from([Phase.INIT, Phase.SIDECAR])) for _ in range(count - apps)]
    return [*early, *[Phase.APP] * apps]


@settings(max_examples=examples(200))
@given(phases())
def test_every_container_runs_in_a_region_and_apps_run_in_the_last(found: list[Phase]) -> None:
    listed = list(regions(found))
    assert {at for region in listed for at in region} == set(range(len(found)))
    assert len(listed) == found.count(Phase.INIT) + 1
    assert [at for at in listed[-1] if found[at] is Phase.APP] == [
        at for at, phase in enumerate(found) if phase is Phase.APP
    ]


ONE, HALF, THIRD, TWELFTH = Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(1, 12)
INIT, SIDECAR, APP = Phase.INIT, Phase.SIDECAR, Phase.APP

# The amount; when each member runs, and its fraction; what each gets

DIVIDED: dict[str, tuple[int, list[tuple[Phase, Fraction]], list[int]]] = {
    "all at once: the first gets what is left": (13, [(APP, HALF), (APP, HALF)], [7, 6]),
    "one after another, of one whole": (13, [(INIT, HALF), (APP, HALF)], [7, 6]),
    "one after another, of less than a whole": (5, [(INIT, THIRD), (APP, THIRD)], [2, 1]),
    "one after another, each of the whole": (13, [(INIT, ONE), (APP, ONE)], [13, 13]),
    "what a region leaves goes to none of another": (5, [(INIT, Fraction(3, 4)), (APP, HALF), (APP, HALF)], [3, 3, 2]),
    "a sidecar keeps its part": (9, [(INIT, ONE), (SIDECAR, THIRD), (INIT, Fraction(2, 3)), (APP, HALF)], [9, 3, 6, 4]),
    "a sidecar whose part was rounded up leaves nothing": (
        2,
        [(SIDECAR, THIRD), (INIT, TWELFTH), (SIDECAR, THIRD), (APP, THIRD)],
        [1, 0, 0, 1],
    ),
    "who has no part gets nothing": (4, [(INIT, ONE), (SIDECAR, 0 * ONE), (APP, ONE), (APP, 0 * ONE)], [4, 0, 4, 0]),
}


@pytest.mark.parametrize(("total", "of", "amounts"), DIVIDED.values(), ids=DIVIDED)
def test_members_that_follow_one_another_have_the_amount_anew(
    total: int, of: list[tuple[Phase, Fraction]], amounts: list[int]
) -> None:
    members = [Member(NAMES[at], at, phase, (part,)) for at, (phase, part) in enumerate(of)]
    assert divide_among(total, members, [part for _, part in of]) == amounts


def test_a_container_that_shares_with_no_other_may_use_all_that_it_asks_for() -> None:
    def used(of: DeviceAsk) -> list[int | None]:
        placed = place(request(app("a", of)), node(gpu(0)))
        assert isinstance(placed, Placement)
        ((_, (quota,)),) = device_quotas(request(app("a", of)), placed.shares, [gpu(0)]).items()
        return [quota.amounts[tail] for tail in TAILS]

    assert used(ask(core=1, memory=1)) == [1, 1, 0]
    assert used(ask(core=0, ratio=50)) == [None, CARD // 2, 50]


@st.composite
def shared_pods(draw: st.DrawFn, *, hints: bool = True) -> Raw:
    """Pods of up to six containers, some of which share GPUs in some way; many are wrong."""
    runs = draw(phases())
    known = draw(st.booleans())
    in_bytes = draw(st.integers(0, 4)) == 0
    users: list[str] = []
    early: list[Raw] = []
    apps: list[Raw] = []
    for name, phase in zip(NAMES, runs, strict=False):
        asked: Raw = {}
        if draw(st.integers(0, 4)):
            core = draw(st.sampled_from([0, 10, 25, 30]))
            memory = (
                {"memory": draw(st.sampled_from([2**30, 10**9 + 7]))}
                if in_bytes
                else {"ratio": draw(st.sampled_from([1, 10, 25, 33]))}
            )
            asked = (
                draw(st.sampled_from([{"gpu": 20}, {"gpu": 50}, {"gpu": 100}, {"core": core, **memory}]))
                if known
                else {}
            )
            if not known:
                users.append(name)
        limits = {"limits": resources(asked.pop("gpu", None), asked)} if asked else {}
        make = sidecar_container if phase is Phase.SIDECAR else container
        (apps if phase is Phase.APP else early).append(make(name, **limits))
    names = users or [one["name"] for one in (*early, *apps) if "resources" in one]
    said: Raw = {"regions": draw(st.sampled_from(["OneGroup", "OneGroup", "GroupEach"]))}
    if users:
        said |= {"users": users, "slot": draw(st.sampled_from([1, 7, 50, 100]))}
        said["weights"] = {name: draw(st.sampled_from([1, 2, 3, 1000])) for name in users if draw(st.booleans())}
    if names and draw(st.integers(0, 2)) == 0:
        grouped = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        said["groups"] = {"g": grouped}
    annotations = {DEVICE_SHARING: json.dumps({"gpu": said})}
    if hints and draw(st.integers(0, 4)) == 0:
        annotations[DEVICE_ALLOCATE_HINT] = '{"gpu":{"exclusivePolicy":"DeviceLevel"}}'
    return pod(*apps, init=early, annotations=annotations)


def running(obj: Raw) -> Iterator[set[str]]:
    """The containers of each region."""
    listed = [*(obj["spec"].get("initContainers") or ()), *obj["spec"]["containers"]]
    early = len(obj["spec"].get("initContainers") or ())
    phases = [
        Phase.APP if at >= early else Phase.SIDECAR if one.get("restartPolicy") == "Always" else Phase.INIT
        for at, one in enumerate(listed)
    ]
    for region in regions(phases):
        yield {listed[at]["name"] for at in region}


def placed(obj: Raw, others: tuple[Holding, ...] = ()) -> tuple[PodRequest, tuple[Share, ...], Quotas] | None:
    """What a readable Pod gets on eight cards, and what its containers may use; None if it is wrong or does not fit."""
    reading = read_asks(obj, implied=False)
    if reading.problems or not reading.request:
        return None
    on = node(*(gpu(minor) for minor in range(8)), holdings=others)
    found = place(reading.request, on)
    if not isinstance(found, Placement):
        return None
    return reading.request, found.shares, device_quotas(reading.request, found.shares, on.devices)


@settings(max_examples=examples(400), deadline=None)
@given(shared_pods())
def test_at_no_time_may_containers_use_more_of_a_card_than_the_pod_holds(obj: Raw) -> None:
    got = placed(obj)
    if got is None:
        return
    _, shares, quotas = got
    for share in shares:
        for tail in TAILS:
            for region in running(obj):
                used = [one.amounts[tail] or 0 for name in region for one in quotas.get(name, ()) if one.id == share.id]
                assert sum(used) <= share.amounts[tail]


@settings(max_examples=examples(400), deadline=None)
@given(shared_pods())
def test_where_a_region_uses_all_of_its_groups_the_quotas_sum_to_the_holding_exactly(obj: Raw) -> None:
    got = placed(obj)
    if got is None:
        return
    request, shares, quotas = got
    for group in request.containers:
        own = [share for share in shares if group.names[0] in share.containers]
        alone = all(set(group.names).issuperset(share.containers) for share in own)
        for region in running(obj):
            members = [member for member in group.members if member.name in region]
            for at, tail in enumerate(TAILS if alone else ()):
                parts = [member.parts[at] or Fraction(0) for member in members]
                if sum(parts) != 1:
                    continue
                for share in own:
                    used = [one.amounts[tail] or 0 for m in members for one in quotas[m.name] if one.id == share.id]
                    assert sum(used) == share.amounts[tail]


@settings(max_examples=examples(400), deadline=None)
@given(shared_pods(hints=False))
def test_a_stated_quota_is_what_the_container_asks_for_of_compute(obj: Raw) -> None:
    got = placed(obj)
    if got is None or "users" in obj["metadata"]["annotations"][DEVICE_SHARING]:
        return
    _, _, quotas = got
    for reading in read_asks(obj, implied=False).containers:
        for wanted in reading.requests:
            told = [one.amounts["gpu-core"] or 0 for one in quotas[reading.name]]
            asked = (wanted.amounts[0] or 0) * wanted.count
            if len(told) == 1:
                assert told == [asked]
            assert all(abs(one - Fraction(asked, len(told))) < 1 for one in told)  # of each card by itself


@settings(max_examples=examples(400), deadline=None)
@given(shared_pods())
def test_a_group_is_on_one_card_unless_it_asks_for_whole_ones_and_all_its_members_see_the_same(obj: Raw) -> None:
    got = placed(obj)
    if got is None:
        return
    request, shares, _ = got
    for group in request.containers:
        seen = {name: [share.id for share in shares if name in share.containers] for name in group.names}
        assert len(seen[group.names[0]]) == group.ask.count
        assert all(ids == seen[group.names[0]] for ids in seen.values())
        if group.ask.count > 1:
            assert group.ask.amounts[0] in {0, 100}


@settings(max_examples=examples(300), deadline=None)
@given(shared_pods(), st.randoms(use_true_random=False))
def test_fractions_do_not_depend_on_the_order_of_apps(obj: Raw, random: Any) -> None:
    other = copy.deepcopy(obj)
    random.shuffle(other["spec"]["containers"])
    first, second = read_asks(obj, implied=False), read_asks(other, implied=False)
    assert bool(first.problems) == bool(second.problems)
    found = [
        {member.name: member.parts for group in reading.groups for member in group.members}
        for reading in (first, second)
    ]
    assert found[0] == found[1]


@settings(max_examples=examples(300), deadline=None)
@given(shared_pods(), st.sampled_from([None, CARD]))
def test_translation_is_idempotent_and_a_translated_pod_asks_for_the_same(obj: Raw, memory: int | None) -> None:
    first = translate(obj, POLICY, memory)
    if first.problems:
        return
    made = patch.apply(obj, first.operations)
    again = translate(made, POLICY, memory)
    assert (again.problems, again.operations) == ((), ())
    before, after = read_asks(obj, implied=False), read_asks(made, implied=False)
    assert after.request == before.request
    assert [one.requests for one in after.containers] == [one.requests for one in before.containers]


@settings(max_examples=examples(300), deadline=None)
@given(shared_pods(hints=False))
def test_what_users_ask_for_in_kubernetes_sum_is_the_slot(obj: Raw) -> None:
    reading = read_asks(obj, implied=False)
    said = json.loads(obj["metadata"]["annotations"][DEVICE_SHARING])["gpu"]
    if reading.problems or not said.get("users") or said.get("groups") or said["regions"] != "OneGroup":
        return
    made = patch.apply(obj, translate(obj, POLICY, None).operations)
    sums = pod_amounts(made["spec"])
    assert sums["kubernetes.io/gpu-core"] == sums["kubernetes.io/gpu-memory-ratio"] == said["slot"]


@settings(max_examples=examples(400), deadline=None)
@given(shared_pods())
def test_quotas_count_what_the_groups_hold(obj: Raw) -> None:
    """Kubernetes' sum over containers is the greatest sum of the groups that hold something at the same time.

    It is more where init containers may make the Pod hold more, as without groups.
    """
    reading = read_asks(obj, implied=False)
    if reading.problems or not reading.groups:
        return
    whole = DEVICE_ALLOCATE_HINT in obj["metadata"]["annotations"]
    made = charges(reading, reading.request, obj["spec"], CARD)
    starts = [at for at, one in enumerate(reading.containers) if one.phase is Phase.INIT]
    for tail, name in ((0, "gpu-core"), (2, "gpu-memory-ratio")):
        held = [amount_held(group, tail, whole=whole) for group in reading.groups]
        wanted = max(
            sum(amount for group, amount in zip(reading.groups, held, strict=True) if holds(group, at))
            for at in (*starts, None)
        )
        counted = [
            {
                "name": one.name,
                "resources": {"requests": {"x": str(charge.amounts.get(f"quota.koordgate.io/{name}", 0))}},
                **({"restartPolicy": "Always"} if one.phase is Phase.SIDECAR else {}),
            }
            for one, charge in zip(reading.containers, made, strict=True)
        ]
        first = sum(one.phase is not Phase.APP for one in reading.containers)
        summed = pod_amounts({"initContainers": counted[:first], "containers": counted[first:]})["x"]
        inits = any(group.phase is Phase.INIT for group in reading.groups)
        assert summed >= wanted if inits else summed == wanted


def holds(group: ContainerAsk, init: int | None) -> bool:
    """Whether a group holds something while an init container runs, or (None) at last."""
    if group.phase is Phase.APP or init is None:
        return group.phase is not Phase.INIT and init is None
    return group.members[0].place == init if group.phase is Phase.INIT else group.members[0].place <= init


def amount_held(group: ContainerAsk, tail: int, *, whole: bool) -> int:
    """The percentage of compute or memory that a group holds of all its cards."""
    if whole:
        return 100 * group.ask.count
    stated = group.ask.amounts[tail]
    if stated is None:
        stated = -(-(group.ask.amounts[1] or 0) * 100 // CARD)
    return stated * group.ask.count


@settings(max_examples=examples(300), deadline=None)
@given(shared_pods(), st.integers(0, 100))
def test_the_index_excludes_no_node_on_which_a_group_fits(obj: Raw, used: int) -> None:
    card = gpu(0)
    other = Share(card.type, card.id, 0, {"gpu-core": used, "gpu-memory": CARD * used // 100, "gpu-memory-ratio": used})
    holding = Holding("other", "default", "other", 1, (other,))
    got = placed(obj, (holding,) if used else ())
    reading = read_asks(obj, implied=False)
    if got is None or reading.problems:
        return
    on = node(*(gpu(minor) for minor in range(8)), holdings=(holding,) if used else ())
    index = ClusterIndex({})
    index.put(on.name, type_rows(on))
    assert bool(index.fitting(query_of(reading.request))[index.positions([on.name])][0])


@settings(max_examples=examples(200), deadline=None)
@given(shared_pods(), st.sampled_from(["kubernetes.io", "koordinator.sh"]))
def test_what_is_written_reads_back_and_is_never_a_zero_or_nothing(obj: Raw, domain: str) -> None:
    got = placed(obj)
    if got is None:
        return
    written = write_quotas(got[2], domain)
    assert read_quotas(written, BUILT_IN) == got[2]
    for key, value in written.items():
        if key.startswith("gpu-"):
            assert all(entry in {"none", "unlimited"} or int(entry) > 0 for entry in value.split(","))


@settings(max_examples=examples(200))
@given(phases(), st.data())
def test_members_of_overlapping_regions_never_have_more_than_all(runs: list[Phase], data: st.DataObject) -> None:
    parts = [Fraction(data.draw(st.integers(0, 20)), 20) for _ in runs]
    for region in regions(runs):
        if sum((parts[at] for at in region), Fraction(0)) > 1:
            return
    total = data.draw(st.integers(0, 1000))
    members = [
        Member(name, at, phase, (part,)) for at, (name, phase, part) in enumerate(zip(NAMES, runs, parts, strict=False))
    ]
    found = divide_among(total, members, parts)
    for region in regions(runs):
        share = sum((parts[at] for at in region), Fraction(0))
        assert sum(found[at] for at in region) <= total
        if share == 1:
            assert sum(found[at] for at in region) == total
