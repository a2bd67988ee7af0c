"""Reads a cluster for the checks: lists with a bound, access reviews, and dry-run requests. Nothing is written.

Of each object only what checks need is kept: no key of a Secret, and no Pod of anybody else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from allocator.cpu.resolve import CPU_BIND_POLICY, NUMA_ALLOCATE_STRATEGY, NUMA_TOPOLOGY_POLICIES
from allocator.request.unread import find_misspelt_keys
from allocator.vocabulary.delivery import DELIVERY_LABEL, DELIVERY_PROVED
from allocator.vocabulary.names import (
    CLASSES,
    CORDONED,
    DEVICE_ORDER,
    ISOLATION_PROVIDER,
    RELEASED,
    Mode,
    mode_of,
)
from allocator.wire import nodetopology
from allocator.wire.deviceobject import GPU_MODEL, GPU_PARTITION_POLICY, GPU_VENDOR
from console import terminal
from console.cluster import is_ready
from console.data import MissingDataError, data_folder
from console.doctor import rights, trials
from console.doctor.policies import search_policies
from console.doctor.snapshot import REPORTER, Right, Snapshot, Wanted, enforcing, metadata_of
from console.doctor.trials import UNCALLED, Came, Trial, TrialOutcome
from console.reading import CONFIG_KEY, RELEASE, ReadList, installed_settings, listed
from console.snapshot.fields import shapes
from console.snapshot.keep import Shape, object_of
from console.snapshot.names import OPEN
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, Forbidden, Invalid, KubeError, NotFound, Unreachable
from koordgate.kube.resource import (
    ACCESS_REVIEWS,
    ADMISSION_POLICIES,
    CONFIG_MAPS,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICES,
    DISRUPTION_BUDGETS,
    EVENTS,
    FLOW_SCHEMAS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    POLICY_BINDINGS,
    PRIORITY_LEVELS,
    RESOURCE_QUOTAS,
    RUNTIME_CLASSES,
    SECRETS,
    TOPOLOGIES,
    VALIDATING_WEBHOOKS,
)
from webhook.settings import WebhookSettings, types_of

Raw = dict[str, Any]

CUSTOM: Final = (DEVICES, NODE_ALLOCATIONS, TOPOLOGIES)
_NODE_LEASES: Final = "kube-node-lease"
_WARNINGS: Final = "reportingComponent=koordgate,type=Warning"  # what replicas say
_PUBLIC: Final = ("tls.crt", "ca.crt")
_PART_OF: Final = "app.kubernetes.io/part-of=koordgate"


NODE_KEYS: Final = {
    "annotations": (CLASSES, CORDONED, DELIVERY_PROVED, RELEASED),
    "labels": (
        *(CPU_BIND_POLICY, NUMA_ALLOCATE_STRATEGY, *NUMA_TOPOLOGY_POLICIES),
        *(GPU_PARTITION_POLICY, GPU_VENDOR, GPU_MODEL, DELIVERY_LABEL, DEVICE_ORDER, ISOLATION_PROVIDER),
        *("node.koordinator.sh/gpu-driver-version", "koordgate.io/gpu-memory-mib"),  # of the reporter
    ),
}
"""Keys of Nodes that koordgate reads or writes."""


def wanted(namespace: str, settings: WebhookSettings) -> tuple[Wanted, ...]:
    """List what is read of an installation in a namespace, once its settings are known."""
    secrets = (settings.certificate.secret, settings.certificate.extender_secret)
    flows, known = (RELEASE, "koord-scheduler"), shapes(types_of(settings))
    return (
        Wanted("nodes", NODES, keep=_node(known["Node"])),
        Wanted("devices", DEVICES, keep=_as_in_snapshots(known["Device"])),
        Wanted("topologies", TOPOLOGIES, keep=_as_in_snapshots(known[nodetopology.KIND])),
        Wanted("pods", PODS, namespace, keep=_pod_of, selector=_PART_OF),
        Wanted("leases", LEASES, _NODE_LEASES, keep=_lease),
        Wanted("deployments", DEPLOYMENTS, keep=_workload),
        Wanted("daemonsets", DAEMON_SETS, keep=_workload),
        Wanted("mutating", MUTATING_WEBHOOKS, keep=_webhooks),
        Wanted("validating", VALIDATING_WEBHOOKS, keep=_webhooks),
        Wanted("policies", ADMISSION_POLICIES, keep=_metadata_only),
        Wanted("policyBindings", POLICY_BINDINGS, keep=_with_spec),
        Wanted("quotas", RESOURCE_QUOTAS),
        Wanted("events", EVENTS, keep=_event, fields=_WARNINGS),
        Wanted("runtimes", RUNTIME_CLASSES, keep=_as_in_snapshots(known["RuntimeClass"])),
        Wanted("budgets", DISRUPTION_BUDGETS, namespace, keep=_metadata_only),
        Wanted("crds", DEFINITIONS, names=tuple(sorted(f"{one.plural}.{one.group}" for one in CUSTOM))),
        Wanted("levels", PRIORITY_LEVELS, keep=_metadata_only, names=flows),
        Wanted("flows", FLOW_SCHEMAS, keep=_metadata_only, names=flows),
        Wanted("secrets", SECRETS, namespace, keep=_secret, names=secrets),
    )


def _metadata_only(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj)}


def _with_spec(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj), "spec": obj.get("spec") or {}}


def _as_in_snapshots(shape: Shape) -> Callable[[Raw], Raw]:
    """What a snapshot keeps of an object of this shape, and who wrote it."""

    def keep(obj: Raw) -> Raw:
        kept = object_of(shape, obj, OPEN)
        kept["metadata"] = {"labels": {}, "annotations": {}, **kept["metadata"]}
        return {**kept, "managers": [one.get("manager", "") for one in obj["metadata"].get("managedFields") or ()]}

    return keep


def _node(shape: Shape) -> Callable[[Raw], Raw]:
    """As in a snapshot; and its keys that nobody reads."""
    kept = _as_in_snapshots(shape)
    return lambda obj: {**kept(obj), "misspelt": find_misspelt_keys(obj["metadata"], NODE_KEYS)}


def _pod_of(obj: Raw) -> Raw:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "metadata": metadata_of(obj),
        "node": spec.get("nodeName", ""),
        "ready": is_ready(obj),
        "images": [one.get("image", "") for one in spec.get("containers") or ()],
        "waiting": [
            (one.get("state") or {}).get("waiting", {}).get("reason", "")
            for one in status.get("containerStatuses") or ()
        ],
    }


def _lease(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj), "renewed": (obj.get("spec") or {}).get("renewTime", "")}


def _workload(obj: Raw) -> Raw:
    template = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
    status = obj.get("status") or {}
    return {
        "metadata": metadata_of(obj),
        "images": [one.get("image", "") for one in template.get("containers") or ()],
        "runtimeClass": template.get("runtimeClassName", ""),
        "wanted": (obj.get("spec") or {}).get("replicas", status.get("desiredNumberScheduled", 0)),
        "ready": status.get("readyReplicas", status.get("numberReady", 0)),
    }


def _webhooks(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj), "webhooks": obj.get("webhooks") or []}


def _event(obj: Raw) -> Raw:
    about = obj.get("involvedObject") or {}
    return {
        "metadata": metadata_of(obj),
        "reason": obj.get("reason", ""),
        "about": "/".join(filter(None, (about.get("namespace"), about.get("name")))),
        "message": obj.get("message", ""),
        "at": obj.get("lastTimestamp") or "",
    }


def _secret(obj: Raw) -> Raw:
    """Keep the certificates; the keys are forgotten at once."""
    data = obj.get("data") or {}
    return {"metadata": metadata_of(obj), "data": {key: data[key] for key in _PUBLIC if key in data}}


Connect = Callable[[str], KubeClient]
_T = TypeVar("_T")

_AT_ONCE: Final = 8
_CALL_S: Final = 30.0  # a trial passes all webhooks of the cluster, one after another


async def read_cluster(
    kube: KubeClient, namespace: str, tried_in: str, connect: Connect, clock: Callable[[], float] = time.time
) -> Snapshot:
    """Read an installation.

    `tried_in`: the namespace in which Pods are tried that koordgate is to serve. `clock`: seconds since 1970. Raises
    KubeError: the API server does not answer, or does not know the user.
    """
    version = str((await kube.get("/version")).get("gitVersion", ""))
    stated, problem = await installed_settings(kube, namespace)
    settings = stated or WebhookSettings()
    reporter = await _reporter(kube, namespace)
    found: dict[str, ReadList] = dict(await _gathered(_keyed(kube, one) for one in wanted(namespace, settings)))
    given: dict[Right, bool | None] = {}
    outcomes: tuple[TrialOutcome, ...] = ()
    modes: dict[str, Mode] = {}
    searched = None
    if not problem:
        configz = bool((reporter.get("kubelet") or {}).get("configz"))
        policies = bool((reporter.get("runtime") or {}).get("policies"))
        asked = rights.needed(settings, reporter=bool(reporter), configz=configz, policies=policies)
        terminal.doing("asking for the rights of koordgate's accounts")
        given = dict(await _gathered(_may(kube, right, namespace) for right in asked))
        planned, untried = trials.plan(settings, tried_in, actions(found))
        where = sorted({one.namespace for one in planned})
        modes = dict(await _gathered(_mode(kube, one, settings.mode) for one in where))
        terminal.doing("trying Pods and Bindings by dry run")
        outcomes = tuple(await _tried(kube, planned, connect))
        outcomes += tuple(_not_written(name, tried_in) for name in untried)
        searched = await search_policies(kube, types_of(settings), settings.domain)
    offset = kube.server_offset
    return Snapshot(
        namespace,
        found,
        settings,
        problem,
        reporter,
        version,
        offset,
        clock() + (offset or 0.0),
        given,
        outcomes,
        shipped(),
        searched,
        modes,
    )


def actions(found: Mapping[str, ReadList]) -> dict[str, str]:
    """The first action of each policy where koordgate enforces: name of the policy -> Deny, Warn or Audit."""
    stated = {}
    for one in found.get("policyBindings", ReadList()).items:
        if enforcing(one):
            given = one["spec"].get("validationActions") or [""]
            stated[str(one["spec"]["policyName"])] = "Deny" if "Deny" in given else str(given[0])
    return stated


def shipped() -> dict[str, Raw]:
    """The definitions of custom resources that this version's chart installs; none where the chart is not at hand."""
    try:
        folder = data_folder("charts") / "koordgate" / "crds"
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(str(folder)).glob("*.yaml"))]
    except (MissingDataError, OSError):
        return {}
    return {one["metadata"]["name"]: one for text in texts for one in yaml.safe_load_all(text) if one}


