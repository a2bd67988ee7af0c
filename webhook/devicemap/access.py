"""Who may read the device map: the API server reviews the caller's token, and what its user may do.

The map names the Pods of all namespaces. Whoever may `get` the path `/koordgate/map` (a nonResourceURL of RBAC) may
read it. Answers of the API server are remembered for a short time, so that a right that is taken away ends then.
"""

import hashlib
import ipaddress
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from aiohttp import web

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import ACCESS_REVIEWS, TOKEN_REVIEWS
from webhook.boundedcache import BoundedCache

PATH: Final = "/koordgate/map"
"""What RBAC names to let somebody read the map."""

ALLOWED_S: Final = 60.0
_REFUSED_S: Final = 10.0
_MAX_KNOWN: Final = 1024
_MAX_LENGTH: Final = 8190  # characters of a token, as aiohttp accepts in a header
_DEADLINE_S: Final = 5.0
_EACH: Final = (5.0, 0.5)  # reviews that one address may cause at once, and for each further second
_ALL: Final = (20.0, 5.0)  # likewise all addresses together
_QUIET_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class MapGuard(Protocol):
    """Lets callers in."""

    async def admit(self, http: web.Request) -> None:
        """Return if the caller may read the map.

        Raises web.HTTPException: it may not.
        """


class _Answer(NamedTuple):
    """What was found out about a token: the status that its owner gets (200: it may read), why, and until when."""

    status: int
    why: str
    until: float


class _Bucket:
    """So many at once, and so many for each further second."""

    __slots__ = ("_at", "_left", "_most", "_rate")

    def __init__(self, most: float, rate: float, now: float) -> None:
        self._most, self._rate, self._left, self._at = most, rate, most, now

    def take(self, now: float) -> float:
        """Take one; returns the seconds until there is one, 0 where there was."""
        self._left = min(self._left + (now - self._at) * self._rate, self._most)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


class TokenGuard:
    """Asks the API server.

    `clock`: monotonic seconds.
    """

    def __init__(self, kube: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: BoundedCache[bytes, _Answer] = BoundedCache(_MAX_KNOWN)
        self._each: BoundedCache[str, _Bucket] = BoundedCache(_MAX_KNOWN)
        self._all = _Bucket(*_ALL, clock())
        self._quiet_until = -math.inf

    async def admit(self, http: web.Request) -> None:
        """Return if the caller's token is that of a user who may read the map.

        Raises web.HTTPUnauthorized: it shows no token, or the API server does not know it; web.HTTPForbidden: its user
        may not; web.HTTPTooManyRequests: too many unknown tokens were shown lately; web.HTTPServiceUnavailable: the API
        server cannot be asked.
        """
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _MAX_LENGTH or not token.isascii():
            raise unauthorized("state the token of a Kubernetes user, as in: Authorization: Bearer TOKEN")
        key = hashlib.sha256(token.encode()).digest()  # no token is kept
        answer = self._known.get(key)
        if answer is None or self._clock() >= answer.until:
            self._pace(http.remote or "")
            answer = self._known.put(key, await self._review(token))
        if answer.status == web.HTTPUnauthorized.status_code:
            raise unauthorized(answer.why)
        if answer.status == web.HTTPForbidden.status_code:
            raise web.HTTPForbidden(text=answer.why)

    def _pace(self, address: str) -> None:
        now = self._clock()
        bucket = self._each.get(address) or self._each.put(address, _Bucket(*_EACH, now))
        wait = bucket.take(now) or self._all.take(now)
        if wait:
            after = math.ceil(wait)
            raise web.HTTPTooManyRequests(
                text=f"too many tokens were shown lately: try again in {after} s", headers={"Retry-After": str(after)}
            )

    async def _review(self, token: str) -> _Answer:
        try:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
            status = (await self._kube.create(TOKEN_REVIEWS.path(), review, deadline=_DEADLINE_S)).get("status") or {}
            if status.get("authenticated") is not True:
                return self._answer(401, "the API server does not know this token, or it has expired: take a new one")
            user = status.get("user") or {}
            reviewed = await self._kube.create(ACCESS_REVIEWS.path(), _access(user), deadline=_DEADLINE_S)
        except KubeError as error:
            if self._clock() >= self._quiet_until:
                self._quiet_until = self._clock() + _QUIET_S
                _LOG.warning("a caller of the device map cannot be reviewed: %s", error)
            raise web.HTTPServiceUnavailable(
                text="the API server cannot be asked about this token now: try again", headers={"Retry-After": "5"}
            ) from error
        if (reviewed.get("status") or {}).get("allowed") is True:
            return self._answer(200, "")
        return self._answer(
            403,
            f"user {user.get('username', '')!r:.253} may not get {PATH}: bind the ClusterRole koordgate-map to it "
            "(docs/operate/operations.md)",
        )

    def _answer(self, status: int, why: str) -> _Answer:
        lasts = ALLOWED_S if status == web.HTTPOk.status_code else _REFUSED_S
        return _Answer(status, why, self._clock() + lasts)


def _access(user: dict[str, Any]) -> dict[str, Any]:
    """The question whether a user may read the map, with all that authorizers may look at."""
    spec = {"nonResourceAttributes": {"path": PATH, "verb": "get"}, "user": user.get("username", "")}
    spec |= {key: user[key] for key in ("uid", "groups", "extra") if user.get(key)}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def unauthorized(why: str) -> web.HTTPUnauthorized:
    """The answer to a caller without a usable token."""
    return web.HTTPUnauthorized(text=why, headers={"WWW-Authenticate": 'Bearer realm="koordgate device map"'})


class LoopbackGuard:
    """Lets everybody in who asks for this machine by a loopback name: a page of another site must not be one of them.

    A name of another site that leads to 127.0.0.1 (DNS rebinding) is refused.
    """

    async def admit(self, http: web.Request) -> None:
        """Return if the request names this machine.

        Raises web.HTTPForbidden: it does not.
        """
        if not _is_loopback(http.url.host or ""):
            raise web.HTTPForbidden(text="this map is for this machine alone: open it as http://127.0.0.1")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
