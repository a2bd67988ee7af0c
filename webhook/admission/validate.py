"""What admission refuses in a Pod (pure): what can never work, what is forged, and what was not translated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.request.cpus import QOS_LABEL
from allocator.request.devices import ContainerReading
from allocator.request.original import read_asks
from allocator.vocabulary.cpuask import QosClass
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.names import MIRROR_POD, NUMA_SCOPE, ORIGINAL_REQUEST, is_allocation_annotation
from allocator.vocabulary.outcome import Problem
from webhook.admission.scope import NO_SCOPE, PolicyScope
from webhook.admission.translate import is_wanted_env, shown_types, wanted_env
from webhook.review import Request

_BOUND: Final = (QosClass.LSE, QosClass.LSR)  # the classes with CPUs of their own


@dataclass(frozen=True, slots=True)
class Writers:
    """Who may write allocation annotations on a Pod that exists: exact usernames."""

    usernames: frozenset[str]


def is_mirror(pod: Mapping[str, Any], username: str, groups: tuple[str, ...]) -> bool:
    """Return whether a Pod mirrors a static Pod of a kubelet; only that node's own identity may claim it."""
    node = (pod.get("spec") or {}).get("nodeName")
    claimed = MIRROR_POD in _annotations(pod)
    return claimed and bool(node) and username == f"system:node:{node}" and "system:nodes" in groups


def created(
    request: Request, scheduler_name: str, types: DeviceTypes = BUILT_IN, scope: PolicyScope = NO_SCOPE
) -> list[Problem]:
    """Find what is wrong in a Pod to be created; the caller lets mirror Pods pass.

    Args:
        request: of the Pod.
        scheduler_name: of the scheduler that must bind it.
        types: the device types that may be asked for.
        scope: the Pods that an administrator puts under the NUMA policies of nodes.
    """
    pod = request.object
    problems = _forged_at_birth(pod)
    if scope.lacks_mark(request.namespace, pod):
        problems.append(_untranslated(f"metadata.annotations[{NUMA_SCOPE}]", "is missing"))
    reading = read_asks(pod, types, implied=False)
    problems.extend(reading.problems)
    if reading.problems or not reading.request:
        return problems
    spec = pod["spec"]
    if spec.get("nodeName"):
        message = (
            f"must be empty: the Pod {reading.request.scope}, and only a bind by {scheduler_name} gives it what it "
            "needs; remove it"
        )
        problems.append(Problem("spec.nodeName", message))
    if spec.get("schedulerName") != scheduler_name:
        problems.append(
            _untranslated("spec.schedulerName", f"is not {scheduler_name} although the Pod {reading.request.scope}")
        )
    specs = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    for kind in shown_types(reading, types):
        for container, container_spec in zip(reading.containers, specs, strict=True):
            problems.extend(_container(container, container_spec, kind))
    return problems


def _container(container: ContainerReading, spec: Mapping[str, Any], kind: DeviceType) -> list[Problem]:
    wanted = wanted_env(container, kind)
    env = [entry for entry in spec.get("env") or () if entry.get("name") == kind.environment]
    if wanted is None or (len(env) == 1 and is_wanted_env(env[0], wanted)):
        return []
    return [_untranslated(f"{container.path}.env", f"does not hold koordgate's {kind.environment}")]


def _untranslated(path: str, what: str) -> Problem:
    return Problem(
        path,
        f"{what}: koordgate's mutating webhook did not see this Pod, or another webhook changed it afterwards; "
        "an administrator must look at the MutatingWebhookConfigurations",
    )


def _forged_at_birth(pod: Mapping[str, Any]) -> list[Problem]:
    message = "is written by koordgate when the Pod is bound; remove it"
    return [
        Problem(f"metadata.annotations[{key}]", message) for key in _annotations(pod) if is_allocation_annotation(key)
    ]


def updated(request: Request, writers: Writers) -> list[Problem]:
    """Find changes that are not allowed in an existing Pod.

    Allocation annotations, and those that admission wrote, may be changed only by `writers`. Nobody may change the QoS
    class of a Pod that has CPUs of its own or would then have them (Koordinator, pkg/webhook/pod/validating: the label
    is immutable), nor the number of CPUs of such a Pod.
    """
    problems = [*_reclassified(request), *_resized(request)]
    if request.username in writers.usernames:
        return problems
    old, new = _annotations(request.old_object), _annotations(request.object)
    changed = (
        Problem(f"metadata.annotations[{key}]", message)
        for key, message in ((key, _frozen(key)) for key in sorted(old.keys() | new.keys()))
        if message and old.get(key) != new.get(key)
    )
    return [*problems, *changed]


def _frozen(key: str) -> str:
    """Say why an annotation may not be changed; "" if it may."""
    if key == NUMA_SCOPE:
        return "is decided when the Pod is created; leave it unchanged"
    if is_allocation_annotation(key) or key == ORIGINAL_REQUEST:
        return "states what the Pod holds; only the bind may write it, leave it unchanged"
    return ""


def _reclassified(request: Request) -> list[Problem]:
    old, new = _qos(request.old_object), _qos(request.object)
    if old == new or not (old in _BOUND or new in _BOUND):
        return []
    message = (
        f"{old or 'no class'} cannot become {new or 'no class'}: CPUs are given when the Pod is bound; "
        "delete the Pod and create one of the other class"
    )
    return [Problem(f"metadata.labels[{QOS_LABEL}]", message)]


def _resized(request: Request) -> list[Problem]:
    """Find CPUs that are resized in place; only the subresource `resize` can change a Pod's resources."""
    if _qos(request.old_object) not in _BOUND:
        return []
    old, new = _stated_cpus(request.old_object), _stated_cpus(request.object)
    message = "its CPUs were chosen when it was bound and cannot be resized in place; create a new Pod"
    paths = dict.fromkeys((*old, *new))
    return [Problem(path, message) for path in paths if old.get(path) != new.get(path)]


def _stated_cpus(pod: Mapping[str, Any]) -> dict[str, object]:
    """Every CPU request and limit of a Pod, by path."""
    spec = pod.get("spec") or {}
    stated = {"spec.resources": spec.get("resources")}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            stated[f"spec.{kind}[{index}].resources"] = container.get("resources")
    return {
        f"{path}.{key}[cpu]": amounts["cpu"]
        for path, resources in stated.items()
        for key in ("requests", "limits")
        if "cpu" in (amounts := (resources or {}).get(key) or {})
    }


def _qos(pod: Mapping[str, Any]) -> str:
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(QOS_LABEL) or "")


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("annotations") or {}
