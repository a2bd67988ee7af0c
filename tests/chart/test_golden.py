"""What the chart renders by default, and what other values change in it: the files of `golden`.

`KOORDGATE_GOLDEN=write .venv/bin/python -m pytest tests/chart/test_golden.py` writes them; look at what changed.
"""

import difflib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from value_sets import VALUE_SETS

from localplane.admin import JsonObject
from localplane.chart import find, settings_text
from reporter import settings as reporter
from webhook import settings as webhook

Render = Callable[..., list[JsonObject]]
GOLDEN: Final = Path(__file__).parent / "golden"
POLICY: Final = "ValidatingAdmissionPolicy"
_QUEUE: Final = {
    "name": "queue",
    "resource": "example.com/queue",
    "unit": "units",
    "environment": "QUEUE",
    "pools": [{"nodeSelector": {"site": "west"}, "devices": {"fast": 10**10, "slow": 40}}],
    "ignoredByScheduler": True,
}
SETS: Final = (
    "highly available",
    "certificates of cert-manager",
    "certificates of an administrator",
    "callers with certificates",
    "outside the cluster",
    "network policies",
    "headroom kept",
    "DRA with taints",
    "gangs as a whole",
    "a reporter with all rights",
    "a reporter with few rights",
    "Pods of a platform team",
    "an image by its digest",
)
EVERY_SETTING: Final[dict[str, Any]] = {
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
        "nominateFrom": 50,
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
        "delivery": "nvidia-nri",
        "deliveryUnknown": "refuse",
        "closed": True,
        "runtimeClassName": "cards",
        "quotaEnvironment": True,
        "order": "leastUsed",
        "tolerations": {"gpu": ["nvidia.com/gpu", "amd.com/gpu"], "queue": ["example.com/queue"]},
        "types": [_QUEUE],
    },
    "limits": {"provider": "nvidia-toolkit", "require": ["batch", "*"]},
    "enforcement": {
        "enabled": True,
        "directory": "/run/nri",
        "kinds": {"rdma": "example.com/rdma"},
        "hamiCore": {"library": "/opt/hami/libvgpu.so"},
        "mps": {"pipe": "/run/nvidia-mps", "shm": "/run/nvidia-mps/shm"},
    },
    "cpus": {
        "bindPolicy": "SpreadByPCPUs",
        "exclusivePolicy": "NUMANodeLevel",
        "numaAllocateStrategy": "DistributeEvenly",
        "numaTopologyPolicy": "SingleNUMANode",
    },
    "numa": {
        "scope": {"scheduler": False, "namespaces": ["training", "batch"], "selector": {"example.com/numa": "true"}}
    },
    "exemptNamespaces": ["gpu-operator"],
    "quota": {"enabled": False},
    "mode": "shadow",
    "map": {"enabled": True, "port": 8445, "clients": 7},
    "dra": {"taints": True, "drivers": {"nic.example.com": "rdma"}},
    "headroom": {"mode": "taint", "taintBelowPercent": 120, "untaintFromPercent": 300, "untaintAfterSeconds": 0},
    "adopt": {
        "peers": ["hami"],
        "schedulers": {"hami": ["their-scheduler"]},
        "writers": ["their-binder"],
        "reservationNamespaces": ["theirs"],
    },
    "mirror": ["hami"],
    "dialects": {
        "hami": {"enabled": True, "defaultMemory": "4Gi", "defaultCores": 30},
        "gpushare": {"enabled": True, "namespaces": ["batch"], "memoryUnit": "1Mi"},
        "tencent": {"namespaces": ["batch"]},
    },
    "reporter": {
        "roundSeconds": 2.5,
        "port": 9999,
        "kubelet": {"directory": "/data/kubelet", "configuration": "/etc/kubelet.yaml", "configz": True},
        "gpus": {
            "enabled": False,
            "discoveryLabels": False,
            "quietSeconds": 1,
            "provingSeconds": 2,
            "outageSeconds": 3,
        },
        "runtime": {"directories": ["/etc/crio"]},
        "pci": [{"type": "fpga", "vendor": "0x10ee", "device": "0x5004", "class": "0x1200"}],
        "cpus": {"enforce": False, "memory": True},
        "proof": {"enabled": False, "environment": True},
        "metrics": {"pods": True},
    },
}


