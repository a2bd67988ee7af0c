"""A container runtime's NRI: it listens on a socket, lets plugins register, and calls them one call at a time."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Self

from reporter.enforcer.nri import messages
from reporter.enforcer.nri.frames import PLUGIN, REQUEST, RESPONSE, RUNTIME, Frame, Frames, encode

CREATE = ("CreateContainer", "ContainerRequest", "CreateContainerResponse")
START = ("StartContainer", "ContainerRequest", "Empty")
UPDATE = ("UpdateContainer", "UpdateContainerRequest", "UpdateResponse")
STOP = ("StopContainer", "ContainerRequest", "UpdateResponse")
REMOVE = ("RemoveContainer", "ContainerRequest", "Empty")
STOP_SANDBOX = ("StopPodSandbox", "ContainerRequest", "Empty")
REMOVE_SANDBOX = ("RemovePodSandbox", "ContainerRequest", "Empty")
STATE_CHANGE = ("StateChange", "StateChangeEvent", "Empty")
SYNCHRONIZE = ("Synchronize", "SynchronizeRequest", "SynchronizeResponse")
CONFIGURE = ("Configure", "ConfigureRequest", "ConfigureResponse")


class CallError(Exception):
    """The plugin answers with an error; the message is what it says."""


class ClosedError(Exception):
    """The plugin has closed its connection."""


class Registered:
    """A plugin, as its runtime sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = ""
        self.index = ""
        self.events = 0
        self._reader = reader
        self.writer = writer
        self._frames = Frames()
        self._arrived: list[Frame] = []
        self._stream = 1

    async def call(self, method: tuple[str, str, str], **fields: Any) -> Any:
        """Call the plugin; returns its answer."""
        name, asks, answers = method
        return messages.read(answers, await self.raw(name, messages.make(asks, **fields)))

    async def raw(self, method: str, payload: bytes) -> bytes:
        """Call a method with any bytes."""
        self._stream += 2
        service = f"{messages.PACKAGE}.Plugin"
        body = messages.make("Request", service=service, method=method, payload=payload)
        self.writer.write(encode(Frame(PLUGIN, self._stream, REQUEST, body)))
        await self.writer.drain()
        frame = await self._next()
        assert frame[:3] == (PLUGIN, self._stream, RESPONSE)
        answer = messages.read("Response", frame.body)
        if answer.status.code:
            raise CallError(answer.status.message)
        return bytes(answer.payload)

    async def accept(self, refusal: str = "", *, tells: bool = True, **state: Any) -> None:
        """Answer its registration, or refuse it; configure it, and if it `tells`, tell it the state of the node."""
        frame = await self._next()
        assert (frame.connection, frame.kind) == (RUNTIME, REQUEST)
        request = messages.read("Request", frame.body)
        assert (request.service, request.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        asked = messages.read("RegisterPluginRequest", request.payload)
        self.name, self.index = asked.plugin_name, asked.plugin_idx
        status = {"code": 2, "message": refusal} if refusal else {}
        answer = messages.make("Response", **({"status": status} if refusal else {}))
        self.writer.write(encode(Frame(RUNTIME, frame.stream, RESPONSE, answer)))
        if not refusal:
            told = {"runtime_name": "containerd", "runtime_version": "v2.4.2", "request_timeout": 2000}
            self.events = (await self.call(CONFIGURE, **told)).events
            if tells:
                self.synchronized = await self.call(SYNCHRONIZE, **state)

    async def ended(self) -> None:
        """Wait until the plugin closes its connection."""
        with contextlib.suppress(ClosedError, ConnectionError):
            while True:
                await self._next()

    async def _next(self) -> Frame:
        while not self._arrived:
            data = await self._reader.read(65536)
            if not data:
                raise ClosedError
            self._arrived += self._frames.feed(data)
        return self._arrived.pop(0)


class Runtime:
    """A runtime; an async context manager. A new one at the same path stands for one that was restarted."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.connections = 0
        self._connected: asyncio.Queue[Registered] = asyncio.Queue()
        self._all: list[Registered] = []

    async def __aenter__(self) -> Self:
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.socket)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for one in self._all:
            one.writer.transport.abort()
        self.socket.unlink(missing_ok=True)

    async def connected(self, within: float = 30.0) -> Registered:
        """Wait for the next plugin that connects."""
        async with asyncio.timeout(within):
            return await self._connected.get()

    async def registered(self, **state: Any) -> Registered:
        """Wait for the next plugin, and accept it."""
        plugin = await self.connected()
        await plugin.accept(**state)
        return plugin

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        plugin = Registered(reader, writer)
        self._all.append(plugin)
        self._connected.put_nowait(plugin)


def pod(name: str = "p", **fields: Any) -> dict[str, Any]:
    """A PodSandbox."""
    return {"id": f"sandbox-{name}", "name": name, "uid": f"uid-{name}", "namespace": "ns", **fields}


def container(name: str = "main", of: str = "p", **fields: Any) -> dict[str, Any]:
    """A Container."""
    return {"id": f"{of}-{name}", "pod_sandbox_id": f"sandbox-{of}", "name": name, "state": 3, **fields}
