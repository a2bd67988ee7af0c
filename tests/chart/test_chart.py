"""What the Helm chart renders."""

import base64
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocator.vocabulary import names
from allocator.vocabulary.cpunode import BindPolicy, CpuShare, ExclusivePolicy, NumaShare
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.wire import nodeallocation, nodetopology
from allocator.wire.nodetopology import NumaZone
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.chart import ChartError, find, settings_text
from webhook import settings

Render = Callable[..., list[JsonObject]]

MODE = "koordgate.io/mode"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
KOORDINATOR = "system:serviceaccount:koordinator-system:koord-scheduler"
QUEUE = {
    "name": "queue",
    "resource": "example.com/queue",
    "unit": "units",
    "environment": "QUEUE",
    "pools": [{"nodeSelector": {"site": "west"}, "devices": {"fast": 10**10, "slow": 40}}],
    "ignoredByScheduler": True,
}
NPU = {"name": "npu", "resource": "example.com/npu", "ignoredByScheduler": False}
EVERYTHING = {
    "devices": {"types": [QUEUE, NPU]},
    "networkPolicy": {"enabled": True},
    "gangs": {"allOrNothing": True},
    "scheduler": {"replicas": 2},
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "x"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"role": "system"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "FlowSchema",
    MUTATING,
    "PriorityLevelConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    VALIDATING,
}


def webhooks(objects: list[JsonObject]) -> dict[str, JsonObject]:
    """All webhooks by name, without the common end of their names."""
    listed = [hook for kind in (MUTATING, VALIDATING) for hook in find(objects, kind, "koordgate")["webhooks"]]
    by_name = {hook["name"].removesuffix(".koordgate.io"): hook for hook in listed}
    assert len(by_name) == len(listed)
    return by_name


def condition(hook: JsonObject, name: str) -> str:
    (found,) = (item["expression"] for item in hook["matchConditions"] if item["name"] == name)
    return str(found)


def scheduler_config(objects: list[JsonObject]) -> JsonObject:
    config: JsonObject = yaml.safe_load(find(objects, "ConfigMap", "koord-scheduler")["data"]["config.yaml"])
    return config


def pods(objects: list[JsonObject]) -> dict[str, JsonObject]:
    return {item["metadata"]["name"]: item["spec"]["template"] for item in objects if item["kind"] == "Deployment"}


def rules(objects: list[JsonObject]) -> Iterator[JsonObject]:
    for item in objects:
        if item["kind"] in {"Role", "ClusterRole"}:
            yield from item["rules"]