def text(objects: list[JsonObject]) -> list[str]:
    """The objects as YAML, without labels (a test of their own), schemas, and the expressions of policies."""
    for one in objects:
        del one["metadata"]["labels"]
        if one["kind"] == "ConfigMap":
            one["data"] = {name: yaml.safe_load(content) for name, content in one["data"].items()}
        if one["kind"] == POLICY:
            one["spec"] = {key: one["spec"][key] for key in one["spec"] if key not in {"variables", "validations"}}
    kept = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    ordered = sorted(kept, key=lambda one: (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")))
    made = yaml.safe_dump_all(ordered, width=120, default_flow_style=None)
    return re.sub(r"(checksum/[\w-]+): \w+", r"\1: ...", made).splitlines(keepends=True)


@pytest.fixture(scope="module")
def defaults(render: Render) -> list[str]:
    return text(render())


def compare(file: Path, said: str) -> None:
    if os.environ.get("KOORDGATE_GOLDEN") == "write":
        file.write_text(said, encoding="utf-8")
    assert said == file.read_text(encoding="utf-8")


def test_by_default_the_chart_renders_what_its_file_says(defaults: list[str]) -> None:
    compare(GOLDEN / "defaults.yaml", "".join(defaults))


@pytest.mark.parametrize("name", SETS)
def test_other_values_change_what_their_files_say(render: Render, defaults: list[str], name: str) -> None:
    made = text(render(VALUE_SETS[name]))
    said = difflib.unified_diff(defaults, made, "defaults", name, n=1)
    compare(GOLDEN / f"{name.replace(' ', '-')}.diff", "".join(said))


def leaves(made: msgspec.Struct, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(made):
        value, here = getattr(made, field.name), f"{path}{field.encode_name}"
        found |= leaves(value, f"{here}.") if isinstance(value, msgspec.Struct) else {here: value}
    return found


# What has no value, or is set by another set of values here.
UNSET: Final = {
    *(f"certificate.{key}" for key in ("clientAuthority", "clientSecret", "extenderAuthorityDays", "extenderSecret")),
    *("certificate.files", "certificate.ipAddresses", "certificate.secret", "dra.enabled"),
    *("identity.mutating", "identity.namespace", "identity.validating"),
    *("serve.clientAuthority", "serve.clientName", "tracing.authority"),
    *("kubelet.deviceCheckpoint", "mirror.volcanoUnit", "node", "roots.dev", "roots.proc", "roots.state"),
    *("runtime.ownHandler", "runtime.policies"),
}


def unchanged(made: msgspec.Struct) -> set[str]:
    """The keys that are as by default."""
    return {key for key, value in leaves(type(made)()).items() if leaves(made)[key] == value}


def test_every_value_reaches_the_settings(render: Render) -> None:
    rendered = render(EVERY_SETTING)
    of_reporter = reporter.parse(find(rendered, "ConfigMap", "koordgate-reporter")["data"]["config.yaml"])
    assert unchanged(webhook.parse(settings_text(rendered))) | unchanged(of_reporter) == UNSET
    names = ("koordgate", "koordgate-reporter")
    compare(GOLDEN / "every-setting.yaml", "".join(text([find(rendered, "ConfigMap", name) for name in names])))


def test_the_settings_of_the_defaults_are_the_defaults(render: Render) -> None:
    rendered = render()
    assert webhook.parse(settings_text(rendered)) == webhook.parse(
        "certificate: {dnsNames: [koordgate, koordgate.koordgate-system, koordgate.koordgate-system.svc,"
        " koordgate.koordgate-system.svc.cluster.local]}\n"
        "quota: {exemptNamespaces: [koordgate-system, kube-system]}"
    )
    runtime = "{runtimeClassName: nvidia, handler: nvidia, ownHandler: '', policies: true}"
    roots = "{sysfs: /host/sys, proc: /proc, cgroup: /host/cgroup}"
    expected = reporter.parse(f"{{roots: {roots}, runtime: {runtime}, serve: {{host: 0.0.0.0}}}}")
    assert reporter.parse(find(rendered, "ConfigMap", "koordgate-reporter")["data"]["config.yaml"]) == expected
