"""KubeClient: the verbs of the Kubernetes API over raw JSON, each within a deadline."""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import aiohttp
import orjson
from yarl import URL

from koordgate.backoff import Backoff
from koordgate.kube.access import Access, FixedAccess, inside_a_pod, service_account_access
from koordgate.kube.errors import KubeError, TooManyRequests, Unauthorized, Unreachable, from_status

# A peer that vanished silently is noticed within half a minute. Linux's defaults take 2 hours on an idle watch and 15
# minutes on a request: https://github.com/kubernetes/kubernetes/issues/48638 is the same in Go's client.
_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
)

_IDLE_S: Final = 30.0  # for which a connection without requests is kept


def open_session(tls: ssl.SSLContext | None, limit: int) -> aiohttp.ClientSession:
    """Open the session.

    `tls`: settings for https; None for the defaults.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limit,
            ssl=tls if tls is not None else True,
            socket_factory=_watchful_socket,
            keepalive_timeout=_IDLE_S,
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # the client has its own deadlines
        # The API server is near: gzip would cost both sides more time than it saves.
        headers={"Accept-Encoding": "identity", "User-Agent": "koordgate"},
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_no_hidden_retry,),
    )


def _watchful_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, name, value in _SOCKET_OPTIONS:
        if hasattr(socket, name):  # some exist on Linux only
            made.setsockopt(level, getattr(socket, name), value)
    return made


async def _no_hidden_retry(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Turn a broken connection into our own error before aiohttp handles it.

    aiohttp repeats PUT and DELETE on a fresh connection when a kept one breaks. A compare-and-swap whose answer was
    lost would then collide with its own write, and be reported as a conflict.
    """
    asked = f"{request.method} {request.url.path}"
    try:
        return await send(request)
    except aiohttp.ClientSSLError as error:
        raise Unreachable(f"{asked}: TLS: {error}", maybe_performed=False) from error
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(f"{asked}: no connection: {error}", maybe_performed=False, refused=True) from error
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Unreachable(f"{asked}: connection broke: {error}") from error


Params = Mapping[str, str | int]
"""Query parameters."""

PatchType = Literal["json", "merge", "apply"]

