"""gRPC servers that exchange serialised messages as bytes, and such messages written by hand."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

LIST = "/v1.PodResourcesLister/List"


def varint(number: int) -> bytes:
    rest, low = number >> 7, number & 0x7F
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def part(number: int, value: bytes | str) -> bytes:
    """A field of a message, by its number: a text, a message or numbers."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def container(name: str, resource: str = "", *ids: str, cpus: bytes = b"") -> bytes:
    """A ContainerResources within a PodResources."""
    devices = part(2, part(1, resource) + b"".join(part(2, one) for one in ids)) if ids else b""
    return part(3, part(1, name) + devices + (part(3, cpus) if cpus else b""))


def pod(name: str, *containers: bytes, namespace: str = "ns") -> bytes:
    """A PodResources within the answer."""
    return part(1, part(1, name) + part(2, namespace) + b"".join(containers))


Method = Callable[[Stream[bytes, bytes]], Awaitable[None]]


def once(answer: bytes) -> Method:
    """A method that always has the same answer."""

    async def method(stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        await stream.send_message(answer)

    return method


class _Plain(CodecBase):
    """Messages as bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ARG002 the library's signature
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:  # noqa: ARG002 the library's signature
        return data


class Served:
    """Methods served on a unix socket; an async context manager. The socket's file stays behind, as with a kubelet.

    Args:
        path: path of the socket.
        methods: methods by path, for example `/v1.PodResourcesLister/List`.
        streams: methods with many answers, likewise.
    """

    def __init__(self, path: Path, methods: Mapping[str, Method], streams: Mapping[str, Method] | None = None) -> None:
        self.path = path
        kinds = ((methods, Cardinality.UNARY_UNARY), (streams or {}, Cardinality.UNARY_STREAM))
        self._handlers = {
            name: Handler(method, kind, bytes, bytes) for group, kind in kinds for name, method in group.items()
        }
        self._server = Server([self], codec=_Plain())

    def __mapping__(self) -> Mapping[str, Handler]:  # what grpclib requires of a service
        return self._handlers

    async def __aenter__(self) -> Self:
        await self._server.start(path=str(self.path))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()


class Kubelet(Served):
    """A kubelet's PodResources service.

    Attributes:
        answer: the answer to List.
        asked: the number of calls.
    """

    def __init__(self, path: Path, answer: bytes, method: str = LIST) -> None:
        super().__init__(path, {method: self._list})
        self.answer: bytes | GRPCError = answer
        self.asked = 0

    async def _list(self, stream: Stream[bytes, bytes]) -> None:
        assert await stream.recv_message() == b""
        self.asked += 1
        if isinstance(self.answer, GRPCError):
            raise self.answer
        await stream.send_message(self.answer)
