"""Each rule and each figure of FLIP-53, for containers in place of operators; the sections are the source's."""

import json
from fractions import Fraction

import pytest
from builders import GIB, container, pod
from made_dialects import BLOCKS
from sharings import CARD, cards, fractions, groups, held, parts, quotas, read, serves, sharing, uses, wrong

from allocator.memorylimits import device_quotas
from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICE_QUOTAS, DEVICE_SHARING, ORIGINAL_REQUEST, Phase
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.podallocated import write_quotas
from webhook import patch
from webhook.admission.additions import SlotDefaults
from webhook.admission.translate import TranslationPolicy, translate

ONE, HALF, THIRD = Fraction(1), Fraction(1, 2), Fraction(1, 3)
DEFAULTS: dict[str, dict[str, int | str]] = {"team": {"gpu": 25}, "thirds": {"gpu": "1/3"}}
POLICY = TranslationPolicy("kubernetes.io", slots=SlotDefaults({"gpu": 40}, DEFAULTS))


# --- "Public Interfaces"


@pytest.mark.parametrize(
    ("said", "namespace", "slot"),
    [
        ({}, "any", 40),
        ({}, "team", 25),
        ({}, "thirds", 33),
        ({"slot": 70}, "team", 70),
        ({"slot": 70}, "thirds", 70),
        ({"slot": 70}, "any", 70),
    ],
)
def test_the_default_slot_is_that_of_the_pod_else_of_the_namespace_else_of_the_cluster(
    said: dict[str, int], namespace: str, slot: int
) -> None:
    """FLIP-53, "Public Interfaces": taskmanager.defaultSlotResourceFraction, and numberOfTaskSlots as 1/N."""
    obj = sharing(uses("a"), uses("b"), types={"gpu": {"users": ["a", "b"], **said}})
    made = patch.apply(obj, translate(obj, POLICY, None, namespace=namespace).operations)
    (group,) = read(made).groups
    assert group.ask.amounts == (slot, None, slot)


def test_another_default_later_changes_no_pod_that_exists() -> None:
    """FLIP-53, "Public Interfaces": the default is a setting, and settings change."""
    obj = sharing(uses("a"), users=["a"])
    made = patch.apply(obj, translate(obj, POLICY, None).operations)
    assert json.loads(made["metadata"]["annotations"][DEVICE_SHARING]) == {"gpu": {"users": ["a"], "slot": 40}}
    assert read(made, slots={"gpu": 90}).request == read(made).request


# --- "General Workflow"


def test_requirements_are_unknown_or_stated_and_unknown_is_no_error() -> None:
    """FLIP-53, "General Workflow", first point."""
    assert fractions(sharing(uses("a"), users=["a"], slot=50)) == {"a": ONE}
    assert fractions(sharing(uses("a", 50))) == {"a": ONE}


