"""Which requests the API server sends to the webhooks: the chart's match conditions, evaluated.

tests/controlplane/test_matching.py tests them in the API server itself. Here they are compared with the code, on random
Pods.
"""

from collections.abc import Callable, Mapping
from typing import Any

import cel
import pytest
from builders import container, pod
from hypothesis import given
from hypothesis import strategies as st

from allocator.request.cpus import QOS_LABEL
from allocator.request.pod import is_ours
from allocator.vocabulary.delivery import states_limit
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    DEVICE_ORDER,
    DEVICE_QUOTAS,
    DEVICE_SHARING,
    LIMITS,
    NUMA_SCOPE,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_STATUS,
    device_quota,
    is_allocation_annotation,
    visible_devices,
)
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from koordgate.settings import device_types
from localplane.admin import JsonObject
from localplane.chart import find, settings_text
from webhook import settings
from webhook.admission.scope import PolicyScope

KAI = "system:serviceaccount:kai-scheduler:binder"
DELIVERY = [
    "nvidia.cdi.k8s.io",
    "nvidia.cdi.k8s.io/pod",
    "nvidia.cdi.k8s.io/container.main",
    "cdi.k8s.io/gpu",
    "nvidia.com/container.main.gpus.devices",
]
OURS = "system:serviceaccount:koordgate-system:koord-scheduler"
QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units"}
TYPES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])
Matches = Callable[..., bool]


@pytest.fixture(scope="session")
def matches(render) -> Matches:
    """Whether a webhook, named without the common end, is called for a request."""
    objects = render({"devices": {"types": [QUEUE]}})
    assert device_types(settings.parse(settings_text(objects)).devices.types).resources.keys() == TYPES.resources.keys()
    return matching(objects)


def matching(objects: list[JsonObject]) -> Matches:
    """Make the function that tells which requests the webhooks of these objects are called for."""
    programs = {
        hook["name"].removesuffix(".koordgate.io"): [
            cel.compile(item["expression"]) for item in hook["matchConditions"]
        ]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in find(objects, kind, "koordgate")["webhooks"]
    }

    def matched(
        hook: str,
        obj: JsonObject,
        old: JsonObject | None = None,
        *,
        user: str = "alice",
        resource: str = "pods",
        subresource: str = "",
        namespace: str = "default",
    ) -> bool:
        request = {
            "namespace": namespace,
            "operation": "CREATE" if old is None else "UPDATE",
            "userInfo": {"username": user},
            "resource": {"group": "", "version": "v1", "resource": resource},
            "subResource": subresource,
        }
        variables = {"request": request, "object": obj, "oldObject": old}
        answers = [program.execute(variables) for program in programs[hook]]
        assert all(isinstance(answer, bool) for answer in answers)
        return all(answers)

    return matched


# Pods

NEARLY = [
    "cpu",
    "memory",
    "kubernetes.io/gpux",
    "koordinator.sh/gpu-",
    "gpu",
    "nvidia.com/gpu.shared",
    "example.com/queues",
    "amd.com/gpu",
]
KEYS = [
    DEVICE_ALLOCATED,
    RESOURCE_STATUS,
    ORIGINAL_REQUEST,
    RESOURCE_SPEC,
    NUMA_TOPOLOGY_SPEC,
    NUMA_SCOPE,
    DEVICE_SHARING,
    DEVICE_QUOTAS,
    device_quota("main", "gpu-memory"),
    DEVICE_ALLOCATE_HINT,
    DEVICE_ORDER,
    visible_devices("main"),
    visible_devices("main", "queue"),
    "xvisible-devices.koordgate.io/main",
    "visible-devices.koordgate.io.example.com/main",
    *DELIVERY,
    LIMITS,
    OWN_CPUS,
    "nvidia-gpu-memory-limit.koordgate.io/main",
    "nvidia-gpu-memory-request.koordgate.io/main",
    "gpu-core-limit.koordgate.io/main",
    "nri.koordgate.io/main",
    "required-plugins.noderesource.dev",
    "required-plugins.noderesource.dev/container.main",
    "my.nri.koordgate.io/main",
    "nvidia.com/container.main.gpu-memory.limit",
    "my.cdi.k8s.io/gpu",
    "koordinator.sh/qosClass",
    "example.com/note",
]
REVIEWED = {
    ORIGINAL_REQUEST,
    NUMA_SCOPE,
    DEVICE_SHARING,
    DEVICE_ALLOCATE_HINT,
    LIMITS,
    OWN_CPUS,
}  # besides allocations: not to be changed at will
CLASSES = ["", "LSE", "LSR", "LS", "BE", "SYSTEM", "lsr", "other"]


