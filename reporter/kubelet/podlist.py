"""The List call of the kubelet's PodResources service: one gRPC call over a unix socket, bounded in size and time.

gRPC's definition (grpc/grpc, doc/PROTOCOL-HTTP2.md): the request is one POST; a message is a byte 0, its length in four
bytes, and its bytes; the status is in the trailers. No more of gRPC is needed here. A client library would read a
message of any announced length, or bring threads of its own. The messages are those of k8s.io/kubelet,
pkg/apis/podresources/v1/api.proto (Kubernetes v1.37); only the fields that are read are described here.
"""

import asyncio
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from allocator.vocabulary.cputopology import MAX_CPU
from allocator.vocabulary.outcome import excerpt
from reporter import protobuf
from reporter.kubelet.podresources import WHOLE_POD, ContainerResources, PodResources
from reporter.protobuf import INT64, Field, MessageType

_PREFIX: Final = struct.Struct(">BI")  # whether it is compressed, and how long it is
_CHUNK: Final = 65536
_MAX_TEXT: Final = 200
_CLOSED: Final = "the connection was closed before the end of the answer"
_UNIMPLEMENTED: Final = "12"
_PASSING: Final = {"4": "deadline exceeded", "8": "resource exhausted", "14": "unavailable"}


class CallError(Exception):
    """An answer that cannot be used; the message says why."""


class NotServedError(CallError):
    """Nobody answers, or not now: a server that is restarted looks like this."""


