"""How a Pod names its gang, and how the gang's size is stated: by annotations of the Pod, or by a PodGroup object.

The forms are those of Kubernetes (scheduling.k8s.io), of scheduler-plugins (scheduling.x-k8s.io) and of Koordinator.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from allocator.vocabulary.asks import MAX_MEMBERS, UNSTATED, GangSize
from allocator.vocabulary.names import GANG_TOGETHER
from allocator.vocabulary.outcome import Problem, excerpt

# A Pod names its gang by the label of scheduler-plugins, in either of its spellings, or in Koordinator's way.
GANG_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
GANG_ANNOTATION: Final = "gang.scheduling.koordinator.sh/name"
GANG_MIN_AVAILABLE: Final = "gang.scheduling.koordinator.sh/min-available"
GANG_TOTAL_NUMBER: Final = "gang.scheduling.koordinator.sh/total-number"
GANG_ANNOTATIONS: Final = (GANG_ANNOTATION, GANG_MIN_AVAILABLE, GANG_TOTAL_NUMBER, GANG_TOGETHER)
KIND: Final = "PodGroup"
_MAX_DIGITS: Final = 10  # of a number that is read; a longer one is more than `MAX_MEMBERS`


class GangReading(NamedTuple):
    """What a Pod states about its gang."""

    name: str = ""  # as namespace/name; "" for a Pod without a gang, or that names one of another namespace
    size: GangSize = UNSTATED  # as the Pod's annotations state it
    all_or_nothing: bool = False  # whether the gang is bound as a whole or not at all
    problems: tuple[Problem, ...] = ()


NO_GANG: Final = GangReading()


class PodGroupError(ValueError):
    """A PodGroup states no size that can be read."""


def gang_of(pod: Mapping[str, Any]) -> str:
    """Name the gang that a Pod belongs to, as namespace/name; "" for none."""
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    group, other = GANG_LABELS
    name = annotations.get(GANG_ANNOTATION) or _group_of(pod) or labels.get(group) or labels.get(other)
    if not name:
        return ""
    # Koordinator allows a gang's name to include its namespace.
    return str(name) if "/" in str(name) else f"{metadata.get('namespace', '')}/{name}"


def read_gang(pod: Mapping[str, Any]) -> GangReading:
    """Read what a Pod states about its gang.

    A gang belongs to one namespace. Whoever may create Pods elsewhere must not steer it, or count as one of its Pods.
    """
    metadata = pod.get("metadata") or {}
    gang = gang_of(pod)
    if not gang and GANG_TOGETHER not in (metadata.get("annotations") or {}):
        return NO_GANG
    namespace, _, name = gang.partition("/")
    if gang and not (namespace and name and "/" not in name):
        path = f"metadata.annotations[{GANG_ANNOTATION}]"
        message = f"{excerpt(gang)!r} is no name of a gang; write NAME, or NAMESPACE/NAME"
        return GangReading(problems=(Problem(path, message),))
    all_or_nothing, problems = is_all_or_nothing(metadata, gang)
    if not gang or foreign_gang(pod):
        return GangReading(problems=problems)
    size, wrong = stated_size(metadata.get("annotations") or {})
    return GangReading(gang, size, all_or_nothing, (*wrong, *problems))


def foreign_gang(pod: Mapping[str, Any]) -> str:
    """The gang of another namespace that a Pod names; "" for none."""
    gang = gang_of(pod)
    own = (pod.get("metadata") or {}).get("namespace", "")
    return gang if gang and gang.partition("/")[0] != own else ""


def _group_of(pod: Mapping[str, Any]) -> str:
    """The PodGroup of scheduling.k8s.io that a Pod's spec names."""
    group = (pod.get("spec") or {}).get("schedulingGroup")
    return str(group.get("podGroupName") or "") if isinstance(group, dict) else ""


def stated_size(annotations: Mapping[str, str]) -> tuple[GangSize, tuple[Problem, ...]]:
    """Read the size that annotations of a Pod or PodGroup state, and what is wrong with them."""
    numbers: list[int] = []
    problems: list[Problem] = []
    for key in (GANG_MIN_AVAILABLE, GANG_TOTAL_NUMBER):
        text = str(annotations.get(key) or "")
        number = _whole(text)
        if text and not number:
            path = f"metadata.annotations[{key}]"
            problems.append(Problem(path, f"{excerpt(text)!r} is no number of Pods; write a whole number from 1 on"))
        numbers.append(number)
    least, total = numbers
    return GangSize(least, max(least, total)), tuple(problems)


def _whole(text: str) -> int:
    """Read a whole number, at most `MAX_MEMBERS`; 0 where the text is none."""
    if not (text.isascii() and text.isdecimal()):
        return 0
    digits = text.lstrip("0") or "0"
    return MAX_MEMBERS if len(digits) > _MAX_DIGITS else min(int(digits), MAX_MEMBERS)


def is_all_or_nothing(metadata: Mapping[str, Any], gang: str) -> tuple[bool, tuple[Problem, ...]]:
    """Read whether a Pod's gang is bound as a whole or not at all, and what is wrong with that.

    `gang`: that it belongs to, as namespace/name; "" for none.
    """
    text = (metadata.get("annotations") or {}).get(GANG_TOGETHER, "false")
    if text == "false":
        return False, ()
    path = f"metadata.annotations[{GANG_TOGETHER}]"
    if text != "true":
        return False, (Problem(path, f"{excerpt(text)!r} is not allowed; write true or false"),)
    if not gang:
        return False, (Problem(path, f"the Pod belongs to no gang; name one, as by the label {GANG_LABELS[0]}"),)
    if gang.partition("/")[0] != metadata.get("namespace", ""):
        return False, (Problem(path, f"gang {gang} is of another namespace; name one of the Pod's own"),)
    return True, ()


def read_pod_group(obj: Mapping[str, Any]) -> GangSize:
    """Read the size that a PodGroup states: `spec.minMember`, or `spec.schedulingPolicy.gang.minCount`.

    A PodGroup of Kubernetes with the policy `basic` is no gang, and states none.
    Raises PodGroupError: a number is wrong; the message names the field and the remedy.
    """
    spec = obj.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    policy = spec.get("schedulingPolicy")
    if isinstance(policy, dict):
        gang = policy.get("gang")
        if not isinstance(gang, dict):
            return UNSTATED
        path, count = "spec.schedulingPolicy.gang.minCount", gang.get("minCount")
    else:
        path, count = "spec.minMember", spec.get("minMember")
    if type(count) is not int or count < 1:
        raise PodGroupError(f"{path}: {excerpt(count)} is no number of Pods; write a whole number from 1 on")
    stated, problems = stated_size((obj.get("metadata") or {}).get("annotations") or {})
    if problems:
        raise PodGroupError("; ".join(map(str, problems)))
    least = min(count, MAX_MEMBERS)
    return GangSize(least, max(least, stated.total))
