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
from allocator.vocabulary.cpunode import CpuShare, NumaShare
from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaPolicy, NumaStrategy
from allocator.vocabulary.devicetype import BUILT_IN, Unit
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.vocabulary.limits import LimitProvider
from allocator.vocabulary.preference import DeviceOrder, Preference
from allocator.wire import nodeallocation, nodetopology
from koordgate.settings import DevicePool, OwnType
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.chart import ChartError, find, settings_text
from webhook import settings
from webhook.settings import LimitSettings, TypicalSettings

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


def test_the_default_values_render_exactly_these_objects(objects: list[JsonObject]) -> None:
    assert sorted((item["kind"], item["metadata"]["name"]) for item in objects) == [
        ("ClusterRole", "koordgate"),
        ("ClusterRole", "koordgate-reporter"),
        ("ClusterRoleBinding", "koord-scheduler"),
        ("ClusterRoleBinding", "koord-scheduler-volumes"),
        ("ClusterRoleBinding", "koordgate"),
        ("ClusterRoleBinding", "koordgate-reporter"),
        ("ConfigMap", "koord-scheduler"),
        ("ConfigMap", "koordgate"),
        ("ConfigMap", "koordgate-reporter"),
        ("CustomResourceDefinition", "devices.scheduling.koordinator.sh"),
        ("CustomResourceDefinition", "nodeallocations.koordgate.io"),
        ("CustomResourceDefinition", "noderesourcetopologies.topology.node.k8s.io"),
        ("DaemonSet", "koordgate-reporter"),
        ("Deployment", "koord-scheduler"),
        ("Deployment", "koordgate"),
        ("FlowSchema", "koord-scheduler"),
        ("FlowSchema", "koordgate"),
        (MUTATING, "koordgate"),
        ("PodDisruptionBudget", "koord-scheduler"),
        ("PodDisruptionBudget", "koordgate"),
        ("PriorityLevelConfiguration", "koord-scheduler"),
        ("PriorityLevelConfiguration", "koordgate"),
        ("Role", "koord-scheduler"),
        ("Role", "koordgate"),
        ("RoleBinding", "koord-scheduler"),
        ("RoleBinding", "koord-scheduler-authentication-reader"),
        ("RoleBinding", "koordgate"),
        ("Service", "koordgate"),
        ("ServiceAccount", "koord-scheduler"),
        ("ServiceAccount", "koordgate"),
        ("ServiceAccount", "koordgate-reporter"),
        ("ValidatingAdmissionPolicy", "koordgate-allocations"),
        ("ValidatingAdmissionPolicy", "koordgate-bindings"),
        ("ValidatingAdmissionPolicy", "koordgate-doctor"),
        ("ValidatingAdmissionPolicy", "koordgate-modes"),
        ("ValidatingAdmissionPolicy", "koordgate-preset-node"),
        ("ValidatingAdmissionPolicy", "koordgate-quotas"),
        ("ValidatingAdmissionPolicy", "koordgate-reporter"),
        ("ValidatingAdmissionPolicy", "koordgate-visible-devices"),
        ("ValidatingAdmissionPolicy", "koordgate-webhook"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-allocations"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-allocations-shadow"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-bindings"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-bindings-shadow"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-doctor"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-modes"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-preset-node"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-preset-node-shadow"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-quotas"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-reporter"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-visible-devices"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-visible-devices-shadow"),
        ("ValidatingAdmissionPolicyBinding", "koordgate-webhook"),
        (VALIDATING, "koordgate"),
    ]


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


def test_an_old_cluster_is_refused_because_it_drops_match_conditions(chart_folder: Path) -> None:
    chart = yaml.safe_load((chart_folder / "Chart.yaml").read_text())

    assert chart["kubeVersion"] == ">=1.34.0-0"


def test_every_value_is_described_in_the_readme(chart_folder: Path) -> None:
    readme = (chart_folder / "README.md").read_text()
    values = yaml.safe_load((chart_folder / "values.yaml").read_text())

    whole = {"image", "resources"}  # described in one line each
    for key, value in values.items():
        below = [f"{key}.{name}" for name in value] if isinstance(value, dict) and key not in whole else []
        for name in below or [key]:
            assert f"`{name}`" in readme or f"`{name}." in readme, name  # itself, or the keys in it


# The webhook's settings