async def _gathered(waiting: Iterable[Awaitable[_T]]) -> list[_T]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Awaitable[_T]) -> _T:
        async with gate:
            return await work

    return await asyncio.gather(*(one(work) for work in waiting))


async def _reporter(kube: KubeClient, namespace: str) -> Mapping[str, Any]:
    """The reporter's settings as they stand there; empty if it is not installed, or they cannot be read."""
    try:
        found = await kube.get(CONFIG_MAPS.path(REPORTER, namespace))
        stated = yaml.safe_load(str((found.get("data") or {}).get(CONFIG_KEY, "")))
    except (NotFound, Forbidden, yaml.YAMLError):
        return {}
    return stated if isinstance(stated, dict) else {}


async def _keyed(kube: KubeClient, one: Wanted) -> tuple[str, ReadList]:
    return one.key, await (_named(kube, one) if one.names else _listed(kube, one))


async def _named(kube: KubeClient, one: Wanted) -> ReadList:
    items, error = [], ""
    for name in one.names:
        try:
            items.append(one.keep(await kube.get(one.resource.path(name, one.namespace))))
        except NotFound:
            continue
        except KubeError as problem:
            error = problem.message
    return ReadList(tuple(items), error)


async def _listed(kube: KubeClient, one: Wanted) -> ReadList:
    selectors = {"labelSelector": one.selector, "fieldSelector": one.fields}
    params = {key: selector for key, selector in selectors.items() if selector}
    return await listed(kube, one.resource, one.keep, namespaces=(one.namespace,), params=params)


