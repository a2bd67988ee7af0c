"""The fields of each kind of object that a snapshot keeps: those that koordgate reads, and few more.

No field is kept in which people put secrets: no command, argument, image, volume, or variable of a container but those
by which it finds its devices, and no annotation but those that koordgate or a product beside it reads.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from allocator.vocabulary import adopted as peers
from allocator.vocabulary import names as known
from allocator.vocabulary.delivery import DELIVERY_PROVED, KEEPERS
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.wire import gang, nodeallocation, nodetopology
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.deviceobject import DEVICE_LINKS, DEVICE_NUMBERS, GPU_PARTITIONS
from allocator.wire.mirror import REGISTERS
from allocator.wire.noderuntime import MEMORY_LIMITS, NODE_RUNTIME
from allocator.wire.nodetopology import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from console.snapshot.keep import (
    DROPPED,
    Shape,
    amounts,
    each,
    fields,
    keyed,
    label,
    label_key,
    labels,
    message,
    name,
    path,
    texts,
)
from console.snapshot.names import Namer, rename_json

_POD_ANNOTATIONS: Final = frozenset(
    (
        *HINT_ANNOTATIONS,
        *gang.GANG_ANNOTATIONS,
        *(NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC, known.DEVICE_ORDER, known.DEVICE_SHARING, known.DIALECT, known.LIMITS),
        *(known.MIRROR_POD, known.NUMA_SCOPE, known.ORIGINAL_REQUEST, known.OWN_CPUS),
        *(peers.GPUSHARE_ASSIGNED, peers.GPUSHARE_ASSUMED_AT, peers.GPUSHARE_DEV, peers.GPUSHARE_IDX),
        *(peers.GPUSHARE_POD, peers.HAMI_ALLOCATED, peers.HAMI_BIND_TIME, peers.HAMI_NODE, peers.HAMI_PHASE),
        *(peers.HAMI_TIME, peers.HAMI_TO_ALLOCATE, peers.KAI_RESERVED, peers.VOLCANO_INDEX),
        *(peers.VOLCANO_PREDICATE_TIME, peers.VOLCANO_VGPU),
    )
)
_TOPOLOGY_ANNOTATIONS: Final = (
    *(nodetopology.BE_CPU_SHARED_POOLS, nodetopology.CPU_BASIC_INFO, nodetopology.CPU_MANAGER_POLICY),
    *(nodetopology.CPU_SHARED_POOLS, nodetopology.CPU_TOPOLOGY, nodetopology.POD_CPU_ALLOCS),
    *(NODE_RESERVATION, SYSTEM_QOS_RESOURCE),
)
_DEVICE_ANNOTATIONS: Final = (
    *(*known.DEVICES_CHECKPOINTS, known.AGREEMENT, known.CORDONED),
    *(DEVICE_LINKS, DEVICE_NUMBERS, GPU_PARTITIONS, MEMORY_LIMITS, NODE_RUNTIME),
)
_ABOUT_PODS: Final = frozenset({known.AGREEMENT, MEMORY_LIMITS})  # annotations of Device objects that name them
_PATHS: Final = frozenset({gang.GANG_ANNOTATION, peers.HAMI_NODE})
_NODE_ANNOTATIONS: Final = (known.CLASSES, known.RELEASED, DELIVERY_PROVED, NODE_RESERVATION, *REGISTERS)
# Annotations in JSON -> its fields that name objects or an image.
_NAMED_IN: Final = {
    nodetopology.POD_CPU_ALLOCS: frozenset({"namespace", "name"}),
    DELIVERY_PROVED: frozenset({"image"}),
}
_VISIBLE: Final = re.compile(r"[A-Za-z0-9_.,:/=-]{0,4096}", re.ASCII)  # devices by id, number, or "all"
_FROM_ANNOTATION: Final = re.compile(r"metadata\.annotations\['[^']*'\]")


def annotations(
    keys: Iterable[str], *, allocations: bool = False, asks: Callable[[str], object] = lambda _key: False
) -> Shape:
    """Keep these annotations, with `allocations` those that state what a Pod holds, and those that `asks` knows."""
    listed = frozenset(keys)

    def keep(value: object, names: Namer) -> object:
        if not isinstance(value, Mapping):
            return DROPPED
        kept = {}
        for key, text in value.items():
            if names.hides and key in _ABOUT_PODS:
                continue
            stated = key in listed or (allocations and known.is_allocation_annotation(key)) or asks(key)
            if not isinstance(text, str) or not stated:
                continue
            written: str | None = text
            if names.hides and key in _PATHS:
                written = "/".join(map(names.name, text.split("/")))
            elif names.hides and key in _NAMED_IN:
                written = rename_json(text, names, _NAMED_IN[key])
            if written is not None:
                kept[key] = written
        return kept

    return keep


_NO_ANNOTATIONS: Final = annotations(())


def metadata(noted: Shape = _NO_ANNOTATIONS) -> Shape:
    """Keep an object's identity, age, labels and owner, and these annotations."""
    owner = fields("apiVersion kind uid controller", "name")
    about = "uid resourceVersion creationTimestamp deletionTimestamp"
    return fields(about, "name namespace", labels=labels, annotations=noted, ownerReferences=each(owner))


