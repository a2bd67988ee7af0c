"""The failures of requests: refusals by the API server, and failures on the way to it.

    KubeError
    ├── Unauthorized            401: it does not accept our credentials
    ├── Forbidden               403: our user may not do this
    ├── NotFound                404
    ├── AlreadyExists           409 on create
    ├── Conflict                409: the resourceVersion is not the one that was written on
    ├── Gone                    410: a revision or a continue token is too old
    ├── Invalid                 400, 422: it can never be accepted as it is
    ├── TooLarge                413, and 500 where etcd refuses the size: the object must become smaller
    ├── TooManyRequests         429: try later, perhaps with a hint when
    └── Unreachable             no answer, a broken answer or a 5xx

Exceptions of kubernetes_asyncio and aiohttp never leave this package; these are chained to them.
"""

# ruff: noqa: N818 they are what the API server calls them (metav1.StatusReason)
import re
from collections.abc import Mapping
from typing import Any, Final

# The words of k8s.io/apiserver (responsewriters.forbiddenMessage); a denial by an admission plugin is worded otherwise.
_RBAC: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) (?:resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'|path "(?P<path>[^"]*)")(?: (?P<scope>at the cluster scope|in the namespace "[^"]*"))?'
)


class KubeError(Exception):
    """Any failure, reported by the API server or met on the way to it."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status  # HTTP status, 0 if there was no answer
        self.reason = reason  # of the Status object, as `NotFound`; empty if there was none
        self.message = message  # for people


class Unauthorized(KubeError):
    """The API server does not accept our credentials."""


class Forbidden(KubeError):
    """We may not do this.

    `user`: the user without the right, as `system:serviceaccount:<namespace>:<name>`; empty if admission refused.
    `verb`: the refused verb, as `list`; empty likewise.
    """

    def __init__(self, message: str, *, status: int = 403, reason: str = "Forbidden") -> None:
        found = _RBAC.search(message)
        self.user = self.verb = self.resource = ""
        if found:
            self.user, self.verb = found["user"], found["verb"]
            # the resource, as `nodeallocations.koordgate.io`; empty likewise
            self.resource = found["path"] or ".".join(part for part in (found["resource"], found["group"]) if part)
            scope = f" {found['scope']}" if found["scope"] else ""
            message = (
                f"{self.user} lacks the right to {self.verb} {self.resource}{scope}: "
                f"check the RBAC rules that are bound to it ({message})"
            )
        super().__init__(message, status=status, reason=reason)


class NotFound(KubeError):
    """The object does not exist, or the resource does not."""


class AlreadyExists(KubeError):
    """An object with this name already exists."""


class Conflict(KubeError):
    """The object is not at the revision that the write was decided on."""


class Gone(KubeError):
    """The revision or the continue token is too old: list again from scratch."""


class Invalid(KubeError):
    """The API server can never accept this object or request as it is."""


class TooLarge(KubeError):
    """The object is larger than the API server or its store accepts; nothing was written."""


class TooManyRequests(KubeError):
    """The API server asks clients to try later."""

    def __init__(
        self, message: str, *, status: int = 429, reason: str = "TooManyRequests", retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        self.retry_after = retry_after  # after how many seconds; None if it did not say


class Unreachable(KubeError):
    """No usable answer: connect errors, timeouts, broken connections, 5xx."""

    def __init__(
        self, message: str, *, status: int = 0, reason: str = "", maybe_performed: bool = True, refused: bool = False
    ) -> None:
        super().__init__(message, status=status, reason=reason)
        # the request may have reached the API server, and may have been performed or may yet be
        self.maybe_performed = maybe_performed
        self.refused = refused  # no connection was made, so a write may be sent again


_BY_STATUS: Final[Mapping[int, type[KubeError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
_SERVER_ERRORS: Final = 500
_LARGE: Final = 413
# The words of etcd (server/v3/etcdserver/errors) and of gRPC, which the API server passes on with status 500.
_TOO_LARGE: Final = ("etcdserver: request is too large", "trying to send message larger than max")
_TOO_MANY: Final = 429


def from_status(status: Mapping[str, Any], *, retry_after: float | None = None) -> KubeError:
    """Make an exception of a status.

    `status`: a `kind: Status`, from an answer's body or from an ERROR event of a watch. `retry_after`: seconds of the
    Retry-After header, if there was one.
    """
    code = int(status.get("code") or 0)
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or "no message")
    if code == _TOO_MANY:
        hint = retry_after if retry_after is not None else (status.get("details") or {}).get("retryAfterSeconds")
        return TooManyRequests(message, reason=reason or "TooManyRequests", retry_after=hint)
    if code == _LARGE or (code >= _SERVER_ERRORS and any(words in message for words in _TOO_LARGE)):
        return TooLarge(message, status=code, reason=reason)
    if code >= _SERVER_ERRORS:
        return Unreachable(f"API server: {message}", status=code, reason=reason)
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(code, KubeError)
    return kind(message, status=code, reason=reason)
