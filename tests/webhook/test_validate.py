"""What admission refuses in a Pod, which users may do it, and that the message says what to do."""

import copy
from typing import Any

import pytest
from builders import GIB, container, pod
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import json_values
from trials import examples
from world import POLICY, SCHEDULER, TENANT, US, admitted, asks, gpu_pod, invalid_pods, plain_pod

from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.vocabulary.delivery import LIMIT_VARIABLES
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    MIRROR_POD,
    ORIGINAL_REQUEST,
    RESOURCE_STATUS,
)
from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.review import Response

WEBHOOKS = PodWebhooks(POLICY, SCHEDULER, lambda _pod: (0, 0))
ALLOCATION = [
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    "koordgate.io/device-quotas",
    "gpu-core.device-quotas.koordgate.io/main",
    "visible-devices.koordgate.io/main",
    "rdma.visible-devices.koordgate.io/main",
    "any.type.visible-devices.koordgate.io/main",  # whatever types are configured
    "nvidia-gpu-memory-limit.koordgate.io/main",
    "nvidia-gpu-memory-request.koordgate.io/main",
]
DELIVERY = [
    "nvidia.cdi.k8s.io/container.main",
    "nvidia.cdi.k8s.io/pod",
    "nvidia.cdi.k8s.io",
    "cdi.k8s.io/gpu",
    "cdi.k8s.io",
    "nvidia.com/container.main.gpus.devices",
]
KAI = "system:serviceaccount:kai-scheduler:binder"
BESIDE_KAI = PodWebhooks(POLICY, SCHEDULER, lambda _pod: (0, 0), peers=["other", KAI])
Raw = dict[str, Any]


def created(obj: Raw, **options: Any) -> Response:
    return WEBHOOKS.validate(asks(obj, **options))


def updated(old: Raw, new: Raw, **options: Any) -> Response:
    return WEBHOOKS.validate(asks(new, old=old, operation="UPDATE", **options))


def with_annotations(obj: Raw, **annotations: str | None) -> Raw:
    kept = {**obj["metadata"].get("annotations", {}), **annotations}
    metadata = {**obj["metadata"], "annotations": {key: text for key, text in kept.items() if text is not None}}
    return {**obj, "metadata": metadata}


# --- created


def test_a_pod_without_devices_is_let_through() -> None:
    assert created(plain_pod("p")).allowed
    assert created(plain_pod("p", nodeName="n1")).allowed


@pytest.mark.parametrize("reason", invalid_pods())
def test_what_can_never_work_is_refused_with_its_field_and_its_pod(reason: str) -> None:
    response = created(invalid_pods()[reason])
    assert not response.allowed
    assert response.code == 422
    assert response.message.startswith("Pod default/p")
    assert "spec" in response.message or "metadata" in response.message


@pytest.mark.parametrize("reason", invalid_pods())
def test_no_two_webhooks_in_a_row_let_an_invalid_pod_through_as_it_is(reason: str) -> None:
    """As the API server calls them: a missing translation is made, other errors stop the Pod."""
    obj = invalid_pods()[reason]
    mutated = WEBHOOKS.mutate(asks(obj))
    if not mutated.allowed:
        assert mutated.code == 422
        return
    done = patch.apply(obj, mutated.patch)
    mended = {"not translated", "without koordgate's environment"}
    assert created(done).allowed is (reason in mended)


NOISE = st.sampled_from(["newField", "x-y", "managedFields"])


@st.composite
def noisy(draw: st.DrawFn) -> tuple[str, Raw]:
    """A Pod that is invalid, with irrelevant additions: fields, labels, annotations, containers, order."""
    reason = draw(st.sampled_from(sorted(invalid_pods())))
    obj = copy.deepcopy(invalid_pods()[reason])
    obj["metadata"]["labels"] = draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
    annotations = obj["metadata"].setdefault("annotations", {})
    for key in draw(st.lists(st.sampled_from(["a", "koordgate.io/ignore", ORIGINAL_REQUEST]), max_size=2)):
        annotations[key] = draw(st.text(max_size=5) | st.sampled_from(["{}", "true", '{"main":{}}', '{"a":{}}']))
    for holder in (obj, obj["metadata"], obj["spec"], obj["spec"]["containers"][0]):
        for key in draw(st.lists(NOISE, max_size=2)):
            holder.setdefault(key, draw(json_values()))
    more = [container(f"more-{number}") for number in range(draw(st.integers(0, 2)))]
    obj["spec"]["containers"] = draw(st.permutations([*obj["spec"]["containers"], *more]))
    return reason, dict(draw(st.permutations(list(obj.items()))))


