"""What the Helm chart renders to limit each reporter to its own node; tests/controlplane tests the policy in effect."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.names import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT, ISOLATION_PROVIDER
from allocator.wire.deviceobject import GPU_MODEL, GPU_VENDOR
from localplane.admin import JsonObject
from localplane.chart import ChartError, find
from reporter.gpu.entries import DRIVER_VERSION
from reporter.publish import nodestatus
from reporter.settings import parse

Render = Callable[..., list[JsonObject]]
NAME = "koordgate-reporter"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units"}
TYPES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])


def kinds(objects: Iterable[JsonObject]) -> set[str]:
    """The kinds of the objects of this name."""
    return {one["kind"] for one in objects if one["metadata"]["name"] == NAME}


def spec(objects: list[JsonObject]) -> JsonObject:
    found: JsonObject = find(objects, POLICY, NAME)["spec"]
    return found


def named(objects: list[JsonObject], variable: str) -> set[str]:
    """The names with which a variable of an expression is compared."""
    texts = [one["expression"] for one in spec(objects)["validations"]]
    lists = [found for text in texts for found in re.findall(rf"\b{variable} in \[(.*?)\]", text)]
    return {name for found in lists for name in re.findall("'(.*?)'", found)}


def messages(objects: list[JsonObject]) -> list[str]:
    return [one["message"] for one in spec(objects)["validations"] if "message" in one]


def matched(objects: list[JsonObject]) -> set[tuple[str, str]]:
    return {
        (operation, f"{group}/{resource}")
        for rule in spec(objects)["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }


def test_the_policy_refuses_and_is_bound_everywhere(objects: list[JsonObject]) -> None:
    assert find(objects, BINDING, NAME)["spec"] == {"policyName": NAME, "validationActions": ["Deny"]}
    assert spec(objects)["failurePolicy"] == "Fail"


@pytest.mark.parametrize("namespace", ["koordgate-system", "team-gate"])
def test_it_concerns_exactly_the_releases_reporter(render: Render, namespace: str) -> None:
    (condition,) = spec(render(namespace=namespace))["matchConditions"]

    user = f"system:serviceaccount:{namespace}:{NAME}"
    assert condition["expression"] == f"request.userInfo.username == '{user}'"


@pytest.mark.parametrize(
    ("kubelet", "proxied"), [({}, set()), ({"configz": True}, {"/nodes/proxy"})], ids=["file", "configz"]
)
def test_all_that_the_role_lets_the_reporter_write_but_events_is_looked_at(
    render: Render, kubelet: dict[str, Any], proxied: set[str]
) -> None:
    rendered = render({"reporter": {"kubelet": kubelet}})
    operations = {"create": "CREATE", "patch": "UPDATE"}
    written = {
        ("CONNECT" if resource == "nodes/proxy" else operations[verb], f"{group}/{resource}")
        for rule in find(rendered, "ClusterRole", NAME)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (verb in operations and resource != "events") or resource == "nodes/proxy"
    }

    assert written <= matched(rendered)
    assert {resource for operation, resource in matched(rendered) if operation == "CONNECT"} == proxied


def test_every_verb_of_the_role_reads_or_is_looked_at(objects: list[JsonObject]) -> None:
    verbs = {verb for rule in find(objects, "ClusterRole", NAME)["rules"] for verb in rule["verbs"]}

    assert verbs == {"get", "list", "watch", "create", "patch"}


@pytest.mark.parametrize("discovered", [True, False])
@pytest.mark.parametrize("enforced", [True, False])
def test_the_labels_are_those_that_are_published(render: Render, *, discovered: bool, enforced: bool) -> None:
    """Those of NVIDIA's discovery, and the enforcer's, may be removed in any case."""
    values = {"reporter": {"gpus": {"discoveryLabels": discovered}}, "enforcement": {"enabled": enforced}}
    rendered = render(values)
    ours = {GPU_VENDOR, GPU_MODEL, DRIVER_VERSION, nodestatus.MEMORY_LABEL}
    nvidias = {GPU_PRODUCT, GPU_MEMORY_MIB, GPU_COUNT}

    assert named(rendered, "key") == ours | nvidias | {ISOLATION_PROVIDER} | {
        "labels",
        "managedFields",
        "resourceVersion",
        "capacity",
        "allocatable",
    }
    (said,) = (one for one in messages(rendered) if "of the labels of its Node" in one)
    assert all(key in said for key in ours)
    assert all((key in said) is discovered for key in nvidias)
    assert (ISOLATION_PROVIDER in said) is enforced


def test_the_resources_are_those_that_are_published_and_never_the_kubelets(render: Render) -> None:
    devices = [
        Device(kind.name, kind.name, 0, healthy=True, capacity=dict.fromkeys(kind.tails, 100)) for kind in TYPES.types
    ]
    allowed = named(render({"devices": {"types": [QUEUE]}}), "name")

    assert nodestatus.amounts(devices, TYPES).keys() <= allowed
    assert allowed == TYPES.resources.keys() - {"nvidia.com/gpu"}


@pytest.mark.parametrize(("mirror", "on"), [(["volcano"], True), (["volcano"], False), (["hami"], True)])
def test_volcanos_amounts_are_stated_and_allowed_where_its_dialect_is_on_and_mirrored(
    render: Render, mirror: list[str], *, on: bool
) -> None:
    rendered = render({"mirror": mirror, "dialects": {"volcano-share": {"enabled": on, "memoryUnit": "1Gi"}}})
    names = {"volcano.sh/gpu-memory", "volcano.sh/gpu-number"}
    told = on and mirror == ["volcano"]
    assert named(rendered, "name") & names == (names if told else set())
    (config,) = (one for one in rendered if one["kind"] == "ConfigMap" and is_of_the_reporter(one))
    assert parse(config["data"]["config.yaml"]).mirror.unit == (2**30 if told else 0)


@pytest.mark.parametrize(
    "reporter", [{"ownNodeOnly": False}, {"enabled": False}], ids=["not wanted", "without a reporter"]
)
def test_it_can_be_left_out(render: Render, objects: list[JsonObject], reporter: dict[str, Any]) -> None:
    assert {POLICY, BINDING} <= kinds(filter(is_of_the_reporter, objects))

    assert not {POLICY, BINDING} & kinds(filter(is_of_the_reporter, render({"reporter": reporter})))


def is_of_the_reporter(item: JsonObject) -> bool:
    return bool(item["metadata"]["name"] == "koordgate-reporter")


def test_leaving_it_out_changes_nothing_else(render: Render, objects: list[JsonObject]) -> None:
    rest = [one for one in objects if (one["kind"], one["metadata"]["name"]) not in {(POLICY, NAME), (BINDING, NAME)}]

    def ordered(rendered: list[JsonObject]) -> list[JsonObject]:
        return sorted(rendered, key=lambda one: (one["kind"], one["metadata"]["name"]))

    assert ordered(render({"reporter": {"ownNodeOnly": False}})) == ordered(rest)


def test_a_wrong_value_is_refused(render: Render) -> None:
    with pytest.raises(ChartError, match="ownNodeOnly"):
        render({"reporter": {"ownNodeOnly": "yes"}})