def test_the_settings_file_is_read_by_the_webhook_and_says_everything(objects: list[JsonObject]) -> None:
    text = settings_text(objects)

    read = settings.parse(text)

    assert read == settings.parse(
        "certificate: {dnsNames: [koordgate, koordgate.koordgate-system, koordgate.koordgate-system.svc,"
        " koordgate.koordgate-system.svc.cluster.local]}\n"
        "quota: {exemptNamespaces: [koordgate-system, kube-system]}\n"
    )
    written = yaml.safe_load(text)
    assert set(written) == {
        "domain",
        "stateMemory",
        "logLevel",
        "logFormat",
        "tracing",
        "scheduler",
        "guard",
        "identity",
        "serve",
        "certificate",
        "ledger",
        "gangs",
        "devices",
        "limits",
        "cpus",
        "numa",
        "mode",
        "quota",
        "dra",
        "headroom",
        "adopt",
        "map",
        "mirror",
        "dialects",
    }
    assert written["map"] == {"enabled": False, "port": 9445, "clients": 32}
    assert set(written["adopt"]) == {"peers", "schedulers", "reservationNamespaces", "writers"}
    assert written["mirror"] == []
    assert written["tracing"] == {"endpoint": "", "samplingPercent": 10, "authority": ""}
    assert set(written["dra"]) == {"enabled", "drivers", "taints"}
    assert written["dialects"] == {}
    assert set(written["quota"]) == {"enabled", "exemptNamespaces"}
    assert set(written["scheduler"]) == {
        "name",
        "username",
        "mostNodes",
        "clientCertificates",
        "commonName",
        "preference",
        "preferenceClasses",
        "mix",
        "assumeSeconds",
    }
    assert set(written["guard"]) == {"plainPods"}
    delivery = {"delivery", "runtimeClassName", "deliveryUnknown", "tolerations"}
    assert set(written["devices"]) == {"defaultSlotResourceFraction", "quotaEnvironment", "order", "types", *delivery}
    assert written["limits"] == {"provider": "none", "require": []}
    assert set(written["cpus"]) == {"bindPolicy", "exclusivePolicy", "numaAllocateStrategy", "numaTopologyPolicy"}
    assert set(written["numa"]) == {"scope"}
    assert set(written["numa"]["scope"]) == {"scheduler", "namespaces", "selector"}
    assert set(written["ledger"]) == {"graceSeconds", "reconcileSeconds", "gatherSeconds"}
    assert written["gangs"] == {"allOrNothing": False, "holdSeconds": 300}
    assert set(written["serve"]) == {
        "host",
        "port",
        "extenderPort",
        "bodyLimitBytes",
        "bodiesBytes",
        "connections",
        "deadlineSeconds",
        "shutdownDelaySeconds",
        "clientAuthority",
        "clientName",
    }


def test_every_value_reaches_the_settings(render: Render) -> None:
    rendered = render(
        {
            "domain": "koordinator.sh",
            "stateMemory": False,
            "logLevel": "debug",
            "logFormat": "text",
            "tracing": {"endpoint": "http://collector:4318", "samplingPercent": 0.5},
            "webhook": {
                "host": "::",
                "port": 8443,
                "extenderPort": 8444,
                "bodyLimitBytes": 123456789,
                "bodiesBytes": 234567890,
                "connections": 2500,
                "deadlineSeconds": 2.5,
                "shutdownDelaySeconds": 0,
            },
            "certificate": {"authorityDays": 1000000, "certificateDays": 0.5, "extraDNSNames": ["gate.example.com"]},
            "ledger": {"graceSeconds": 300, "reconcileSeconds": 7.5, "gatherSeconds": 0.002},
            "gangs": {"allOrNothing": True, "holdSeconds": 60},
            "scheduler": {
                "name": "gpu-scheduler",
                "username": "someone@example.com",
                "mostNodes": 3,
                "clientCertificates": False,
                "commonName": "gpu-scheduler",
                "preference": "mostBalanced",
                "preferenceClasses": ["cpu", "gpu", "queue"],
                "mix": [{"requests": {"cpu": "8", "koordinator.sh/gpu": 100}, "models": ["T4"], "weight": 3}],
                "assumeSeconds": 1.5,
            },
            "guard": {"plainPods": "warn"},
            "devices": {
                "defaultSlotResourceFraction": {
                    "types": {"gpu": 50},
                    "namespaces": {"batch": {"gpu": 25, "rdma": "1/8"}},
                },
                "quotaEnvironment": True,
                "order": "leastUsed",
                "tolerations": {"gpu": ["nvidia.com/gpu", "amd.com/gpu"], "queue": ["example.com/queue"]},
                "types": [QUEUE],
            },
            "limits": {"provider": "nvidia-toolkit", "require": ["batch", "*"]},
            "cpus": {
                "bindPolicy": "SpreadByPCPUs",
                "exclusivePolicy": "NUMANodeLevel",
                "numaAllocateStrategy": "DistributeEvenly",
                "numaTopologyPolicy": "SingleNUMANode",
            },
            "numa": {"scope": {"namespaces": ["training", "batch"], "selector": {"example.com/numa": "true"}}},
            "exemptNamespaces": ["gpu-operator"],
            "quota": {"enabled": False},
            "dialects": {
                "hami": {"enabled": True, "defaultMemory": "4Gi", "defaultCores": 30},
                "gpushare": {"enabled": True, "namespaces": ["batch"], "memoryUnit": "1Mi"},
                "tencent": {"namespaces": ["batch"]},
            },
        },
        "gate",
    )

    read = settings.parse(settings_text(rendered))

    assert read == settings.WebhookSettings(
        domain="koordinator.sh",
        state_memory=False,
        guard=settings.Guard("warn"),
        log_level="debug",
        log_format="text",
        tracing=settings.TracingSettings("http://collector:4318", 0.5),
        scheduler=settings.Scheduler(
            name="gpu-scheduler",
            username="someone@example.com",
            most_nodes=3,
            client_certificates=False,
            common_name="gpu-scheduler",
            preference=Preference.MOST_BALANCED,
            preference_classes=("cpu", "gpu", "queue"),
            mix=(TypicalSettings({"cpu": "8", "koordinator.sh/gpu": 100}, ("T4",), 3),),
            assume_seconds=1.5,
        ),
        identity=settings.Identity(namespace="gate"),
        serve=settings.ServeSettings(
            host="::",
            port=8443,
            extender_port=8444,
            body_limit_bytes=123456789,
            bodies_bytes=234567890,
            connections=2500,
            deadline_seconds=2.5,
            shutdown_delay_seconds=0,
        ),
        dialects={
            "hami": settings.DialectSettings(enabled=True, memory_unit="1Mi", default_memory="4Gi", default_cores=30),
            "gpushare": settings.DialectSettings(enabled=True, namespaces=("batch",), memory_unit="1Mi"),
        },
        certificate=settings.Certificate(
            dns_names=(
                "koordgate",
                "koordgate.gate",
                "koordgate.gate.svc",
                "koordgate.gate.svc.cluster.local",
                "gate.example.com",
            ),
            authority_days=1000000,
            certificate_days=0.5,
        ),
        ledger=settings.LedgerSettings(grace_seconds=300, reconcile_seconds=7.5, gather_seconds=0.002),
        gangs=settings.GangSettings(all_or_nothing=True, hold_seconds=60),
        limits=LimitSettings(LimitProvider.NVIDIA_TOOLKIT, ("batch", "*")),
        devices=settings.DeviceSettings(
            default_slot_resource_fraction=settings.SlotSettings({"gpu": 50}, {"batch": {"gpu": 25, "rdma": "1/8"}}),
            quota_environment=True,
            order=DeviceOrder.LEAST_USED,
            tolerations={"gpu": ["nvidia.com/gpu", "amd.com/gpu"], "queue": ["example.com/queue"]},
            types=(
                OwnType(
                    name="queue",
                    resource="example.com/queue",
                    unit=Unit.UNITS,
                    environment="QUEUE",
                    pools=(DevicePool(node_selector={"site": "west"}, devices={"fast": 10**10, "slow": 40}),),
                ),
            ),
        ),
        cpus=settings.CpuSettings(
            bind_policy="SpreadByPCPUs",
            exclusive_policy="NUMANodeLevel",
            numa_allocate_strategy=NumaStrategy.DISTRIBUTE_EVENLY,
            numa_topology_policy=NumaPolicy.SINGLE_NUMA_NODE,
        ),
        numa=settings.NumaSettings(
            settings.NumaScopeSettings(namespaces=("training", "batch"), selector={"example.com/numa": "true"})
        ),
        quota=settings.QuotaSettings(enabled=False, exempt_namespaces=("gate", "gpu-operator", "kube-system")),
    )
    container_ports = pods(rendered)["koordgate"]["spec"]["containers"][0]["ports"]
    assert [port["containerPort"] for port in container_ports] == [8443, 8444]
    service = find(rendered, "Service", "koordgate")["spec"]
    assert [port["targetPort"] for port in service["ports"]] == [8443, 8444]
    assert service["sessionAffinity"] == "None"


