"""What admission writes for quotas to count, and refuses in it."""

import copy
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, container, pod, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from sharings import serves, sharing, uses
from strategies import pod_specs
from trials import examples
from world import SCHEDULER, asks, cpu_pod

from allocator.amounts import BadQuantityError, pod_amounts
from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.names import ORIGINAL_REQUEST, Phase, is_quota_resource
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy, translate
from webhook.quotas.limits import NO_LIMITS, NamespaceLimits, Range
from webhook.review import Response

PLAIN = TranslationPolicy("kubernetes.io")
POLICY = replace(PLAIN, charges=True)
Raw = dict[str, Any]


def applied(obj: Raw, memory: int | None = None, policy: TranslationPolicy = POLICY, **options: Any) -> Raw:
    translation = translate(obj, policy, memory, **options)
    assert translation.problems == ()
    return patch.apply(obj, translation.operations)


def charged(obj: Raw) -> list[Raw]:
    """What each container states for quotas, in both maps."""
    found = []
    for one in (*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]):
        maps = [one.get("resources", {}).get(key, {}) for key in ("requests", "limits")]
        requests, limits = ({n.partition("/")[2]: a for n, a in of.items() if is_quota_resource(n)} for of in maps)
        assert requests == limits
        found.append(requests)
    return found


def webhooks(limits: NamespaceLimits = NO_LIMITS, memory: int | None = None) -> PodWebhooks:
    return PodWebhooks(POLICY, SCHEDULER, lambda _pod: (memory or 0, memory or 0), limits=lambda _namespace: limits)


def judged(obj: Raw, limits: NamespaceLimits = NO_LIMITS) -> Response:
    return webhooks(limits).validate(asks(obj))


def hinted(limits: Raw, **hint: str) -> Raw:
    return pod(container(limits=limits), annotations={DEVICE_ALLOCATE_HINT: json.dumps({"gpu": hint, "rdma": hint})})


# --- what is written


def test_what_quotas_count_stands_beside_what_is_requested_in_both_maps() -> None:
    done = applied(pod(container("a", limits={"nvidia.com/gpu": 2}), container("b")), 8 * GIB)
    assert charged(done) == [
        {"gpu": "200", "gpu-core": "200", "gpu-memory-ratio": "200", "gpu-memory": "16Gi"},
        {},
    ]
    assert "resources" not in done["spec"]["containers"][1]


def test_memory_that_is_not_to_be_stated_is_counted() -> None:
    done = applied(pod(container(limits={"kubernetes.io/gpu": 50})), charged_memory=8 * GIB)
    assert charged(done) == [{"gpu": "50", "gpu-core": "50", "gpu-memory-ratio": "50", "gpu-memory": "4Gi"}]
    assert "kubernetes.io/gpu-memory" not in done["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
        {"limits": {"cpu": "2"}},
        {"requests": {"cpu": "2", "quota.koordgate.io/cpus": "1"}, "limits": {"cpu": "2"}},
    ],
)
def test_cpus_of_a_pods_own_are_written_into_maps_that_are_there_or_not(resources: Raw) -> None:
    done = applied(pod({"name": "a", "resources": resources}, labels={QOS_LABEL: "LSR"}))
    assert charged(done) == [{"cpus": "2"}]
    assert ORIGINAL_REQUEST not in done["metadata"].get("annotations", {})


