"""The fields of each kind of object that a snapshot keeps: those that koordgate reads, and few more.

No field is kept in which people put secrets: no command, argument, image, volume, or variable of a container but those
by which it finds its devices, and no annotation but those that koordgate or a product beside it reads.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.limits import KEEPERS
from allocator.vocabulary.names import (
    AGREEMENT,
    ASKED_LIMIT_PREFIX,
    CLASSES,
    CORDONED,
    DEVICE_ORDER,
    DEVICE_SHARING,
    DEVICES_CHECKPOINTS,
    DIALECT,
    LIMITS,
    MIRROR_POD,
    NUMA_SCOPE,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RELEASED,
    is_allocation_annotation,
)
from allocator.vocabulary.peerresults import (
    GPUSHARE_ASSIGNED,
    GPUSHARE_ASSUMED_AT,
    GPUSHARE_DEV,
    GPUSHARE_IDX,
    GPUSHARE_POD,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_NODE,
    HAMI_PHASE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    KAI_RESERVED,
    VOLCANO_INDEX,
    VOLCANO_PREDICATE_TIME,
    VOLCANO_VGPU,
)
from allocator.wire import gang, nodeallocation, nodetopology
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.devicelinks import DEVICE_LINKS
from allocator.wire.gang import GANG_ANNOTATION, GANG_ANNOTATIONS
from allocator.wire.keptcpus import NODE_RESERVATION, SYSTEM_QOS_RESOURCE
from allocator.wire.noderegister import REGISTERS
from allocator.wire.noderuntime import NODE_RUNTIME
from allocator.wire.numberings import DEVICE_NUMBERS
from allocator.wire.partitions import GPU_PARTITIONS
from allocator.wire.resourcespec import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
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
    plain,
    texts,
)
from console.snapshot.names import Namer, rename_json

_POD_ANNOTATIONS: Final = frozenset(
    {
        *HINT_ANNOTATIONS,
        *GANG_ANNOTATIONS,
        DEVICE_ORDER,
        DEVICE_SHARING,
        DIALECT,
        GPUSHARE_ASSIGNED,
        GPUSHARE_ASSUMED_AT,
        GPUSHARE_DEV,
        GPUSHARE_IDX,
        GPUSHARE_POD,
        HAMI_ALLOCATED,
        HAMI_BIND_TIME,
        HAMI_NODE,
        HAMI_PHASE,
        HAMI_TIME,
        HAMI_TO_ALLOCATE,
        KAI_RESERVED,
        LIMITS,
        MIRROR_POD,
        NUMA_SCOPE,
        NUMA_TOPOLOGY_SPEC,
        ORIGINAL_REQUEST,
        OWN_CPUS,
        RESOURCE_SPEC,
        VOLCANO_INDEX,
        VOLCANO_PREDICATE_TIME,
        VOLCANO_VGPU,
    }
)
_TOPOLOGY_ANNOTATIONS: Final = frozenset(
    {
        nodetopology.BE_CPU_SHARED_POOLS,
        nodetopology.CPU_BASIC_INFO,
        nodetopology.CPU_MANAGER_POLICY,
        nodetopology.CPU_SHARED_POOLS,
        nodetopology.CPU_TOPOLOGY,
        nodetopology.POD_CPU_ALLOCS,
        NODE_RESERVATION,
        SYSTEM_QOS_RESOURCE,
    }
)
_DEVICE_ANNOTATIONS: Final = frozenset(
    {*DEVICES_CHECKPOINTS, AGREEMENT, CORDONED, DEVICE_LINKS, DEVICE_NUMBERS, GPU_PARTITIONS, NODE_RUNTIME}
)
_NAMED_IN: Final = frozenset({"namespace", "name"})  # the fields of a list of Pods in JSON
_PATHS: Final = frozenset({GANG_ANNOTATION, HAMI_NODE})
_LISTED: Final = frozenset({nodetopology.POD_CPU_ALLOCS})
_VISIBLE: Final = re.compile(r"[A-Za-z0-9_.,:/=-]{0,4096}", re.ASCII)  # devices by id, number, or "all"
_FROM_ANNOTATION: Final = re.compile(r"metadata\.annotations\['[^']*'\]")


def annotations(
    keys: Iterable[str], *, allocations: bool = False, asks: Callable[[str], object] = lambda _key: False
) -> Shape:
    """Keep these annotations, with `allocations` those that state what a Pod holds, and those that `asks` knows."""
    known = frozenset(keys)

    def keep(value: object, names: Namer) -> object:
        if not isinstance(value, Mapping):
            return DROPPED
        kept = {}
        for key, text in value.items():
            stated = key in known or (allocations and is_allocation_annotation(key)) or asks(key)
            if not isinstance(text, str) or not stated:
                continue
            written: str | None = text
            if names.hides and key in _PATHS:
                written = "/".join(map(names.name, text.split("/")))
            elif names.hides and key in _LISTED:
                written = rename_json(text, names, _NAMED_IN)
            if written is not None:
                kept[key] = written
        return kept

    return keep


_NO_ANNOTATIONS: Final = annotations(())


def metadata(noted: Shape = _NO_ANNOTATIONS) -> Shape:
    """Keep an object's identity, age, labels and owner, and these annotations."""
    owner = fields(apiVersion=plain, kind=plain, name=name, uid=plain, controller=plain)
    return fields(
        name=name,
        namespace=name,
        uid=plain,
        resourceVersion=plain,
        creationTimestamp=plain,
        deletionTimestamp=plain,
        labels=labels,
        annotations=noted,
        ownerReferences=each(owner),
    )