def maps(keys: list[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(keys), values, max_size=3)


def maybe(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any of these fields, or none."""
    return st.fixed_dictionaries({}, optional=parts)


def labels() -> st.SearchStrategy[dict[str, str]]:
    values = {QOS_LABEL: st.sampled_from(CLASSES), "app": st.just("LSR")}
    return maybe(**values, **{"example.com/numa": st.sampled_from(["aligned", "other"])})


def pods() -> st.SearchStrategy[JsonObject]:
    # Only few of the names that count: with many, almost every Pod would be one of ours.
    named = maps(NEARLY * 3 + sorted(TYPES.resources), st.just("1"))
    resources = maybe(requests=named, limits=named)
    containers = st.lists(maybe(resources=resources, name=st.just("main")), min_size=1, max_size=3)
    metadata = maybe(labels=labels(), annotations=maps(KEYS, st.sampled_from(["", "x"])))
    spec = st.fixed_dictionaries(
        {"containers": containers}, optional={"initContainers": containers, "resources": resources}
    )
    return st.fixed_dictionaries({"metadata": metadata, "spec": spec})


def annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("annotations", {})
    return found


def named_for_the_pod(obj: JsonObject) -> bool:
    resources = obj["spec"].get("resources", {})
    return any(name in TYPES.resources for key in ("requests", "limits") for name in resources.get(key, ()))


@given(obj=pods())
def test_a_new_pod_is_sent_if_it_is_ours_or_says_so(matches: Matches, obj: JsonObject) -> None:
    wanted = is_ours(obj, TYPES) or named_for_the_pod(obj) or any(map(is_allocation_annotation, annotations(obj)))

    assert matches("pods.mutate", obj) is wanted
    assert matches("pods.validate", obj) is wanted


@given(obj=pods(), old=pods())
def test_an_updated_pod_is_sent_if_what_was_decided_on_changes(
    matches: Matches, obj: JsonObject, old: JsonObject
) -> None:
    changed = {key for key, _ in annotations(obj).items() ^ annotations(old).items()}
    was, is_now = (one["metadata"].get("labels", {}).get(QOS_LABEL, "") for one in (old, obj))

    limited = LIMITS in annotations(old)
    frozen = any(is_allocation_annotation(key) or key in REVIEWED or (limited and states_limit(key)) for key in changed)
    rebound = was != is_now and bool({was, is_now} & {"LSE", "LSR"})
    assert matches("pods.validate", obj, old) is (frozen or rebound)


@pytest.fixture(scope="session")
def beside_kai(render) -> Matches:
    """The same, where KAI's binder may write by which annotations nodes show its Pods devices."""
    return matching(render({"adopt": {"peers": ["kai"], "writers": [KAI]}, "devices": {"types": [QUEUE]}}))


@pytest.mark.parametrize("key", DELIVERY)
def test_what_another_products_binder_writes_for_its_own_pods_needs_no_replica(beside_kai: Matches, key: str) -> None:
    old, new = pod(annotations={"note": "x"}), pod(annotations={"note": "x", key: "GPU-1"})

    for was, becomes in ((old, new), (new, old)):
        assert not beside_kai("pods.validate", becomes, was, user=KAI)
        assert beside_kai("pods.validate", becomes, was, user="alice")
    assert beside_kai("pods.validate", new, user=KAI)


def test_another_products_binder_writes_no_allocation_of_koordgates_unseen(beside_kai: Matches) -> None:
    for key in (DEVICE_ALLOCATED, visible_devices("main"), "nvidia-gpu-memory-limit.koordgate.io/main"):
        assert beside_kai("pods.validate", pod(annotations={key: "x"}), pod(), user=KAI)


@given(obj=pods())
def test_a_resize_is_sent_if_the_pod_has_cpus_of_its_own(matches: Matches, obj: JsonObject) -> None:
    bound = obj["metadata"].get("labels", {}).get(QOS_LABEL) in {"LSE", "LSR"}

    assert matches("pods.validate", obj, obj, subresource="resize") is bound
    assert not matches("pods.validate", obj, obj, subresource="status")


@pytest.mark.parametrize("name", sorted(TYPES.resources))
@pytest.mark.parametrize("where", ["requests", "limits", "init", "pod"])
def test_each_resource_is_seen_wherever_it_stands(matches: Matches, name: str, where: str) -> None:
    asked: JsonObject = {"limits" if where == "limits" else "requests": {name: "1"}}
    asking = container(**asked)
    plain = container("plain", {"cpu": "1"})
    obj = {
        "requests": pod(plain, asking),
        "limits": pod(plain, asking),
        "init": pod(plain, init=[plain, asking]),
        "pod": pod(plain, resources={"limits": {name: "1"}}),
    }[where]

    assert matches("pods.mutate", obj)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {}, "annotations": {}},
        *({"labels": {QOS_LABEL: qos}} for qos in ("", "SYSTEM")),
        {"annotations": {DEVICE_ALLOCATE_HINT: "{}", DEVICE_ORDER: "minor"}},
        {"annotations": {ORIGINAL_REQUEST: "{}"}},
    ],
    ids=str,
)
def test_an_ordinary_pod_is_sent_nowhere(matches: Matches, metadata: JsonObject) -> None:
    obj = {"metadata": metadata, "spec": {"containers": [container(), container("a", {"cpu": "1"}, {"cpu": "2"})]}}

    assert not matches("pods.mutate", obj)
    assert not matches("pods.validate", obj)
    assert not matches("pods.validate", obj, obj)


