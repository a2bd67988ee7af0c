"""The HTTP session under the client: its pool, detection of dead peers, and no hidden retries."""

import socket
import ssl
from typing import Final

import aiohttp

from koordgate.kube.errors import Unreachable

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
        headers={"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "koordgate"},
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