_JSON: Final = "application/json"
_METADATA: Final = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"  # errors come as usual
_PATCH_TYPES: Final[Mapping[PatchType, str]] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML
}
_DEADLINE_S: Final = 10.0
_ATTEMPTS: Final = 4
_CONNECTIONS: Final = 64
_MAX_OF_PAGE: Final = 4 * 2**20  # bytes, decoded in one piece; a hundred ordinary Pods have one or two megabytes
_FIRST_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 2.0
_OK: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request; every attempt sends the same."""

    method: str
    path: str
    params: Params
    body: bytes | None = None
    content_type: str = _JSON
    accept: str = _JSON
    most: int | None = None  # bytes of an answer that may be had in parts

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _TooLongError(Exception):
    """An answer is longer than the request allows."""


class KubeClient:
    """The Kubernetes API as plain JSON. Use as `async with KubeClient.autodetect() as kube:`.

    Every verb has a `deadline` in seconds, waits and retries included (None: no limit), and raises only
    `koordgate.kube.errors`. Reads are retried within it when the server cannot be reached. Writes are retried only when
    it is certain that they were not performed (429, no connection); an ambiguous write is left to the caller:
    `Unreachable.maybe_performed`.
    `impersonate`: the user as whom requests are made, if the credentials may; "" for their own user.
    """

    def __init__(
        self,
        base_url: str = "",
        token: str | None = None,
        *,
        access: Access | Callable[[], Awaitable[Access]] | None = None,
        limit: int = _CONNECTIONS,
        impersonate: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = access or FixedAccess(base_url.rstrip("/"), token)
        self._limit = limit
        self._headers = {"Impersonate-User": impersonate} if impersonate else {}
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self._dated: tuple[str, float] = ("", 0.0)  # the latest answer's Date header, and our time when it came
        self._access: Access = FixedAccess("")
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    @classmethod
    def from_kubeconfig(
        cls,
        path: Path | str | None = None,
        *,
        context: str | None = None,
        limit: int = _CONNECTIONS,
        impersonate: str = "",
    ) -> Self:
        """Use a kubeconfig.

        `path`: the file; None for that of $KUBECONFIG, else the default path. `context`: its name there; None for the
        current one. `impersonate`: the user to act as; empty for the kubeconfig's own.
        """

        async def load() -> Access:
            from koordgate.kube.kubeconfig import kubeconfig_access  # noqa: PLC0415 takes 36 MB and a second

            return await kubeconfig_access(Path(path) if path is not None else None, context)

        return cls(access=load, limit=limit, impersonate=impersonate)

    @classmethod
    def autodetect(
        cls,
        kubeconfig: Path | None = None,
        *,
        context: str | None = None,
        limit: int = _CONNECTIONS,
        impersonate: str = "",
    ) -> Self:
        """Use $KUBECONFIG where it is set, the service account inside a Pod, else the default kubeconfig.

        `kubeconfig`: the file to use instead. `context`: of the kubeconfig, which is then used inside a Pod too; None
        for the current one. `impersonate`: the user to act as; empty for the credentials' own.
        """
        if not kubeconfig and not context and inside_a_pod():
            return cls(access=service_account_access, limit=limit, impersonate=impersonate)
        return cls.from_kubeconfig(kubeconfig, context=context, limit=limit, impersonate=impersonate)

    async def __aenter__(self) -> Self:
        self._access = await self._source() if callable(self._source) else self._source
        self._proxy = self._access.proxy
        self._session = open_session(self._access.ssl_context(), self._limit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def namespace(self) -> str:
        """Where the user's own objects are: the kubeconfig's context or the service account names it."""
        return self._access.namespace

    @property
    def server_offset(self) -> float | None:
        """Seconds by which the API server's clock is ahead of ours; None while no answer has stated its time.

        It is right to a second and the time that the answer took: the `Date` header states whole seconds (RFC 9110,
        section 6.6.1). Behind a load balancer it is that of the API server that answered last.
        """
        date, seen = self._dated
        try:
            return parsedate_to_datetime(date).timestamp() + 0.5 - seen if date else None
        except ValueError:
            return None

    async def get(
        self, path: str, *, params: Params | None = None, deadline: float | None = _DEADLINE_S
    ) -> dict[str, Any]:
        """Read an object, or anything else that is JSON.

        Raises NotFound: it does not exist.
        """
        return await self._ask(_Ask("GET", path, params or {}), deadline)

    async def list_pages(
        self, path: str, *, limit: int = 500, params: Params | None = None, deadline: float | None = _DEADLINE_S
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], str], None]:
        """List a collection page by page; yields the items and the list's resourceVersion.

        The caller may empty the list of items as it goes, so that a page need not stay in memory as a whole. A page
        that is too long is given up, and asked for again with fewer items: anybody may have Pods of a megabyte.
        `limit`: items a page, at most. Raises Gone: the list took so long that its revision is compacted; what was
        yielded is incomplete: start again.
        """
        query: dict[str, Any] = {**(params or {}), "limit": limit}
        while True:
            try:
                page = await self._ask(_Ask("GET", path, dict(query), most=_MAX_OF_PAGE), deadline)
            except _TooLongError:
                query["limit"] = max(query["limit"] // 4, 1)
                continue
            query["limit"] = min(query["limit"] * 2, limit)
            about = page["metadata"]
            yield page.pop("items", None) or [], about["resourceVersion"]
            if not about.get("continue"):
                return
            query["continue"] = about["continue"]

    async def create(
        self, path: str, body: Mapping[str, Any], *, dry_run: bool = False, deadline: float | None = _DEADLINE_S
    ) -> dict[str, Any]:
        """POST an object to its collection, or a subresource such as a Binding to its object.

        Raises AlreadyExists: the name is taken.
        """
        return await self._ask(_Ask("POST", path, _dry(dry_run), orjson.dumps(body)), deadline)

    async def replace(
        self, path: str, body: Mapping[str, Any], *, dry_run: bool = False, deadline: float | None = _DEADLINE_S
    ) -> dict[str, Any]:
        """PUT an object; a resourceVersion in its metadata makes this a compare-and-swap.

        Returns its new metadata. The rest is not sent back, as both sides have it. Raises Conflict: the object is at
        another revision.
        """
        return await self._ask(_Ask("PUT", path, _dry(dry_run), orjson.dumps(body), accept=_METADATA), deadline)

    async def patch(
        self,
        path: str,
        body: Mapping[str, Any] | list[dict[str, Any]],
        content_type: PatchType,
        *,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        deadline: float | None = _DEADLINE_S,
    ) -> dict[str, Any]:
        """Change an object.

        `body`: a list of operations for `json`, a partial object for `merge` and `apply`.
        """
        params: dict[str, str | int] = dict(_dry(dry_run))
        if field_manager:
            params["fieldManager"] = field_manager
        if force:
            params["force"] = "true"
        return await self._ask(_Ask("PATCH", path, params, orjson.dumps(body), _PATCH_TYPES[content_type]), deadline)

    async def delete(
        self, path: str, *, revision: str | None = None, uid: str | None = None, deadline: float | None = _DEADLINE_S
    ) -> dict[str, Any]:
        """Delete an object.

        `revision`: delete it only at this resourceVersion. `uid`: delete it only if it is the object with this UID.
        Raises Conflict: it is at another resourceVersion, or is another object of this name.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        only = {key: value for key, value in (("resourceVersion", revision), ("uid", uid)) if value is not None}
        if only:
            options["preconditions"] = only
        return await self._ask(_Ask("DELETE", path, {}, orjson.dumps(options)), deadline)

    async def watch_lines(
        self,
        path: str,
        params: Params | None = None,
        *,
        timeout_s: int = 300,
        silent_s: float | None = None,
        on_open: Callable[[], None] | None = None,
        deadline: float | None = _DEADLINE_S,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Raw watch events, bookmarks and ERROR events included, until the server ends the watch or falls silent.

        `timeout_s`: after how many seconds the server is to end it. `silent_s`: after how many seconds without a line
        it ends here, as if the server had ended it: whether the server still answers shows when the next one is opened.
        None: never. `on_open`: called once the server has accepted the watch. `deadline`: for the server to accept it.
        Events have none: TCP notices a server that vanished, and one that hangs is given up `deadline` seconds after
        `timeout_s`. Raises Gone: the resourceVersion is too old; Unreachable: the connection broke.
        """
        query = {**(params or {}), "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": timeout_s}
        ask = _Ask("GET", path, query)
        async with AsyncExitStack() as opened:
            async with _time_limit(ask, deadline):
                answer = await opened.enter_async_context(self._answer(ask, renew=False))
            if on_open:
                on_open()
            hung_at = None if deadline is None else asyncio.get_running_loop().time() + timeout_s + deadline
            async with aclosing(_lines(ask, answer.content, hung_at, silent_s)) as lines:
                async for line in lines:
                    yield _decoded(ask, line)

    async def _ask(self, ask: _Ask, deadline: float | None) -> dict[str, Any]:
        """Perform a request of any verb but watch: deadline, retries, errors."""
        async with _time_limit(ask, deadline) as limit:
            renew = False
            backoff = Backoff(_FIRST_WAIT_S, _MAX_WAIT_S, self._jitter)
            for attempt in range(_ATTEMPTS):
                try:
                    async with self._answer(ask, renew=renew) as answer:
                        return _decoded(ask, await _whole(ask, answer))
                except KubeError as error:
                    renew = isinstance(error, Unauthorized) and not attempt
                    wait = 0.0 if renew else _wait_before_retry(ask, error, backoff)
                    if wait is None or attempt + 1 == _ATTEMPTS or _too_late(limit, wait):
                        raise
                    await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _answer(self, ask: _Ask, *, renew: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once, and yield a successful answer; anything else is raised as a `KubeError`."""
        if self._session is None:
            raise RuntimeError("KubeClient is used outside its `async with`")
        headers = {**self._headers, "Accept": ask.accept}
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
        authorization = await self._access.authorization(renew=renew)
        if authorization:
            headers["Authorization"] = authorization
        url = URL(self._access.base_url + ask.path, encoded=True).with_query(ask.params or None)
        try:
            async with self._session.request(
                ask.method,
                url,
                data=ask.body,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                server_hostname=self._access.server_name,
            ) as answer:
                if date := answer.headers.get("Date"):
                    self._dated = date, self._clock()
                if answer.status not in _OK:
                    raise _refusal(answer, await answer.read())
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{ask}: connection broke: {error!r}") from error


def _wait_before_retry(ask: _Ask, error: KubeError, backoff: Backoff) -> float | None:
    """Seconds to wait before the request is sent again; None if it must not be."""
    if isinstance(error, TooManyRequests):
        return max(backoff.failed(), error.retry_after or 0)
    if isinstance(error, Unreachable) and (error.refused or not ask.is_write):
        return backoff.failed()
    return None


def _dry(dry_run: bool) -> Params:  # noqa: FBT001
    return {"dryRun": "All"} if dry_run else {}


@asynccontextmanager
async def _time_limit(ask: _Ask, deadline: float | None) -> AsyncIterator[asyncio.Timeout]:
    try:
        async with asyncio.timeout(deadline) as limit:
            yield limit
    except TimeoutError as error:
        raise Unreachable(f"{ask}: no answer within {deadline} s") from error


def _too_late(limit: asyncio.Timeout, wait: float) -> bool:
    """Whether the deadline would pass during the wait; the present error says more than a timeout would."""
    end = limit.when()
    return end is not None and asyncio.get_running_loop().time() + wait >= end


async def _whole(ask: _Ask, answer: aiohttp.ClientResponse) -> bytes:
    """Read an answer; one that is too long is not read to its end."""
    if ask.most is None or ask.params.get("limit") == 1:
        return await answer.read()
    data = bytearray()
    while chunk := await answer.content.readany():
        data += chunk
        if len(data) > ask.most:
            raise _TooLongError
    return bytes(data)


def _decoded(ask: _Ask, data: bytes) -> dict[str, Any]:
    try:
        return orjson.loads(data)  # type: ignore[no-any-return]
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"{ask}: the answer is not JSON: {error}") from error