@given(noisy(), st.sampled_from(["alice", SCHEDULER, "system:node:n1"]))
@settings(max_examples=examples(100))
def test_no_noise_gets_an_invalid_pod_allowed(invalid: tuple[str, Raw], username: str) -> None:
    reason, obj = invalid
    assert not created(obj, username=username, groups=["system:nodes", "system:masters"]).allowed, reason


@pytest.mark.parametrize("key", [*ALLOCATION, *DELIVERY])
@pytest.mark.parametrize("by", [TENANT, US, SCHEDULER, KAI])
@pytest.mark.parametrize("obj", [gpu_pod("p"), plain_pod("p")], ids=["asks", "asks-none"])
def test_nobody_may_create_a_pod_with_an_allocation(key: str, by: str, obj: Raw) -> None:
    response = BESIDE_KAI.validate(asks(with_annotations(obj, **{key: "{}"}), username=by))
    assert not response.allowed
    assert f"metadata.annotations[{key}]" in response.message
    assert "remove it" in response.message


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.main.gpu-compute.mode",
        "my.cdi.k8s.io/gpu",
    ],
)
def test_what_authors_ask_for_is_no_allocation(key: str) -> None:
    asking = with_annotations(plain_pod("p"), **{key: "8Gi"})
    assert created(asking).allowed
    assert updated(plain_pod("p"), asking).allowed
    assert updated(asking, plain_pod("p")).allowed


def test_what_shows_a_container_devices_is_refused_with_every_way_out() -> None:
    told = created(with_annotations(plain_pod("p"), **{"cdi.k8s.io/gpu": "nvidia.com/gpu=all"})).message
    assert told == (
        "Pod default/p: metadata.annotations[cdi.k8s.io/gpu]: shows containers devices that nobody gave to the Pod; "
        "remove it, and ask for devices as a resource, or let an administrator exempt the namespace"
    )


def test_a_pod_with_devices_may_not_be_born_on_a_node() -> None:
    response = created(gpu_pod("p", nodeName="n1"))
    assert not response.allowed
    assert "spec.nodeName" in response.message
    assert "remove it" in response.message