def test_an_api_server_may_be_kept_at_one_replica(render: Render) -> None:
    rendered = render({"webhook": {"sessionAffinity": "ClientIP"}})
    assert find(rendered, "Service", "koordgate")["spec"]["sessionAffinity"] == "ClientIP"


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


def test_a_certificate_of_somebody_else_is_mounted_and_named(render: Render) -> None:
    rendered = render({"certificate": {"existingSecret": "my-cert", "existingClientSecret": "my-client"}})

    read = settings.parse(settings_text(rendered)).certificate

    folder = "/etc/koordgate-tls"
    assert read.files == settings.CertificateFiles(
        certificate=f"{folder}/tls.crt", key=f"{folder}/tls.key", authority=f"{folder}/ca.crt"
    )
    templates = pods(rendered)
    (mount,) = (m for m in templates["koordgate"]["spec"]["containers"][0]["volumeMounts"] if m["mountPath"] == folder)
    assert mount["readOnly"] is True
    assert not [rule for rule in rules(rendered) if "secrets" in rule["resources"]]
    # Each side has its own certificate and trusts the CA of the other's; neither sees the other's key.
    ours, theirs = (
        {volume["name"]: volume for volume in templates[name]["spec"]["volumes"]}
        for name in ("koordgate", "koord-scheduler")
    )
    assert ours["tls"]["secret"] == {"secretName": "my-cert", "defaultMode": 0o440}
    authority = [{"key": "ca.crt", "path": "ca.crt"}]
    assert ours["client-ca"]["secret"] == {"secretName": "my-client", "items": authority}
    assert read.client_authority == "/etc/koordgate-client-ca/ca.crt"
    pair = [{"key": key, "path": key} for key in ("tls.crt", "tls.key")]
    assert theirs["tls"]["projected"] == {
        "defaultMode": 0o440,
        "sources": [
            {"secret": {"name": "my-cert", "items": authority}},
            {"secret": {"name": "my-client", "items": pair}},
        ],
    }


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


def test_these_webhooks_see_these_requests_at_these_paths(objects: list[JsonObject]) -> None:
    seen = {
        name: (
            hook["clientConfig"]["service"]["path"],
            [(rule["operations"], rule["resources"]) for rule in hook["rules"]],
            hook["failurePolicy"],
            hook["timeoutSeconds"],
            hook["sideEffects"],
            hook.get("reinvocationPolicy"),
        )
        for name, hook in webhooks(objects).items()
    }

    binding, created = [(["CREATE"], ["pods/binding"])], [(["CREATE"], ["pods"])]
    changed = [(["CREATE", "UPDATE"], ["pods"]), (["UPDATE"], ["pods/status", "pods/resize"])]
    assert seen == {
        "pods.mutate": ("/mutate-pod", created, "Fail", 2, "None", "IfNeeded"),
        "updates.mutate": ("/mutate-pod", [(["UPDATE"], ["pods"])], "Ignore", 2, "None", "IfNeeded"),
        "bindings.mutate": ("/mutate-binding", binding, "Fail", 5, "NoneOnDryRun", "IfNeeded"),
        "pods.validate": ("/validate-pod", changed, "Fail", 2, "None", None),
        "bindings.validate": ("/validate-binding", binding, "Fail", 4, "None", None),
        "guard.validate": (
            "/validate-binding",
            [(["CREATE"], ["bindings", "pods/binding"])],
            "Ignore",
            2,
            "None",
            None,
        ),
        "claims.validate": (
            "/validate-claim",
            [(["UPDATE"], ["resourceclaims/status"])],
            "Ignore",
            4,
            "NoneOnDryRun",
            None,
        ),
        "dialects.warn": ("/warn-pod", created, "Ignore", 1, "None", None),
        "pods.shadow": ("/shadow-pod", created, "Ignore", 1, "None", None),
        "bindings.shadow": (
            "/shadow-binding",
            [(["CREATE"], ["bindings", "pods/binding"])],
            "Ignore",
            1,
            "None",
            None,
        ),
    }
    for name, hook in webhooks(objects).items():
        assert hook["matchPolicy"] == "Equivalent"
        assert hook["admissionReviewVersions"] == ["v1"]
        groups = ["resource.k8s.io"] if name == "claims.validate" else [""]
        assert all(
            (rule["apiGroups"], rule["apiVersions"], rule["scope"]) == (groups, ["v1"], "Namespaced")
            for rule in hook["rules"]
        )
        assert hook["clientConfig"]["service"] | {"path": ""} == {
            "name": "koordgate",
            "namespace": "koordgate-system",
            "port": 443,
            "path": "",
        }
        assert "caBundle" not in hook["clientConfig"]