# Objects


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_every_object_is_labelled_placed_and_its_own(render: Render, values: dict[str, Any]) -> None:
    rendered = render(values, "team-gate")

    for item in rendered:
        metadata = item["metadata"]
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "koordgate"
        namespace = {True: None, False: "team-gate"}[item["kind"] in CLUSTER_SCOPED]
        if metadata["name"] == "koord-scheduler-authentication-reader":
            namespace = "kube-system"
        assert metadata.get("namespace") == namespace, metadata
    count = Counter((item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in rendered)
    assert set(count.values()) == {1}


def test_helm_lints_it_strictly(binaries: Binaries, chart_folder: Path) -> None:
    argv = [str(binaries["helm"]), "lint", "--strict", "--kube-version", "1.37.2", str(chart_folder)]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_described_in_the_readme(chart_folder: Path) -> None:
    readme = (chart_folder / "README.md").read_text()
    values = yaml.safe_load((chart_folder / "values.yaml").read_text())

    whole = {"image", "resources"}  # described in one line each
    for key, value in values.items():
        below = [f"{key}.{name}" for name in value] if isinstance(value, dict) and key not in whole else []
        for name in below or [key]:
            assert f"`{name}`" in readme or f"`{name}." in readme, name  # itself, or the keys in it


# The webhook's settings


def test_namespaces_in_scope_that_are_exempt_stay_exempt(render: Render) -> None:
    values = {"exemptNamespaces": ["training"], "numa": {"scope": {"namespaces": ["training", "batch"]}}}

    hooks = webhooks(render(values))
    del hooks["claims.validate"]
    for name, hook in hooks.items():
        rule, *_ = hook["namespaceSelector"]["matchExpressions"]
        assert rule["operator"] == "NotIn", name
        assert "training" in rule["values"], name


@pytest.mark.parametrize("endpoint", ["", "https://collector:4318"])
def test_headers_for_the_collector_come_from_a_secret_and_only_with_a_collector(render: Render, endpoint: str) -> None:
    rendered = render({"tracing": {"endpoint": endpoint, "headersSecret": "otlp"}})
    (container,) = pods(rendered)["koordgate"]["spec"]["containers"]
    secret = {"secretKeyRef": {"name": "otlp", "key": "headers"}}
    wanted = [{"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": secret}] if endpoint else None
    assert container.get("env") == wanted


@pytest.mark.parametrize("changed", [{"logLevel": "debug"}, {"domain": "koordinator.sh"}])
def test_a_change_of_settings_replaces_the_pods(
    render: Render, objects: list[JsonObject], changed: dict[str, Any]
) -> None:
    before, after = pods(objects)["koordgate"], pods(render(changed))["koordgate"]

    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    assert before["spec"] == after["spec"]


def test_a_certificate_of_somebody_else_needs_one_for_the_scheduler_too_or_none_at_all(render: Render) -> None:
    with pytest.raises(ChartError, match=r"set certificate\.existingClientSecret too"):
        render({"certificate": {"existingSecret": "my-cert"}})
    with pytest.raises(ChartError, match=r"goes with certificate\.existingSecret"):
        render({"certificate": {"existingClientSecret": "my-client"}})

    values = {"certificate": {"existingSecret": "my-cert"}}
    without = render(values | {"scheduler": {"clientCertificates": False}})
    theirs = render(values | {"scheduler": {"enabled": False, "username": KOORDINATOR}})

    (volume,) = (v for v in pods(without)["koord-scheduler"]["spec"]["volumes"] if v["name"] == "tls")
    assert volume["secret"] == {"secretName": "my-cert", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    for rendered in (without, theirs):
        assert settings.parse(settings_text(rendered)).certificate.client_authority is None


# The webhooks


def test_the_mutating_chain_ends_long_before_the_request_does(objects: list[JsonObject]) -> None:
    """A write has 34 s; mutating webhooks are called one after another, and each is repeated at most once."""
    chain = find(objects, MUTATING, "koordgate")["webhooks"]

    assert 2 * sum(hook["timeoutSeconds"] for hook in chain) < 30


def test_the_scheduler_waits_longer_than_the_extender_may_take(objects: list[JsonObject]) -> None:
    (extender,) = scheduler_config(objects)["extenders"]

    assert (
        float(extender["httpTimeout"].removesuffix("s")) > settings.parse(settings_text(objects)).serve.deadline_seconds
    )


@pytest.mark.parametrize(
    ("values", "user"),
    [
        ({}, "system:serviceaccount:koordgate-system:koord-scheduler"),
        ({"scheduler": {"enabled": False, "username": KOORDINATOR}}, KOORDINATOR),
    ],
)
def test_the_binder_is_compared_exactly_and_everywhere_alike(render: Render, values: dict[str, Any], user: str) -> None:
    rendered = render(values)
    hooks = webhooks(rendered)

    for name in ("bindings.mutate", "bindings.validate"):
        assert condition(hooks[name], "by-our-scheduler") == f"request.userInfo.username == '{user}'"
    assert [item["expression"] for item in hooks["guard.validate"]["matchConditions"]] == [
        f"request.resource.resource == 'bindings' || request.userInfo.username != '{user}'"
    ]
    assert settings.parse(settings_text(rendered)).scheduler.username == user


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
@pytest.mark.parametrize(("value", "name"), [("guard", "guard.validate"), ("dra", "claims.validate")])
def test_only_the_guard_and_the_review_of_claims_follow_their_policies(
    render: Render, value: str, name: str, policy: str
) -> None:
    hooks = webhooks(render({value: {"failurePolicy": policy}}))

    for told in ("dialects.warn", "pods.shadow", "bindings.shadow", "updates.mutate"):
        assert hooks.pop(told)["failurePolicy"] == "Ignore"
    assert hooks.pop(name)["failurePolicy"] == policy
    left = [hooks.pop(other)["failurePolicy"] for other in ("guard.validate", "claims.validate") if other in hooks]
    assert left == ["Ignore"]
    assert {hook["failurePolicy"] for hook in hooks.values()} == {"Fail"}


def test_system_namespaces_are_always_exempt_and_others_by_value(render: Render) -> None:
    hooks = webhooks(render({"exemptNamespaces": ["gpu-operator", "kube-system"]}, "gate"))

    claims = hooks.pop("claims.validate")["namespaceSelector"]["matchExpressions"]
    assert [one["key"] for one in claims] == [MODE], "a card is the same wherever its claim lives"
    for hook in hooks.values():
        exempt, *_ = hook["namespaceSelector"]["matchExpressions"]
        assert exempt == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["gate", "gpu-operator", "kube-system"],
        }
        assert "objectSelector" not in hook


IN_MODE = {
    ("enforce", "enforce"): {"key": MODE, "operator": "NotIn", "values": ["off", "shadow"]},
    ("enforce", "shadow"): {"key": MODE, "operator": "In", "values": ["shadow"]},
    ("shadow", "enforce"): {"key": MODE, "operator": "In", "values": ["enforce"]},
    ("shadow", "shadow"): {"key": MODE, "operator": "NotIn", "values": ["enforce", "off"]},
    ("off", "enforce"): {"key": MODE, "operator": "In", "values": ["enforce"]},
    ("off", "shadow"): {"key": MODE, "operator": "In", "values": ["shadow"]},
}


@pytest.mark.parametrize("default", ["enforce", "shadow", "off"])
def test_each_webhook_and_policy_is_for_the_namespaces_of_its_mode(render: Render, default: str) -> None:
    rendered = render({"mode": default, "guard": {"failurePolicy": "Fail"}})
    hooks = webhooks(rendered)
    for name in ("bindings.mutate", "bindings.validate", "updates.mutate"):
        assert len(hooks.pop(name)["namespaceSelector"]["matchExpressions"]) == 1, "our scheduler's, in every mode"
    for name, hook in hooks.items():
        mode = "shadow" if name.endswith(".shadow") else "enforce"
        assert hook["namespaceSelector"]["matchExpressions"][-1] == IN_MODE[default, mode], name
        assert mode == "enforce" or hook["failurePolicy"] == "Ignore"
    bindings = [item for item in rendered if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    scoped = {item["metadata"]["name"]: item["spec"] for item in bindings if "matchResources" in item["spec"]}
    assert len(scoped) == 8
    for name, spec in scoped.items():
        mode = "shadow" if name.endswith("-shadow") else "enforce"
        _, found = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert found == IN_MODE[default, mode], name
        assert mode == "enforce" or "Deny" not in spec["validationActions"]
    assert settings.parse(settings_text(rendered)).mode == default


# Outside the cluster


@pytest.mark.parametrize(
    ("url", "extender", "dns_names", "addresses"),
    [
        ("https://gate.example.com", "https://gate.example.com:9444", ["gate.example.com"], []),
        ("https://gate.example.com", "https://ext.example.com/x", ["gate.example.com", "ext.example.com"], []),
        ("https://10.0.0.7:9443/base", "https://10.0.0.7:9444", [], ["10.0.0.7"]),
        ("https://[fd00::7]:9443", "https://[fd00::8]:9443", [], ["fd00::7", "fd00::8"]),
    ],
)
def test_external_urls_are_where_everybody_calls_and_the_certificate_is_good_for(
    render: Render, url: str, extender: str, dns_names: list[str], addresses: list[str]
) -> None:
    authority = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()

    rendered = render({"webhook": {"externalURL": url, "externalExtenderURL": extender, "caBundle": authority}})

    for hook in webhooks(rendered).values():
        assert set(hook["clientConfig"]) == {"url", "caBundle"}
        assert hook["clientConfig"]["url"].startswith(f"{url}/")
        assert hook["clientConfig"]["caBundle"] == authority
    assert scheduler_config(rendered)["extenders"][0]["urlPrefix"] == f"{extender}/scheduler"
    certificate = settings.parse(settings_text(rendered)).certificate
    assert list(certificate.dns_names)[4:] == dns_names
    assert list(certificate.ip_addresses) == addresses


def test_an_external_url_alone_is_not_enough_for_our_scheduler(render: Render) -> None:
    values = {"webhook": {"externalURL": "https://gate.example.com"}}
    with pytest.raises(ChartError, match=r"set webhook\.externalExtenderURL too"):
        render(values)
    render(values | {"scheduler": {"enabled": False, "username": KOORDINATOR}})


# Wrong values


@pytest.mark.parametrize(
    "values",
    [
        {"nosuch": 1},
        {"webhook": {"externalUrl": "https://gate.example.com"}},
        {"webhook": {"externalURL": "http://gate.example.com"}},
        {"webhook": {"externalURL": "https://user@gate.example.com"}},
        {"webhook": {"caBundle": "-----BEGIN CERTIFICATE-----"}},
        {"webhook": {"externalURL": "https://a.example", "externalExtenderURL": "http://a.example"}},
        {"webhook": {"port": 0}},
        {"webhook": {"port": 8443, "extenderPort": 8443}},
        {"map": {"enabled": True, "port": 9443}},
        {"map": {"callers": [{"podselector": {}}]}},
        {"scheduler": {"commonName": "x" * 65}},
        {"certificate": {"existingSecret": "a", "existingClientSecret": "No Name"}},
        {"webhook": {"deadlineSeconds": 0}},
        {"guard": {"failurePolicy": "ignore"}},
        {"domain": "example.com"},
        {"logLevel": "loud"},
        {"tracing": {"endpoint": "collector:4318"}},
        {"tracing": {"endpoint": "http://me:secret@collector:4318"}},
        {"replicas": 0},
        {"exemptNamespaces": ["Not_A_Name"]},
        {"ledger": {"graceSeconds": -1}},
        {"ledger": {"gatherSeconds": 1.5}},
        {"gangs": {"holdSeconds": 9}},
        {"scheduler": {"mostNodes": 1.5}},
        {"scheduler": {"preference": "Packing"}},
        {"scheduler": {"mix": [{"requests": {"cpu": 1}, "weight": 0}]}},
        {"scheduler": {"preferenceClasses": ["cpu", "cpu"]}},
        {"scheduler": {"assumeSeconds": 0}},
        {"devices": {"order": "most"}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": 101}}}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": "2/3"}}}},
        {"devices": {"defaultSlotResourceFraction": {"namespaces": {"Team": {"gpu": 50}}}}},
        {"devices": {"types": [{"name": "npu"}]}},
        {"devices": {"types": [NPU | {"resource": "example.com/x' || true || 'x"}]}},
        {"devices": {"types": [NPU | {"unit": "cards"}]}},
        {"devices": {"types": [NPU | {"more": 1}]}},
        {"devices": {"types": [QUEUE | {"pools": [{"devices": {"a,b": 1}}]}]}},
        {"limits": {"provider": "hami"}},
        {"limits": {"require": ["*"]}},
        {"limits": {"provider": "nvidia-toolkit", "require": ["Team"]}},
        {"enforcement": {"directory": "run/nri"}},
        {"enforcement": {"kinds": {"rdma": "no kind"}}},
        {"cpus": {"bindPolicy": "Default"}},
        {"cpus": {"numaTopologyPolicy": ""}},
        {"numa": {"scope": {"namespaces": ["x'] || true || 'x' in ['x"]}}},
        {"numa": {"scope": {"selector": {"app": "x' || true || 'x"}}}},
        {"numa": {"scope": {"selector": {"x' || true || 'x": "y"}}}},
        {"numa": {"policy": "None"}},
        {"dra": {"failurePolicy": "Maybe"}},
        {"dra": {"drivers": {"x' || true || 'x": "gpu"}}},
        {"flowControl": {"shares": 0}},
        {"scheduler": {"username": "x' || true || 'x"}},
        {"scheduler": {"enabled": False}},
        {"resources": {"limit": {}}},
        {"certificate": {"existingSecret": "No Name"}},
        {"certificate": {"certManager": {"enabled": True}}},
        {"certificate": {"certManager": {"enabled": True, "issuer": {"name": "ca"}}, "existingSecret": "a"}},
        {"networkPolicy": {"apiServers": ["10.0.0.1/33"]}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(render: Render, values: dict[str, Any]) -> None:
    with pytest.raises(ChartError):
        render(values)


def test_without_our_scheduler_the_message_says_what_to_set(render: Render) -> None:
    with pytest.raises(ChartError, match=r"set scheduler\.username to the user of the scheduler"):
        render({"scheduler": {"enabled": False}})


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ([NPU | {"name": "rdma"}], "there is a type rdma already; give the new one another name"),
        ([NPU, NPU | {"resource": "example.com/other"}], "there is a type npu already"),
        ([NPU, NPU | {"name": "other"}], "resource example.com/npu of type other is already that of another type"),
        ([NPU | {"resource": "nvidia.com/gpu"}], "resource nvidia.com/gpu of type npu is already that of another type"),
        (
            [NPU | {"resource": "koordinator.sh/fpga"}],
            "resource koordinator.sh/fpga of type npu is already that of another",
        ),
        ([{"name": "x", "resource": "kubernetes.io/x"}], "kube-scheduler cannot ignore resource kubernetes.io/x"),
        ([{"name": "x", "resource": "a.kubernetes.io/x"}], "set ignoredByScheduler to false"),
        ([{"name": "x", "resource": "requests.example/x"}], 'not one that begins with "requests."'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_type_that_cannot_stand_beside_the_others_is_refused_with_what_to_do(
    render: Render, types: list[JsonObject], told: str
) -> None:
    with pytest.raises(ChartError) as refused:
        render({"devices": {"types": types}})
    assert told in str(refused.value)


def test_a_type_that_nodes_report_may_be_of_any_domain(render: Render) -> None:
    rendered = render({"devices": {"types": [NPU | {"resource": "kubernetes.io/npu"}]}})

    (own,) = settings.parse(settings_text(rendered)).devices.types
    assert own.resource == "kubernetes.io/npu"


# Rights


def test_claims_are_reviewed_and_read_only_where_they_count(render: Render) -> None:
    without = render({"dra": {"enabled": False, "taints": True}})
    assert "claims.validate" not in webhooks(without)
    assert not [rule for rule in rules(without) if "resource.k8s.io" in rule["apiGroups"]]
    assert not [item for item in without if item["metadata"]["name"] == "koordgate-taints"]
    assert settings.parse(settings_text(without)).claimed == {}


def test_drivers_are_added_and_removed_by_name(render: Render) -> None:
    rendered = render({"dra": {"drivers": {"gpu.nvidia.com": None, "nic.example.com": "rdma", "b.example.com": "gpu"}}})
    claimed = settings.parse(settings_text(rendered)).claimed
    assert {driver: kind.name for driver, kind in claimed.items()} == {
        "nic.example.com": "rdma",
        "b.example.com": "gpu",
    }
    told = condition(webhooks(rendered)["claims.validate"], "new-allocation-of-our-devices")
    assert "['b.example.com', 'nic.example.com']" in told


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ({}, True),
        ({"quota": {"enabled": False}}, False),
        ({"scheduler": {"enabled": False, "username": KOORDINATOR}}, False),
        ({"scheduler": {"enabled": False, "username": KOORDINATOR}, "quota": {"ignoredByScheduler": True}}, True),
    ],
    ids=["default", "off", "a scheduler that would not ignore them", "a scheduler that ignores them"],
)
def test_quotas_are_kept_within_a_policy_and_only_where_the_scheduler_ignores_what_they_count(
    render: Render,
    values: JsonObject,
    counted: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    rendered = render(values)
    assert settings.parse(settings_text(rendered)).quota.enabled is counted
    named = [item["kind"] for item in rendered if item["metadata"]["name"] == "koordgate-quotas"]
    assert bool(named) is any("resourcequotas" in rule["resources"] for rule in rules(rendered)) is counted
    if counted:
        policy = find(rendered, "ValidatingAdmissionPolicy", "koordgate-quotas")["spec"]
        (condition,) = policy["matchConditions"]
        user = "system:serviceaccount:koordgate-system:koordgate"
        assert condition["expression"] == f"request.userInfo.username == '{user}'"
        binding = find(rendered, "ValidatingAdmissionPolicyBinding", "koordgate-quotas")["spec"]
        assert binding == {"policyName": "koordgate-quotas", "validationActions": ["Deny"]}


@pytest.mark.parametrize("values", [{}, {"quota": {"enabled": False}}], ids=["on", "turned off"])
def test_our_scheduler_ignores_what_quotas_count_of_pods_from_before_too(render: Render, values: JsonObject) -> None:
    assert fit(render(values))["ignoredResourceGroups"] == [names.QUOTA_DOMAIN]


def test_where_no_certificate_is_made_for_the_scheduler_there_is_no_right_to_it(render: Render) -> None:
    rendered = render({"scheduler": {"clientCertificates": False}})

    (rule,) = (rule for rule in rules(rendered) if rule["resources"] == ["secrets"] and "resourceNames" in rule)
    assert rule["resourceNames"] == ["koordgate-tls", "koordgate-extender-tls"]


def test_no_rule_has_a_wildcard(render: Render) -> None:
    for rule in rules(render(EVERYTHING)):
        assert "*" not in "".join(rule["apiGroups"] + rule["resources"] + rule["verbs"])
        assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}


# The scheduler


def test_the_scheduler_is_configured_to_ask_for_scores_only_where_all_nodes_are_named(render: Render) -> None:
    rendered = render({"scheduler": {"mostNodes": 0}})

    (extender,) = scheduler_config(rendered)["extenders"]
    assert (extender["prioritizeVerb"], extender["weight"]) == ("prioritize", 5)
    assert settings.parse(settings_text(rendered)).scheduler.most_nodes == 0


def fit(objects: list[JsonObject]) -> JsonObject:
    """The arguments of NodeResourcesFit, the only plugin with arguments."""
    (profile,) = scheduler_config(objects)["profiles"]
    (plugin,) = profile["pluginConfig"]
    assert plugin["name"] == "NodeResourcesFit"
    args: JsonObject = plugin["args"]
    return args


@pytest.mark.parametrize(
    ("domain", "types", "ignored"),
    [
        ("kubernetes.io", [NPU], None),
        ("kubernetes.io", [QUEUE, NPU], ["example.com/queue"]),
        ("koordinator.sh", [QUEUE], ["example.com/queue", "koordinator.sh/gpu.shared"]),
    ],
)
def test_kube_scheduler_does_not_look_for_what_nodes_do_not_report(
    render: Render, domain: str, types: list[JsonObject], ignored: list[str] | None
) -> None:
    args = fit(render({"domain": domain, "devices": {"types": types}}))

    assert args.get("ignoredResources") == ignored


@pytest.mark.parametrize("domain", names.DOMAINS)
@pytest.mark.parametrize(
    ("preference", "strategy"),
    [
        ("packing", "MostAllocated"),
        ("mostBalanced", "LeastAllocated"),
    ],
)
def test_the_scheduler_prefers_among_nodes_as_koordgate_does(
    render: Render, domain: str, preference: str, strategy: str
) -> None:
    scoring = fit(render({"domain": domain, "scheduler": {"preference": preference}}))["scoringStrategy"]

    assert scoring["type"] == strategy
    asked = [names.GPU_CORE, names.GPU_MEMORY_RATIO, names.RDMA, names.FPGA]
    assert scoring["resources"] == [{"name": f"{domain}/{tail}", "weight": 1} for tail in asked]
    assert all(one["name"] in BUILT_IN.resources for one in scoring["resources"])


def test_without_client_certificates_the_scheduler_has_the_ca_alone(render: Render) -> None:
    rendered = render({"scheduler": {"clientCertificates": False}})

    (extender,) = scheduler_config(rendered)["extenders"]
    assert extender["tlsConfig"] == {"caFile": "/etc/koord-scheduler-tls/ca.crt"}
    (volume,) = (v for v in pods(rendered)["koord-scheduler"]["spec"]["volumes"] if v["name"] == "tls")
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    assert volume["secret"] == {"secretName": settings.Certificate().extender_secret, "items": items}


def test_without_it_nothing_of_our_scheduler_is_left(render: Render) -> None:
    rendered = render({"scheduler": {"enabled": False, "username": KOORDINATOR}, "networkPolicy": {"enabled": True}})

    assert not [item for item in rendered if item["metadata"]["name"].startswith("koord-scheduler")]
    assert find(rendered, "FlowSchema", "koordgate")


# Priority


@pytest.mark.parametrize("name", ["koordgate", "koord-scheduler"])
def test_all_that_an_account_of_ours_asks_has_a_priority_level_of_its_own(render: Render, name: str) -> None:
    rendered = render({"flowControl": {"shares": 40, "schedulerShares": 12}}, "gate")

    schema, level = (find(rendered, kind, name)["spec"] for kind in ("FlowSchema", "PriorityLevelConfiguration"))
    assert schema["priorityLevelConfiguration"]["name"] == name
    assert schema["matchingPrecedence"] < 9000  # the schema of all service accounts
    (rule,) = schema["rules"]
    assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": "gate"}}]
    (resources,) = rule["resourceRules"]
    assert resources == {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "namespaces": ["*"],
        "clusterScope": True,
    }
    assert level["limited"]["nominalConcurrencyShares"] == {"koordgate": 40, "koord-scheduler": 12}[name]


def test_without_flow_control_there_is_none(render: Render) -> None:
    kinds = {item["kind"] for item in render({"flowControl": {"enabled": False}})}

    assert not kinds & {"FlowSchema", "PriorityLevelConfiguration"}


# Pods


@pytest.mark.parametrize("delay", [0, 29.5])
def test_a_replica_is_not_killed_before_it_has_said_goodbye(render: Render, delay: float) -> None:
    rendered = render({"webhook": {"shutdownDelaySeconds": delay}})

    serve = settings.parse(settings_text(rendered)).serve
    grace = pods(rendered)["koordgate"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > serve.shutdown_delay_seconds + serve.deadline_seconds


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["default", "everything"])
def test_every_pod_is_restricted_spread_and_selected_by_its_own(render: Render, values: dict[str, Any]) -> None:
    rendered = render(values)

    for item in rendered:
        if item["kind"] != "Deployment":
            continue
        template, selector = item["spec"]["template"], item["spec"]["selector"]["matchLabels"]
        spec = template["spec"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["priorityClassName"] == "system-cluster-critical"
        assert all(entry["labelSelector"]["matchLabels"] == selector for entry in spec["topologySpreadConstraints"])
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]
    selectors = [item["spec"]["selector"]["matchLabels"] for item in rendered if item["kind"] == "Deployment"]
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1), (5, 1)])
def test_several_replicas_have_a_disruption_budget(render: Render, replicas: int, budgets: int) -> None:
    rendered = render({"replicas": replicas, "scheduler": {"replicas": 1}})

    found = [item["spec"]["maxUnavailable"] for item in rendered if item["kind"] == "PodDisruptionBudget"]
    assert found == [1] * budgets