_CONDITION: Final = {"type": plain, "status": plain, "reason": plain, "lastTransitionTime": plain}
_SELECTOR: Final = fields(matchLabels=labels, matchExpressions=each(label))
_NODE_TERM: Final = fields(matchExpressions=each(label), matchFields=each(label))
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_POD_TERM: Final = fields(
    labelSelector=_SELECTOR,
    namespaceSelector=_SELECTOR,
    namespaces=each(name),
    topologyKey=label_key,
    matchLabelKeys=each(label_key),
    mismatchLabelKeys=each(label_key),
)
_POD_AFFINITY: Final = fields(
    **{_REQUIRED: each(_POD_TERM), _PREFERRED: each(fields(weight=plain, podAffinityTerm=_POD_TERM))}
)
_AFFINITY: Final = fields(
    nodeAffinity=fields(
        **{
            _REQUIRED: fields(nodeSelectorTerms=each(_NODE_TERM)),
            _PREFERRED: each(fields(weight=plain, preference=_NODE_TERM)),
        }
    ),
    podAffinity=_POD_AFFINITY,
    podAntiAffinity=_POD_AFFINITY,
)
_RESOURCES: Final = fields(requests=amounts, limits=amounts, claims=each(fields(name=plain, request=plain)))
_SPREAD: Final = fields(
    maxSkew=plain,
    minDomains=plain,
    topologyKey=label_key,
    whenUnsatisfiable=plain,
    labelSelector=_SELECTOR,
    matchLabelKeys=each(label_key),
    nodeAffinityPolicy=plain,
    nodeTaintsPolicy=plain,
)


def _pod_condition(value: object, names: Namer) -> object:
    """Keep a condition; only kube-scheduler's keeps more than a word, since anybody may write others."""
    ours = isinstance(value, Mapping) and value.get("type") == "PodScheduled"
    return fields(**_CONDITION, **({"message": message} if ours else {}))(value, names)


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
        asks=lambda key: key.startswith(ASKED_LIMIT_PREFIX) or types.known.form_of(key),
    )
    variables = {kind.environment for kind in types.types} | {
        one for kind in types.types for one in kind.limits.values()
    }
    variables.update(*(keeper.variables for keeper in KEEPERS.values()))
    container = fields(
        name=plain, resources=_RESOURCES, restartPolicy=plain, env=_variables(frozenset(variables - {""}))
    )
    running = fields(running=fields(startedAt=plain), waiting=fields(reason=plain), terminated=fields(reason=plain))
    ended = fields(terminated=fields(exitCode=plain))
    return fields(
        metadata=metadata(noted),
        spec=fields(
            nodeName=name,
            schedulerName=plain,
            priority=plain,
            priorityClassName=name,
            preemptionPolicy=plain,
            runtimeClassName=plain,
            nodeSelector=labels,
            affinity=_AFFINITY,
            tolerations=each(label),
            topologySpreadConstraints=each(_SPREAD),
            overhead=amounts,
            resources=_RESOURCES,
            schedulingGates=each(fields(name=plain)),
            schedulingGroup=fields(podGroupName=name),
            resourceClaims=each(fields(name=plain, resourceClaimName=name, resourceClaimTemplateName=name)),
            containers=each(container),
            initContainers=each(container),
        ),
        status=fields(
            phase=plain,
            reason=plain,
            startTime=plain,
            qosClass=plain,
            nominatedNodeName=name,
            conditions=each(_pod_condition),
            containerStatuses=each(fields(name=plain, ready=plain, state=running)),
            initContainerStatuses=each(fields(name=plain, state=ended)),
        ),
    )