@pytest.mark.parametrize(
    "metadata",
    [
        *({"labels": {QOS_LABEL: qos}} for qos in ("LSE", "LSR", "LS", "BE", "lsr")),
        {"annotations": {RESOURCE_SPEC: ""}},
        {"annotations": {NUMA_SCOPE: "true"}},
        {"annotations": {OWN_CPUS: "main"}},
        {"labels": {QOS_LABEL: "SYSTEM"}, "annotations": {NUMA_TOPOLOGY_SPEC: "{}"}},
        {"annotations": {DEVICE_SHARING: "{}"}},
        {"annotations": {device_quota("main", "gpu-memory"): "1"}},
        {"annotations": {visible_devices("main", "queue"): "x"}},
    ],
    ids=str,
)
def test_a_pod_with_a_class_or_wishes_for_its_cpus_or_a_forged_allocation_is_sent(
    matches: Matches, metadata: JsonObject
) -> None:
    assert matches("pods.mutate", {"metadata": metadata, "spec": {"containers": [container()]}})


@pytest.mark.parametrize(("count", "sent"), [(1000, False), (1001, True)])
def test_more_annotations_than_anybody_has_are_looked_at_by_the_webhook(
    matches: Matches, count: int, *, sent: bool
) -> None:
    """The API server iterates over a map in a time that grows with the square of its size."""
    obj = pod(annotations={f"example.com/{number}": "" for number in range(count)})

    assert matches("pods.mutate", obj) is sent
    assert matches("pods.validate", obj, obj) is sent
    assert matches("pods.validate", pod(), obj) is sent


@pytest.mark.parametrize(("count", "sent"), [(50, False), (51, True)])
@pytest.mark.parametrize("where", ["requests", "limits"])
def test_more_resources_than_anybody_asks_for_are_looked_at_by_the_webhook(
    matches: Matches, where: str, count: int, *, sent: bool
) -> None:
    amounts: JsonObject = {where: {f"example.com/{number}": "1" for number in range(count)}}

    for obj in (pod(container(**amounts)), pod(resources=amounts)):
        assert matches("pods.mutate", obj) is sent


SCOPES: dict[str, PolicyScope] = {
    "namespaces": PolicyScope(frozenset({"training", "batch"})),
    "labels": PolicyScope(labels={"example.com/numa": "aligned", "app": "LSR"}),
    "either": PolicyScope(frozenset({"training"}), {"app": "LSR"}),
    "scheduler": PolicyScope(schedulers=["koord-scheduler"]),
    "nobody": PolicyScope(),
}


@pytest.fixture(scope="session", params=[*SCOPES.values()], ids=[*SCOPES])
def scoped(request, render) -> tuple[PolicyScope, Matches]:
    """A scope, and which requests are sent where the chart has it."""
    scope = request.param
    by_scheduler = bool(scope.schedulers)
    values = {"scheduler": by_scheduler, "namespaces": sorted(scope.namespaces), "selector": dict(scope.labels)}
    objects = render({"numa": {"scope": values}, "devices": {"types": [QUEUE]}})
    read = settings.parse(settings_text(objects)).numa.scope
    assert (read.scheduler, frozenset(read.namespaces), read.selector) == (by_scheduler, scope.namespaces, scope.labels)
    return scope, matching(objects)