def _refusal(answer: aiohttp.ClientResponse, data: bytes) -> KubeError:
    """Make the error of an unsuccessful answer; not every answer carries a Status."""
    hint = answer.headers.get("Retry-After", "")
    retry_after = float(hint) if hint.isdecimal() else None
    try:
        status = orjson.loads(data)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict):
        status = {"message": data[:300].decode(errors="replace").strip() or answer.reason, "reason": ""}
    return from_status({**status, "code": answer.status}, retry_after=retry_after)


async def _lines(
    ask: _Ask, stream: aiohttp.StreamReader, hung_at: float | None, silent_s: float | None
) -> AsyncGenerator[bytes, None]:
    """Yield lines of any length (aiohttp's own reader refuses long ones, and an event may have megabytes)."""
    pieces: list[bytes] = []
    clock = asyncio.get_running_loop().time
    while True:
        silent_at = None if silent_s is None else clock() + silent_s
        ends = min((at for at in (hung_at, silent_at) if at is not None), default=None)
        try:
            async with asyncio.timeout_at(ends):  # never around a yield: it would cancel the consumer
                chunk = await stream.readany()
        except TimeoutError as error:
            if ends == silent_at:
                return
            raise Unreachable(f"{ask}: the watch hangs") from error
        if not chunk:
            return  # a rest without a newline is an event that the server cut short
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            pieces.append(line)
            if joined := b"".join(pieces):
                yield joined
            pieces.clear()
        pieces.append(rest)
