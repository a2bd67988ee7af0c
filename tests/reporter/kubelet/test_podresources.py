"""The kubelet's PodResources socket: it precedes the files, and no malformed answer is accepted.

`podresources.bin` was serialised by k8s.io/kubelet v0.36.3 itself, with fields that are not read here, and
`podresources-pods.bin` by v0.37.2, with CPUs and memory of a Pod as a whole.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import waiting
from grpc_kubelet import LIST, Kubelet, container, part, pod, varint
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from reporter.cgroup.layout import KubernetesQos
from reporter.files import FileReading
from reporter.kubelet import podlist, podresources
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.kubelet.podlist import PodListError
from reporter.kubelet.podresources import Allocations, ContainerResources, PodResources
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.pods import NodePod

MAX_BYTES = 2 * 2**20

WRITTEN_BY_KUBELET = (Path(__file__).parent / "podresources.bin").read_bytes()
OF_PODS = (Path(__file__).parent / "podresources-pods.bin").read_bytes()
GOOD = pod("p", container("main", "nvidia.com/gpu", "GPU-1"))


def node_pod(name: str = "p", uid: str = "u1", **over: Any) -> NodePod:
    plain = NodePod(uid, "ns", name, uid, KubernetesQos.GUARANTEED, acknowledged=True)
    return replace(plain, **over)


# servers


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(path, talk: Talk) -> AsyncIterator[None]:
    """Any listener on a socket; it is stopped at the end, whatever it does."""
    talks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())  # type: ignore[arg-type] # it runs as one
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.transport.abort()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(run, str(path))
    yield
    for one in talks:
        one.cancel()
    await asyncio.gather(*talks)
    server.close()
    await server.wait_closed()


async def end(writer: asyncio.StreamWriter, *, stay: bool) -> None:
    """Send these bytes, then send nothing more, or close."""
    await writer.drain()
    if stay:
        await asyncio.Event().wait()
    writer.close()
    await writer.wait_closed()


def saying(data: bytes, *, stay: bool = False) -> Talk:
    """Send this, whatever was asked."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await end(writer, stay=stay)

    return talk


HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def framed(message: bytes, length: int | None = None, flag: int = 0) -> bytes:
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


def http2(script: Callable[[H2Connection, int], None], *, stay: bool = True) -> Talk:
    """Answer in HTTP/2 by the script, then send nothing more, or close."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        stream = None
        while stream is None:
            events = connection.receive_data(await reader.read(65536))
            stream = next((event.stream_id for event in events if isinstance(event, RequestReceived)), None)
        script(connection, stream)
        writer.write(connection.data_to_send())
        await end(writer, stay=stay)

    return talk


def answering(body: bytes, head: Any = HEAD, trailers: Any = OK) -> Callable[[H2Connection, int], None]:
    def script(connection: H2Connection, stream: int) -> None:
        connection.send_headers(stream, head, end_stream=not body and not trailers)
        for at in range(0, len(body), 16384):
            last = at + 16384 >= len(body)
            connection.send_data(stream, body[at : at + 16384], end_stream=last and not trailers)
        if trailers:
            connection.send_headers(stream, trailers, end_stream=True)

    return script


def half(connection: H2Connection, stream: int) -> None:
    connection.send_headers(stream, HEAD)
    connection.send_data(stream, framed(GOOD, length=1000))


def announcing_much(connection: H2Connection, stream: int) -> None:
    connection.send_headers(stream, HEAD)
    connection.send_data(stream, framed(b"x", length=2**32 - 1))


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pings without end."""
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    connection.receive_data(await reader.read(65536))
    while True:
        connection.ping(b"12345678")
        writer.write(connection.data_to_send())
        await writer.drain()


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int = MAX_BYTES) -> None:
    """An answer without end, whatever length it announces, that respects flow control."""
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    stream = None
    while data := await reader.read(65536):
        for event in connection.receive_data(data):
            if isinstance(event, RequestReceived):
                stream = event.stream_id
                connection.send_headers(stream, HEAD)
                connection.send_data(stream, framed(b"", length=length))
        while stream is not None and (room := min(connection.local_flow_control_window(stream), 16384)):
            connection.send_data(stream, bytes(room))
        writer.write(connection.data_to_send())
        await writer.drain()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


