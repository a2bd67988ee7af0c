"""What would become of a Pod at its creation if its namespace were enforced (pure, but for what the rules remember)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from allocator.amounts import BadQuantityError, pod_charges
from allocator.request.selection import echoed
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import is_allocation_annotation
from webhook.admission.pods import PodWebhooks
from webhook.patch import apply
from webhook.review import Request, Response

Raw = dict[str, Any]
OWN: Final = "own"
_DIALECTS: Final = frozenset(one.name for one in PEERS)
_AUTHOR: Final = "koordgate:shadow"  # of Pods that exist; nobody's rights depend on it


class WouldRefuse(StrEnum):
    """Why a Pod would be refused."""

    TRANSLATION = "translation"
    VALIDATION = "validation"
    QUOTA = "quota"
    BINDING = "binding"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What would become of a Pod."""

    pod: Mapping[str, Any]  # as it would be stored; as given if it would be refused
    changed: bool = False  # whether it would be translated
    dialect: str = OWN  # the dialect that it asks in: a name of `PEERS`, or `own`
    charged: Mapping[str, int] | None = None  # what quotas would count for it, by resource
    refused: WouldRefuse | None = None  # why it would be refused; None if it would not
    message: str = ""
    warnings: tuple[str, ...] = ()  # for its author


OverQuota = Callable[[str, Mapping[str, int]], str]
"""Tells which quota of a namespace would not allow these amounts more, and why; "" if all would."""


def judge(pods: PodWebhooks, request: Request, over_quota: OverQuota = lambda _namespace, _charged: "") -> Judgement:
    """Judge a Pod that is being created, by the same functions that decide where koordgate enforces."""
    given = request.object
    translated = pods.mutate(request)
    if not translated.allowed:
        return Judgement(given, refused=WouldRefuse.TRANSLATION, message=translated.message)
    pod = apply(given, translated.patch)
    about = Judgement(pod, bool(translated.patch), _dialect(pod), warnings=tuple(translated.warnings))
    validated: Response = pods.validate(replace(request, object=pod))
    if not validated.allowed:
        return replace(about, pod=given, refused=WouldRefuse.VALIDATION, message=validated.message)
    try:
        charged = pod_charges(pod["spec"])
    except BadQuantityError as error:
        return replace(about, pod=given, refused=WouldRefuse.VALIDATION, message=str(error))
    problem = over_quota(request.namespace, charged) if charged else ""
    if problem:
        return replace(about, pod=given, charged=charged, refused=WouldRefuse.QUOTA, message=problem)
    return replace(about, charged=charged)


def created(pod: Mapping[str, Any]) -> Request:
    """The review that would ask for a Pod that exists, as it was before anybody bound it."""
    metadata: Mapping[str, Any] = pod["metadata"]
    submitted = as_submitted(pod)
    name, namespace = metadata["name"], metadata.get("namespace", "")
    return Request("", "CREATE", "pods", "", namespace, name, _AUTHOR, (), submitted, {}, dry_run=True)


def as_submitted(pod: Mapping[str, Any]) -> Raw:
    """A Pod without what its bind, its kubelet and debuggers added."""
    metadata, spec = dict(pod["metadata"]), dict(pod.get("spec") or {})
    if metadata.get("annotations"):
        kept = {key: value for key, value in metadata["annotations"].items() if not is_allocation_annotation(key)}
        metadata["annotations"] = kept
    spec.pop("nodeName", None)
    spec.pop("ephemeralContainers", None)
    return {**{key: value for key, value in pod.items() if key != "status"}, "metadata": metadata, "spec": spec}


def _dialect(pod: Mapping[str, Any]) -> str:
    """The dialect of a translated Pod; an author may have written anything."""
    return next((name for name in echoed(pod) if name in _DIALECTS), OWN)