@pytest.mark.parametrize(
    "what", ["scheduler", "env removed", "env changed", "env doubled", "void instead", "untouched"]
)
def test_a_pod_that_was_not_translated_is_refused_and_says_who_must_look(what: str) -> None:
    obj = gpu_pod("p")
    main = obj["spec"]["containers"][0]
    match what:
        case "scheduler":
            obj["spec"]["schedulerName"] = "default-scheduler"
        case "env removed":
            del main["env"]
        case "env changed":
            main["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        case "env doubled":
            main["env"] = [*main["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        case "void instead":
            main["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
        case _:
            obj = pod(container(limits={"nvidia.com/gpu": "1"}))
    response = created(obj)
    assert not response.allowed
    assert "MutatingWebhookConfigurations" in response.message


def test_a_container_that_asks_for_none_must_see_none() -> None:
    obj = admitted(pod(container("a", limits={"nvidia.com/gpu": 1}), container("b")))
    assert created(obj).allowed
    obj["spec"]["containers"][1]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert "spec.containers[1].env" in created(obj).message


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("variable", LIMIT_VARIABLES)
def test_no_container_of_a_pod_for_devices_may_bring_a_memory_limit_of_its_own(variable: str, index: int) -> None:
    obj = admitted(pod(container("a", limits={"nvidia.com/gpu": 1}), container("b")))
    spec = obj["spec"]["containers"][index]
    spec["env"] = [*spec["env"], {"name": variable, "value": "1"}]

    told = created(obj).message

    assert f"spec.containers[{index}].env: holds {variable}, which koordgate did not write" in told
    assert "MutatingWebhookConfigurations" in told


@pytest.mark.parametrize("variable", LIMIT_VARIABLES)
def test_a_pod_without_devices_may_have_any_variable(variable: str) -> None:
    """policies.visibleDevices warns of it."""
    bare = pod(container(env=[{"name": variable, "value": "1"}]))
    assert created(bare).allowed


def test_all_problems_are_reported_at_once() -> None:
    obj = gpu_pod("p", nodeName="n1", schedulerName="mine", annotations={DEVICE_ALLOCATED: "{}"})
    obj["spec"]["schedulerName"] = "mine"
    told = created(obj).message
    assert all(path in told for path in (DEVICE_ALLOCATED, "spec.nodeName", "spec.schedulerName"))


def test_a_pod_that_gets_its_name_from_the_server_is_named_by_what_it_has() -> None:
    obj = pod(container(limits={"kubernetes.io/gpu": "150"}))
    del obj["metadata"]["name"]
    obj["metadata"]["generateName"] = "job-"
    told = WEBHOOKS.mutate(asks(obj)).message
    assert "Pod default/job-:" in told
    assert "ask 100 or 200" in told


# --- mirror Pods


def mirror(node: str = "n1", **about: Any) -> Raw:
    asked = container(limits={"nvidia.com/gpu": "1"})
    return pod(asked, annotations={MIRROR_POD: "hash"}, nodeName=node, **about)


def test_a_kubelet_may_show_its_own_static_pods() -> None:
    asked = asks(mirror(), username="system:node:n1", groups=["system:nodes", "system:authenticated"])
    assert WEBHOOKS.mutate(asked).patch == ()
    assert WEBHOOKS.validate(asked).allowed


@pytest.mark.parametrize(
    ("username", "groups"),
    [
        (TENANT, ["system:nodes"]),
        ("system:node:n2", ["system:nodes"]),
        ("system:node:n1", ["system:authenticated"]),
        ("system:node:", ["system:nodes"]),
        (SCHEDULER, ["system:nodes"]),
        ("system:node:n10", ["system:nodes"]),
    ],
)
def test_nobody_else_may_claim_a_mirror(username: str, groups: list[str]) -> None:
    response = WEBHOOKS.validate(asks(mirror(), username=username, groups=groups))
    assert not response.allowed
    assert "spec.nodeName" in response.message


def test_a_mirror_of_no_node_is_none() -> None:
    response = WEBHOOKS.validate(asks(mirror(""), username="system:node:", groups=["system:nodes"]))
    assert not response.allowed


# --- updated


@pytest.mark.parametrize("key", [*ALLOCATION, *DELIVERY, ORIGINAL_REQUEST])
@pytest.mark.parametrize(("before", "after"), [(None, "{}"), ("{}", '{"gpu":[]}'), ("{}", None)])
@pytest.mark.parametrize("by", [TENANT, "system:node:n1", US, f"{SCHEDULER}-x", f"x{SCHEDULER}", SCHEDULER.upper(), ""])
def test_nobody_else_may_add_change_or_remove_an_allocation(
    key: str, before: str | None, after: str | None, by: str
) -> None:
    old, new = (with_annotations(plain_pod("p"), **{key: text}) for text in (before, after))
    response = updated(old, new, username=by)
    assert not response.allowed
    assert response.code == 403
    assert f"metadata.annotations[{key}]" in response.message
    assert "leave it unchanged" in response.message


@pytest.mark.parametrize(("before", "after"), [(None, "GPU-1"), ("GPU-1", "GPU-2"), ("GPU-1", None)])
def test_another_products_binder_shows_its_pods_devices_and_states_no_allocation(
    before: str | None, after: str | None
) -> None:
    def changed(key: str, by: str) -> Response:
        old, new = (with_annotations(plain_pod("p"), **{key: text}) for text in (before, after))
        return BESIDE_KAI.validate(asks(new, old=old, operation="UPDATE", username=by))

    assert [key for key in DELIVERY if changed(key, KAI).allowed] == DELIVERY
    assert not any(changed(key, f"{KAI}-x").allowed for key in DELIVERY)
    assert not any(changed(key, KAI).allowed for key in [*ALLOCATION, ORIGINAL_REQUEST])


@pytest.mark.parametrize("key", [*ALLOCATION, *DELIVERY])
def test_the_scheduler_may_write_allocations(key: str) -> None:
    assert updated(plain_pod("p"), with_annotations(plain_pod("p"), **{key: "{}"}), username=SCHEDULER).allowed


def test_everything_else_of_a_pod_may_be_updated() -> None:
    old = with_annotations(gpu_pod("p"), **{DEVICE_ALLOCATED: "{}", "mine": "1"})
    free = {"visible-devices.koordgate.iox/main": "1", "xvisible-devices.koordgate.io/main": "2"}
    new = with_annotations(old, about="1", mine="2", **free)  # before and after our own in the alphabet
    new["metadata"]["labels"] = {"a": "b"}
    assert updated(old, new).allowed


def test_an_update_of_a_pod_from_before_us_is_not_stopped() -> None:
    old = pod(container(limits={"nvidia.com/gpu": "1"}), nodeName="n1")
    assert updated(old, with_annotations(old, mine="1")).allowed


def of_class(qos: str | None, **about: Any) -> Raw:
    return plain_pod("p", labels={"a": "b"} if qos is None else {"a": "b", QOS_LABEL: qos}, **about)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LSR", None),
        (None, "LSR"),
        ("LSR", "LSE"),
        ("LSE", "LSR"),
        ("LSE", "LS"),
        ("BE", "LSE"),
        ("", "LSR"),
        ("LSR", "x"),
    ],
)
@pytest.mark.parametrize("by", [TENANT, US, SCHEDULER, "system:admin"])
@pytest.mark.parametrize("bound", ["", "n1"])
def test_nobody_may_make_a_pod_one_with_cpus_of_its_own_or_one_without(
    before: str | None, after: str | None, by: str, bound: str
) -> None:
    response = updated(of_class(before, nodeName=bound), of_class(after, nodeName=bound), username=by)
    assert not response.allowed
    assert response.code == 403
    assert f"metadata.labels[{QOS_LABEL}]" in response.message
    assert f"{before or 'no class'} cannot become {after or 'no class'}" in response.message
    assert "delete the Pod" in response.message


@pytest.mark.parametrize(
    ("before", "after"),
    [("LSR", "LSR"), (None, None), ("LS", "BE"), (None, "LS"), ("BE", None), ("", None), ("x", "LS")],
)
def test_other_classes_and_labels_may_be_changed(before: str | None, after: str | None) -> None:
    new = of_class(after)
    new["metadata"]["labels"] |= {"a": "c", "koordinator.sh/qosclass": "LSR"}
    assert updated(of_class(before), new).allowed


def test_a_pod_that_loses_all_its_labels_loses_its_class() -> None:
    every: list[Raw] = [{"labels": {}}, {"labels": None}]
    for gone in every:
        new = of_class("LSR")
        new["metadata"] |= gone
        assert not updated(of_class("LSR"), new).allowed


def test_class_and_allocation_are_reported_at_once() -> None:
    new = with_annotations(of_class("LSR"), **{RESOURCE_STATUS: "{}"})
    told = updated(of_class(None), new).message
    assert QOS_LABEL in told
    assert RESOURCE_STATUS in told


def resized(qos: str | None, before: Raw, after: Raw, by: str = TENANT) -> Response:
    """A resize of such a Pod."""
    labels = {} if qos is None else {QOS_LABEL: qos}
    old, new = ({**plain_pod("p", labels=labels), "spec": spec} for spec in (before, after))
    return updated(old, new, username=by, subresource="resize")


def specs(place: str, **resources: Raw) -> Raw:
    """A Pod's spec with these resources in one place."""
    main = container(requests={"memory": "1Gi"})
    if place == "spec.resources":
        return {"containers": [main], "resources": resources}
    asked = {"name": "other", "resources": resources}
    if place == "spec.containers[1].resources":
        return {"containers": [main, asked]}
    return {"initContainers": [{**asked, "restartPolicy": "Always"}], "containers": [main]}


PLACES = ["spec.containers[1].resources", "spec.initContainers[0].resources", "spec.resources"]


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
@pytest.mark.parametrize("by", [TENANT, US, SCHEDULER, "system:admin"])
@pytest.mark.parametrize("place", PLACES)
def test_nobody_may_resize_cpus_that_a_pod_has_to_itself(qos: str, by: str, place: str) -> None:
    two, four = {"cpu": "2"}, {"cpu": "4"}
    told = "its CPUs were chosen when it was bound and cannot be resized in place; create a new Pod"
    requests, limits = f"{place}.requests[cpu]: {told}", f"{place}.limits[cpu]: {told}"
    for before, after, expected in (
        ({"requests": two, "limits": two}, {"requests": four, "limits": four}, [requests, limits]),
        ({"requests": two, "limits": two}, {"requests": two, "limits": four}, [limits]),
        ({"requests": two, "limits": two}, {"requests": two}, [limits]),
        ({"limits": four}, {"requests": two, "limits": four}, [requests]),
        ({}, {"limits": two}, [limits]),
    ):
        response = resized(qos, specs(place, **before), specs(place, **after), by)
        assert response.code == 403
        told_all = expected if len(expected) == 1 else ["2 problems", *expected]
        assert response.message == "Pod default/p: " + "\n- ".join(told_all)


@pytest.mark.parametrize("place", PLACES)
def test_all_else_may_be_resized(place: str) -> None:
    two, four = specs(place, limits={"cpu": "2"}), specs(place, limits={"cpu": "4"})
    for qos in (None, "", "LS", "BE", "SYSTEM"):
        assert resized(qos, two, four).allowed
    more = specs(place, limits={"cpu": "2", "memory": "2Gi"}, requests={"memory": "1Gi"})
    assert resized("LSR", two, more).allowed
    assert resized("LSR", more, two).allowed


# --- warnings to authors about memory


def test_bytes_that_no_known_card_has_are_warned_about_and_waited_for() -> None:
    webhooks = PodWebhooks(POLICY, "", lambda _pod: (GIB, 24 * GIB))
    asked = pod(container(limits={"kubernetes.io/gpu-memory": "40Gi"}))
    response = webhooks.mutate(asks(asked))
    assert response.allowed
    assert [warning for warning in response.warnings if "24 GiB" in warning]
    fits = pod(container(limits={"kubernetes.io/gpu-memory": "24Gi"}))
    assert webhooks.mutate(asks(fits)).warnings == []
    nothing_known = PodWebhooks(POLICY, "", lambda _pod: (0, 0))
    assert nothing_known.mutate(asks(asked)).warnings == []


@pytest.mark.parametrize(
    ("asked", "memory", "part"),
    [
        ({"nvidia.com/gpu": "2"}, "32Gi", False),
        ({"kubernetes.io/gpu": "33"}, "5669356830", True),
        ({"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "50"}, "8Gi", True),
        ({"kubernetes.io/gpu-memory": "4Gi"}, "4Gi", False),
    ],
)
def test_where_cards_differ_memory_is_that_of_the_smallest_and_quotas_count_by_none(
    asked: dict[str, str], memory: str, *, part: bool
) -> None:
    """Device proposal, "User apply device resources scenarios": the request has all three resources."""
    webhooks = PodWebhooks(POLICY, "", lambda _pod: (16 * GIB, 80 * GIB))
    obj = pod(container(limits=asked))
    response = webhooks.mutate(asks(obj))
    made = patch.apply(obj, response.patch)
    assert made["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/gpu-memory"] == memory
    own = "kubernetes.io/gpu-memory" in asked
    assert [
        warning for warning in response.warnings if "16 GiB" in warning and "80 GiB" in warning
    ] == response.warnings
    assert bool(response.warnings) is part
    assert ("quota.koordgate.io/gpu-memory" in made["spec"]["containers"][0]["resources"]["requests"]) is own
    again = PodWebhooks(POLICY, "", lambda _pod: (8 * GIB, 8 * GIB)).mutate(asks(made))
    asked_of = [read_asks(one).request.containers for one in (made, patch.apply(made, again.patch))]
    assert asked_of[0] == asked_of[1]
    assert webhooks.validate(asks(made)).allowed


def test_no_memory_is_stated_beside_a_percentage_where_the_setting_is_off() -> None:
    webhooks = PodWebhooks(POLICY, "", lambda _pod: (16 * GIB, 80 * GIB), state_memory=False)
    obj = pod(container(limits={"nvidia.com/gpu": "1"}))
    response = webhooks.mutate(asks(obj))
    assert response.warnings == []
    assert (
        "kubernetes.io/gpu-memory"
        not in patch.apply(obj, response.patch)["spec"]["containers"][0]["resources"]["limits"]
    )


def test_a_resource_spec_without_a_class_is_warned_about() -> None:
    webhooks = PodWebhooks(POLICY, "", lambda _pod: (0, 0))
    spec = '{"preferredCPUBindPolicy":"FullPCPUs"}'
    made = pod(container(requests={"cpu": 1}), annotations={"scheduling.koordinator.sh/resource-spec": spec})
    (warning,) = webhooks.mutate(asks(made)).warnings
    assert "preferredCPUBindPolicy without effect" in warning