def ingress(objects: list[JsonObject]) -> dict[str, list[JsonObject]]:
    return {item["metadata"]["name"]: item["spec"]["ingress"] for item in objects if item["kind"] == "NetworkPolicy"}


@pytest.mark.parametrize(
    "values",
    [
        {"scheduler": {"enabled": False, "username": KOORDINATOR}},
        {"webhook": {"externalURL": "https://a.example", "externalExtenderURL": "https://a.example:9444"}},
    ],
    ids=["another scheduler", "from outside"],
)
def test_a_network_policy_names_no_source_that_it_cannot_know(render: Render, values: dict[str, Any]) -> None:
    assert ingress(render({"networkPolicy": {"enabled": True}} | values))["koordgate"] == [
        {"ports": [{"port": 9443, "protocol": "TCP"}]},
        {"ports": [{"port": 9444, "protocol": "TCP"}]},
    ]


# Custom resources


def versions(objects: list[JsonObject], name: str) -> JsonObject:
    (version,) = find(objects, "CustomResourceDefinition", name)["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    schema: JsonObject = version["schema"]["openAPIV3Schema"]["properties"]
    return schema


def test_the_ledger_has_a_place_for_everything_that_is_written(objects: list[JsonObject]) -> None:
    definition = find(objects, "CustomResourceDefinition", "nodeallocations.koordgate.io")["spec"]
    group, version = nodeallocation.API_VERSION.split("/")
    names = ("main", "a", "b", "c", "d")
    share = Share("gpu", "GPU-1", 0, {"gpu-core": 50}, names, (Function(1, "0000:1f:00.3"),), alone=True)
    numa = (NumaShare(0, 4000, 2**30, 0),)
    cpus = CpuShare("LSR", 0b1111, BindPolicy.FULL_PCPUS, ExclusivePolicy.PCPU_LEVEL, numa)
    written = nodeallocation.write_spec(
        [Holding("u1", "team", "pod", 1_700_000_000, (share,), cpus, "team/gang", 1_800_000_000, "mark", fence=7)]
    )

    spec = versions(objects, "nodeallocations.koordgate.io")["spec"]

    assert (definition["group"], definition["names"]["kind"], definition["scope"]) == (
        group,
        nodeallocation.KIND,
        "Cluster",
    )
    assert definition["versions"][0]["name"] == version
    assert definition["names"]["shortNames"] == ["na"]
    # No field has a schema, which the API server would check again at each bind; the description has them.
    assert set(spec) == {"description", "type", "x-kubernetes-preserve-unknown-fields"}
    (entry,) = written["allocations"]
    (device,) = entry["devices"]
    numa_node = entry["cpus"]["numaNodes"][0]
    for field in (*entry, *device, *device["functions"][0], *entry["cpus"], *numa_node):
        assert re.search(rf"\b{field}\b", spec["description"]), field


def test_objects_keep_fields_that_these_definitions_do_not_know(objects: list[JsonObject]) -> None:
    ledger = versions(objects, "nodeallocations.koordgate.io")["spec"]
    device = versions(objects, "devices.scheduling.koordinator.sh")["spec"]["properties"]["devices"]["items"]

    topology = find(objects, "CustomResourceDefinition", TOPOLOGIES)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for schema in (
        ledger,
        device,
        device["properties"]["topology"],
        topology,
        topology["properties"]["zones"]["items"],
    ):
        assert schema["x-kubernetes-preserve-unknown-fields"] is True


TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


def told(schema: JsonObject, value: Any, path: str) -> Iterator[str]:
    """Walk every path of a value by its schema; fail if the schema lacks one."""
    if schema.get("x-kubernetes-int-or-string"):
        assert isinstance(value, int | str), path
        assert re.fullmatch(schema["pattern"], str(value)), path
    else:
        assert isinstance(value, TYPES[schema["type"]]), path
    yield path
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value), path
        for key, inner in value.items():
            assert key in schema["properties"], f"{path}.{key}"
            yield from told(schema["properties"][key], inner, f"{path}.{key}")
    for inner in value if isinstance(value, list) else ():
        yield from told(schema["items"], inner, f"{path}[]")