def test_cpus_of_the_pod_as_a_whole_are_written_into_a_container_without_resources() -> None:
    both = {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
    done = applied(pod({"name": "a"}, {"name": "b"}, labels={QOS_LABEL: "LSR"}, resources=both))
    assert charged(done) == [{"cpus": "4"}, {}]


@pytest.mark.parametrize("key", ["requests", "limits"])
def test_what_an_author_wrote_for_quotas_is_replaced(key: str) -> None:
    forged = {"quota.koordgate.io/gpu": "1", "quota.koordgate.io/other": "5", "kubernetes.io/gpu": "60"}
    obj = pod(container("a", **{key: forged}), container("b", **{key: {"quota.koordgate.io/gpu": "9"}}))
    assert charged(applied(obj)) == [{"gpu": "60", "gpu-core": "60", "gpu-memory-ratio": "60"}, {}]


def test_a_pod_that_is_not_ours_keeps_what_it_states() -> None:
    obj = pod(container(limits={"quota.koordgate.io/gpu": "1"}))
    assert translate(obj, POLICY, None).operations == ()
    assert not is_ours(obj)


def test_nothing_is_written_where_quotas_are_turned_off() -> None:
    both = {"kubernetes.io/gpu": "50", "quota.koordgate.io/gpu": "7"}
    obj = pod(container(requests=both, limits=both))
    assert charged(applied(obj, policy=PLAIN)) == [{"gpu": "7"}]
    assert judged(applied(obj, policy=PLAIN)).code == 422


ZEROS = st.sampled_from([(), ("nvidia.com/gpu",)])


def readable(spec: Raw) -> bool:
    """Whether all amounts are quantities, as the API server ensures; admission reads CPU and memory of few Pods."""
    try:
        pod_amounts(spec)
    except BadQuantityError:
        return False
    return True


def summed(obj: Raw, without: Collection[str]) -> dict[str, int] | None:
    """What a Pod requests in sum; None where it states an amount that the API server refuses."""
    try:
        return {name: amount for name, amount in pod_amounts(obj["spec"]).items() if name not in without}
    except BadQuantityError:
        return None


@settings(max_examples=examples(300), deadline=None)
@given(pod_specs(), st.sampled_from([None, 80 * GIB]), ZEROS, st.sampled_from(["", "LSR"]))
def test_a_translated_pod_is_charged_once_and_read_as_before(
    spec: Raw, memory: int | None, zeros: Collection[str], qos: str
) -> None:
    obj: Raw = {"metadata": {"name": "p", "labels": {QOS_LABEL: qos}}, "spec": spec}
    first = translate(obj, POLICY, memory, zeros=zeros)
    if first.problems or not readable(spec):
        return
    before = copy.deepcopy(obj)
    done = patch.apply(obj, first.operations)
    assert obj == before
    assert translate(done, POLICY, memory, zeros=zeros).operations == ()
    plain = patch.apply(obj, translate(obj, PLAIN, memory).operations)
    assert replace(read_asks(done).request, most=()) == read_asks(plain).request
    assert summed(done, zeros) == summed(plain, zeros)
    if first.reading.request and memory:
        assert judged(done).message == ""


# --- zeros for LimitRanges


def test_every_container_of_a_translated_pod_states_what_a_limit_range_wants_stated_as_zero() -> None:
    obj = pod(
        container("a", limits={"nvidia.com/gpu": "1"}),
        container("b", limits={"nvidia.com/gpu": "0"}),
        container("c", requests={"cpu": "1"}),
        init=[sidecar_container("i")],
    )
    done = applied(obj, zeros=("nvidia.com/gpu",))
    for one in (*done["spec"]["initContainers"], *done["spec"]["containers"]):
        assert [one["resources"][key]["nvidia.com/gpu"] for key in ("requests", "limits")] == ["0", "0"]
    original = json.loads(done["metadata"]["annotations"][ORIGINAL_REQUEST])
    assert original["a"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert original.keys() == {"a", "b"}
    assert read_asks(done).request.containers == read_asks(applied(obj)).request.containers
    assert judged(done).allowed


def test_what_the_author_wrote_is_kept_if_a_pod_with_zeros_is_translated_again() -> None:
    done = applied(pod(container("a", limits={"nvidia.com/gpu": "1"})), zeros=("nvidia.com/gpu",))
    again = applied(done, 8 * GIB, zeros=("nvidia.com/gpu",))
    assert again != done
    assert again["metadata"] == done["metadata"]


def test_a_pod_without_devices_states_no_zeros() -> None:
    assert translate(pod(container(limits={"nvidia.com/gpu": "0"})), POLICY, None, zeros=("nvidia.com/gpu",)) == (
        translate(pod(container(limits={"nvidia.com/gpu": "0"})), POLICY, None)
    )
    done = applied(cpu_pod("p", admit=False), zeros=("nvidia.com/gpu",))
    assert "nvidia.com/gpu" not in done["spec"]["containers"][0]["resources"]["limits"]


def test_the_zeros_of_the_pods_namespace_are_written() -> None:
    one = webhooks(NamespaceLimits(zeros=("nvidia.com/gpu",)))
    obj = pod(container(limits={"kubernetes.io/gpu": "50"}))
    done = patch.apply(obj, one.mutate(asks(obj)).patch)
    assert done["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "0"


# --- what is refused


@pytest.mark.parametrize("key", ["requests", "limits"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu": "10"}, "[quota.koordgate.io/gpu]: states 10, but quotas are to count 50"),
        ({"gpu": None}, "[quota.koordgate.io/gpu]: does not state it, but quotas are to count 50"),
        ({"gpu": "much"}, "[quota.koordgate.io/gpu]: does not state it"),
        ({"rdma": "1"}, "[quota.koordgate.io/rdma]: states 1, but quotas are to count none"),
        ({"gpu-core": "51"}, "[quota.koordgate.io/gpu-core]: states 51"),
    ],
)
def test_a_pod_that_states_something_else_for_quotas_is_refused(key: str, change: Raw, told: str) -> None:
    done = applied(pod(container(limits={"kubernetes.io/gpu": 50})))
    amounts = done["spec"]["containers"][0]["resources"][key]
    for tail, amount in change.items():
        amounts[f"quota.koordgate.io/{tail}"] = amount
        if amount is None:
            del amounts[f"quota.koordgate.io/{tail}"]
    response = judged(done)
    assert response.code == 422
    assert f"spec.containers[0].resources.{key}{told}" in response.message
    assert "MutatingWebhookConfigurations" in response.message


def test_a_pod_need_not_state_what_quotas_count_but_in_all_containers_or_in_none() -> None:
    obj = pod(container("a", limits={"kubernetes.io/gpu": 50}), container("b", limits={"kubernetes.io/gpu": 20}))
    assert judged(applied(obj, states=()), COUNTED).allowed
    partly = applied(obj, states={"quota.koordgate.io/gpu-core"})
    assert charged(partly) == [{"gpu-core": "50"}, {"gpu-core": "20"}]
    assert judged(partly, COUNTED).allowed
    del partly["spec"]["containers"][1]["resources"]["limits"]["quota.koordgate.io/gpu-core"]
    told = (
        "spec.containers[1].resources.limits[quota.koordgate.io/gpu-core]: does not state it, but quotas are to count"
    )
    assert told in judged(partly, COUNTED).message


@pytest.mark.parametrize("container_at", [0, 1])
@pytest.mark.parametrize("key", ["requests", "limits"])
def test_what_an_author_states_for_quotas_is_judged_where_nothing_limits_it(container_at: int, key: str) -> None:
    done = applied(pod(container("a", limits={"kubernetes.io/gpu": 50}), container("b")), states=())
    done["spec"]["containers"][container_at].setdefault("resources", {})
    done["spec"]["containers"][container_at]["resources"].setdefault(key, {})["quota.koordgate.io/gpu"] = "1"
    assert judged(done).code == 422


def test_what_an_author_or_another_replica_wrote_for_quotas_is_removed_where_nothing_is_to_be_stated() -> None:
    obj = pod(container("a", limits={"kubernetes.io/gpu": 50, "quota.koordgate.io/gpu": "1"}), container("b"))
    done = applied(obj, states=())
    assert charged(done) == [{}, {}]
    assert applied(applied(obj), states=()) == done
    assert applied(done, states=None) == applied(obj)


def test_a_pod_that_does_not_state_what_a_range_limits_is_judged_by_what_it_asks_for() -> None:
    done = applied(pod(container(limits={"kubernetes.io/gpu": 50})), states=())
    assert "maximum nvidia.com/gpu usage per Container" in judged(done, ranges("Container", 40)).message
    assert judged(done, ranges("Container", 50)).allowed


def test_a_pod_states_what_its_namespace_wants_stated() -> None:
    states = frozenset({"quota.koordgate.io/gpu"})
    of = {"team": states, "other": frozenset[str]()}
    one = PodWebhooks(POLICY, SCHEDULER, lambda _pod: (0, 0), states=of.__getitem__)
    obj = pod(container(limits={"kubernetes.io/gpu": 50}))
    for namespace, wanted in (("team", {"gpu": "50"}), ("other", {})):
        done = patch.apply(obj, one.mutate(asks(obj)._replace(namespace=namespace)).patch)
        assert charged(done) == [wanted]


def test_a_container_that_asks_for_nothing_may_state_nothing_for_quotas() -> None:
    done = applied(pod(container("a", limits={"kubernetes.io/gpu": 50}), container("b")))
    done["spec"]["containers"][1]["resources"] = {"requests": {"quota.koordgate.io/gpu": "1"}}
    assert "spec.containers[1].resources.requests[quota.koordgate.io/gpu]" in judged(done).message


@pytest.mark.parametrize(
    ("stated", "right"),
    [("1", True), ("100", True), ("101", False), ("0", False), (None, True)],
)
def test_what_follows_from_memory_in_reach_may_be_any_amount_that_some_cards_would_give(
    stated: str | None,
    right: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    done = applied(pod(container(limits={"kubernetes.io/gpu-memory": "8Gi"})), 80 * GIB)
    for amounts in done["spec"]["containers"][0]["resources"].values():
        assert amounts["quota.koordgate.io/gpu-memory-ratio"] == "10"
        amounts["quota.koordgate.io/gpu-memory-ratio"] = stated
        if stated is None:
            del amounts["quota.koordgate.io/gpu-memory-ratio"]
    assert judged(done).allowed is right


def test_a_pod_from_another_replica_that_saw_other_memory_is_let_through() -> None:
    for memory in (None, 80 * GIB, 8 * GIB):
        for asked in ({"nvidia.com/gpu": 1}, {"kubernetes.io/gpu-memory": "4Gi"}):
            assert judged(applied(pod(container(limits=asked)), memory)).allowed


SMALL_PARTS: dict[str, tuple[list[Raw], list[dict[str, str]]]] = {
    "a member has less than a percent": (
        [uses("a", memory=40 * GIB), uses("b", memory=300 * 2**20)],
        [{"gpu": "51", "gpu-memory-ratio": "51"}, {"gpu": "0", "gpu-memory-ratio": "0"}],
    ),
    "compute in one member alone": (
        [uses("a", memory=16 * GIB), uses("b", core=50, memory=16 * GIB)],
        [
            {"gpu": "25", "gpu-memory-ratio": "20"},
            {"gpu": "25", "gpu-core": "50", "gpu-memory-ratio": "20"},
        ],
    ),
    "more compute than memory": (
        [uses("a", memory=2 * GIB), uses("b", core=20, memory=6 * GIB)],
        [{"gpu": "5", "gpu-memory-ratio": "3"}, {"gpu": "15", "gpu-core": "20", "gpu-memory-ratio": "7"}],
    ),
}


@pytest.mark.parametrize(("members", "counted"), SMALL_PARTS.values(), ids=SMALL_PARTS)
def test_members_of_a_group_state_their_parts_of_what_the_group_holds(
    members: list[Raw], counted: list[dict[str, str]]
) -> None:
    done = applied(sharing(*members), 80 * GIB)
    found = [{name: amount for name, amount in one.items() if name != "gpu-memory"} for one in charged(done)]
    assert found == counted
    assert judged(done).allowed


@st.composite
def groups_in_bytes(draw: st.DrawFn) -> Raw:
    """Containers that share a card and state its memory in bytes, with compute or without."""
    made: dict[Phase, list[Raw]] = {phase: [] for phase in Phase}
    for name in "abcdef"[: draw(st.integers(1, 6))]:
        phase = draw(st.sampled_from(list(Phase)))
        amounts: Raw = {"memory": draw(st.sampled_from([1, 2**20, 300 * 2**20, 2 * GIB, 6 * GIB, 16 * GIB, 40 * GIB]))}
        amounts |= draw(st.sampled_from([{}, {"core": 1}, {"core": 20}, {"core": 50}]))
        make = serves if phase is Phase.SIDECAR else uses
        made[phase].append(make(name, **amounts))
    names = [one["name"] for of in made.values() for one in of]
    said: Raw = {"regions": draw(st.sampled_from(["OneGroup", "GroupEach"]))}
    if draw(st.booleans()):
        said["groups"] = {"g": draw(st.lists(st.sampled_from(names), min_size=1, unique=True))}
    early = draw(st.permutations([*made[Phase.INIT], *made[Phase.SIDECAR]]))
    return sharing(*made[Phase.APP], init=early, **said)


@settings(max_examples=examples(300), deadline=None)
@given(groups_in_bytes(), st.sampled_from([None, 7 * GIB, 24 * GIB, 80 * GIB]))
def test_whatever_admission_writes_for_members_of_a_group_is_accepted(obj: Raw, memory: int | None) -> None:
    translation = translate(obj, POLICY, memory)
    if translation.problems:
        return
    done = patch.apply(obj, translation.operations)
    assert judged(done).allowed, judged(done).message
    every = NamespaceLimits(frozenset(f"quota.koordgate.io/{one}" for one in ("gpu", "gpu-core", "gpu-memory-ratio")))
    assert memory is None or judged(done, every).allowed, judged(done, every).message


COUNTED = NamespaceLimits(frozenset({"quota.koordgate.io/gpu"}))
OF_BYTES = NamespaceLimits(frozenset({"quota.koordgate.io/gpu-memory"}))


@pytest.mark.parametrize(
    ("obj", "limits", "allowed"),
    [
        (hinted({"kubernetes.io/gpu": 1}, exclusivePolicy="PCIeLevel"), COUNTED, False),
        (hinted({"kubernetes.io/gpu": 1}, exclusivePolicy="PCIeLevel"), OF_BYTES, False),
        (hinted({"kubernetes.io/gpu": 1}, exclusivePolicy="PCIeLevel"), NO_LIMITS, True),
        (hinted({"kubernetes.io/gpu": 1}, exclusivePolicy="DeviceLevel"), COUNTED, True),
        (hinted({"kubernetes.io/rdma": 1}, exclusivePolicy="PCIeLevel"), COUNTED, True),
        (hinted({"kubernetes.io/rdma": 1}, allocateStrategy="ApplyForAll"), COUNTED, True),
        (
            hinted({"kubernetes.io/rdma": 1}, allocateStrategy="ApplyForAll"),
            NamespaceLimits(frozenset({"quota.koordgate.io/rdma"})),
            False,
        ),
        (pod(container(limits={"nvidia.com/gpu": 1})), OF_BYTES, False),
        (pod(container(limits={"kubernetes.io/gpu-memory": "1Gi"})), OF_BYTES, True),
    ],
)
def test_what_cannot_be_counted_is_refused_exactly_where_it_is_limited(
    obj: Raw,
    limits: NamespaceLimits,
    allowed: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    response = judged(applied(obj), limits)
    assert response.allowed is allowed
    assert allowed or "a quota of the namespace limits quota.koordgate.io/" in response.message


def test_bytes_that_were_counted_may_be_limited() -> None:
    assert judged(applied(pod(container(limits={"nvidia.com/gpu": 1})), 80 * GIB), OF_BYTES).allowed


def ranges(of: str, amount: int, *, least: bool = False) -> NamespaceLimits:
    one = Range(of, "nvidia.com/gpu", "quota.koordgate.io/gpu", str(amount // 100), amount, least)
    return NamespaceLimits(ranges=(one,))


TWO = pod(
    container("a", limits={"kubernetes.io/gpu": 200}),
    container("b", limits={"kubernetes.io/gpu": 200}),
    init=[container("i", limits={"kubernetes.io/gpu": 300})],
)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (ranges("Container", 300), ""),
        (
            ranges("Container", 200),
            (
                "spec.initContainers[0].resources: maximum nvidia.com/gpu usage per Container is 2 by a LimitRange of "
                "the namespace (quota.koordgate.io/gpu 200), but 300 is asked for; ask for less"
            ),
        ),
        (ranges("Pod", 400), ""),
        (ranges("Pod", 300), "spec: maximum nvidia.com/gpu usage per Pod is 3 by"),
        (ranges("Container", 200, least=True), ""),
        (
            ranges("Container", 300, least=True),
            "spec.containers[1].resources: minimum nvidia.com/gpu usage per Container",
        ),
        (ranges("Pod", 500, least=True), "but 400 is asked for; ask for more"),
    ],
)
def test_a_pod_beyond_a_range_of_its_namespace_is_refused_with_the_ranges_own_numbers(
    limits: NamespaceLimits, told: str
) -> None:
    response = judged(applied(TWO), limits)
    assert response.allowed is (not told)
    assert told in response.message


def test_a_container_that_asks_for_no_device_is_below_no_minimum() -> None:
    done = applied(pod(container("a", limits={"kubernetes.io/gpu": 200}), container("b")))
    assert judged(done, ranges("Container", 200, least=True)).allowed


def test_bytes_are_judged_by_what_was_counted_of_them() -> None:
    done = applied(pod(container(limits={"kubernetes.io/gpu-memory": "8Gi"})), 80 * GIB)
    assert judged(done, ranges("Container", 10)).allowed
    assert not judged(done, ranges("Container", 9)).allowed


def test_an_existing_pod_that_states_nothing_for_quotas_may_be_updated() -> None:
    old = applied(pod(container(limits={"kubernetes.io/gpu": 50})), policy=PLAIN)
    new = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert webhooks(COUNTED).validate(asks(new, old=old, operation="UPDATE")).allowed


# --- what may change later


def rehinted(old: str | None, new: str | None, *, of: PodWebhooks | None = None, asked: Raw | None = None) -> Response:
    """The answer when the hint of a Pod is changed that was created with another, or none."""
    before, after = (
        pod(container(limits=asked or {"kubernetes.io/gpu": 1, "kubernetes.io/rdma": 4})) for _ in range(2)
    )
    for obj, hint in ((before, old), (after, new)):
        obj["metadata"]["annotations"] = {} if hint is None else {DEVICE_ALLOCATE_HINT: hint}
    return (of or webhooks()).validate(asks(after, old=before, operation="UPDATE"))


@pytest.mark.parametrize(
    "hint",
    [
        {"gpu": {"exclusivePolicy": "DeviceLevel"}},
        {"gpu": {"exclusivePolicy": "PCIeLevel"}},
        {"rdma": {"allocateStrategy": "ApplyForAll"}},
        {"rdma": {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("known", [None, "{}", '{"gpu":{"selector":{"matchLabels":{"a":"b"}}}}'])
def test_a_hint_may_not_make_a_pod_take_more_than_quotas_counted(hint: Raw, known: str | None) -> None:
    told = rehinted(known, json.dumps(hint))
    assert told.code == 403
    assert f"metadata.annotations[{DEVICE_ALLOCATE_HINT}]: quotas counted what the Pod takes" in told.message
    assert "create a new Pod" in told.message
    assert not rehinted(json.dumps(hint), known).allowed


def test_a_hint_that_cannot_be_read_is_no_way_to_another() -> None:
    exclusive = json.dumps({"gpu": {"exclusivePolicy": "DeviceLevel"}})
    assert "JSON" in rehinted(None, "{").message
    assert not rehinted("{", exclusive).allowed


def test_a_hint_that_changes_no_amount_may_be_changed_and_any_of_a_pod_without_devices() -> None:
    selector = json.dumps({"gpu": {"selector": {"matchLabels": {"a": "b"}}}})
    exclusive = json.dumps({"gpu": {"exclusivePolicy": "DeviceLevel"}})
    assert rehinted(None, selector).allowed
    assert rehinted(selector, None).allowed
    assert rehinted(None, exclusive, asked={"cpu": "1"}).allowed


def test_a_hint_may_be_changed_where_quotas_are_turned_off() -> None:
    exclusive = json.dumps({"gpu": {"exclusivePolicy": "DeviceLevel"}})
    off = PodWebhooks(PLAIN, "", lambda _pod: (0, 0))
    assert rehinted(None, exclusive, of=off).allowed