# what is reported


def test_what_the_kubelets_own_package_writes_is_read() -> None:
    devices = {"nvidia.com/gpu": frozenset({"GPU-a", "GPU-b"}), "rdma/hca": frozenset({"é::1", "mlx5_0"})}
    assert podlist.parse(WRITTEN_BY_KUBELET) == (
        PodResources(
            "ml",
            "train",
            {"main": ContainerResources(devices, 1 << 2 | 1 << 4 | 1 << 300), "log": ContainerResources()},
        ),
        PodResources("default", "web-0", {"web": ContainerResources()}),
        PodResources("default", "empty", {}),
    )
    assert podlist.parse(b"") == ()


def test_cpus_of_a_pod_as_a_whole_stand_beside_those_of_its_containers() -> None:
    assert podlist.parse(OF_PODS) == (
        PodResources(
            "ml",
            "pool",
            {
                "main": ContainerResources(cpus=1 << 2),
                "log": ContainerResources(),
                "": ContainerResources(cpus=1 << 2 | 1 << 3 | 1 << 4 | 1 << 300),
            },
        ),
        PodResources("ml", "plain", {"main": ContainerResources(cpus=1 << 7)}),
    )


async def test_a_server_is_asked_and_its_words_are_by_uid(path: Path) -> None:
    async with Kubelet(path, GOOD) as kubelet:
        socket = PodResourcesSocket(str(path))
        first = await socket.read([node_pod()])
        kubelet.answer = pod("p", container("main", cpus=b"\x02\x03"))
        second = await socket.read([node_pod()])

    gpu = ContainerResources({"nvidia.com/gpu": frozenset({"GPU-1"})})
    assert first == FileReading(Allocations({"u1": {"main": gpu}}), None)
    assert second == FileReading(Allocations({"u1": {"main": ContainerResources({}, 0b1100)}}), None)


async def test_an_answer_of_many_frames_is_read_whole(path: Path) -> None:
    async with Kubelet(path, GOOD) as kubelet:
        ids = [f"device-{number:05}" for number in range(50_000)]
        kubelet.answer = pod("p", container("main", "example.com/card", *ids))
        reading = await PodResourcesSocket(str(path)).read([node_pod()])

    assert reading.value is not None
    assert reading.value.pods["u1"]["main"].devices["example.com/card"] == frozenset(ids)


async def test_without_a_socket_nothing_is_reported_and_nothing_is_wrong(path) -> None:
    socket = PodResourcesSocket(str(path), patience=0)

    assert await socket.read([node_pod()]) == FileReading(None, None)
    path.symlink_to(path.parent / "nowhere")
    assert await socket.read([node_pod()]) == FileReading(None, None)
    assert await PodResourcesSocket(str(path.parent / "nowhere" / "kubelet.sock"), patience=0).read([]) == (
        FileReading(None, None)
    )


async def test_a_socket_that_is_not_to_be_asked_is_not(path: Path, monkeypatch) -> None:
    monkeypatch.chdir(path.parent)
    async with Kubelet(path, GOOD) as kubelet:
        assert await PodResourcesSocket("").read([node_pod()]) == FileReading(None, None)

    assert kubelet.asked == 0


# what cannot be used


def _many(count: int) -> bytes:
    return b"".join(pod(f"p{number}") for number in range(count))