@given(
    obj=pods(),
    namespace=st.sampled_from(["default", "training", "batch"]),
    sent_to=st.sampled_from(
        [{}, {"schedulerName": "koord-scheduler"}, {"schedulerName": "koord-scheduler", "nodeName": "n1"}]
    ),
)
def test_a_pod_that_an_administrator_puts_in_scope_is_sent_as_well(
    scoped: tuple[PolicyScope, Matches], matches: Matches, obj: JsonObject, namespace: str, sent_to: dict[str, str]
) -> None:
    scope, sent = scoped
    ours = matches("pods.mutate", obj)
    obj["spec"].update({"schedulerName": "default-scheduler"} | sent_to)

    wanted = scope.includes(namespace, obj, TYPES) or ours

    assert sent("pods.mutate", obj, namespace=namespace) is wanted
    assert sent("pods.validate", obj, namespace=namespace) is wanted
    assert sent("pods.validate", obj, obj, namespace=namespace) is False


# Bindings


@pytest.mark.parametrize("user", [OURS, OURS + "2", "alice"])
@pytest.mark.parametrize("resource", ["pods", "bindings"])
@pytest.mark.parametrize(
    ("carried", "seen"),
    [
        (None, False),
        ({}, False),
        ({"example.com/note": "x"}, False),
        ({visible_devices("main"): "GPU-1"}, False),
        ({DEVICE_ALLOCATED: "{}"}, True),
        ({RESOURCE_STATUS: "{}", "example.com/note": "x"}, True),
    ],
)
def test_a_binding_is_sent_to_the_webhooks_of_its_sender(
    matches: Matches, user: str, resource: str, carried: dict[str, str] | None, *, seen: bool
) -> None:
    binding = {"metadata": {"name": "pod"} | ({} if carried is None else {"annotations": carried})}

    def sent(hook: str) -> bool:
        subresource = "binding" if resource == "pods" else ""
        return matches(hook, binding, user=user, resource=resource, subresource=subresource)

    assert sent("bindings.mutate") is (user == OURS)
    assert sent("bindings.validate") is (user == OURS and not seen)
    assert sent("guard.validate") is (user != OURS or resource == "bindings")


# ResourceClaims

CARD = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
NIC = {"driver": "nic.example.com", "pool": "n1", "device": "nic-0"}


def claim(*results: JsonObject) -> JsonObject:
    return {"status": {"allocation": {"devices": {"results": list(results)}}}} if results else {"spec": {}}


@pytest.mark.parametrize(
    ("old", "new", "sent"),
    [
        (claim(), claim(CARD), True),
        ({"status": {}}, claim(NIC, CARD), True),
        (claim(NIC), claim(CARD), True),
        (claim(CARD), claim(CARD), False),
        (claim(CARD), {"status": {**claim(CARD)["status"], "reservedFor": [{"name": "p"}]}}, False),
        (claim(), claim(NIC), False),
        (claim(CARD), claim(), False),
        (claim(CARD), {"status": {}}, False),
        (claim(), {"status": {"allocation": {"devices": {}}}}, False),
        (claim(), {"status": {"allocation": {}}}, False),
    ],
)
def test_only_a_new_allocation_of_our_devices_is_sent(
    matches: Matches,
    old: JsonObject,
    new: JsonObject,
    sent: bool,  # noqa: FBT001 a parameter
) -> None:
    where = {"resource": "resourceclaims", "subresource": "status"}
    assert matches("claims.validate", new, old, **where) is sent


# Updates of translated Pods


def test_only_an_update_that_may_undo_a_translation_is_sent(matches: Matches) -> None:
    old = pod(container(limits={"kubernetes.io/gpu-core": "100"}), schedulerName="koord-scheduler")
    again = pod(
        container(limits={"kubernetes.io/gpu-core": "100", "nvidia.com/gpu": "1"}), schedulerName="koord-scheduler"
    )
    other = {"schedulerName": "default-scheduler"}

    assert matches("updates.mutate", again, old)
    assert not matches("updates.mutate", {**old, "metadata": {"name": "p", "labels": {"team": "a"}}}, old)
    assert not matches("updates.mutate", {**old, "status": {"phase": "Running"}}, old)
    assert not matches("updates.mutate", again, {**old, "spec": {**old["spec"], **other}})
    assert not matches("updates.mutate", again, {**old, "spec": {"containers": []}})


def test_an_update_of_what_containers_share_is_sent(matches: Matches) -> None:
    def shared(text: str | None) -> JsonObject:
        return pod(
            annotations={"a/b": "c"} if text is None else {DEVICE_SHARING: text}, schedulerName="koord-scheduler"
        )

    assert matches("updates.mutate", shared("{}"), shared('{"gpu":{}}'))
    assert matches("updates.mutate", shared(None), shared("{}"))
    assert matches("updates.mutate", pod(schedulerName="koord-scheduler"), shared("{}"))
    assert not matches("updates.mutate", shared("{}"), shared("{}"))
