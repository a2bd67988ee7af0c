"""AdmissionReview (admission.k8s.io/v1), decoded and encoded; the only module that builds one.

Handlers map a `Request` to a `Response` and never see HTTP. A malformed review is `BadReviewError`, an HTTP 400 to the
API server. A bad object is a `denied` response, a 4xx inside the review for its author. Our own failure is `errored`, a
5xx after which the caller retries; what is sent then is in `koordgate.failure`.
"""

import base64
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from koordgate.failure import reason_of

API_VERSION: Final = "admission.k8s.io/v1"
_MAX_VALUES: Final = (
    500_000  # each takes some hundred bytes once it is parsed; both versions of a large Pod have 50,000
)


_TEXT: Final = frozenset({str, type(None)})


class BadReviewError(ValueError):
    """A body that is not an AdmissionReview of a supported version."""


class Request(NamedTuple):
    """The API server's request."""

    uid: str  # of the review, to be answered
    operation: str  # CREATE, UPDATE,
    resource: str  # plural name, "pods" or "bindings"
    subresource: str  # "" or "binding"
    namespace: str
    name: str  # of the object; may be empty if the server makes it
    username: str  # who asks, as the API server authenticated them
    groups: tuple[str, ...]
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]  # the stored object on UPDATE, else empty
    dry_run: bool  # nothing may be recorded


class RefusalReason(StrEnum):
    """Why a review is refused, in a word; the metric `koordgate_refusals_total` says what each means."""

    TRANSLATION = "translation"
    VALIDATION = "validation"
    TOO_LARGE = "too_large"
    NO_ROOM = "no_room"
    QUOTA = "quota"
    OTHER_SCHEDULER = "other_scheduler"
    UNTRANSLATED = "untranslated"
    FORGED = "forged"
    OUTDATED = "outdated"
    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    CALLER = "caller"
    UNAVAILABLE = "unavailable"
    LATE = "late"
    BUG = "bug"


class Response(NamedTuple):
    """The answer."""

    allowed: bool  # whether the write proceeds
    code: HTTPStatus = HTTPStatus.OK  # HTTP status inside the review, for refusals
    message: str = ""  # why not
    why: RefusalReason | None = None  # the same in a word; None if it proceeds
    patch: Sequence[Mapping[str, Any]] = ()  # JSON Patch operations
    warnings: Sequence[str] = ()  # shown to the author by kubectl
    audit: Mapping[str, str] = MappingProxyType({})  # audit annotations


def allowed(*, warnings: Sequence[str] = (), audit: Mapping[str, str] | None = None) -> Response:
    """Let the write proceed unchanged."""
    return Response(allowed=True, warnings=warnings, audit=audit or {})


def patched(
    operations: Sequence[Mapping[str, Any]], *, warnings: Sequence[str] = (), audit: Mapping[str, str] | None = None
) -> Response:
    """Let the write proceed with these JSON Patch operations."""
    return Response(allowed=True, patch=operations, warnings=warnings, audit=audit or {})


def denied(message: str, why: RefusalReason, code: HTTPStatus = HTTPStatus.FORBIDDEN) -> Response:
    """Refuse: the author or the caller must change something, and the message says what."""
    return Response(allowed=False, code=code, message=message, why=why)


def errored(
    message: str, why: RefusalReason = RefusalReason.UNAVAILABLE, code: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE
) -> Response:
    """Refuse because of our own failure; the caller retries."""
    return Response(allowed=False, code=code, message=message, why=why)


def decode(body: bytes) -> Request:
    """Read a review.

    Raises BadReviewError: it is not JSON, not an AdmissionReview, has another version, lacks a required part, or has so
    many values that they would take far more memory.
    """
    if len(body) > _MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise BadReviewError(f"the AdmissionReview has more than {_MAX_VALUES} values")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReviewError(f"the body is not JSON: {error}") from error
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise BadReviewError("the body is not an AdmissionReview")
    if review.get("apiVersion") != API_VERSION:
        raise BadReviewError(f"AdmissionReview of {review.get('apiVersion')!r}; only {API_VERSION} is spoken")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise BadReviewError("the AdmissionReview has no request with a uid")
    user, resource = _mapping(request, "userInfo"), _mapping(request, "resource")
    groups = user.get("groups") or ()
    if not isinstance(groups, (list, tuple)):
        raise BadReviewError("groups of the AdmissionReview is not a list")
    texts = {name: request.get(name) for name in ("operation", "subResource", "namespace", "name")}
    texts |= {"resource": resource.get("resource"), "username": user.get("username")}
    if not _TEXT.issuperset(map(type, texts.values())):
        wrong = next(name for name, value in texts.items() if type(value) not in _TEXT)
        raise BadReviewError(f"{wrong} of the AdmissionReview is not a text")
    return Request(
        uid=request["uid"],
        operation=texts["operation"] or "",
        resource=texts["resource"] or "",
        subresource=texts["subResource"] or "",
        namespace=texts["namespace"] or "",
        name=texts["name"] or "",
        username=texts["username"] or "",
        groups=tuple([group for group in groups if isinstance(group, str)]),
        object=_mapping(request, "object"),
        old_object=_mapping(request, "oldObject"),
        dry_run=request.get("dryRun") is True,
    )


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadReviewError(f"{key} of the AdmissionReview is not an object")
    return value


def encode(uid: str, response: Response) -> bytes:
    """Write the answer to the review with this uid."""
    answer: dict[str, Any] = {"uid": uid, "allowed": response.allowed}
    if response.patch:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(orjson.dumps(response.patch)).decode()
    if response.warnings:
        answer["warnings"] = list(response.warnings)
    if response.audit:
        answer["auditAnnotations"] = dict(response.audit)
    if not response.allowed:
        reason = reason_of(response.code)
        answer["status"] = {"code": int(response.code), "reason": reason, "message": response.message}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer})