_NODE: Final = fields(
    metadata=metadata(annotations({CLASSES, RELEASED, NODE_RESERVATION, *REGISTERS})),
    spec=fields(unschedulable=plain, taints=each(label)),
    status=fields(
        allocatable=amounts,
        capacity=amounts,
        conditions=each(fields(**_CONDITION)),
        nodeInfo=fields(
            architecture=plain, operatingSystem=plain, kernelVersion=plain, osImage=plain, kubeletVersion=plain
        ),
    ),
)
_DEVICE: Final = fields(
    metadata=metadata(annotations(_DEVICE_ANNOTATIONS)),
    spec=fields(
        devices=each(
            fields(
                id=plain,
                uuid=plain,
                type=plain,
                deviceType=plain,
                minor=plain,
                moduleID=plain,
                health=plain,
                labels=amounts,
                resources=amounts,
                resource=amounts,
                topology=fields(socketID=plain, nodeID=plain, pcieID=plain, busID=plain),
                conditions=each(fields(**_CONDITION, message=message)),
                vfGroups=each(fields(labels=amounts, vfs=each(fields(minor=plain, busID=plain)))),
            )
        )
    ),
)
_TOPOLOGY: Final = fields(
    metadata=metadata(annotations(_TOPOLOGY_ANNOTATIONS)),
    topologyPolicies=texts,
    attributes=each(fields(name=plain, value=plain)),
    zones=each(
        fields(
            name=plain,
            type=plain,
            parent=plain,
            costs=each(fields(name=plain, value=plain)),
            resources=each(fields(name=plain, capacity=plain, allocatable=plain, available=plain)),
        )
    ),
)
_SHARE: Final = fields(
    type=plain,
    id=plain,
    minor=plain,
    amounts=amounts,
    containers=texts,
    functions=each(fields(minor=plain, busID=plain)),
    alone=plain,
    unshared=plain,
)
_HOLDING: Final = fields(
    uid=plain,
    namespace=name,
    name=name,
    since=plain,
    devices=each(_SHARE),
    containers=texts,
    cpus=fields(
        qosClass=plain,
        cpuset=plain,
        bindPolicy=plain,
        exclusivePolicy=plain,
        numaNodes=each(fields(node=plain, socket=plain, milliCPU=plain, memory=plain, others=amounts)),
    ),
    gang=path,
    heldUntil=plain,
    ending=plain,
    claimRevision=plain,
)
_ALLOCATION: Final = fields(metadata=metadata(), spec=fields(allocations=each(_HOLDING)))
_SLICE: Final = fields(
    metadata=metadata(),
    spec=fields(
        driver=plain,
        nodeName=name,
        pool=fields(name=name, generation=plain, resourceSliceCount=plain),
        devices=each(
            fields(
                name=plain,
                nodeName=name,
                attributes=keyed(fields(string=plain, int=plain, bool=plain, version=plain)),
                capacity=keyed(fields(value=plain)),
            )
        ),
    ),
)
_RESULT: Final = fields(
    request=plain, driver=plain, pool=name, device=plain, adminAccess=plain, consumedCapacity=amounts
)
_CLAIM: Final = fields(
    metadata=metadata(),
    status=fields(
        allocation=fields(
            devices=fields(results=each(_RESULT)),
            nodeSelector=fields(nodeSelectorTerms=each(_NODE_TERM)),
        ),
        reservedFor=each(fields(resource=plain, name=name, uid=plain)),
    ),
)
_QUOTA_SPEC: Final = {
    "hard": amounts,
    "scopes": texts,
    "scopeSelector": fields(matchExpressions=each(fields(scopeName=plain, operator=plain, values=each(name)))),
}
_QUOTA: Final = fields(
    metadata=metadata(),
    spec=fields(**_QUOTA_SPEC),
    status=fields(hard=amounts, used=amounts),
)
_LIMIT: Final = fields(
    type=plain, max=amounts, min=amounts, default=amounts, defaultRequest=amounts, maxLimitRequestRatio=amounts
)
_GROUP: Final = fields(
    metadata=metadata(annotations(GANG_ANNOTATIONS)),
    spec=fields(
        minMember=plain,
        minCount=plain,
        scheduleTimeoutSeconds=plain,
        schedulingPolicy=fields(gang=fields(minCount=plain)),
    ),
)
_BUDGET: Final = fields(
    metadata=metadata(),
    spec=fields(selector=_SELECTOR, minAvailable=plain, maxUnavailable=plain),
    status=fields(disruptionsAllowed=plain, currentHealthy=plain, desiredHealthy=plain, expectedPods=plain),
)
_EVENT: Final = fields(
    metadata=fields(name=plain, namespace=name),
    involvedObject=fields(apiVersion=plain, kind=plain, namespace=name, name=name, uid=plain),
    reason=plain,
    message=message,
    type=plain,
    count=plain,
    firstTimestamp=plain,
    lastTimestamp=plain,
    reportingComponent=plain,
)


def shapes(types: DeviceTypes) -> dict[str, Shape]:
    """The shape of each kind. The ConfigMap of the settings is not among them: it is read and written anew.

    Args:
        types: the device types of the settings, whose annotations and variables are kept.
    """
    return {
        "Namespace": fields(metadata=metadata()),
        "Node": _NODE,
        "Device": _DEVICE,
        nodetopology.KIND: _TOPOLOGY,
        nodeallocation.KIND: _ALLOCATION,
        "ResourceSlice": _SLICE,
        "ResourceClaim": _CLAIM,
        "RuntimeClass": fields(  # the settings name one
            metadata=fields(name=plain),
            handler=plain,
            overhead=fields(podFixed=amounts),
            scheduling=fields(nodeSelector=labels, tolerations=each(label)),
        ),
        "PriorityClass": fields(metadata=metadata(), value=plain, globalDefault=plain, preemptionPolicy=plain),
        "ResourceQuota": _QUOTA,
        "LimitRange": fields(metadata=metadata(), spec=fields(limits=each(_LIMIT))),
        gang.KIND: _GROUP,
        "PodDisruptionBudget": _BUDGET,
        "Pod": pod(types),
        "MutatingWebhookConfiguration": fields(metadata=metadata()),
        "Event": _EVENT,
    }
