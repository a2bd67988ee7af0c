"""The checks of `koordgate doctor`: a right cluster has no complaint, and each change of it makes one."""

import base64
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from msgspec import structs

from allocator.vocabulary.adopted import Product
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import Mode
from console.doctor import trials
from console.doctor.checks import examine
from console.doctor.command import data, summary, table
from console.doctor.findings import Finding, Level, exit_status
from console.doctor.reader import actions, shipped, wanted
from console.doctor.rights import needed
from console.doctor.snapshot import Snapshot
from console.doctor.trials import Came, Expect, Trial, TrialOutcome
from console.reading import ReadList
from webhook.settings import (
    AdoptSettings,
    CertificateFiles,
    DialectSettings,
    HeadroomSettings,
    TypicalSettings,
    WebhookSettings,
)
from webhook.tls.pki import Pair, new_authority, new_certificate

Raw = dict[str, Any]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPACE = "koordgate-system"
SETTINGS = WebhookSettings()
POLICIES = (
    "koordgate-allocations",
    "koordgate-bindings",
    "koordgate-modes",
    "koordgate-preset-node",
    "koordgate-visible-devices",
)
WEBHOOKS = {
    "mutating": ("bindings.mutate.koordgate.io", "pods.mutate.koordgate.io", "updates.mutate.koordgate.io"),
    "validating": ("bindings.validate.koordgate.io", "guard.validate.koordgate.io", "pods.validate.koordgate.io"),
}
AUTHORITY = new_authority("koordgate", NOW - timedelta(days=1), 365)
SHIPPED = shipped()


def meta(name: str, namespace: str = "", **about: Mapping[str, str]) -> Raw:
    labels, annotations = dict(about.get("labels", {})), dict(about.get("annotations", {}))
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}}


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def secret(name: str, leaf: Pair, authority: Pair) -> Raw:
    return {**meta(name), "data": {"tls.crt": encoded(leaf.certificate), "ca.crt": encoded(authority.certificate)}}


def leaf(authority: Pair = AUTHORITY, days: float = 30) -> Pair:
    return new_certificate(authority, ["koordgate.koordgate-system.svc"], [], NOW - timedelta(days=1), days)


# What the tests state of an object, flat; `written` makes the object of it that an API server would send.


def workload(name: str, namespace: str = SPACE, image: str = "koordgate:1", wanted: int = 2, ready: int = 2) -> Raw:
    about = {"images": [image], "wanted": wanted, "ready": ready, "runtimeClass": ""}
    return {**meta(name, namespace), **about}


def pod(name: str, of: str, node: str, image: str = "koordgate:1") -> Raw:
    about = {"node": node, "ready": True, "images": [image], "waiting": []}
    return {**meta(name, SPACE, labels={"app.kubernetes.io/name": of}), **about}


def node(name: str, **about: Any) -> Raw:
    base = {"allocatable": {}, "ready": True, "taints": []}
    return {**meta(name, labels={"nvidia.com/gpu.present": "true"}), **base, **about}


CARD: Raw = {"type": "gpu", "resources": {"koordinator.sh/gpu-memory": "80Gi"}}
RUNTIME = '{"handlers":["runc","nvidia"],"showing":["nvidia"],"defaultShows":false,"toolkit":"1.18.0","mode":"cdi"}'


def device(name: str, runtime: str | None = RUNTIME, **about: Any) -> Raw:
    annotations = {} if runtime is None else {"koordgate.io/runtime": runtime}
    return {**meta(name, annotations=annotations), "types": ["gpu"], "vendors": ["nvidia"], "managers": [], **about}


def entries(names: tuple[str, ...]) -> list[Raw]:
    config = {"caBundle": encoded(AUTHORITY.certificate)}
    return [{"name": name, "failurePolicy": "Fail", "clientConfig": config} for name in names]


def quota(name: str, hard: Mapping[str, str], **about: Any) -> Raw:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "1", **about}
    return {"metadata": metadata, "spec": {"hard": dict(hard)}}


def event(reason: str, about: str, minutes: float) -> Raw:
    """What a replica said so many minutes ago."""
    at = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**meta("e", "team"), "reason": reason, "about": about, "message": "why", "at": at}


MIRROR = {
    "labels": {"quota.koordgate.io/mirror": "true"},
    "ownerReferences": [{"kind": "ResourceQuota", "uid": "uid-cards"}],
}


