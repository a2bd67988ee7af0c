"""What is read of a cluster, and what of each object is kept: no key of a Secret, and no Pod of anybody else."""

from typing import Any, Final

from allocator.cpu.resolve import CPU_BIND_POLICY, NUMA_ALLOCATE_STRATEGY, NUMA_TOPOLOGY_POLICIES
from allocator.request.unread import find_misspelt_keys
from allocator.vocabulary.delivery import DELIVERY_LABEL
from allocator.vocabulary.names import (
    AGREEMENT,
    CLASSES,
    CORDONED,
    DEVICE_ORDER,
    HEADROOM,
    ISOLATION_PROVIDER,
    RELEASED,
    TYPE_GPU,
)
from allocator.wire.memoryuse import MEMORY_LIMITS
from allocator.wire.noderuntime import NODE_RUNTIME
from allocator.wire.nodetopology import CPU_MANAGER_POLICY
from allocator.wire.partitions import GPU_MODEL, GPU_PARTITION_POLICY, GPU_VENDOR
from console.doctor.proof import DELIVERY_PROVED
from console.doctor.snapshot import RELEASE, Wanted, metadata_of
from koordgate.kube.resource import (
    ADMISSION_POLICIES,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICES,
    DISRUPTION_BUDGETS,
    EVENTS,
    FLOW_SCHEMAS,
    LEASES,
    MUTATING_WEBHOOKS,
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
from webhook.settings import WebhookSettings

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


def wanted(namespace: str, settings: WebhookSettings | None) -> tuple[Wanted, ...]:
    """List what is read of an installation in a namespace, once its settings are known."""
    known = settings or WebhookSettings()
    secrets = (known.certificate.secret, known.certificate.extender_secret)
    flows = (RELEASE, "koord-scheduler")
    return (
        Wanted("nodes", NODES, keep=_node),
        Wanted("devices", DEVICES, keep=_device),
        Wanted("topologies", TOPOLOGIES, keep=_topology),
        Wanted("pods", PODS, namespace, keep=_pod, selector=_PART_OF),
        Wanted("leases", LEASES, _NODE_LEASES, keep=_lease),
        Wanted("deployments", DEPLOYMENTS, keep=_workload),
        Wanted("daemonsets", DAEMON_SETS, keep=_workload),
        Wanted("mutating", MUTATING_WEBHOOKS, keep=_webhooks),
        Wanted("validating", VALIDATING_WEBHOOKS, keep=_webhooks),
        Wanted("policies", ADMISSION_POLICIES, keep=_named),
        Wanted("policyBindings", POLICY_BINDINGS, keep=_with_spec),
        Wanted("quotas", RESOURCE_QUOTAS),
        Wanted("events", EVENTS, keep=_event, fields=_WARNINGS),
        Wanted("runtimes", RUNTIME_CLASSES, keep=_runtime_class),
        Wanted("budgets", DISRUPTION_BUDGETS, namespace, keep=_named),
        Wanted("crds", DEFINITIONS, names=tuple(sorted(f"{one.plural}.{one.group}" for one in CUSTOM))),
        Wanted("levels", PRIORITY_LEVELS, keep=_named, names=flows),
        Wanted("flows", FLOW_SCHEMAS, keep=_named, names=flows),
        Wanted("secrets", SECRETS, namespace, keep=_secret, names=secrets),
    )


def _named(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj)}


def _with_spec(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj), "spec": obj.get("spec") or {}}


def _node(obj: Raw) -> Raw:
    status, taints = obj.get("status") or {}, (obj.get("spec") or {}).get("taints") or []
    return {
        "metadata": metadata_of(obj, annotations=(DELIVERY_PROVED,)),
        "misspelt": find_misspelt_keys(obj["metadata"], NODE_KEYS),
        "allocatable": status.get("allocatable") or {},
        "ready": _ready(status),
        "short": any(one.get("key") == HEADROOM for one in taints),
        "taints": taints,
        "kubelet": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
    }


def _device(obj: Raw) -> Raw:
    spec = obj.get("spec")  # another's definition may admit anything
    listed = spec.get("devices") if isinstance(spec, dict) else None
    devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    metadata = metadata_of(obj, annotations=(AGREEMENT, MEMORY_LIMITS, NODE_RUNTIME))
    types = [one.get("type") for one in devices]
    vendors = {_vendor(one, metadata["labels"]) for one in devices if one.get("type") == TYPE_GPU}
    return {"metadata": metadata, "types": types, "vendors": sorted(vendors), "managers": _managers(obj)}


def _vendor(entry: Raw, common: Raw) -> str:
    labels = entry.get("labels")
    own = labels.get(GPU_VENDOR) if isinstance(labels, dict) else ""
    return str(own or common.get(GPU_VENDOR, "")).lower()


def _runtime_class(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj), "handler": str(obj.get("handler") or "")}


def _topology(obj: Raw) -> Raw:
    return {"metadata": metadata_of(obj, annotations=(CPU_MANAGER_POLICY,)), "managers": _managers(obj)}


def _managers(obj: Raw) -> list[str]:
    return [one.get("manager", "") for one in obj["metadata"].get("managedFields") or ()]


def _pod(obj: Raw) -> Raw:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "metadata": metadata_of(obj),
        "node": spec.get("nodeName", ""),
        "ready": _ready(status),
        "images": [one.get("image", "") for one in spec.get("containers") or ()],
        "restarts": sum(one.get("restartCount", 0) for one in status.get("containerStatuses") or ()),
        "waiting": [
            (one.get("state") or {}).get("waiting", {}).get("reason", "")
            for one in status.get("containerStatuses") or ()
        ],
    }


def _ready(status: Raw) -> bool:
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())


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
