"""The body of an HTTP failure, as the API server and kube-scheduler read it: a Status of meta/v1."""

from http import HTTPStatus
from typing import Final

import orjson

_REASONS: Final = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.CONFLICT: "Conflict",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "UnsupportedMediaType",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Invalid",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "Timeout",
}


def failure(code: HTTPStatus, message: str) -> bytes:
    """Write the body.

    The API server puts its message behind "failed calling webhook", where the author of the object reads it, and
    kube-scheduler into an Event of the Pod. Of any other body, a review included, it states only the status in words.
    """
    status = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure"}
    return orjson.dumps({**status, "code": int(code), "reason": reason_of(code), "message": message})


def reason_of(code: HTTPStatus) -> str:
    """The word of meta/v1 for a status (StatusReason); where it has none, that of HTTP."""
    return _REASONS.get(code, code.phrase)
