"""What the Helm chart renders as policies; tests/controlplane tests them in effect."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from allocator.vocabulary.delivery import LIMIT_VARIABLES
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from localplane.admin import JsonObject
from localplane.chart import ChartError, find

Render = Callable[..., list[JsonObject]]
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
DEFAULTS = {
    "visibleDevices": ("koordgate-visible-devices", "Warn"),
    "presetNode": ("koordgate-preset-node", "Deny"),
    "allocations": ("koordgate-allocations", "Deny"),
    "bindings": ("koordgate-bindings", "Deny"),
    "webhook": ("koordgate-webhook", "Deny"),
}
QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units", "environment": "QUEUE"}
TYPES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])


def texts(objects: list[JsonObject], name: str) -> str:
    """All expressions of a policy."""
    spec = find(objects, POLICY, name)["spec"]
    return "\n".join(one["expression"] for one in [*spec["variables"], *spec["validations"]])


def exempt(objects: list[JsonObject], name: str) -> list[str]:
    """The namespaces that no binding of a policy is for; a selector in the policy itself would cost each write."""
    assert "namespaceSelector" not in find(objects, POLICY, name)["spec"]["matchConstraints"]
    bindings = [one for one in objects if one["kind"] == BINDING and one["spec"]["policyName"] == name]
    firsts = [one["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0] for one in bindings]
    (only,) = {(one["key"], one["operator"], *one["values"]) for one in firsts}
    assert only[:2] == ("kubernetes.io/metadata.name", "NotIn")
    return list(only[2:])


def test_forgery_is_denied_and_what_may_be_others_is_warned_about(objects: list[JsonObject]) -> None:
    for name, action in DEFAULTS.values():
        spec = find(objects, BINDING, name)["spec"]
        assert (spec["policyName"], spec["validationActions"]) == (name, [action])
        assert find(objects, POLICY, name)["spec"]["failurePolicy"] == "Fail"


def test_every_policy_acts_as_it_is_told(render: Render) -> None:
    for action in ("Deny", "Warn", "Audit"):
        rendered = render({"policies": {key: {"action": action} for key in DEFAULTS}})

        actions = {name: find(rendered, BINDING, name)["spec"]["validationActions"] for name, _ in DEFAULTS.values()}
        assert actions == {name: [action] for name, _ in DEFAULTS.values()}


def test_each_policy_can_be_left_out_alone(render: Render, objects: list[JsonObject]) -> None:
    def names(rendered: list[JsonObject]) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in rendered}

    for key, (name, _) in DEFAULTS.items():
        rest = names(render({"policies": {key: {"action": "off"}}}))

        observed = {(BINDING, f"{name}-shadow")} & names(objects)
        assert names(objects) - rest == {(POLICY, name), (BINDING, name)} | observed


def test_exempt_namespaces_are_exempt_from_the_policies_too(render: Render) -> None:
    shown = {"visibleDevices": {"exemptNamespaces": ["gpu-operator", "legacy"]}}
    rendered = render({"exemptNamespaces": ["legacy", "old"], "policies": shown}, "gate")

    usual = ["gate", "kube-system", "legacy", "old"]
    for name in ("koordgate-preset-node", "koordgate-allocations", "koordgate-bindings"):
        assert exempt(rendered, name) == usual
    assert exempt(rendered, "koordgate-visible-devices") == sorted([*usual, "gpu-operator"])


def test_the_variables_are_those_of_the_device_types_and_those_that_are_named(render: Render) -> None:
    values: dict[str, Any] = {
        "devices": {"types": [QUEUE, {"name": "ip", "resource": "example.com/ip"}]},
        "policies": {"visibleDevices": {"variables": ["CUDA_DISABLE_CONTROL", "QUEUE"]}},
    }
    text = texts(render(values), "koordgate-visible-devices")

    listed, _ = re.findall(r"e\.name in \[(.*?)\]", text)
    assert listed == "'CUDA_DISABLE_CONTROL', 'NVIDIA_VISIBLE_DEVICES', 'QUEUE'"


def test_the_variables_of_memory_limits_are_closed_as_in_translated_pods(objects: list[JsonObject]) -> None:
    _, limits = re.findall(r"e\.name in \[(.*?)\]", texts(objects, "koordgate-visible-devices"))

    assert re.findall(r"'(.*?)'", limits) == list(LIMIT_VARIABLES)


def test_every_resource_that_names_a_device_is_looked_for_beside_a_node_name(render: Render) -> None:
    text = texts(render({"devices": {"types": [QUEUE]}}), "koordgate-preset-node")

    assert TYPES.resources.keys() <= set(re.findall(r"'([^']*)'", text))


def test_another_scheduler_may_write_its_choice_into_a_pod_before_it_binds_it(
    render: Render, objects: list[JsonObject]
) -> None:
    def conditions(rendered: list[JsonObject]) -> list[str]:
        found = find(rendered, POLICY, "koordgate-allocations")["spec"]["matchConditions"]
        return [one["expression"] for one in found if one["name"] == "not-by-the-scheduler"]

    user = "system:serviceaccount:koordinator-system:koord-scheduler"
    rendered = render({"scheduler": {"enabled": False, "username": user}})

    assert conditions(objects) == []
    assert conditions(rendered) == [f"request.operation == 'CREATE' || request.userInfo.username != '{user}'"]


def test_the_webhook_writes_no_secret_where_it_makes_no_certificate(render: Render, objects: list[JsonObject]) -> None:
    given = {"existingSecret": "theirs", "existingClientSecret": "theirs-too"}

    def resources(rendered: list[JsonObject]) -> set[str]:
        rules = find(rendered, POLICY, "koordgate-webhook")["spec"]["matchConstraints"]["resourceRules"]
        return {resource for rule in rules for resource in rule["resources"]}

    assert resources(objects) - resources(render({"certificate": given})) == {"secrets"}


@pytest.mark.parametrize(
    "policies",
    [
        {"visibleDevices": {"action": "deny"}},
        {"visibleDevices": {"variables": ["A='x'"]}},
        {"visibleDevices": {"exemptNamespaces": ["A"]}},
        {"presetNode": "Deny"},
        {"bindings": {"failurePolicy": "Fail"}},
        {"unheard": {"action": "Deny"}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(render: Render, policies: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="policies"):
        render({"policies": policies})
