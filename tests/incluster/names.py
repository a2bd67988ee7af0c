"""The cluster's DNS, for names of Services only: it answers from the API server's Services."""

import asyncio
import ipaddress
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from localplane.plane import ControlPlane

DOMAIN = "cluster.local"
_HEADER = struct.Struct("!6H")
_ANSWER = 0x8580  # a response, authoritative, recursion desired and available
_NO_SUCH_NAME = 3
_ADDRESS = 1
_INTERNET = 1
_TTL_S = 1

Find = Callable[[str], Awaitable[str | None]]


class Names(asyncio.DatagramProtocol):
    """A DNS server on UDP; an async context manager."""

    def __init__(self, find: Find, host: str, port: int) -> None:
        """Describe the server.

        Args:
            find: The IPv4 address of a name without its last dot; None if there is no such name.
            host: Where it listens.
            port: The port.
        """
        self._find = find
        self._place = (host, port)
        self._answering: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=self._place
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(data, addr))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, data: bytes, client: tuple[str, int]) -> None:
        name, kind, end = question(data)
        address = await self._find(name)
        records = b""
        if address is not None and kind == _ADDRESS:
            packed = ipaddress.IPv4Address(address).packed
            records = struct.pack("!HHHIH", 0xC000 | _HEADER.size, _ADDRESS, _INTERNET, _TTL_S, len(packed)) + packed
        flags = _ANSWER | (_NO_SUCH_NAME if address is None else 0)
        (number, *_) = _HEADER.unpack_from(data)
        header = _HEADER.pack(number, flags, 1, 1 if records else 0, 0, 0)
        if self._transport is not None:
            self._transport.sendto(header + data[_HEADER.size : end] + records, client)


def question(data: bytes) -> tuple[str, int, int]:
    """The name, the type and the end of a query's one question."""
    labels, place = [], _HEADER.size
    while length := data[place]:
        labels.append(data[place + 1 : place + 1 + length].decode())
        place += 1 + length
    kind, _class = struct.unpack_from("!HH", data, place + 1)
    return ".".join(labels).lower(), kind, place + 5


def services_of(plane: ControlPlane) -> Find:
    """Find `NAME.NAMESPACE.svc.cluster.local` among the Services of a control plane."""

    async def find(name: str) -> str | None:
        service, _, rest = name.partition(".")
        namespace, _, domain = rest.partition(".")
        if domain != f"svc.{DOMAIN}":
            return None
        async with plane.admin() as admin:
            found = await admin.find(f"/api/v1/namespaces/{namespace}/services/{service}")
        return None if found is None else found["spec"]["clusterIP"]

    return find
