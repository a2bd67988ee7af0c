"""`/shadow-pod` and `/shadow-binding`: reviews of namespaces that are only observed. Every answer allows."""

from http import HTTPStatus
from typing import Final

from webhook.admission.pods import PodWebhooks
from webhook.admission.validate import is_mirror
from webhook.boundedcache import BoundedCache
from webhook.metrics import WebhookMetrics
from webhook.review import Request, Response, allowed
from webhook.scheduling.bindings import BindingWebhooks
from webhook.shadow.judge import OWN, OverQuota, WouldRefuse, judge

_MOST_SEEN: Final = 20_000  # UIDs of Pods that this replica was asked about
_LONGEST: Final = 1000  # characters of a message in a warning or an audit annotation


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
        self.asked: BoundedCache[str, bool] = BoundedCache(_MOST_SEEN)

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
        return Response(allowed=True, audit={"would-refuse": judged.message[:_LONGEST]})


def _told(key: str, message: str) -> Response:
    return Response(allowed=True, warnings=[_shadow(f"would refuse this: {message}")], audit={key: message[:_LONGEST]})


def _shadow(message: str) -> str:
    return f"koordgate only observes this namespace: {message}"[:_LONGEST]