def test_the_mutating_chain_ends_long_before_the_request_does(objects: list[JsonObject]) -> None:
    """A write has 34 s; mutating webhooks are called one after another, and each is repeated at most once."""
    chain = find(objects, MUTATING, "koordgate")["webhooks"]

    assert 2 * sum(hook["timeoutSeconds"] for hook in chain) < 30


def test_the_scheduler_waits_longer_than_the_extender_may_take(objects: list[JsonObject]) -> None:
    (extender,) = scheduler_config(objects)["extenders"]

    assert (
        float(extender["httpTimeout"].removesuffix("s")) > settings.parse(settings_text(objects)).serve.deadline_seconds
    )


def test_creates_and_updates_are_selected_apart(objects: list[JsonObject]) -> None:
    """All match conditions must hold, so each accepts the other operation."""
    hook = webhooks(objects)["pods.validate"]

    assert condition(hook, "our-pod-created").startswith("request.operation != 'CREATE' ||\n")
    assert condition(hook, "allocation-changed").startswith("request.operation != 'UPDATE' ||\n")


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
        (found,) = spec["matchResources"]["namespaceSelector"]["matchExpressions"]
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
        {"webhook": {"externalURL": "gate.example.com"}},
        {"webhook": {"externalURL": "https://"}},
        {"webhook": {"externalURL": "https://gate.example.com/"}},
        {"webhook": {"externalURL": "https://gate.example.com?x=1"}},
        {"webhook": {"externalURL": "https://user@gate.example.com"}},
        {"webhook": {"caBundle": "-----BEGIN CERTIFICATE-----"}},
        {"webhook": {"externalURL": "https://a.example", "externalExtenderURL": "http://a.example"}},
        {"webhook": {"port": 0}},
        {"webhook": {"extenderPort": 80}},
        {"webhook": {"port": 8443, "extenderPort": 8443}},
        {"map": {"enabled": True, "port": 9443}},
        {"map": {"enabled": True, "port": 9444}},
        {"map": {"port": 80}},
        {"map": {"clients": 0}},
        {"map": {"callers": [{"podselector": {}}]}},
        {"scheduler": {"commonName": ""}},
        {"scheduler": {"commonName": "x" * 65}},
        {"scheduler": {"commonName": "a b"}},
        {"scheduler": {"clientCertificates": "no"}},
        {"certificate": {"existingSecret": "a", "existingClientSecret": "No Name"}},
        {"webhook": {"port": "9443"}},
        {"webhook": {"deadlineSeconds": 0}},
        {"guard": {"failurePolicy": "ignore"}},
        {"domain": "example.com"},
        {"logLevel": "loud"},
        {"logFormat": "xml"},
        {"tracing": {"endpoint": "collector:4318"}},
        {"tracing": {"endpoint": "http://me:secret@collector:4318"}},
        {"tracing": {"samplingPercent": 101}},
        {"tracing": {"headersSecret": "No Name"}},
        {"tracing": {"sampling": 5}},
        {"replicas": 0},
        {"exemptNamespaces": ["Not_A_Name"]},
        {"exemptNamespaces": "kube-system"},
        {"ledger": {"graceSeconds": -1}},
        {"ledger": {"graceSeconds": 1e9}},
        {"ledger": {"gatherSeconds": -0.1}},
        {"ledger": {"gatherSeconds": 1.5}},
        {"gangs": {"holdSeconds": 9}},
        {"gangs": {"allOrNothing": "yes"}},
        {"certificate": {"authorityDays": 1e9}},
        {"scheduler": {"mostNodes": -1}},
        {"scheduler": {"mostNodes": 1.5}},
        {"scheduler": {"preference": "Packing"}},
        {"scheduler": {"preferenceClasses": "cpu"}},
        {"scheduler": {"mix": [{"weight": 1}]}},
        {"scheduler": {"mix": [{"requests": {"cpu": 1}, "weight": 0}]}},
        {"scheduler": {"preferenceClasses": ["cpu", "cpu"]}},
        {"scheduler": {"assumeSeconds": 0}},
        {"devices": {"order": "most"}},
        {"devices": {"quotaEnvironment": "yes"}},
        {"devices": {"defaultSlotResourceFraction": {"gpu": 50}}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": 0}}}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": 101}}}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": "1/101"}}}},
        {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": "2/3"}}}},
        {"devices": {"defaultSlotResourceFraction": {"namespaces": {"Team": {"gpu": 50}}}}},
        {"devices": {"defaultSlotResourceFraction": {"namespaces": {"team": {"gpu": 0.5}}}}},
        {"devices": {"types": [{"name": "npu"}]}},
        {"devices": {"types": [NPU | {"name": "NPU"}]}},
        {"devices": {"types": [NPU | {"resource": "npu"}]}},
        {"devices": {"types": [NPU | {"resource": "example.com/x' || true || 'x"}]}},
        {"devices": {"types": [NPU | {"unit": "cards"}]}},
        {"devices": {"types": [NPU | {"environment": "1X"}]}},
        {"devices": {"types": [NPU | {"more": 1}]}},
        {"devices": {"types": [QUEUE | {"pools": [{"devices": {"fast": 0}}]}]}},
        {"devices": {"types": [QUEUE | {"pools": [{"devices": {"a,b": 1}}]}]}},
        {"limits": {"provider": "hami"}},
        {"limits": {"require": ["*"]}},
        {"limits": {"provider": "nvidia-toolkit", "require": ["Team"]}},
        {"limits": {"provider": "nvidia-toolkit", "require": "*"}},
        {"cpus": {"bindPolicy": "Default"}},
        {"cpus": {"exclusivePolicy": "Default"}},
        {"cpus": {"numaAllocateStrategy": "Most"}},
        {"cpus": {"numaTopologyPolicy": ""}},
        {"numa": {"scope": {"namespaces": "training"}}},
        {"numa": {"scope": {"namespaces": ["x'] || true || 'x' in ['x"]}}},
        {"numa": {"scope": {"selector": {"app": "x' || true || 'x"}}}},
        {"numa": {"scope": {"selector": {"x' || true || 'x": "y"}}}},
        {"numa": {"scope": {"selector": {"app": True}}}},
        {"numa": {"policy": "None"}},
        {"dra": {"failurePolicy": "Maybe"}},
        {"dra": {"drivers": {"x' || true || 'x": "gpu"}}},
        {"dra": {"drivers": ["gpu.nvidia.com"]}},
        {"scheduler": {"name": ""}},
        {"flowControl": {"shares": 0}},
        {"scheduler": {"username": "x' || true || 'x"}},
        {"scheduler": {"image": {"tag": "a b"}}},
        {"scheduler": {"enabled": False}},
        {"resources": {"limit": {}}},
        {"certificate": {"existingSecret": "No Name"}},
        {"certificate": {"certManager": {"enabled": True}}},
        {"certificate": {"certManager": {"enabled": True, "issuer": {"name": "ca"}}, "existingSecret": "a"}},
        {"networkPolicy": {"enabled": "yes"}},
        {"networkPolicy": {"apiServers": ["10.0.0.1"]}},
        {"networkPolicy": {"apiServers": ["10.0.0.1/33"]}},
        {"networkPolicy": {"apiServers": ["api.example.com/32"]}},
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


def test_the_webhook_has_these_rights_and_no_others(objects: list[JsonObject]) -> None:
    read = ["get", "list", "watch"]
    configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]

    assert find(objects, "ClusterRole", "koordgate")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": read},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["node.k8s.io"], "resources": ["runtimeclasses"], "verbs": ["list", "watch"]},
        {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["devices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "scheduling.k8s.io"],
            "resources": ["podgroups"],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": [""], "resources": ["limitranges"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": [*read, "create", "update", "delete"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": read},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["koordgate.io"],
            "resources": ["nodeallocations"],
            "verbs": [*read, "create", "update", "delete"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": configurations,
            "resourceNames": ["koordgate"],
            "verbs": ["get", "patch"],
        },
    ]
    (role,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == ("Role", "koordgate"))
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["koordgate-tls", "koordgate-extender-tls", "koordgate-scheduler-tls"],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]


def test_claims_are_reviewed_and_read_only_where_they_count(render: Render) -> None:
    without = render({"dra": {"enabled": False, "taints": True}})
    assert "claims.validate" not in webhooks(without)
    assert not [rule for rule in rules(without) if "resource.k8s.io" in rule["apiGroups"]]
    assert not [item for item in without if item["metadata"]["name"] == "koordgate-taints"]
    assert settings.parse(settings_text(without)).claimed == {}


def test_taints_bring_a_right_and_a_policy_that_narrows_it(render: Render, objects: list[JsonObject]) -> None:
    right = {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["devicetaintrules"],
        "verbs": ["list", "watch", "create", "delete"],
    }
    assert right not in find(objects, "ClusterRole", "koordgate")["rules"]
    rendered = render({"dra": {"taints": True}}, "gate")
    assert right in find(rendered, "ClusterRole", "koordgate")["rules"]
    policy = find(rendered, "ValidatingAdmissionPolicy", "koordgate-taints")["spec"]
    (only,) = policy["matchConditions"]
    assert only["expression"] == "request.userInfo.username == 'system:serviceaccount:gate:koordgate'"
    assert policy["failurePolicy"] == "Fail"
    binding = find(rendered, "ValidatingAdmissionPolicyBinding", "koordgate-taints")["spec"]
    assert binding == {"policyName": "koordgate-taints", "validationActions": ["Deny"]}


def test_nodes_may_be_patched_only_for_the_taint_and_within_the_policy(
    render: Render, objects: list[JsonObject]
) -> None:
    right = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    named = "koordgate.io/headroom"
    assert right not in find(objects, "ClusterRole", "koordgate")["rules"]
    assert named not in str(find(objects, "ValidatingAdmissionPolicy", "koordgate-webhook"))
    for mode in ("taint", "remove"):
        rendered = render({"headroom": {"mode": mode, "taintBelowPercent": 120, "untaintAfterSeconds": 0}})
        assert right in find(rendered, "ClusterRole", "koordgate")["rules"]
        assert named in str(find(rendered, "ValidatingAdmissionPolicy", "koordgate-webhook"))
        kept = settings.parse(settings_text(rendered)).headroom
        assert (kept.mode, kept.taint_below_percent, kept.untaint_from_percent) == (mode, 120, 200)
        assert kept.untaint_after_seconds == 0
    assert settings.parse(settings_text(objects)).headroom == settings.HeadroomSettings()


def test_drivers_are_added_and_removed_by_name(render: Render) -> None:
    rendered = render({"dra": {"drivers": {"gpu.nvidia.com": None, "nic.example.com": "rdma", "b.example.com": "gpu"}}})
    claimed = settings.parse(settings_text(rendered)).claimed
    assert {driver: kind.name for driver, kind in claimed.items()} == {
        "nic.example.com": "rdma",
        "b.example.com": "gpu",
    }
    told = condition(webhooks(rendered)["claims.validate"], "new-allocation-of-our-devices")
    assert "['b.example.com', 'nic.example.com']" in told


def test_pods_may_be_patched_only_where_gangs_are_bound_as_a_whole_and_within_a_policy(
    render: Render, objects: list[JsonObject]
) -> None:
    patching = {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    assert patching not in find(objects, "ClusterRole", "koordgate")["rules"]
    assert not [item for item in objects if item["metadata"]["name"] == "koordgate-gates"]
    rendered = render({"gangs": {"allOrNothing": True}}, "gate")
    assert patching in find(rendered, "ClusterRole", "koordgate")["rules"]
    policy = find(rendered, "ValidatingAdmissionPolicy", "koordgate-gates")["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:gate:koordgate'"
    assert policy["failurePolicy"] == "Fail"
    binding = find(rendered, "ValidatingAdmissionPolicyBinding", "koordgate-gates")["spec"]
    assert binding == {"policyName": "koordgate-gates", "validationActions": ["Deny"]}


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


def test_every_binding_gives_rights_to_an_account_of_ours(objects: list[JsonObject]) -> None:
    accounts = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}

    for item in objects:
        if item["kind"] in {"RoleBinding", "ClusterRoleBinding"}:
            (subject,) = item["subjects"]
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", "koordgate-system")
            assert subject["name"] in accounts
            assert item["metadata"]["name"].startswith(subject["name"])


# The scheduler


def test_the_scheduler_has_a_profile_of_the_name_that_pods_are_given(objects: list[JsonObject]) -> None:
    config = scheduler_config(objects)

    assert (config["apiVersion"], config["kind"]) == ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration")
    assert [profile["schedulerName"] for profile in config["profiles"]] == [names.KOORD_SCHEDULER]
    assert config["leaderElection"] == {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceNamespace": "koordgate-system",
        "resourceName": "koord-scheduler",
    }
    assert config["extenders"] == [
        {
            "urlPrefix": "https://koordgate.koordgate-system.svc:9444/scheduler",
            "filterVerb": "filter",
            "preemptVerb": "preempt",
            "enableHTTPS": True,
            "nodeCacheCapable": True,
            "ignorable": False,
            "httpTimeout": "5s",
            "tlsConfig": {
                "caFile": "/etc/koord-scheduler-tls/ca.crt",
                "certFile": "/etc/koord-scheduler-tls/tls.crt",
                "keyFile": "/etc/koord-scheduler-tls/tls.key",
            },
        }
    ]


def test_the_scheduler_is_configured_to_ask_for_scores_only_where_all_nodes_are_named(render: Render) -> None:
    rendered = render({"scheduler": {"mostNodes": 0}})

    (extender,) = scheduler_config(rendered)["extenders"]
    assert (extender["prioritizeVerb"], extender["weight"]) == ("prioritize", 5)
    assert settings.parse(settings_text(rendered)).scheduler.most_nodes == 0


def test_the_scheduler_may_ask_the_api_server_more_than_the_stock_one(objects: list[JsonObject]) -> None:
    assert scheduler_config(objects)["clientConnection"] == {"qps": 1000, "burst": 2000}


def fit(objects: list[JsonObject]) -> JsonObject:
    """The arguments of NodeResourcesFit, the only plugin with arguments."""
    (profile,) = scheduler_config(objects)["profiles"]
    (plugin,) = profile["pluginConfig"]
    assert plugin["name"] == "NodeResourcesFit"
    args: JsonObject = plugin["args"]
    return args


@pytest.mark.parametrize("domain", names.DOMAINS)
def test_the_extender_is_asked_about_every_pod_of_the_profile(render: Render, domain: str) -> None:
    """A Pod with CPUs of its own names no resource of ours, and kube-scheduler accepts no kubernetes.io name there."""
    (extender,) = scheduler_config(render({"domain": domain}))["extenders"]

    assert "managedResources" not in extender


@pytest.mark.parametrize(
    ("domain", "types", "ignored"),
    [
        ("kubernetes.io", [], None),
        ("koordinator.sh", [], ["koordinator.sh/gpu.shared"]),
        ("kubernetes.io", [NPU], None),
        ("kubernetes.io", [QUEUE, NPU], ["example.com/queue"]),
        ("koordinator.sh", [QUEUE], ["example.com/queue", "koordinator.sh/gpu.shared"]),
        ("kubernetes.io", [{"name": "ip", "resource": "example.com/ip"}], ["example.com/ip"]),
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
        ("fragmentation", "MostAllocated"),
        ("leastRequested", "LeastAllocated"),
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


def test_the_scheduler_finds_what_it_reads(objects: list[JsonObject]) -> None:
    spec = pods(objects)["koord-scheduler"]["spec"]
    (container,) = spec["containers"]

    assert container["image"] == "registry.k8s.io/kube-scheduler:v1.37.2"
    assert container["command"] == ["kube-scheduler", "--config=/etc/koord-scheduler/config.yaml"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"config": "/etc/koord-scheduler", "tls": "/etc/koord-scheduler-tls"}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    keys = ("ca.crt", "tls.crt", "tls.key")
    assert volumes["tls"]["secret"] == {
        "secretName": settings.Certificate().client_secret,
        "optional": False,  # the kubelet waits until the webhook has made it
        "defaultMode": 0o440,
        "items": [{"key": f"extender-{key}" if key == "ca.crt" else key, "path": key} for key in keys],
    }
    (extender,) = scheduler_config(objects)["extenders"]
    assert sorted(extender["tlsConfig"].values()) == [f"{mounts['tls']}/{key}" for key in keys]


def test_without_client_certificates_the_scheduler_has_the_ca_alone(render: Render) -> None:
    rendered = render({"scheduler": {"clientCertificates": False}})

    (extender,) = scheduler_config(rendered)["extenders"]
    assert extender["tlsConfig"] == {"caFile": "/etc/koord-scheduler-tls/ca.crt"}
    (volume,) = (v for v in pods(rendered)["koord-scheduler"]["spec"]["volumes"] if v["name"] == "tls")
    items = [{"key": "ca.crt", "path": "ca.crt"}]
    assert volume["secret"] == {"secretName": settings.Certificate().extender_secret, "items": items}


def test_the_scheduler_calls_the_port_of_the_service_that_leads_to_the_extenders(objects: list[JsonObject]) -> None:
    (extender,) = scheduler_config(objects)["extenders"]
    port = int(extender["urlPrefix"].removesuffix("/scheduler").rpartition(":")[2])

    (target,) = (
        one["targetPort"] for one in find(objects, "Service", "koordgate")["spec"]["ports"] if one["port"] == port
    )

    assert target == settings.parse(settings_text(objects)).serve.extender_port


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


def test_the_webhook_is_started_with_its_settings(objects: list[JsonObject], chart_folder: Path) -> None:
    template = pods(objects)["koordgate"]
    (container,) = template["spec"]["containers"]
    version = yaml.safe_load((chart_folder / "Chart.yaml").read_text())["appVersion"]

    assert container["image"] == f"koordgate:{version}"
    assert container["command"] == ["koordgate"], "whatever entry point the image has"
    assert container["args"] == ["webhook", "--config", "/etc/koordgate/config.yaml"]
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "https", "scheme": "HTTPS"}
    assert {"config", "tmp"} == {mount["name"] for mount in container["volumeMounts"]}
    service = find(objects, "Service", "koordgate")["spec"]
    assert service["ports"] == [
        {"name": "https", "port": 443, "targetPort": 9443, "protocol": "TCP"},
        {"name": "extender", "port": 9444, "targetPort": 9444, "protocol": "TCP"},
    ]
    assert service["selector"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("delay", [0, 5, 29.5, 600])
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


def test_by_default_each_deployment_survives_the_death_of_a_node(objects: list[JsonObject]) -> None:
    """Two replicas on different nodes; one that is lost is replaced half a minute after its node was found dead."""
    budgets = {item["metadata"]["name"] for item in objects if item["kind"] == "PodDisruptionBudget"}
    for name in ("koordgate", "koord-scheduler"):
        deployment = find(objects, "Deployment", name)["spec"]
        assert deployment["replicas"] == 2
        spec = deployment["template"]["spec"]
        (spread,) = (one for one in spec["topologySpreadConstraints"] if one["whenUnsatisfiable"] == "DoNotSchedule")
        assert (spread["topologyKey"], spread["maxSkew"], spread["nodeTaintsPolicy"], spread["matchLabelKeys"]) == (
            "kubernetes.io/hostname",
            1,
            "Honor",
            ["pod-template-hash"],
        )
        assert {(one["key"], one["effect"], one["tolerationSeconds"]) for one in spec["tolerations"]} == {
            ("node.kubernetes.io/not-ready", "NoExecute", 30),
            ("node.kubernetes.io/unreachable", "NoExecute", 30),
        }
        assert name in budgets
    assert scheduler_config(objects)["leaderElection"]["leaderElect"] is True


def test_further_tolerations_stand_beside_those_of_dead_nodes(render: Render) -> None:
    mine = {"key": "gpu", "operator": "Exists"}
    rendered = render({"tolerations": [mine], "nodeFailureSeconds": 5})
    first, *others = pods(rendered)["koordgate"]["spec"]["tolerations"]
    assert first == mine
    assert [one["tolerationSeconds"] for one in others] == [5, 5]


def ingress(objects: list[JsonObject]) -> dict[str, list[JsonObject]]:
    return {item["metadata"]["name"]: item["spec"]["ingress"] for item in objects if item["kind"] == "NetworkPolicy"}


def test_a_network_policy_opens_the_webhooks_port_to_all_and_the_extenders_to_the_scheduler(render: Render) -> None:
    rendered = render({"networkPolicy": {"enabled": True}, "webhook": {"port": 8443, "extenderPort": 8444}})

    labels = find(rendered, "Deployment", "koord-scheduler")["spec"]["selector"]["matchLabels"]
    assert ingress(rendered) == {
        "koordgate": [
            {"ports": [{"port": 8443, "protocol": "TCP"}]},
            {
                "ports": [{"port": 8444, "protocol": "TCP"}],
                "from": [{"podSelector": {"matchLabels": labels}}],
            },
        ],
        "koord-scheduler": [],
        "koordgate-reporter": [{"ports": [{"port": 9446, "protocol": "TCP"}]}],
    }


def test_a_network_policy_opens_the_webhooks_port_and_the_reporters_to_the_callers_that_the_values_state(
    render: Render,
) -> None:
    callers = [{"ipBlock": {"cidr": "10.0.0.1/32"}}, {"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    rules = ingress(render({"networkPolicy": {"enabled": True, "callers": callers}}))
    assert rules["koordgate"][0] == {"ports": [{"port": 9443, "protocol": "TCP"}], "from": callers}
    assert rules["koordgate-reporter"] == [{"ports": [{"port": 9446, "protocol": "TCP"}], "from": callers}]


def test_the_api_servers_ca_reaches_the_settings_as_it_is(render: Render) -> None:
    authority = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    rendered = render({"webhook": {"clientAuthority": authority, "clientName": "api-server"}})
    serve = yaml.safe_load(find(rendered, "ConfigMap", "koordgate")["data"]["config.yaml"])["serve"]
    assert (serve["clientAuthority"], serve["clientName"]) == (authority, "api-server")


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

    allocations = versions(objects, "nodeallocations.koordgate.io")["spec"]["properties"]["allocations"]

    assert (definition["group"], definition["names"]["kind"], definition["scope"]) == (
        group,
        nodeallocation.KIND,
        "Cluster",
    )
    assert definition["versions"][0]["name"] == version
    assert definition["names"]["shortNames"] == ["na"]
    assert (allocations["x-kubernetes-list-type"], allocations["x-kubernetes-list-map-keys"]) == ("map", ["uid"])
    (entry,) = written["allocations"]
    assert set(entry) == set(allocations["items"]["properties"])
    assert set(allocations["items"]["required"]) == {"uid", "namespace", "name", "since", "devices"}
    device = allocations["items"]["properties"]["devices"]["items"]
    # A share's fields have no schema, which the API server would check again at each bind; the description has them.
    assert set(device) == {"description", "type", "x-kubernetes-preserve-unknown-fields"}
    described = allocations["items"]["properties"]["devices"]["description"]
    assert all(re.search(rf"\b{field}\b", described) for field in entry["devices"][0])
    held = allocations["items"]["properties"]["cpus"]
    assert set(held) == {"description", "type", "x-kubernetes-preserve-unknown-fields"}
    for field in (*entry["cpus"], *entry["cpus"]["numaNodes"][0], *entry["devices"][0]["functions"][0]):
        assert re.search(rf"\b{field}\b", held["description"] + described), field


def test_objects_keep_fields_that_these_definitions_do_not_know(objects: list[JsonObject]) -> None:
    ledger = versions(objects, "nodeallocations.koordgate.io")["spec"]["properties"]["allocations"]["items"]
    device = versions(objects, "devices.scheduling.koordinator.sh")["spec"]["properties"]["devices"]["items"]

    topology = find(objects, "CustomResourceDefinition", TOPOLOGIES)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    held = ledger["properties"]
    for schema in (
        ledger,
        held["devices"]["items"],
        held["cpus"],
        device,
        device["properties"]["topology"],
        topology,
        topology["properties"]["zones"]["items"],
    ):
        assert schema["x-kubernetes-preserve-unknown-fields"] is True


def test_koordinators_device_has_its_fields(objects: list[JsonObject]) -> None:
    definition = find(objects, "CustomResourceDefinition", "devices.scheduling.koordinator.sh")["spec"]
    device = versions(objects, "devices.scheduling.koordinator.sh")["spec"]["properties"]["devices"]["items"][
        "properties"
    ]

    assert (definition["group"], definition["names"]["kind"], definition["scope"]) == (
        "scheduling.koordinator.sh",
        "Device",
        "Cluster",
    )
    assert set(device) == {
        "type",
        "labels",
        "id",
        "minor",
        "moduleID",
        "health",
        "resources",
        "topology",
        "vfGroups",
        "conditions",
    }
    assert set(device["topology"]["properties"]) == {"socketID", "nodeID", "pcieID", "busID"}
    assert device["resources"]["additionalProperties"]["x-kubernetes-int-or-string"] is True


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
    zone = nodetopology.NumaZone({"cpu": 31_500, "memory": 2**36}, {"cpu": 32_000, "memory": 2**37})
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


def test_a_definition_in_a_group_of_kubernetes_says_where_it_was_approved(objects: list[JsonObject]) -> None:
    """The API server accepts no such definition without it."""
    for item in objects:
        if item["kind"] == "CustomResourceDefinition" and item["spec"]["group"].endswith(".k8s.io"):
            annotations = item["metadata"]["annotations"]
            assert annotations["api-approved.kubernetes.io"].startswith("https://github.com/kubernetes/")
            break
    else:
        pytest.fail("there is no such definition")


@pytest.mark.parametrize("lacking", [{"tracing": None}, {"map": None}, {"certificate": {"certManager": None}}])
def test_values_of_an_older_chart_are_refused_with_how_to_upgrade(render: Render, lacking: dict[str, Any]) -> None:
    """`helm upgrade --reuse-values` brings them: the defaults of the version that is installed."""
    with pytest.raises(ChartError, match="--reset-then-reuse-values"):
        render(lacking)