MALFORMED = {
    "cut off": (GOOD[:-1], "truncated or malformed"),
    "no protobuf": (b"\xff" * 20, "truncated or malformed"),
    "a text that is not UTF-8": (part(1, part(1, b"\xff") + part(2, "ns")), "truncated or malformed"),
    "a text for containers": (part(1, part(1, "p") + part(2, "ns") + part(3, "\x07")), "truncated or malformed"),
    "a Pod without a name": (part(1, part(2, "ns")), "a Pod without a name"),
    "a Pod without a namespace": (part(1, part(1, "p")), "a namespace without a name"),
    "a container without a name": (pod("p", container("")), "a container without a name"),
    "a resource without a name": (pod("p", container("main", "", "x")), "a resource without a name"),
    "a device without a name": (pod("p", container("main", "a/b", "")), "a device without a name"),
    "a container twice": (pod("p", container("main"), container("main")), "container 'main' of one Pod twice"),
    "a negative CPU": (pod("p", container("main", cpus=b"\xff" * 9 + b"\x01")), "CPU -1"),
    "a CPU that no machine has": (pod("p", container("main", cpus=varint(4096))), "CPU 4096"),
    "too many Pods": (_many(4097), "4097 Pods"),
    "too many CPUs": (pod("p", container("main", cpus=b"\x01" * 65536)), "more than 65536 parts"),
    "too many CPUs of a Pod": (pod("p", part(4, b"\x01" * 65537)), "more than 65536 parts"),
    "too large a CPU of a Pod": (pod("p", part(4, varint(4096))), "CPU 4096"),
    "too many containers": (pod("p", *[b"\x1a\x00"] * 65537), "more than 65536 parts"),
}


def test_as_many_pods_and_parts_as_are_allowed_are_read_with_the_lowest_and_the_highest_cpu() -> None:
    cpus = varint(0) + varint(4095) + b"\x01" * 65533  # 65535 of them, and their container: 65536 parts

    (one,) = podlist.parse(pod("p", container("main", cpus=cpus)))

    assert one.containers["main"].cpus == 1 << 0 | 1 << 1 | 1 << 4095
    assert len(podlist.parse(_many(4096))) == 4096


