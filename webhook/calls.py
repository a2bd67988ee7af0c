"""What each call records: members of its log lines, attributes of its span, its exemplar, its audit annotations."""

import logging
import uuid
from collections.abc import Mapping
from typing import Any, Final

from koordgate import log
from webhook.review import Request, Response
from webhook.tracing import Attributes

_LOG: Final = logging.getLogger(__name__)
_MAX_ID: Final = 64  # characters; an exemplar may have 128 with its names (OpenMetrics)
_MAX_NAME: Final = 320  # a namespace and a name have 63 and 253 characters at most
_MAX_AUDIT: Final = 2_000  # of one audit annotation; the audit event is stored with all of them
_MAX_WHY: Final = 1_000
_EXEMPLARS: Final = ("trace_id", "review", "call")
_OF_SPANS: Final = {
    "review": "koordgate.review",
    "call": "koordgate.call",
    "path": "http.route",
    "operation": "koordgate.operation",
    "pod": "koordgate.pod",
    "claim": "koordgate.claim",
    "pod_uid": "k8s.pod.uid",
    "node": "k8s.node.name",
}
Members = dict[str, str]


def of_review(path: str, request: Request) -> Members:
    """The members that name a review and its object; what a stranger wrote is cut.

    A Pod has no UID before it is stored, and may have no name before it is validated: it is shown as `generateName*`.
    """
    metadata = _mapping(request.object.get("metadata"))
    known = {"review": log.cut(request.uid, _MAX_ID), "path": path, "operation": request.operation}
    named = request.name or _text(metadata.get("name"))
    named = named or f"{_text(metadata.get('generateName'))}*"
    object_name = log.cut(f"{request.namespace}/{named}", _MAX_NAME)
    if request.resource == "resourceclaims":
        return {**known, "claim": object_name}
    target = _mapping(request.object.get("target"))
    return {
        **known,
        "pod": object_name,
        "pod_uid": log.cut(_text(metadata.get("uid")), _MAX_ID),
        "node": log.cut(_text(target.get("name")), _MAX_NAME),
    }


def of_extender(path: str, args: object) -> Members:
    """The members that name a call of kube-scheduler; it has no id of its own and gets one."""
    known = {"call": str(uuid.uuid4()), "path": path}
    if not isinstance(args, dict):
        return known
    pod = _mapping(next((part for key, part in args.items() if key.lower() == "pod"), None))
    metadata = _mapping(pod.get("metadata"))
    name = f"{_text(metadata.get('namespace'))}/{_text(metadata.get('name'))}"
    return {
        **known,
        "pod": log.cut(name, _MAX_NAME) if metadata else "",
        "pod_uid": log.cut(_text(metadata.get("uid")), _MAX_ID),
    }


def attributes(members: Members) -> Attributes:
    """The same as attributes of a span."""
    return {_OF_SPANS[name]: value for name, value in members.items() if value and name in _OF_SPANS}


def exemplar() -> dict[str, str] | None:
    """What ties a measurement to the current call: its trace, else its review, else its id; None outside of calls."""
    known = log.now()
    for name in _EXEMPLARS:
        if name in known:
            return {name: known[name]}
    return None


def audited(request: Request, response: Response) -> Response:
    """Let the audit event of the write tell what was decided, in bounds, and by which review.

    A review that decides nothing leaves no annotation.
    """
    if response.allowed and not response.audit:
        return response
    told = {**response.audit, "review": request.uid}
    return response._replace(audit={key: log.cut(value, _MAX_AUDIT) for key, value in told.items()})


def tell(request: Request, response: Response, outcome: str, seconds: float) -> None:
    """Log the answer to a review: on level info if it decides something, else on level debug."""
    decides = not response.allowed or bool(response.audit)
    level = logging.INFO if decides else logging.DEBUG
    if not _LOG.isEnabledFor(level):
        return
    said: dict[str, object] = {"outcome": outcome, "ms": round(seconds * 1000, 2)}
    if request.dry_run:
        said["dry_run"] = True
    if not response.allowed:
        said["code"] = int(response.code)
        said["user"] = log.cut(request.username, _MAX_NAME)
        said["why"] = log.cut(response.message, _MAX_WHY)
    said.update((key.replace("-", "_"), value) for key, value in response.audit.items() if key != "review")
    _LOG.log(level, "a review was answered", extra=said)


def tell_scheduler(answer: object, seconds: float) -> None:
    """Log the answer to kube-scheduler on level debug: waiting Pods are asked about again and again."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    named = answer.get("NodeNames") if isinstance(answer, dict) else None
    said: dict[str, object] = {"ms": round(seconds * 1000, 2)}
    if isinstance(named, list):
        said["nodes"] = len(named)
        if len(named) == 1:
            said["node"] = log.cut(str(named[0]), _MAX_NAME)
    _LOG.debug("a call of the scheduler was answered", extra=said)


def _mapping(part: object) -> Mapping[str, Any]:
    return part if isinstance(part, dict) else {}


def _text(part: object) -> str:
    return part if isinstance(part, str) else ""