async def _may(kube: KubeClient, right: Right, namespace: str) -> tuple[Right, bool | None]:
    try:
        answer = await kube.create(ACCESS_REVIEWS.path(), rights.review(right, namespace))
    except KubeError:
        return right, None
    return right, bool((answer.get("status") or {}).get("allowed"))


async def _mode(kube: KubeClient, namespace: str, default: Mode) -> tuple[str, Mode]:
    """The mode of a namespace; the default where its labels cannot be read."""
    try:
        found = await kube.get(NAMESPACES.path(namespace))
    except KubeError:
        return namespace, default
    return namespace, mode_of(found["metadata"].get("labels") or {}, default)


async def _tried(kube: KubeClient, planned: Iterable[Trial], connect: Connect) -> list[TrialOutcome]:
    async with AsyncExitStack() as stack:
        clients = {"": kube}
        planned = list(planned)
        for user in sorted({one.user for one in planned} - {""}):
            clients[user] = await stack.enter_async_context(connect(user))
        return await _gathered(_try(clients[one.user], one) for one in planned)


async def _try(kube: KubeClient, trial: Trial) -> TrialOutcome:
    name = trials.NAME if trial.binding else None
    path = PODS.path(name, trial.namespace, "binding" if trial.binding else None)
    try:
        body = await kube.create(path, trial.body, dry_run=True, deadline=_CALL_S)
    except KubeError as error:
        return TrialOutcome(trial, _came(error), error.message)
    return TrialOutcome(trial, Came.STORED, "", body)


def _came(error: KubeError) -> Came:
    """Sort a failure by who is to blame."""
    if UNCALLED in error.message:
        return Came.WEBHOOK_FAILED
    if isinstance(error, Forbidden) and error.user:
        return Came.NO_RIGHT
    if isinstance(error, NotFound):
        return Came.NOT_THERE
    if isinstance(error, (Forbidden, Invalid, AlreadyExists)):
        return Came.REFUSED
    return Came.NO_ANSWER if isinstance(error, Unreachable) else Came.REFUSED


def _not_written(name: str, namespace: str) -> TrialOutcome:
    trial = Trial(f"a Pod in the dialect {name}", trials.Expect.TRANSLATED, namespace, {})
    return TrialOutcome(trial, Came.NO_ANSWER, "no Pod of this dialect is known to the command")
