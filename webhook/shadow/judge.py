"""What would be done with a Pod of a namespace that is only observed, and the answers to its reviews."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from allocator.amounts import BadQuantityError, pod_charges
from allocator.request.selection import echoed
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import is_allocation_annotation
from webhook.admission.pods import PodWebhooks
from webhook.admission.validate import is_mirror
from webhook.boundedcache import BoundedCache
from webhook.metrics import WebhookMetrics
from webhook.patch import apply
from webhook.review import Request, Response, allowed
from webhook.scheduling.bindings import BindingWebhooks

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
    validated: Response = pods.validate(request._replace(object=pod))
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


_MAX_SEEN: Final = 20_000  # UIDs of Pods that this replica was asked about
_MAX_LENGTH: Final = 1000  # characters of a message in a warning or an audit annotation


class ShadowWebhooks:
    """The two reviews.

    The API server calls them as validating webhooks that it may ignore: by its own rules they cannot change anything,
    and a replica that is away stops nobody.
    `metrics`: counts what would be done. `over_quota`: says which quota would not allow a Pod.
    """

    def __init__(
        self, pods: PodWebhooks, bindings: BindingWebhooks, metrics: WebhookMetrics, over_quota: OverQuota
    ) -> None:
        self._pods = pods
        self._bindings = bindings
        self._metrics = metrics
        self._over_quota = over_quota
        # UIDs of the Pods that this replica was asked about; of several replicas it alone reports about them
        self.asked: BoundedCache[str, bool] = BoundedCache(_MAX_SEEN)

    def pod(self, request: Request) -> Response:
        """Tell what would be done with a Pod that is being created."""
        if is_mirror(request.object, request.username, request.groups):
            return allowed()
        judged = judge(self._pods, request, self._over_quota)
        if judged.refused is not None:
            if not request.dry_run:
                self._metrics.shadow_pods.labels("refused", OWN).inc()
                self._metrics.shadow_refused.labels(judged.refused).inc()
                self._remember(request)
            return _told("would-refuse", judged.message)
        if not request.dry_run:
            outcome = "translated" if judged.changed else "unchanged"
            self._metrics.shadow_pods.labels(outcome, judged.dialect).inc()
            self._remember(request)
        warnings = [_shadow(warning) for warning in judged.warnings]
        audit = {"would-translate": judged.dialect} if judged.changed else {}
        return Response(allowed=True, warnings=warnings, audit=audit)

    def _remember(self, request: Request) -> None:
        uid = (request.object.get("metadata") or {}).get("uid")
        if isinstance(uid, str) and uid:
            self.asked.put(uid, value=True)

    async def binding(self, request: Request, deadline: float) -> Response:
        """Tell whether the guard would refuse a Binding by another scheduler."""
        judged = await self._bindings.validate(request, deadline)
        if judged.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return judged  # our own failure, which the API server ignores
        if judged.allowed:
            return allowed()
        if not request.dry_run:
            self._metrics.shadow_refused.labels(WouldRefuse.BINDING).inc()
        return Response(allowed=True, audit={"would-refuse": judged.message[:_MAX_LENGTH]})


def _told(key: str, message: str) -> Response:
    return Response(
        allowed=True, warnings=[_shadow(f"would refuse this: {message}")], audit={key: message[:_MAX_LENGTH]}
    )


def _shadow(message: str) -> str:
    return f"koordgate only observes this namespace: {message}"[:_MAX_LENGTH]