_CONDITION: Final = "type status reason lastTransitionTime"
_SELECTOR: Final = fields(matchLabels=labels, matchExpressions=each(label))
_NODE_TERM: Final = fields(matchExpressions=each(label), matchFields=each(label))
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_KEYS: Final[dict[str, Shape]] = {"topologyKey": label_key, "matchLabelKeys": each(label_key)}
_POD_TERM: Final = fields(
    labelSelector=_SELECTOR,
    namespaceSelector=_SELECTOR,
    namespaces=each(name),
    mismatchLabelKeys=each(label_key),
    **_KEYS,
)
_POD_AFFINITY: Final = fields(
    **{_REQUIRED: each(_POD_TERM), _PREFERRED: each(fields("weight", podAffinityTerm=_POD_TERM))}
)
_REQUIRED_NODES: Final = {_REQUIRED: fields(nodeSelectorTerms=each(_NODE_TERM))}
_AFFINITY: Final = fields(
    nodeAffinity=fields(**_REQUIRED_NODES, **{_PREFERRED: each(fields("weight", preference=_NODE_TERM))}),
    podAffinity=_POD_AFFINITY,
    podAntiAffinity=_POD_AFFINITY,
)
_RESOURCES: Final = fields(requests=amounts, limits=amounts, claims=each(fields("name request")))
_SPREAD: Final = fields(
    "maxSkew minDomains whenUnsatisfiable nodeAffinityPolicy nodeTaintsPolicy", labelSelector=_SELECTOR, **_KEYS
)


def _pod_condition(value: object, names: Namer) -> object:
    """Keep a condition; only kube-scheduler's keeps more than a word, since anybody may write others."""
    ours = isinstance(value, Mapping) and value.get("type") == "PodScheduled"
    return fields(_CONDITION, **({"message": message} if ours else {}))(value, names)


def _variables(variables: frozenset[str]) -> Shape:
    """Keep the variables of a container by which it finds its devices."""

    def keep(value: object, _names: Namer) -> object:
        listed = value if isinstance(value, list) else ()
        return [_variable(one) for one in listed if isinstance(one, Mapping) and one.get("name") in variables]

    return keep


def _variable(entry: Mapping[str, object]) -> dict[str, object]:
    """Keep of a variable which devices it names, or the annotation that it refers to."""
    value, reference = entry.get("value"), _field_path(entry)
    if isinstance(value, str) and _VISIBLE.fullmatch(value):
        return {"name": entry["name"], "value": value}
    if reference:
        return {"name": entry["name"], "valueFrom": {"fieldRef": {"fieldPath": reference}}}
    return {"name": entry["name"]}


def _field_path(entry: Mapping[str, object]) -> str:
    """The annotation that a variable refers to; "" for another source."""
    source = entry.get("valueFrom")
    reference = source.get("fieldRef") if isinstance(source, Mapping) else None
    found = reference.get("fieldPath") if isinstance(reference, Mapping) else None
    return found if isinstance(found, str) and _FROM_ANNOTATION.fullmatch(found) else ""


def pod(types: DeviceTypes) -> Shape:
    """The shape of a Pod."""
    noted = annotations(
        {*_POD_ANNOTATIONS, *types.known.annotations, *types.known.selections},
        allocations=True,
        asks=lambda key: key.startswith(known.ASKED_LIMIT_PREFIX) or types.known.form_of(key),
    )
    variables = {kind.environment for kind in types.types} | {
        one for kind in types.types for one in kind.limits.values()
    }
    variables.update(*(keeper.variables for keeper in KEEPERS.values()))
    container = fields("name restartPolicy", resources=_RESOURCES, env=_variables(frozenset(variables - {""})))
    state = fields(running=fields("startedAt"), waiting=fields("reason"), terminated=fields("reason"))
    ended = fields(terminated=fields("exitCode"))
    return fields(
        metadata=metadata(noted),
        spec=fields(
            "schedulerName priority preemptionPolicy runtimeClassName",
            "nodeName priorityClassName",
            nodeSelector=labels,
            affinity=_AFFINITY,
            tolerations=each(label),
            topologySpreadConstraints=each(_SPREAD),
            overhead=amounts,
            resources=_RESOURCES,
            schedulingGates=each(fields("name")),
            schedulingGroup=fields("", "podGroupName"),
            resourceClaims=each(fields("name", "resourceClaimName resourceClaimTemplateName")),
            containers=each(container),
            initContainers=each(container),
        ),
        status=fields(
            "phase reason startTime qosClass",
            "nominatedNodeName",
            conditions=each(_pod_condition),
            containerStatuses=each(fields("name ready", state=state)),
            initContainerStatuses=each(fields("name", state=ended)),
        ),
    )