def right_cluster() -> dict[str, list[Raw]]:
    managed: Raw = {"managers": ["koordgate-reporter"]}
    nodes = ["node-1", "node-2"]
    return {
        "nodes": [node(name) for name in nodes],
        "devices": [device(name, **managed) for name in nodes],
        "topologies": [
            {**meta(name, annotations={"kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"none"}'}), **managed}
            for name in nodes
        ],
        "pods": [
            *(pod(f"koordgate-{name}", "koordgate", name) for name in nodes),
            *(pod(f"reporter-{name}", "koordgate-reporter", name) for name in nodes),
        ],
        "leases": [{**meta(name), "renewed": (NOW - timedelta(seconds=4)).isoformat()} for name in nodes],
        "deployments": [
            workload("koordgate"),
            workload("koord-scheduler", image="kube-scheduler:1"),
        ],
        "daemonsets": [workload("koordgate-reporter")],
        "mutating": [{**meta("koordgate"), "webhooks": entries(WEBHOOKS["mutating"])}],
        "validating": [{**meta("koordgate"), "webhooks": entries(WEBHOOKS["validating"])}],
        "policies": [meta(name) for name in POLICIES],
        "policyBindings": [
            {**meta(name), "spec": {"policyName": name, "validationActions": ["Deny"]}} for name in POLICIES
        ],
        "quotas": [
            quota("cards", {"requests.nvidia.com/gpu": "4"}),
            quota("cards.koordgate", {"requests.quota.koordgate.io/gpu": "400"}, **MIRROR),
        ],
        "events": [event("AllocationDisputed", "team/p", minutes=33), event("GangWaits", "team/q", minutes=1)],
        "runtimes": [{**meta("nvidia"), "handler": "nvidia"}],
        "budgets": [meta("koordgate", SPACE)],
        "crds": [copy.deepcopy(one) for one in SHIPPED.values()],
        "levels": [meta("koordgate"), meta("koord-scheduler")],
        "flows": [meta("koordgate"), meta("koord-scheduler")],
        "secrets": [secret(name, leaf(), AUTHORITY) for name in ("koordgate-tls", "koordgate-extender-tls")],
    }


def written(key: str, flat: Raw) -> Raw:
    """The object that an API server would send."""
    about, ready = flat["metadata"], str(flat.get("ready"))
    conditions = [{"type": "A", "status": "True"}, {"type": "Ready", "status": ready}, {"type": "Z", "status": "True"}]
    owners = [{"manager": name} for name in flat.get("managers", ())]
    containers = [{"image": image} for image in flat.get("images", ())]
    spec: Raw
    status: Raw
    match key:
        case "nodes":
            taints = [
                *flat["taints"],
                {"key": "other", "effect": "NoSchedule"},
                *([{"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}] if flat.get("short") else []),
            ]
            spec, status = {"taints": taints}, {"allocatable": flat["allocatable"], "conditions": conditions}
        case "devices":
            labelled = [{"node.koordinator.sh/gpu-vendor": one} for one in flat["vendors"]]
            cards = [{**CARD, "id": f"GPU-{at}", "minor": at, "labels": of} for at, of in enumerate(labelled)]
            cards = cards if "gpu" in flat["types"] else []
            others = [{"type": one} for one in flat["types"] if one != "gpu"]
            spec, status = {"devices": [*others, *cards, 7, {}]}, {}
        case "pods":
            states: list[Raw] = [
                {"state": {"waiting": {"reason": one}} if one else {"running": {}}} for one in flat["waiting"]
            ]
            spec = {"nodeName": flat["node"], "containers": containers}
            status = {"conditions": conditions, "containerStatuses": [{}, *states]}
        case "leases":
            spec, status = {"renewTime": flat["renewed"]}, {}
        case "deployments" | "daemonsets":
            template = {"spec": {"containers": containers, "runtimeClassName": flat["runtimeClass"]}}
            many = key == "deployments"
            spec = {"template": template, **({"replicas": flat["wanted"]} if many else {})}
            status = {"readyReplicas" if many else "numberReady": flat["ready"]}
            status |= {} if many else {"desiredNumberScheduled": flat["wanted"]}
        case "events":
            space, _, name = flat["about"].rpartition("/")
            regarding = {"involvedObject": {"name": name, **({"namespace": space} if space else {})}}
            return {
                **regarding,
                "metadata": about,
                **{of: flat[of] for of in ("reason", "message")},
                "lastTimestamp": flat["at"],
            }
        case "topologies":
            spec, status = {}, {}
        case _:
            return flat
    return {"metadata": {**about, "managedFields": [*owners, {}]}, "spec": spec, "status": status}


def snapshot(cluster: Mapping[str, list[Raw]] | None = None, **about: Any) -> Snapshot:
    keep = {one.key: one.keep for one in wanted(SPACE, SETTINGS)}
    read = {
        key: ReadList(tuple(keep[key](written(key, one)) for one in items))
        for key, items in (cluster or right_cluster()).items()
    }
    base: dict[str, Any] = {
        "settings": SETTINGS,
        "reporter": {"cpus": {"enforce": True}},
        "version": "v1.36.3",
        "offset": 0.5,
        "now": NOW.timestamp(),
        "rights": dict.fromkeys(needed(SETTINGS, reporter=True, configz=False), True),
        "crds": SHIPPED,
    }
    return Snapshot(SPACE, read, **{**base, **about})


def bad(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level is not Level.OK]


def test_a_right_cluster_has_no_complaint() -> None:
    found = examine(snapshot())
    assert bad(found) == []
    areas = "versions clocks installed certificates rights enforcement quotas nodes told delivery headroom"
    assert {*areas.split(), "other products"} == {one.area for one in found}


def first(key: str, **about: Any) -> Callable[[dict[str, list[Raw]]], object]:
    """Change the first object of a kind."""

    def change(cluster: dict[str, list[Raw]]) -> None:
        cluster[key][0].update(about)

    return change


def without(key: str, at: int = 0) -> Callable[[dict[str, list[Raw]]], object]:
    def change(cluster: dict[str, list[Raw]]) -> None:
        del cluster[key][at]

    return change


def add(key: str, obj: Raw) -> Callable[[dict[str, list[Raw]]], object]:
    return lambda cluster: cluster[key].append(obj)


def _older_definition(cluster: dict[str, list[Raw]]) -> None:
    found = next(one for one in cluster["crds"] if one["metadata"]["name"] == "nodeallocations.koordgate.io")
    found["spec"]["versions"][0]["additionalPrinterColumns"] = []


def _unserved(cluster: dict[str, list[Raw]]) -> None:
    cluster["crds"][0]["spec"]["versions"][0]["served"] = False


def _other_authority(cluster: dict[str, list[Raw]]) -> None:
    other = new_authority("other", NOW - timedelta(days=1), 365)
    cluster["secrets"][0] = secret("koordgate-tls", leaf(other), other)


def _ignored(cluster: dict[str, list[Raw]]) -> None:
    for one in cluster["mutating"][0]["webhooks"]:
        one["failurePolicy"] = "Ignore"


AGREES = '{"u1": {"pod": "team/a", "agrees": true}, "u2": {"pod": "team/b", "agrees": false}}'
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17"
KOORDLET = "registry.example.com/koordinator-sh/koordlet:v1.6"
VOLCANO = [{"name": "mutatepod.volcano.sh", "clientConfig": {}}]
OLD = (NOW - timedelta(minutes=5)).isoformat()
FUTURE = (NOW + timedelta(minutes=5)).isoformat()
EXPIRED = secret("koordgate-tls", leaf(days=0.5), AUTHORITY)
ENDING = secret("koordgate-tls", leaf(days=4), AUTHORITY)

CHANGES: dict[str, tuple[Callable[[dict[str, list[Raw]]], object], Level, str]] = {
    "an older definition": (_older_definition, Level.WARNING, "nodeallocations.koordgate.io is not that of"),
    "a definition that is not there": (without("crds"), Level.FAILURE, "there is no definition"),
    "a definition that is not served": (_unserved, Level.FAILURE, "does not serve v1alpha1"),
    "two images": (first("pods", images=["koordgate:2"]), Level.WARNING, "run 2 images: koordgate:1, koordgate:2"),
    "a kubelet whose clock is behind": (first("leases", renewed=OLD), Level.WARNING, "behind the API server's: node-1"),
    "a kubelet whose clock is ahead": (first("leases", renewed=FUTURE), Level.WARNING, "ahead of the API server's"),
    "a lease without a time": (first("leases", renewed="soon"), Level.OK, "the clocks of 1 kubelet "),
    "no webhook": (without("deployments"), Level.FAILURE, "there is no koordgate among the deployments"),
    "no replica": (first("deployments", ready=0), Level.FAILURE, "koordgate: 0 of 2 Pods are ready"),
    "half of the replicas": (first("deployments", ready=1), Level.WARNING, "koordgate: 1 of 2 Pods are ready"),
    "one replica": (first("deployments", wanted=1), Level.WARNING, "the webhook has one replica"),
    "another's scheduler": (without("deployments", 1), Level.UNKNOWN, "koord-scheduler is not installed by this chart"),
    "no node for reporters": (first("daemonsets", wanted=0, ready=0), Level.WARNING, "no node takes it"),
    "reporters of nodes with cards": (
        add("daemonsets", workload("koordgate-reporter-gpu")),
        Level.OK,
        "koordgate-reporter-gpu: 2 of 2 Pods are ready",
    ),
    "reporters of nodes with cards that are not ready": (
        add("daemonsets", workload("koordgate-reporter-gpu", ready=0)),
        Level.FAILURE,
        "koordgate-reporter-gpu: 0 of 2 Pods are ready",
    ),
    "no budget": (without("budgets"), Level.WARNING, "no PodDisruptionBudget"),
    "no priority level": (without("levels"), Level.WARNING, "schema of its own: koordgate"),
    "no mutating configuration": (without("mutating"), Level.FAILURE, "there is no mutating webhook configuration"),
    "an entry that is not there": (
        first("mutating", webhooks=entries(WEBHOOKS["mutating"][:1])),
        Level.FAILURE,
        "lacks pods.mutate.koordgate.io",
    ),
    "no CA": (
        first("mutating", webhooks=[{"name": name} for name in WEBHOOKS["mutating"]]),
        Level.FAILURE,
        "states no CA: bindings.mutate.koordgate.io, pods.mutate.koordgate.io",
    ),
    "a CA that is none": (
        first("mutating", webhooks=[{"name": one, "clientConfig": {"caBundle": "!"}} for one in WEBHOOKS["mutating"]]),
        Level.FAILURE,
        "cannot be read",
    ),
    "entries that are Ignore": (_ignored, Level.WARNING, "failurePolicy is Ignore"),
    "another CA": (_other_authority, Level.FAILURE, "does not trust the CA of Secret koordgate-tls"),
    "an expired certificate": (
        lambda cluster: cluster["secrets"].__setitem__(0, EXPIRED),
        Level.FAILURE,
        "the certificate expired at 2026-03-01",
    ),
    "a certificate that ends soon": (
        lambda cluster: cluster["secrets"].__setitem__(0, ENDING),
        Level.WARNING,
        "the certificate expires at 2026-03-04",
    ),
    "no Secret": (without("secrets"), Level.FAILURE, "there is no Secret koordgate-tls"),
    "a Secret without a certificate": (first("secrets", data={}), Level.FAILURE, "the certificate is empty"),
    "a policy that is off": (without("policyBindings", 4), Level.WARNING, "koordgate-visible-devices is not installed"),
    "modes that tenants set": (without("policyBindings", 2), Level.WARNING, "koordgate-modes is not installed"),
    "a policy that warns": (
        first("policyBindings", spec={"policyName": POLICIES[0], "validationActions": ["Warn", "Audit"]}),
        Level.WARNING,
        "koordgate-allocations refuses nothing (Warn, Audit)",
    ),
    "a misspelt label of two Nodes": (
        lambda cluster: [one["metadata"]["labels"].update({"koordgate.io/deliveri": "x"}) for one in cluster["nodes"]],
        Level.WARNING,
        "on node-1, node-2",
    ),
    "a Pod with other devices": (
        lambda cluster: cluster["devices"][0]["metadata"]["annotations"].update({"koordgate.io/pod-agreement": AGREES}),
        Level.FAILURE,
        "Pods with other devices or CPUs than allocated (1): team/b",
    ),
    "an agreement that is nested too deeply": (
        lambda cluster: cluster["devices"][0]["metadata"]["annotations"].update(
            {"koordgate.io/pod-agreement": "[" * 99_999}
        ),
        Level.WARNING,
        "cannot be read on node-1",
    ),
    "an agreement that is none": (
        lambda cluster: cluster["devices"][0]["metadata"]["annotations"].update({"koordgate.io/pod-agreement": "[1"}),
        Level.WARNING,
        "cannot be read on node-1",
    ),
    "NVIDIA's plugin": (add("daemonsets", workload("p", "gpu", PLUGIN)), Level.WARNING, "device plugin runs: gpu/p"),
    "koordlet": (
        add("daemonsets", workload("koordlet", "k", KOORDLET)),
        Level.FAILURE,
        "two writers of Device objects",
    ),
    "Volcano's webhook": (add("mutating", {**meta("v"), "webhooks": VOLCANO}), Level.WARNING, "Volcano runs: webhook"),
    "a plugin's cards": (
        first("nodes", allocatable={"nvidia.com/gpu": "8"}),
        Level.WARNING,
        "offers nvidia.com/gpu on 1 node of koordgate's: node-1",
    ),
    "no mirror": (without("quotas", 1), Level.FAILURE, "have no right mirror (1): team/cards"),
    "a wrong mirror": (
        lambda cluster: cluster["quotas"][1]["spec"]["hard"].update({"requests.quota.koordgate.io/gpu": "900"}),
        Level.FAILURE,
        "have no right mirror (1): team/cards",
    ),
    "cards that nobody reports": (without("devices"), Level.FAILURE, "cards and no Device object (1): node-1"),
    "a Device without a Node": (without("nodes"), Level.WARNING, "Device objects of nodes that do not exist: node-1"),
    "a reporter that is away": (without("pods", 2), Level.FAILURE, "not kept up to date: node-1"),
    "a node that is away": (first("nodes", ready=False), Level.WARNING, "with devices that are not ready (1): node-1"),
    "taints that nobody keeps": (
        first("nodes", short=True),
        Level.WARNING,
        "the taint koordgate.io/headroom is on 1 of 2 nodes, and nobody keeps it (headroom.mode none): node-1",
    ),
    "two that were told to be disputed": (
        lambda cluster: cluster["events"].extend(
            [event("AllocationDisputed", name, minutes=31) for name in ("team/p", "team/r", "team/p")]
        ),
        Level.FAILURE,
        "AllocationDisputed about 2 objects: team/p, team/r; team/p: why",
    ),
    "a card that vanished": (
        add("events", event("DeviceVanished", "team/p", minutes=0)),
        Level.FAILURE,
        "DeviceVanished about 1 object: team/p",
    ),
    "an object that cannot be read, which anybody can make": (
        add("events", event("CannotBeRead", "node-1", minutes=0)),
        Level.WARNING,
        "CannotBeRead about 1 object: node-1; node-1: why",
    ),
    "cards of another maker": (
        first("devices", vendors=["other"]),
        Level.OK,
        "containers get their cards on 1 node (node-2)",
    ),
    "no topology": (without("topologies"), Level.WARNING, "without a NodeResourceTopology (1): node-1"),
    "no RuntimeClass for cards": (without("runtimes"), Level.FAILURE, "Pods get no cards on 2 nodes (node-1, node-2)"),
    "a silent runtime": (
        lambda cluster: cluster["devices"][0]["metadata"].update(annotations={}),
        Level.WARNING,
        "on 1 node (node-1); environment is taken for granted: no reporter tells of its runtime",
    ),
    "a runtime class that is not there": (
        first("daemonsets", runtimeClass="gpus"),
        Level.FAILURE,
        "there is no RuntimeClass gpus",
    ),
    "a runtime class of nodes with cards that is not there": (
        add("daemonsets", {**workload("koordgate-reporter-gpu"), "runtimeClass": "gpus"}),
        Level.FAILURE,
        "there is no RuntimeClass gpus",
    ),
    "the kubelet's static policy": (
        lambda cluster: cluster["topologies"][0]["metadata"]["annotations"].update(
            {"kubelet.koordinator.sh/cpu-manager-policy": '{"policy":"static"}'}
        ),
        Level.WARNING,
        "the kubelets of 1 node choose CPUs",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_told_with_what_to_do(what: str) -> None:
    change, level, words = CHANGES[what]
    cluster = right_cluster()
    change(cluster)
    found = [one for one in examine(snapshot(cluster)) if words in one.what]
    assert [one.level for one in found] == [level]
    assert bool(found[0].todo) is (level is not Level.OK)


TAINTS: dict[str, tuple[str, int, Level, str]] = {
    "some are short": (
        "taint",
        1,
        Level.OK,
        "the taint koordgate.io/headroom is on 1 of 2 nodes (headroom.mode taint)",
    ),
    "none is short": ("taint", 0, Level.OK, "headroom is on 0 of 2 nodes"),
    "all are short": (
        "taint",
        2,
        Level.WARNING,
        "the taint koordgate.io/headroom is on every node (2): it keeps no Pod",
    ),
    "some are left": ("remove", 1, Level.WARNING, "which are being removed: node-1"),
    "all are removed": ("remove", 0, Level.OK, "headroom.mode can be none"),
    "nobody keeps them": ("none", 2, Level.WARNING, "nobody keeps it (headroom.mode none): node-1, node-2"),
    "there are none": ("none", 0, Level.OK, "no node has the taint koordgate.io/headroom (headroom.mode none)"),
}


@pytest.mark.parametrize("what", TAINTS)
def test_taints_of_short_nodes_are_told_with_what_to_do_in_each_mode(what: str) -> None:
    mode: Any
    mode, short, level, words = TAINTS[what]
    cluster = right_cluster()
    for one in cluster["nodes"][:short]:
        one["short"] = True
    about = snapshot(cluster, settings=structs.replace(SETTINGS, headroom=HeadroomSettings(mode=mode)))
    found = [one for one in examine(about) if one.area == "headroom"]
    assert [one.level for one in found] == [level, Level.OK], "with fragmentation, the typical requests are told too"
    assert words in found[0].what
    assert bool(found[0].todo) is (level is not Level.OK)


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        pytest.param((), "koordgate_typical_requests", id="learned"),
        pytest.param((TypicalSettings({"nvidia.com/gpu": "1"}),), "the 1 stated in scheduler.mix", id="stated"),
    ],
)
@pytest.mark.parametrize(("preference", "mode"), [(Preference.FRAGMENTATION, "none"), (Preference.PACKING, "taint")])
def test_what_requests_are_typical_is_told_where_somebody_asks(
    preference: Preference, mode: Literal["none", "taint"], mix: tuple[TypicalSettings, ...], words: str
) -> None:
    scheduler = structs.replace(SETTINGS.scheduler, preference=preference, mix=mix)
    settings = structs.replace(SETTINGS, scheduler=scheduler, headroom=HeadroomSettings(mode=mode))
    found = examine(snapshot(settings=settings))
    assert len([one for one in found if one.area == "headroom" and words in one.what]) == 1


ODD: dict[str, tuple[str, Any]] = {
    "a Device that is a list": ("devices", {"spec": [1]}),
    "a Device of another definition": ("devices", {"spec": {"devices": {}}}),
    "a card whose labels are a list": ("devices", {"spec": {"devices": [{"type": "gpu", "labels": [7]}]}}),
    **{f"an empty object of {key}": (key, {}) for key in right_cluster() if key not in {"crds", "policyBindings"}},
}


@pytest.mark.parametrize(("key", "obj"), ODD.values(), ids=ODD)
def test_what_says_nothing_of_itself_stops_no_check(key: str, obj: Raw) -> None:
    whole = snapshot()
    keep = next(one.keep for one in wanted(SPACE, SETTINGS) if one.key == key)
    kept = keep({"metadata": {"name": "odd"}, **obj})
    assert kept["metadata"]["name"] == "odd"
    assert examine(replace(whole, read={**whole.read, key: ReadList((*whole.of(key).items, kept))}))


def test_of_an_object_only_what_is_read_is_kept() -> None:
    whole = json.dumps(
        {
            one.key: one.keep(
                {"metadata": {"name": "x", "annotations": {"a": "SECRET"}}, "data": {"tls.key": "SECRET"}}
            )
            for one in wanted(SPACE, SETTINGS)
            if one.key not in {"crds", "quotas"}
        }
    )
    assert "SECRET" not in whole


ABOUT: dict[str, tuple[Raw, Level, str]] = {
    "an old API server": ({"version": "v1.32.4"}, Level.FAILURE, "the API server is v1.32.4"),
    "a newer API server": ({"version": "v1.38.0-gke.1"}, Level.WARNING, "newer than 1.37"),
    "an API server without a version": ({"version": ""}, Level.UNKNOWN, "states no version"),
    "a clock behind": ({"offset": 60.0}, Level.WARNING, "60 s behind the API server's"),
    "a clock far ahead": ({"offset": -7200.0}, Level.FAILURE, "7200 s ahead of the API server's"),
    "no time": ({"offset": None}, Level.UNKNOWN, "states no time"),
    "no settings": ({"settings_problem": "there is no ConfigMap"}, Level.FAILURE, "no ConfigMap"),
    "cpusets that are not written": ({"reporter": {"cpus": {"enforce": False}}}, Level.WARNING, "are not written"),
    "no comparison": ({"reporter": {"proof": {"enabled": False}}}, Level.UNKNOWN, "are not compared"),
}


@pytest.mark.parametrize("what", ABOUT)
def test_what_is_no_object_is_told_too(what: str) -> None:
    about, level, words = ABOUT[what]
    found = [one for one in examine(snapshot(**about)) if words in one.what]
    assert [one.level for one in found] == [level]


@pytest.mark.parametrize("key", sorted(right_cluster()))
def test_what_cannot_be_read_is_not_known_and_never_right(key: str) -> None:
    whole = snapshot()
    read = {**whole.read, key: ReadList(error="nobody may list it")}
    found = examine(replace(whole, read=read))
    assert {one.level for one in bad(found)} <= {Level.UNKNOWN}
    if key not in {"runtimes", "budgets"}:  # one of several causes of a finding
        assert any("nobody may list it" in one.what for one in bad(found))


@pytest.mark.parametrize("key", ["nodes", "devices", "quotas", "pods", "topologies"])
def test_what_is_too_much_to_read_is_not_compared(key: str) -> None:
    whole = snapshot()
    read = {**whole.read, key: ReadList(whole.of(key).items[:1], cut=True)}
    assert {one.level for one in bad(examine(replace(whole, read=read)))} <= {Level.UNKNOWN}


def test_secrets_that_nobody_needs_need_not_be_read() -> None:
    files = CertificateFiles(certificate="/a", key="/b", authority="/c")
    settings = structs.replace(SETTINGS, certificate=structs.replace(SETTINGS.certificate, files=files))
    whole = snapshot(settings=settings)
    assert bad(examine(replace(whole, read={**whole.read, "secrets": ReadList(error="nobody may get them")}))) == []


def test_a_missing_right_is_named_and_rights_that_cannot_be_asked_are_not_known() -> None:
    asked = needed(SETTINGS, reporter=True, configz=False)
    lost = next(one for one in asked if one.resource == "nodes/status" and one.account == "koordgate")
    (found,) = bad(examine(snapshot(rights={**dict.fromkeys(asked, True), lost: False})))
    assert (found.level, found.what) == (Level.FAILURE, "account koordgate may not patch nodes/status")
    (found,) = bad(examine(snapshot(rights=dict.fromkeys(asked))))
    assert found.level is Level.UNKNOWN
    (found,) = bad(examine(snapshot(rights={**dict.fromkeys(asked, True), lost: None})))
    assert found.level is Level.UNKNOWN


@pytest.mark.parametrize(
    "settings",
    [WebhookSettings(adopt=AdoptSettings(peers=(Product.HAMI,))), WebhookSettings(mirror=("hami",))],
    ids=["counted", "mirrored"],
)
def test_where_other_products_count_the_policy_about_their_results_is_missed(settings: WebhookSettings) -> None:
    (found,) = bad(examine(snapshot(right_cluster(), settings=settings)))
    assert "koordgate-peer-results is not installed" in found.what
    assert "policies.peerResults.action" in found.todo


def test_quotas_of_exempt_namespaces_need_no_mirror_and_without_quotas_it_is_a_warning() -> None:
    cluster = right_cluster()
    del cluster["quotas"][1]
    exempt = WebhookSettings(quota=SETTINGS.quota.__class__(exempt_namespaces=("team",)))
    assert bad(examine(snapshot(cluster, settings=exempt))) == []
    off = WebhookSettings(quota=SETTINGS.quota.__class__(enabled=False))
    (found,) = bad(examine(snapshot(cluster, settings=off)))
    assert (found.level, "count no translated Pod" in found.what) == (Level.WARNING, True)


TRANSLATED: Raw = {"spec": {"schedulerName": "koord-scheduler"}}
PLAIN: Raw = {"spec": {"schedulerName": "default-scheduler"}}
CA = 'Internal error occurred: failed calling webhook "p.koordgate.io": certificate signed by unknown authority'
UNSEEN = (
    'admission webhook "pods.validate.koordgate.io" denied the request: Pod team/p: spec.schedulerName: is not '
    "koord-scheduler although the Pod asks for devices or CPUs: koordgate's mutating webhook did not see this Pod"
)
OTHERS = 'Internal error occurred: failed calling webhook "x.example.com": connection refused'
RESET = 'Internal error occurred: failed calling webhook "p.koordgate.io": connection reset by peer'
JUDGED: dict[str, tuple[Expect, Came, str, Raw, Level, str]] = {
    "translated": (Expect.TRANSLATED, Came.STORED, "", TRANSLATED, Level.OK, ""),
    "not translated": (Expect.TRANSLATED, Came.STORED, "", PLAIN, Level.FAILURE, "match the namespace"),
    "another refuses": (Expect.TRANSLATED, Came.REFUSED, "exceeded quota", {}, Level.UNKNOWN, "--try-in"),
    "refused by us, untranslated": (Expect.TRANSLATED, Came.REFUSED, UNSEEN, {}, Level.FAILURE, "the mutating webhook"),
    "untouched": (Expect.UNTOUCHED, Came.STORED, "", PLAIN, Level.OK, ""),
    "touched": (Expect.UNTOUCHED, Came.STORED, "", TRANSLATED, Level.FAILURE, "namespaceSelector"),
    "refused by us": (Expect.REFUSED, Came.REFUSED, "koordgate says no", {}, Level.OK, ""),
    "refused by others": (Expect.REFUSED, Came.REFUSED, "exceeded quota", {}, Level.UNKNOWN, "--try-in"),
    "not refused": (Expect.REFUSED, Came.STORED, "", PLAIN, Level.FAILURE, "helm upgrade"),
    "answered": (Expect.ANSWERED, Came.NOT_THERE, "no Pod", {}, Level.OK, ""),
    "reset": (Expect.ANSWERED, Came.WEBHOOK_FAILED, RESET, {}, Level.FAILURE, "get pods"),
    "no right": (Expect.ANSWERED, Came.NO_RIGHT, "user x cannot", {}, Level.UNKNOWN, "impersonate"),
    "no answer": (Expect.TRANSLATED, Came.NO_ANSWER, "timeout", {}, Level.UNKNOWN, "again"),
    "an unknown CA": (Expect.TRANSLATED, Came.WEBHOOK_FAILED, CA, {}, Level.FAILURE, "the webhook's log"),
    "another's webhook": (Expect.TRANSLATED, Came.WEBHOOK_FAILED, OTHERS, {}, Level.FAILURE, "not koordgate's"),
}


@pytest.mark.parametrize("what", JUDGED)
def test_an_outcome_is_judged(what: str) -> None:
    expect, came, message, body, level, todo = JUDGED[what]
    trial = Trial("a Pod", expect, "team", {}, by=("koordgate",))
    found = [
        one for one in examine(snapshot(outcomes=(TrialOutcome(trial, came, message, body),))) if one.area == "dry run"
    ]
    assert [one.level for one in found] == [level]
    assert todo in found[0].todo


def test_in_an_observed_namespace_what_passes_is_one_line_and_no_failure() -> None:
    stored = (Expect.TRANSLATED, PLAIN), (Expect.REFUSED, PLAIN), (Expect.UNTOUCHED, PLAIN)
    outcomes = [TrialOutcome(Trial("a Pod", expect, "team", {}), Came.STORED, "", body) for expect, body in stored]
    outcomes.append(TrialOutcome(Trial("a Pod", Expect.TRANSLATED, "other", {}), Came.STORED, "", PLAIN))
    outcomes.append(TrialOutcome(Trial("a Pod", Expect.TRANSLATED, "team", {}), Came.WEBHOOK_FAILED, CA))
    outcomes.append(TrialOutcome(Trial("a Binding", Expect.REFUSED, "team", {}, binding=True), Came.NOT_THERE))
    modes = {"team": Mode.SHADOW, "other": Mode.ENFORCE}
    found = [one for one in examine(snapshot(outcomes=tuple(outcomes), modes=modes)) if one.area == "dry run"]
    assert [one.level for one in found] == [Level.OK, Level.FAILURE, Level.FAILURE, Level.UNKNOWN]
    assert found[3].what.startswith("team is in mode shadow: koordgate lets pass 3 requests there")
    assert "--try-in" in found[3].todo


def test_every_dialect_that_is_on_is_tried_in_a_namespace_where_it_is() -> None:
    on = {one.name: DialectSettings(True, ("team-b",), "1Mi" if one.sized else "") for one in PEERS}
    settings = WebhookSettings(dialects=on)
    planned, untried = trials.plan(settings, "team-a", dict.fromkeys(POLICIES, "Deny"))
    assert untried == []
    tried = [one for one in planned if "in the dialect" in one.about]
    assert len(tried) == len(PEERS)
    assert {one.namespace for one in tried} == {"team-b"}
    by_annotation = [one for one in tried if one.body["metadata"]["annotations"]]
    assert [one.about for one in by_annotation] == ["a Pod in the dialect kai (KAI Scheduler and Run:ai)"]


def test_policies_that_are_not_denied_are_not_tried() -> None:
    planned, _ = trials.plan(SETTINGS, "team-a", {})
    assert len([one for one in planned if one.expect is Expect.REFUSED]) == 1  # the webhook itself refuses forgeries
    named = {"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Audit", "Deny"]}}
    bindings = ReadList((named,))
    assert actions({"policyBindings": bindings}) == {"p": "Deny"}


def test_the_binding_for_observed_namespaces_hides_no_denial() -> None:
    made = [
        {"metadata": {"name": name}, "spec": {"policyName": "p", "validationActions": actions_}}
        for name, actions_ in (("o-shadow", ["Warn"]), ("p", ["Deny"]), ("p-shadow", ["Warn", "Audit"]))
    ]
    assert actions({"policyBindings": ReadList(tuple(made))}) == {"p": "Deny"}


@pytest.mark.parametrize(
    ("levels", "strict", "status"),
    [
        ([], False, 0),
        ([Level.OK], True, 0),
        ([Level.OK, Level.WARNING], False, 0),
        ([Level.OK, Level.WARNING], True, 1),
        ([Level.UNKNOWN], True, 1),
        ([Level.UNKNOWN, Level.FAILURE], False, 2),
        ([Level.WARNING, Level.FAILURE], True, 2),
    ],
)
def test_the_exit_status_is_that_of_the_gravest_finding(levels: list[Level], strict: bool, status: int) -> None:  # noqa: FBT001
    assert exit_status([Finding("a", level, "w", "t") for level in levels], strict=strict) == status


def test_the_report_shows_what_others_wrote_as_text() -> None:
    found = [Finding("nodes", Level.FAILURE, "[bold]node\x1b[31m", "do\nit")]
    made = table(found)
    cell: Any
    (cell,) = made.columns[2].cells
    assert cell.plain == "[bold]node?[31m\n-> do\nit"
    assert summary(found) == "1 failure, 0 warnings, 0 not known, 0 ok"
    assert data(found, 2)["exitStatus"] == 2