def test_a_node_topology_is_described_as_it_is_written(objects: list[JsonObject]) -> None:
    definition = find(objects, "CustomResourceDefinition", TOPOLOGIES)["spec"]
    group, version = nodetopology.API_VERSION.split("/")
    zone = NumaZone({"cpu": 31_500, "memory": 2**36}, {"cpu": 32_000, "memory": 2**37})
    written = nodetopology.write_node_topology(nodetopology.NodeTopology("node-1", zones={0: zone}))

    (only,) = definition["versions"]
    schema = only["schema"]["openAPIV3Schema"]

    names_of = definition["names"]
    assert (definition["group"], definition["scope"], names_of["kind"]) == (group, "Cluster", nodetopology.KIND)
    assert names_of["shortNames"][0] == "nrt"
    assert (only["name"], only["served"], only["storage"]) == (version, True, True)
    assert "subresources" not in only
    assert {"$.topologyPolicies[]", "$.zones[].resources[].available"} <= set(told(schema, written, "$"))
    everything = {
        "attributes": [{"name": "a", "value": "b"}],
        "zones": [
            {
                "name": "node-0",
                "type": "Node",
                "parent": "socket-0",
                "costs": [{"name": "node-1", "value": 21}],
                "attributes": [{"name": "a", "value": "b"}],
                "resources": [{"name": "cpu", "capacity": 4, "allocatable": "3500m", "available": "1.5"}],
            }
        ],
    }
    assert "$.zones[].costs[].value" in set(told(schema, everything, "$"))


@pytest.mark.parametrize(
    "lacking", [{"tracing": None}, {"map": None}, {"enforcement": None}, {"certificate": {"certManager": None}}]
)
def test_values_of_an_older_chart_are_refused_with_how_to_upgrade(render: Render, lacking: dict[str, Any]) -> None:
    """`helm upgrade --reuse-values` brings them: the defaults of the version that is installed."""
    with pytest.raises(ChartError, match="--reset-then-reuse-values"):
        render(lacking)