_DEVICE: Final = fields(
    "id uuid type deviceType minor moduleID health",
    labels=amounts,
    resources=amounts,
    resource=amounts,
    topology=fields("socketID nodeID pcieID busID"),
    conditions=each(fields(_CONDITION, message=message)),
    vfGroups=each(fields(labels=amounts, vfs=each(fields("minor busID")))),
)
_ZONE: Final = fields(
    "name type parent",
    costs=each(fields("name value")),
    resources=each(fields("name capacity allocatable available")),
)
_SHARE: Final = fields(
    "type id minor alone unshared", amounts=amounts, containers=texts, functions=each(fields("minor busID"))
)
_NUMA_NODE: Final = fields("node socket milliCPU memory", others=amounts)
_HOLDING: Final = fields(
    "uid since heldUntil ending claimRevision",
    "namespace name",
    devices=each(_SHARE),
    containers=texts,
    cpus=fields("qosClass cpuset bindPolicy exclusivePolicy", numaNodes=each(_NUMA_NODE)),
    gang=path,
)
_SLICED: Final = fields(
    "name", "nodeName", attributes=keyed(fields("string int bool version")), capacity=keyed(fields("value"))
)
_RESULT: Final = fields("request driver device adminAccess", "pool", consumedCapacity=amounts)
_CLAIMED: Final = fields(devices=fields(results=each(_RESULT)), nodeSelector=fields(nodeSelectorTerms=each(_NODE_TERM)))
_SCOPE: Final = fields("scopeName operator", values=each(name))
_LIMIT: Final = fields(
    "type", max=amounts, min=amounts, default=amounts, defaultRequest=amounts, maxLimitRequestRatio=amounts
)


def shapes(types: DeviceTypes) -> dict[str, Shape]:
    """The shape of each kind, with the annotations and variables of these device types.

    The ConfigMap of the settings is not among them: it is read and written anew.
    """
    return {
        "Namespace": fields(metadata=metadata()),
        "Node": fields(
            metadata=metadata(annotations(_NODE_ANNOTATIONS)),
            spec=fields("unschedulable", taints=each(label)),
            status=fields(
                allocatable=amounts,
                capacity=amounts,
                conditions=each(fields(_CONDITION)),
                nodeInfo=fields("architecture operatingSystem kernelVersion osImage kubeletVersion"),
            ),
        ),
        "Device": fields(metadata=metadata(annotations(_DEVICE_ANNOTATIONS)), spec=fields(devices=each(_DEVICE))),
        nodetopology.KIND: fields(
            metadata=metadata(annotations(_TOPOLOGY_ANNOTATIONS)),
            topologyPolicies=texts,
            attributes=each(fields("name value")),
            zones=each(_ZONE),
        ),
        nodeallocation.KIND: fields(metadata=metadata(), spec=fields(allocations=each(_HOLDING))),
        "ResourceSlice": fields(
            metadata=metadata(),
            spec=fields(
                "driver",
                "nodeName",
                pool=fields("generation resourceSliceCount", "name"),
                devices=each(_SLICED),
            ),
        ),
        "ResourceClaim": fields(
            metadata=metadata(),
            status=fields(allocation=_CLAIMED, reservedFor=each(fields("resource uid", "name"))),
        ),
        "RuntimeClass": fields(  # the settings name one
            "handler",
            metadata=fields("name"),
            overhead=fields(podFixed=amounts),
            scheduling=fields(nodeSelector=labels, tolerations=each(label)),
        ),
        "PriorityClass": fields("value globalDefault preemptionPolicy", metadata=metadata()),
        "ResourceQuota": fields(
            metadata=metadata(),
            spec=fields(hard=amounts, scopes=texts, scopeSelector=fields(matchExpressions=each(_SCOPE))),
            status=fields(hard=amounts, used=amounts),
        ),
        "LimitRange": fields(metadata=metadata(), spec=fields(limits=each(_LIMIT))),
        gang.KIND: fields(
            metadata=metadata(annotations(gang.GANG_ANNOTATIONS)),
            spec=fields("minMember minCount scheduleTimeoutSeconds", schedulingPolicy=fields(gang=fields("minCount"))),
        ),
        "PodDisruptionBudget": fields(
            metadata=metadata(),
            spec=fields("minAvailable maxUnavailable", selector=_SELECTOR),
            status=fields("disruptionsAllowed currentHealthy desiredHealthy expectedPods"),
        ),
        "Pod": pod(types),
        "MutatingWebhookConfiguration": fields(metadata=metadata()),
        "Event": fields(
            "reason type count firstTimestamp lastTimestamp reportingComponent",
            metadata=fields("name", "namespace"),
            involvedObject=fields("apiVersion kind uid", "namespace name"),
            message=message,
        ),
    }