async def call(path: str, method: str, request: bytes, *, max_bytes: int, seconds: float) -> bytes:
    """Make one call, over a connection of its own.

    Raises NotServedError: nobody listens, or no complete answer came in time; CallError: the answer cannot be used, or
    the socket cannot be opened.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connect(path)
            try:
                return await _exchange(reader, writer, _head(method, seconds), request, max_bytes)
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise NotServedError(f"no answer within {seconds:g} s") from error
    except ConnectionError as error:
        raise NotServedError(_CLOSED) from error
    except OSError as error:
        raise CallError(
            f"cannot be opened ({error.strerror or error}); the reporter must be root, and see it"
        ) from error
    except H2Error as error:
        raise CallError(f"not HTTP/2 that can be read ({type(error).__name__})") from error


async def _connect(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(path, limit=_CHUNK)
    except (FileNotFoundError, ConnectionError) as error:
        raise NotServedError(f"nobody answers ({error.strerror})") from error


def _head(method: str, seconds: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{max(round(seconds * 1000), 1)}m"),
    ]


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: Iterable[tuple[str, str]],
    request: bytes,
    max_bytes: int,
) -> bytes:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    connection.send_headers(stream, head)
    connection.send_data(stream, _PREFIX.pack(0, len(request)) + request, end_stream=True)
    answer = _Answer(max_bytes)
    room = 2 * max_bytes + _CHUNK  # for all frames; h2 itself would wait for one of 16 MiB
    while not answer.ended:
        writer.write(connection.data_to_send())
        await writer.drain()
        data = await reader.read(_CHUNK)
        if not data:
            raise NotServedError(_CLOSED)
        room -= len(data)
        if room < 0:
            raise _too_long(max_bytes)
        for event in connection.receive_data(data):
            answer.take(event)
            if isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, stream)
    return answer.message()


class _Answer:
    """The part of the answer that has arrived."""

    def __init__(self, max_bytes: int) -> None:
        self._most_bytes = max_bytes
        self._body = bytearray()
        self._fields: dict[bytes, bytes] = {}
        self.ended = False

    def take(self, event: Event) -> None:
        """Process one event of the connection."""
        if isinstance(event, DataReceived):
            self._body += event.data
            if len(self._body) > _PREFIX.size + self._most_bytes or self._announced() > self._most_bytes:
                raise _too_long(self._most_bytes)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            self._fields |= {bytes(name): bytes(value) for name, value in event.headers}
            if self._fields.get(b":status") != b"200":
                raise CallError(f"not a gRPC server: HTTP status {_text(self._fields.get(b':status', b''))}")
        elif isinstance(event, StreamReset):
            raise NotServedError(f"the answer was broken off (HTTP/2 error {int(event.error_code)})")
        elif isinstance(event, ConnectionTerminated):
            raise NotServedError(f"it closes its connections (HTTP/2 error {int(event.error_code or 0)})")
        self.ended = self.ended or isinstance(event, StreamEnded)

    def message(self) -> bytes:
        """The answer's message, after its end.

        Raises CallError: the server reports a failure, or there is not exactly one plain message.
        """
        self._check_status()
        if len(self._body) < _PREFIX.size:
            raise CallError("its answer has no message")
        if self._body[0]:
            raise CallError("its answer is compressed, which was not requested")
        if len(self._body) != _PREFIX.size + self._announced():
            came = len(self._body) - _PREFIX.size
            raise CallError(f"its answer announces {self._announced()} bytes and has {came}")
        return bytes(self._body[_PREFIX.size :])

    def _announced(self) -> int:
        return int(_PREFIX.unpack_from(self._body)[1]) if len(self._body) >= _PREFIX.size else 0

    def _check_status(self) -> None:
        status = _text(self._fields.get(b"grpc-status", b""))
        if not status:
            raise CallError("not a gRPC server: its answer has no status (grpc-status)")
        if status in _PASSING:
            raise NotServedError(f"it says {_PASSING[status]}")
        if status == _UNIMPLEMENTED:
            raise CallError("its server does not have this service")
        if status != "0":
            said = _text(unquote_to_bytes(self._fields.get(b"grpc-message", b"")))
            raise CallError(f"it answers with gRPC status {status}: {said or 'no reason'}")


def _too_long(max_bytes: int) -> CallError:
    return CallError(f"its answer is longer than {max_bytes} bytes; it is not read")


def _text(data: bytes) -> str:
    """Text of another program, shortened and on one line."""
    return "".join(char if char.isprintable() else "?" for char in data.decode(errors="replace")[:_MAX_TEXT])


METHOD: Final = "/v1.PodResourcesLister/List"
_MAX_PODS: Final = 4096
_MAX_PARTS: Final = 65536  # containers, rows of devices and CPUs together
_MESSAGES: Final = {
    "ListPodResourcesResponse": (Field("pod_resources", 1, "PodResources", many=True),),
    "PodResources": (
        Field("name", 1),
        Field("namespace", 2),
        Field("containers", 3, "ContainerResources", many=True),
        Field("cpu_ids", 4, INT64, many=True),
    ),
    "ContainerResources": (
        Field("name", 1),
        Field("devices", 2, "ContainerDevices", many=True),
        Field("cpu_ids", 3, INT64, many=True),
    ),
    "ContainerDevices": (Field("resource_name", 1), Field("device_ids", 2, many=True)),
}


class PodListError(ValueError):
    """An answer that cannot be used; the message says what is wrong with it."""


def parse(data: bytes) -> tuple[PodResources, ...]:
    """Read a serialised ListPodResourcesResponse.

    Raises PodListError: it is truncated or malformed, lists more than a node can have, or something without a name.
    """
    try:
        message = protobuf.parse(_response(), data)
    except ValueError as error:
        raise PodListError(f"its answer is {error}") from error
    if len(message.pod_resources) > _MAX_PODS:
        raise PodListError(f"its answer lists {len(message.pod_resources)} Pods; at most {_MAX_PODS} are read")
    parts = 0
    for count in _counts(message):
        parts += count
        if parts > _MAX_PARTS:
            raise PodListError(f"its answer has more than {_MAX_PARTS} parts; no node has so many")
    return tuple(_pod(pod) for pod in message.pod_resources)


def _counts(message: Any) -> Iterator[int]:
    for pod in message.pod_resources:
        yield len(pod.containers) + len(pod.cpu_ids)
        for container in pod.containers:
            yield len(container.devices) + len(container.cpu_ids)
            yield from (len(row.device_ids) for row in container.devices)


def _pod(pod: Any) -> PodResources:
    containers: dict[str, ContainerResources] = {}
    for container in pod.containers:
        if containers.setdefault(_named(container.name, "a container"), found := _container(container)) is not found:
            raise PodListError(f"its answer lists container {excerpt(container.name)!r} of one Pod twice")
    if whole := _cpus(pod.cpu_ids):
        containers[WHOLE_POD] = ContainerResources(cpus=whole)
    return PodResources(_named(pod.namespace, "a namespace"), _named(pod.name, "a Pod"), containers)


def _container(container: Any) -> ContainerResources:
    """Combine the rows of a container, which have no order: a device near two NUMA nodes has two rows."""
    devices: dict[str, set[str]] = {}
    for row in container.devices:
        ids = devices.setdefault(_named(row.resource_name, "a resource"), set())
        ids.update(_named(identity, "a device") for identity in row.device_ids)
    return ContainerResources({name: frozenset(devices[name]) for name in sorted(devices)}, _cpus(container.cpu_ids))


def _cpus(ids: Iterable[int]) -> int:
    cpus = 0
    for cpu in ids:
        if not 0 <= cpu <= MAX_CPU:
            raise PodListError(f"its answer lists CPU {cpu}; the largest accepted number is {MAX_CPU}")
        cpus |= 1 << cpu
    return cpus


def _named(text: str, what: str) -> str:
    if not text:
        raise PodListError(f"its answer lists {what} without a name")
    return text


@cache
def _response() -> MessageType:
    return protobuf.messages("v1", _MESSAGES)["ListPodResourcesResponse"]