@pytest.mark.parametrize(("data", "said"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_answer_is_refused_whole(data: bytes, said: str) -> None:
    with pytest.raises(PodListError, match=said):
        podlist.parse(data)


@given(st.data())
def test_an_answer_with_changed_bytes_raises_nothing_else(data) -> None:
    whole = bytearray(WRITTEN_BY_KUBELET)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PodListError):
        podlist.parse(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@pytest.mark.parametrize("nested", [0, 1, 2, 3], ids=["Pods", "containers", "devices", "ids"])
def test_a_hostile_answer_does_not_fill_the_memory(nested: int) -> None:
    code = f"""
import re, sys
from reporter.kubelet import podlist

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

podlist.parse(b"")
before = peak()
try:
    podlist.parse(sys.stdin.buffer.read({MAX_BYTES}))
except podlist.PodListError:
    print(peak() - before)
"""
    tags = b"\x0a\x1a\x12\x12"
    data = bytes([tags[nested], 0]) * (MAX_BYTES // 2 - 16)
    for tag in reversed(tags[:nested]):
        data = bytes([tag]) + varint(len(data)) + data
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)

    assert int(done.stdout) < 96 * 1024


# Each: the listener, the message about it, and whether it may be a kubelet that is restarting.
HOSTILE: dict[str, tuple[Talk, str, bool]] = {
    "closes at once": (saying(b""), "closed", True),
    "closes mid-way": (http2(half, stay=False), "closed before the end of the answer", True),
    "hangs": (saying(b"", stay=True), "no answer within 0.2 s", True),
    "hangs mid-way": (http2(half), "no answer within 0.2 s", True),
    "pings without end": (endless, "no answer within 0.2 s", True),
    "breaks off": (http2(lambda connection, stream: connection.reset_stream(stream, 2)), "broken off", True),
    "ends its connections": (
        http2(lambda connection, _: connection.close_connection(error_code=2)),
        "closes its connections (HTTP/2 error 2)",
        True,
    ),
    "unavailable": (http2(answering(b"", trailers=[("grpc-status", "14")])), "says unavailable", True),
    "HTTP/1": (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, stay=True), "no answer within 0.2 s", True),
    "no protocol": (saying(b"\0\0\4\7\0\0\0\0\1" * 9, stay=True), "not HTTP/2", False),
    "no gRPC": (http2(answering(b"<html>", [(":status", "404")], ())), "HTTP status 404", False),
    "no status": (http2(answering(framed(GOOD), trailers=())), "its answer has no status", False),
    "one frame of 16 MiB": (saying(b"\xff\xff\xff\0\0\0\0\0\1" + bytes(5 * 2**20)), "longer than", False),
    "announces much": (http2(announcing_much), f"longer than {MAX_BYTES} bytes", False),
    "goes on for ever": (flood, f"longer than {MAX_BYTES} bytes", False),
    "goes on after what it announces": (partial(flood, length=9), f"longer than {MAX_BYTES} bytes", False),
    "cut off": (http2(answering(framed(GOOD, length=len(GOOD) + 1))), "its answer announces", False),
    "announces bytes and has none": (http2(answering(framed(b"", length=7))), "announces 7 bytes and has 0", False),
    "two messages": (http2(answering(framed(GOOD) + framed(GOOD))), "its answer announces", False),
    "no message": (http2(answering(b"")), "has no message", False),
    "half a message's head": (http2(answering(b"\0\0\0\0")), "has no message", False),
    "compressed": (http2(answering(framed(GOOD, flag=1))), "compressed", False),
    "no protobuf": (http2(answering(framed(b"\xff" * 9))), "truncated or malformed", False),
    "fails": (
        http2(answering(b"", trailers=[("grpc-status", "2"), ("grpc-message", "no%0A%E2%80%8Broom" + "x" * 999)])),
        f"gRPC status 2: no??room{'x' * 192}; ",
        False,
    ),
}


@pytest.mark.parametrize(("talk", "said", "passing"), HOSTILE.values(), ids=HOSTILE)
async def test_what_cannot_be_used_is_reported_and_the_last_good_answer_kept(
    path, talk: Talk, said: str, passing
) -> None:
    now = [0.0]
    deadline = 0.2 if said.endswith("0.2 s") else 30.0
    socket = PodResourcesSocket(str(path), deadline=deadline, patience=60.0, clock=lambda: now[0])

    async def read_well() -> FileReading[Allocations] | None:
        reading = await socket.read([node_pod()])
        return reading if reading.problem is None else None  # the short deadline of some cases is for silence

    async with Kubelet(path, GOOD):
        good = await waiting.first(read_well, unless=TimeoutError)
    assert good.value is not None
    async with listening(path, talk):
        first = await socket.read([node_pod()])
        now[0] = 60.0
        second = await socket.read([node_pod()])
    async with Kubelet(path, GOOD):
        again = await waiting.first(read_well, unless=TimeoutError)

    assert first.value == second.value == replace(good.value, current=False)
    assert (first.problem is None) is passing
    assert said in (second.problem or "")
    assert len(second.problem or "") < 500
    assert again == good


@pytest.mark.parametrize(("length", "read"), [(1000, True), (1001, False)])
async def test_an_answer_may_be_as_long_as_allowed_and_no_longer(path: Path, length: int, *, read: bool) -> None:
    async with listening(path, http2(answering(framed(bytes(length))))):
        called = podlist.call(str(path), LIST, b"", max_bytes=1000, seconds=5)
        if read:
            assert await called == bytes(length)
        else:
            with pytest.raises(podlist.CallError, match="longer than 1000 bytes"):
                await called


def unknown_frames(size: int) -> bytes:
    """Frames of a kind that HTTP/2 has readers ignore, so many bytes in all."""
    lengths = [1000] * (size // 1009 - 1)
    lengths.append(size - 1009 * len(lengths) - 9)
    return b"".join(length.to_bytes(3, "big") + b"\xfa\0" + bytes(4 + length) for length in lengths)


@pytest.mark.parametrize(("size", "read"), [(105_536, True), (105_537, False)])
async def test_all_frames_of_an_answer_may_have_twice_its_bytes_and_64_kib(
    path: Path, size: int, *, read: bool
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        stream = None
        while stream is None:
            events = connection.receive_data(await reader.read(65536))
            stream = next((event.stream_id for event in events if isinstance(event, RequestReceived)), None)
        begun = connection.data_to_send()
        answering(framed(b"x"))(connection, stream)
        answer = connection.data_to_send()
        writer.write(begun + unknown_frames(size - len(begun + answer)) + answer)
        await end(writer, stay=True)

    async with listening(path, talk):
        called = podlist.call(str(path), LIST, b"", max_bytes=20_000, seconds=5)
        if read:
            assert await called == b"x"
        else:
            with pytest.raises(podlist.CallError, match="longer than 20000 bytes"):
                await called


async def test_a_call_states_how_long_its_answer_may_take(path: Path) -> None:
    heads: list[dict[bytes, bytes]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        connection.initiate_connection()
        while not heads:
            events = connection.receive_data(await reader.read(65536))
            heads.extend(dict(event.headers) for event in events if isinstance(event, RequestReceived))
        await end(writer, stay=False)

    async with listening(path, talk):
        await PodResourcesSocket(str(path), deadline=1.5, patience=60.0, clock=lambda: 0.0).read([node_pod()])

    assert [(head[b":path"].decode(), head[b"grpc-timeout"]) for head in heads] == [(LIST, b"1500m")]


async def test_a_path_that_no_socket_can_have_is_reported() -> None:
    reading = await PodResourcesSocket("/" + "x" * 300).read([])

    assert "cannot be opened (AF_UNIX path too long); the reporter must be root" in (reading.problem or "")


async def test_a_server_without_the_service_is_reported(path: Path) -> None:
    async with Kubelet(path, GOOD, "/v1alpha1.PodResourcesLister/List"):
        reading = await PodResourcesSocket(str(path)).read([])

    assert reading == FileReading(
        None, f"{path}: its server does not have this service; the kubelet's files are used instead"
    )


async def test_a_file_in_the_sockets_place_is_not_asked(path) -> None:
    path.touch()
    reading = await PodResourcesSocket(str(path), patience=0).read([])

    assert "nobody answers" in (reading.problem or "")


async def test_a_kubelet_that_is_restarted_is_no_problem_until_it_stays_unreachable(path) -> None:
    now = [0.0]
    socket = PodResourcesSocket(str(path), patience=60.0, clock=lambda: now[0])
    async with Kubelet(path, GOOD):
        await socket.read([node_pod()])
    assert path.is_socket()
    problems = []
    for now[0] in (10.0, 69.0, 70.0):
        problems.append((await socket.read([node_pod()])).problem)
    path.unlink()
    async with Kubelet(path, GOOD):
        back = await socket.read([node_pod()])
    now[0] = 200.0
    away_again = await socket.read([node_pod()])

    assert problems[:2] == [None, None]
    assert "the kubelet does not serve it: nobody answers (Connection refused)" in (problems[2] or "")
    assert (back.problem, away_again.problem) == (None, None)


async def test_a_server_that_fails_is_left_alone_for_the_pause(path: Path) -> None:
    now = [0.0]
    socket = PodResourcesSocket(str(path), pause=10.0, clock=lambda: now[0])
    async with Kubelet(path, GOOD) as kubelet:
        kubelet.answer = b"\xff"
        failed = await socket.read([])
        now[0] = 9.0
        kept = await socket.read([])
        asked = kubelet.asked
        kubelet.answer = GOOD
        now[0] = 10.0
        good = await socket.read([])
        await socket.read([])

    assert (kept, asked) == (failed, 1)
    assert good.problem is None
    assert kubelet.asked == 3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_said_in_the_place_of_http2_is_an_error_of_the_call(tmp_path_factory, data) -> None:
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    asking = H2Connection(H2Configuration())
    asking.initiate_connection()
    asking.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":path", LIST), (":authority", "x")])
    connection.receive_data(asking.data_to_send())
    answering(framed(GOOD))(connection, 1)
    said = bytearray(connection.data_to_send())
    for at in data.draw(st.lists(st.integers(0, len(said) - 1), max_size=3)):
        said[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("s") / "s"

    async def ask() -> None:
        async with listening(path, saying(bytes(said))):
            with contextlib.suppress(podlist.CallError):
                await podlist.call(str(path), LIST, b"", max_bytes=MAX_BYTES, seconds=5)

    asyncio.run(ask())


# which Pods the answer is about


@pytest.mark.parametrize(
    ("pods", "uids"),
    [
        ([node_pod()], {"u1"}),
        ([node_pod(cgroup="f" * 32)], {"f" * 32}),
        ([node_pod(finished=True)], set()),
        ([node_pod(acknowledged=False)], set()),
        ([node_pod("q")], set()),
        ([node_pod(namespace="other")], set()),
        ([node_pod(uid="u1", finished=True), node_pod(uid="u2")], {"u2"}),
        ([node_pod(uid="u1", finished=True), node_pod(uid="u2", acknowledged=False)], set()),
        ([], set()),
    ],
    ids=[
        "its own",
        "a static Pod's",
        "one that has ended",
        "one that the kubelet may not know yet",
        "another name",
        "another namespace",
        "a later Pod of the name, once the kubelet knows it",
        "a later Pod of the name, before the kubelet knows it",
        "nobody",
    ],
)
def test_words_are_about_the_pod_that_the_kubelet_means_by_the_name(pods: list[NodePod], uids: set[str]) -> None:
    found = podresources.by_uid(podlist.parse(GOOD), podresources.names(pods))

    assert set(found) == uids


def test_a_name_that_is_reported_twice_counts_for_nothing() -> None:
    listed = podlist.parse(GOOD + pod("p", container("main")) + pod("q"))

    assert podresources.by_uid(listed, {("ns", "p"): "u1", ("ns", "q"): "u2"}) == {"u2": {}}


async def test_a_pod_created_again_does_not_inherit_what_was_reported_last(path: Path) -> None:
    socket = PodResourcesSocket(str(path))
    async with Kubelet(path, GOOD):
        await socket.read([node_pod(uid="u1")])
    kept = await socket.read([node_pod(uid="u2")])

    assert kept.value is not None
    assert set(kept.value.pods) == {"u1"}


# what takes precedence

GPU = "nvidia.com/gpu"


def told(pods: Mapping[str, Mapping[str, ContainerResources]], *, current: bool = True) -> FileReading[Allocations]:
    return FileReading(Allocations(pods, current), None)


def has(*ids: str, cpus: int = 0) -> ContainerResources:
    return ContainerResources({GPU: frozenset(ids)} if ids else {}, cpus)


FILE = (PodDevices("u1", "main", GPU, ("GPU-z", "GPU-a"), b"answer"), PodDevices("u2", "main", GPU, ("GPU-2",)))
BROKEN = "file: corrupt"


@pytest.mark.parametrize(
    ("problem", "answer", "expected"),
    [
        (None, FileReading(None, None), FILE),
        (None, told({}), FILE),
        (None, told({"u1": {"main": has("GPU-a", "GPU-z")}}), (FILE[1], FILE[0])),
        (
            None,
            told({"u1": {"main": has("GPU-b", "GPU-a")}}),
            (FILE[1], PodDevices("u1", "main", GPU, ("GPU-a", "GPU-b"))),
        ),
        (None, told({"u1": {"main": has()}}), (FILE[1],)),
        (None, told({"u1": {"side": has()}}), FILE),
        (None, told({"u1": {}}), FILE),
        (None, told({"u3": {"main": has("M::1")}}), (*FILE, PodDevices("u3", "main", GPU, ("M::1",)))),
        (None, told({"u1": {"main": has()}}, current=False), FILE),
        (BROKEN, told({"u1": {"main": has()}}, current=False), (FILE[1],)),
    ],
    ids=[
        "no socket",
        "nothing reported",
        "the same: the file's entry stays",
        "others",
        "none any more",
        "an init container that is not reported",
        "no container reported",
        "a Pod that the file lacks",
        "an older answer, and a file that is read",
        "an older answer, and a file that is not",
    ],
)
def test_the_kubelets_word_on_devices_counts_before_its_file(
    problem: str | None, answer: FileReading[Allocations], expected: tuple[PodDevices, ...]
) -> None:
    found = podresources.devices(FileReading(DeviceCheckpoint(FILE), problem), answer)

    assert found == FileReading(DeviceCheckpoint(expected), problem)


STATE = CpuState(StateLayout.V2, "static", 0b11110001, {"u1": {"main": 0b0010, "init": 0b1100}})


@pytest.mark.parametrize(
    ("answer", "entries", "default"),
    [
        (FileReading(None, None), STATE.entries, 0b11110001),
        (told({"u1": {"main": has(cpus=0b0010)}}), STATE.entries, 0b11110001),
        (told({"u2": {"main": has()}}), STATE.entries, 0b11110001),
        (told({"u1": {"main": has()}}), {"u1": {"init": 0b1100}}, 0b11110011),
        (told({"u1": {"main": has(), "init": has()}}), {}, 0b11111111),
        (told({"u2": {"main": has(cpus=0b110000)}}), {**STATE.entries, "u2": {"main": 0b110000}}, 0b11000001),
        (told({"u1": {"main": has()}}, current=False), STATE.entries, 0b11110001),
    ],
    ids=[
        "no socket",
        "the same",
        "a Pod without CPUs of its own",
        "given back",
        "all given back",
        "given since the file was written",
        "an older answer",
    ],
)
def test_the_kubelets_word_on_cpus_counts_before_its_file(
    answer: FileReading[Allocations], entries: Mapping[str, Mapping[str, int]], default: int
) -> None:
    found = podresources.cpus(FileReading(STATE, None), answer)

    assert found == FileReading(replace(STATE, entries=entries, default=default), None)


POOL = CpuState(
    StateLayout.V4, "static", 0b1111_0001, {"u1": {"main": 0b0010, "log": 0b1100, "web": 0b1100}}, pods={"u1": 0b1110}
)


@pytest.mark.parametrize(
    ("words", "entries", "pods", "default"),
    [
        pytest.param(
            {"main": has(cpus=0b0010), "log": has(), "web": has(), "": has(cpus=0b1110)},
            POOL.entries,
            POOL.pods,
            0b1111_0001,
            id="the same; the sets that containers share are not told",
        ),
        pytest.param(
            {"main": has(cpus=0b0010), "log": has(cpus=0b0100), "": has(cpus=0b1110)},
            {"u1": {"main": 0b0010, "log": 0b0100, "web": 0b1100}},
            POOL.pods,
            0b1111_0001,
            id="a container has a set of its own since the file was written",
        ),
        pytest.param(
            {"main": has(cpus=0b0010), "": has(cpus=0b11_1110)},
            POOL.entries,
            {"u1": 0b11_1110},
            0b1100_0001,
            id="the Pod has more since the file was written",
        ),
    ],
)
def test_of_a_pod_with_cpus_as_a_whole_the_answer_and_the_file_count_together(
    words: Mapping[str, ContainerResources],
    entries: Mapping[str, Mapping[str, int]],
    pods: Mapping[str, int],
    default: int,
) -> None:
    found = podresources.cpus(FileReading(POOL, None), told({"u1": words}))

    assert found.value == replace(POOL, entries=entries, pods=pods, default=default)


def test_a_pod_as_a_whole_keeps_its_cpus_where_no_file_can_be_read() -> None:
    found = podresources.cpus(FileReading(None, BROKEN), told({"u1": {"main": has(), "": has(cpus=0b110)}}))

    assert found == FileReading(CpuState(StateLayout.V2, "static", 0, pods={"u1": 0b110}), BROKEN)


def test_who_has_cpus_without_a_readable_file_has_them_by_the_static_policy() -> None:
    given_ = podresources.cpus(FileReading(None, BROKEN), told({"u1": {"main": has(cpus=0b10)}}))
    none = podresources.cpus(FileReading(None, BROKEN), told({"u1": {"main": has()}}))

    assert given_ == FileReading(CpuState(StateLayout.V2, "static", 0, {"u1": {"main": 0b10}}), BROKEN)
    assert none == FileReading(None, BROKEN)


CPUS = st.dictionaries(
    st.sampled_from(["u1", "u2", "u3"]), st.dictionaries(st.sampled_from("abc"), st.integers(0, 255), max_size=3)
)


@given(CPUS, CPUS, st.booleans())
def test_no_cpu_is_lost_and_none_is_both_given_and_left(file, answer, current) -> None:
    state = CpuState(StateLayout.V2, "static", 0, file)
    state = replace(state, default=0xFF & ~state.given)
    words = {uid: {name: has(cpus=cpus) for name, cpus in one.items()} for uid, one in answer.items()}

    found = podresources.cpus(FileReading(state, None), told(words, current=current)).value

    assert found is not None
    assert found.default | found.given == 0xFF
    assert not found.default & found.given
    for uid, containers in answer.items() if current else ():
        for name, cpus in containers.items():
            assert found.entries.get(uid, {}).get(name, 0) == cpus