def test_what_is_scheduled_is_the_sum_of_what_the_containers_of_a_slot_ask_for() -> None:
    """FLIP-53, "General Workflow", third point."""
    (share,) = held(sharing(uses("a", 30), uses("b", 50)))
    assert share.amounts == {"gpu-core": 80, "gpu-memory": CARD * 80 // 100, "gpu-memory-ratio": 80}
    assert share.containers == ("a", "b")


def test_a_container_gets_its_own_request_or_a_fair_part() -> None:
    """FLIP-53, "General Workflow", fourth point: the original request, or the fair share of unknown ones."""
    stated = sharing(uses("a", 30), uses("b", 50))
    assert quotas(stated, "gpu-core") == {"a": [30], "b": [50]}
    assert quotas(sharing(uses("a"), uses("b"), users=["a", "b"], slot=80), "gpu-core") == {"a": [40], "b": [40]}


# --- "Operator Resource Requirements"


def test_what_a_container_does_not_state_beside_its_amounts_is_none() -> None:
    """FLIP-53, "Operator Resource Requirements": dimensions that are not specified are 0."""
    obj = sharing(uses("a", core=30, ratio=20), uses("b", ratio=40))
    assert fractions(obj, "gpu-core") == {"a": ONE, "b": 0}
    assert fractions(obj) == {"a": THIRD, "b": Fraction(2, 3)}
    assert quotas(obj, "gpu-core") == {"a": [30], "b": [0]}
    nobody = sharing(uses("a", ratio=20), uses("b", ratio=40))
    assert quotas(nobody, "gpu-core") == {"a": [0], "b": [0]}
    assert quotas(sharing(uses("a", ratio=20)), "gpu-core") == {"a": [0]}


def test_what_a_container_leaves_out_in_another_products_dialect_is_not_limited() -> None:
    apps = [container(name, limits={"example.com/blocks": "8"}) for name in "ab"]
    reading = read(sharing(*apps), types=BUILT_IN.with_dialects([BLOCKS]))
    assert parts(reading.groups, "gpu-core") == {"a": None, "b": None}
    assert parts(reading.groups) == {"a": HALF, "b": HALF}


def test_the_bind_writes_the_fraction_beside_the_quota() -> None:
    """FLIP-53, step 3: the fractions are in the configuration of each operator."""
    obj = sharing(uses("a", core=30, ratio=20), uses("b", ratio=40))
    on = cards()
    found = device_quotas(read(obj).request, held(obj, on), on.devices)
    written = json.loads(write_quotas(found, "kubernetes.io")[DEVICE_QUOTAS])
    ((a,), (b,)) = (written[name]["gpu"] for name in "ab")
    names = ("kubernetes.io/gpu-core", "kubernetes.io/gpu-memory", "kubernetes.io/gpu-memory-ratio")
    assert a["fractions"] == dict(zip(names, ("1", "1/3", "1/3"), strict=True))
    assert b["fractions"] == dict(zip(names, ("0", "2/3", "2/3"), strict=True))
    unknown = sharing(uses("a"), uses("b"), uses("c"), users=list("abc"), slot=50)
    for listed in device_quotas(read(unknown).request, held(unknown, on), on.devices).values():
        assert set(listed[0].fractions.values()) == {THIRD}


def test_containers_that_state_nothing_are_unknown_where_the_pod_names_them_and_use_nothing_otherwise() -> None:
    """FLIP-53, "Operator Resource Requirements": unknown by default; a container that is not named uses no device."""
    obj = sharing(uses("a"), uses("injected"), init=[serves("mesh")], users=["a"], slot=10)
    assert fractions(obj) == {"a": ONE}
    assert set(quotas(obj, "gpu-core")) == {"a"}


def test_a_pod_that_mixes_stated_and_unknown_is_refused_with_the_containers_and_both_ways_out() -> None:
    """FLIP-53, "Operator Resource Requirements": all operators specify their requirements, or none does."""
    (told,) = wrong(sharing(uses("a", 30), uses("b"), uses("c", 10), uses("d"), users=["b", "d"], slot=50))
    assert told == (
        f"metadata.annotations[{DEVICE_SHARING}].gpu.users: containers a and c state an amount of gpu, and "
        "containers b and d are users without one, which cannot be mixed: state an amount in every container that uses "
        "gpu and leave out users, or state none and name all of them in users"
    )


def test_types_may_be_stated_and_unknown_in_one_pod() -> None:
    """FLIP-53, "Operator Resource Requirements": the rule is for what shares a slot; each type has slots of its own."""
    obj = sharing(uses("a", 30), uses("b"), types={"gpu": {}, "rdma": {"users": ["b"], "slot": 20}})
    assert {(one.ask.type.name, one.names) for one in read(obj).groups} == {("gpu", ("a",)), ("rdma", ("b",))}


# --- "Fraction Based Quota Strategy"


def test_a_stated_fraction_is_the_request_over_the_groups_for_each_resource_by_itself() -> None:
    """FLIP-53, "Fraction Based Quota Strategy": op / slotSharingGroup, for memory on the heap and off it alike."""
    obj = sharing(uses("a", core=10, ratio=40), uses("b", core=30, ratio=20))
    assert fractions(obj, "gpu-core") == {"a": Fraction(1, 4), "b": Fraction(3, 4)}
    assert fractions(obj, "gpu-memory-ratio") == {"a": Fraction(2, 3), "b": THIRD}
    assert fractions(obj, "gpu-memory") == fractions(obj, "gpu-memory-ratio")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_an_unknown_fraction_is_one_over_the_number_of_containers_in_the_group_that_use_the_resource(
    count: int,
) -> None:
    """FLIP-53, "Fraction Based Quota Strategy": 1 / numOpsUseOnHeapManagedMemoryInSlotSharingGroup."""
    names = list("abcdefg"[:count])
    obj = sharing(*map(uses, names), uses("other"), users=names, slot=50)
    assert fractions(obj) == dict.fromkeys(names, Fraction(1, count))


def test_weights_may_be_given() -> None:
    """FLIP-53, "Fraction Based Quota Strategy": operators with different weights."""
    obj = sharing(uses("a"), uses("b"), uses("c"), users=["a", "b", "c"], weights={"a": 3, "c": 2}, slot=60)
    assert fractions(obj) == {"a": HALF, "b": Fraction(1, 6), "c": THIRD}
    assert quotas(obj, "gpu-core") == {"a": [30], "b": [10], "c": [20]}


def test_the_bind_returns_absolute_quotas_in_bytes_and_percent() -> None:
    """FLIP-53, "Fraction Based Quota Strategy": registering a fraction returns an absolute quota."""
    obj = sharing(uses("a"), uses("b"), uses("c"), users=["a", "b", "c"], slot=50)
    assert quotas(obj, "gpu-core") == quotas(obj, "gpu-memory-ratio") == {"a": [17], "b": [17], "c": [16]}
    assert quotas(obj, "gpu-memory") == {"a": [14316557654], "b": [14316557653], "c": [14316557653]}
    assert sum(amount or 0 for (amount,) in quotas(obj, "gpu-memory").values()) == CARD // 2


# --- "Slot Sharing"


def test_each_init_container_is_a_region_and_sidecars_and_apps_are_one() -> None:
    """FLIP-53, "Slot Sharing": a pipelined region is what is always scheduled together."""
    obj = sharing(uses("a", 20), uses("b", 30), init=[uses("one", 70), uses("two", 40), serves("side")])
    assert groups(obj) == {("one",): 70, ("two",): 40, ("a", "b"): 50}
    assert [one.phase for one in read(obj).groups] == [Phase.INIT, Phase.INIT, Phase.APP]


def test_only_containers_that_may_run_at_the_same_time_divide_a_slot() -> None:
    """FLIP-53, "Slot Sharing": only operators that may run concurrently count, which raises the use of batch jobs."""
    obj = sharing(uses("a"), uses("b"), init=[uses("first")], users=["first", "a", "b"], slot=60)
    assert fractions(obj) == {"first": ONE, "a": HALF, "b": HALF}
    assert quotas(obj, "gpu-core") == {"first": [60], "a": [30], "b": [30]}


def test_regions_that_follow_one_another_reuse_the_holding() -> None:
    """FLIP-53, "Slot Sharing": different regions of a batch job run one after another, in the same slots."""
    (share,) = held(sharing(uses("a", 20), uses("b", 30), init=[uses("one", 70), uses("two", 40)]))
    assert share.amounts["gpu-core"] == 70
    (share,) = held(sharing(uses("a"), init=[uses("one"), uses("two")], users=["one", "two", "a"], slot=60))
    assert share.amounts["gpu-core"] == 60


def test_regions_with_one_sidecar_are_one_group_with_the_greatest_of_their_sums() -> None:
    """FLIP-53, "Slot Sharing": what is connected is one region; a sidecar connects all that runs beside it."""
    obj = sharing(uses("app", 60), init=[uses("before", 90), serves("side", 10), uses("beside", 70)])
    assert groups(obj) == {("before",): 90, ("side", "beside", "app"): 80}
    assert fractions(obj) == {"before": ONE, "side": Fraction(1, 8), "beside": Fraction(7, 8), "app": Fraction(3, 4)}
    assert quotas(obj, "gpu-core") == {"before": [90], "side": [10], "beside": [70], "app": [60]}


def test_an_unknown_sidecar_has_the_least_of_its_regions_and_the_others_share_what_it_leaves() -> None:
    """FLIP-53, "Rejected Alternatives": a quota that changes while its operator runs would have to be revocable."""
    users = ["side", "beside", "a", "b"]
    obj = sharing(uses("a"), uses("b"), init=[serves("side"), uses("beside")], users=users, slot=90)
    assert fractions(obj) == {"side": THIRD, "beside": Fraction(2, 3), "a": THIRD, "b": THIRD}
    assert quotas(obj, "gpu-core") == {"side": [30], "beside": [60], "a": [30], "b": [30]}


def test_groups_that_the_author_names_are_respected_also_across_regions() -> None:
    """FLIP-53, "Slot Sharing" and step 2: slot sharing groups that users set are respected."""
    named = {"serve": ["first", "a"], "rest": ["b"]}
    obj = sharing(uses("a", 20), uses("b", 30), init=[uses("first", 40)], groups=named)
    assert groups(obj) == {("first", "a"): 60, ("b",): 30}
    assert fractions(obj) == {"first": Fraction(2, 3), "a": THIRD, "b": ONE}
    (both, _) = read(obj).groups
    assert both.phase is Phase.SIDECAR  # held from the first one's start on


def test_two_halves_and_more_on_two_cards_are_as_legal_as_a_pair_on_one() -> None:
    """FLIP-53, "Slot Sharing": scheduleAllSourcesTogether, either way."""
    each = sharing(uses("a", 60), uses("b", 60), regions="GroupEach")
    assert {share.containers: share.amounts["gpu-core"] for share in held(each)} == {("a",): 60, ("b",): 60}
    (share,) = held(sharing(uses("a", 50), uses("b", 50)))
    assert (share.containers, share.amounts["gpu-core"]) == (("a", "b"), 100)


def test_unknown_containers_may_have_a_slot_each() -> None:
    """FLIP-53, "Slot Sharing": without scheduleAllSourcesTogether each component asks for a slot with the default."""
    obj = sharing(uses("a"), uses("b"), users=["a", "b"], regions="GroupEach", slot=60)
    assert groups(obj) == {("a",): 60, ("b",): 60}
    assert fractions(obj) == {"a": ONE, "b": ONE}


def test_a_slot_is_the_sum_of_what_is_stated_or_the_default() -> None:
    """FLIP-53, "Slot Sharing", scheduling: the sum of the group's requests, or one slot with default resources."""
    assert groups(sharing(uses("a", 35), uses("b", 45))) == {("a", "b"): 80}
    assert groups(sharing(uses("a"), uses("b"), users=["a", "b"], slot=35)) == {("a", "b"): 35}


def test_the_number_of_slots_does_not_depend_on_how_many_regions_there_are() -> None:
    """FLIP-53, "Slot Sharing": as many slots as the greatest parallelism, whatever the topology of the job."""
    for steps in range(4):
        init = [uses(f"init-{step}", 50) for step in range(steps)]
        assert len(held(sharing(uses("a", 30), uses("b", 20), init=init))) == 1


# --- "Implementation Steps"


def test_containers_of_a_region_share_by_default_where_the_pod_names_the_type() -> None:
    """FLIP-53, step 1: allSourcesInSamePipelinedRegion is true by default."""
    assert groups(sharing(uses("a", 10), uses("b", 10))) == groups(
        sharing(uses("a", 10), uses("b", 10), regions="OneGroup")
    )


@pytest.mark.parametrize("annotation", [None, "{}", '{"rdma":{}}'])
def test_a_pod_that_does_not_name_the_type_keeps_its_meaning(annotation: str | None) -> None:
    """FLIP-53, "Compatibility" and steps 1 to 4: no change of behaviour by itself."""
    obj = pod(uses("a", 60), uses("b", 60), init=[uses("first", 100)])
    plain = read(obj).request
    obj["metadata"]["annotations"] = {DEVICE_SHARING: annotation} if annotation else {}
    assert read(obj).request.containers == plain.containers
    assert all(one.members == () for one in plain.containers)


def test_quotas_in_bytes_are_rounded_down_and_the_rest_goes_to_the_largest_remainders() -> None:
    """FLIP-53, step 5: computeMemorySize, here without losing a byte."""
    obj = sharing(uses("a"), uses("b"), uses("c"), users=["a", "b", "c"], weights={"a": 2}, slot=1)
    of = cards(1, 1003)
    assert quotas(obj, "gpu-memory", of) == {"a": [5], "b": [3], "c": [2]}  # 10 bytes: 5, 2.5 and 2.5
    assert quotas(obj, "gpu-core", of) == {"a": [1], "b": [0], "c": [0]}


# --- "Rejected Alternatives" and "Follow-up"


def test_stated_containers_of_a_region_are_not_put_into_groups_of_their_own() -> None:
    """FLIP-53, "Rejected Alternatives": it would part the tasks of a region, which may then wait for one another."""
    assert groups(sharing(uses("a", 10), uses("b", 20), uses("c", 30))) == {("a", "b", "c"): 60}


def test_a_fraction_does_not_depend_on_where_the_pod_lands_or_who_is_there() -> None:
    """FLIP-53, "Rejected Alternatives": quotas are not set when it is known what runs in a slot."""
    obj = sharing(uses("a", ratio=30), uses("b", ratio=10))
    for memory in (16 * GIB, 80 * GIB + 1):
        found = quotas(obj, "gpu-memory", cards(1, memory))
        total = memory * 40 // 100
        assert found["a"][0] + found["b"][0] == total  # type: ignore[operator]
        assert abs((found["a"][0] or 0) - Fraction(3, 4) * total) < 1


def test_no_container_is_told_more_than_its_part_even_if_others_use_none() -> None:
    """FLIP-53, "Follow-up": over-allocation and revocation are not in the first version."""
    alone = {DEVICE_ALLOCATE_HINT: '{"gpu":{"exclusivePolicy":"DeviceLevel"}}'}
    obj = sharing(uses("a", 60), uses("b", 20), annotations=alone)
    assert quotas(obj, "gpu-core") == {"a": [75], "b": [25]}  # of the whole card, which nobody else may have
    assert sum(amount or 0 for (amount,) in quotas(obj, "gpu-memory").values()) == CARD


# --- What reading a translated Pod gives again


def test_the_original_request_says_that_the_author_stated_no_amount() -> None:
    """FLIP-53, "General Workflow": what is written at compile time must not turn unknown into specified."""
    obj = sharing(uses("a"), container("b", limits={"kubernetes.io/rdma": "50"}), users=["a", "b"], slot=50)
    made = patch.apply(obj, translate(obj, POLICY, CARD).operations)
    assert json.loads(made["metadata"]["annotations"][ORIGINAL_REQUEST]) == {
        "a": {},
        "b": {"limits": {"kubernetes.io/rdma": "50"}},
    }
    assert [one["resources"]["limits"].get("kubernetes.io/gpu-core") for one in made["spec"]["containers"]] == [
        "25",
        "25",
    ]
    assert read_asks(made).request == read_asks(obj).request
    assert translate(made, POLICY, CARD).operations == ()


def test_a_name_of_no_device_in_the_original_request_states_no_amount() -> None:
    obj = sharing(uses("a"), users=["a"], slot=20)
    made = patch.apply(obj, translate(obj, POLICY, CARD).operations)
    noted = json.loads(made["metadata"]["annotations"][ORIGINAL_REQUEST])
    made["metadata"]["annotations"][ORIGINAL_REQUEST] = json.dumps({**noted, "a": {"limits": {"cpu": "1"}}})
    assert read_asks(made).request == read_asks(obj).request
