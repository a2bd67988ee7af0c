"""A plugin's connection to the container runtime: it registers, and answers the runtime's calls one after another.

The runtime itself makes one call at a time, over all Pods of the node.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final, Protocol

from allocator.vocabulary.outcome import excerpt
from reporter.enforcer.model import Container, Edits, Sandbox, Update
from reporter.enforcer.nri import messages
from reporter.enforcer.nri.frames import (
    MAX_BYTES,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Frame,
    FrameError,
    Frames,
    encode,
)
from reporter.enforcer.nri.messages import MessageError

_LOG: Final = logging.getLogger(__name__)
_CHUNK: Final = 2**18
_MAX_PARTS: Final = 64  # of the node's state, of 4 MiB each
_CONNECT_S: Final = 5.0  # the runtime's own patience for a registration
# Event of api.proto
_STOP_SANDBOX, _REMOVE_SANDBOX, _CREATE, _START, _UPDATE, _STOP, _REMOVE = _ASKED = (2, 3, 4, 6, 8, 10, 11)
_EVENTS: Final = sum(1 << one - 1 for one in _ASKED)
_ENDED: Final = "the container runtime has ended the connection"
_NOT_TOLD: Final = (
    "before it had told what runs on the node: see its log. If that says that messages are too long, or panics in "
    "synchronize, delete the Pods whose containers have environments of a megabyte, then the Pod of this enforcer"
)
_UNKNOWN, _INVALID, _UNIMPLEMENTED = 2, 3, 12  # codes of gRPC's


class NriError(Exception):
    """The connection cannot be made, or has ended; the message says why."""


class UntoldError(NriError):
    """The connection has ended before the runtime had told what there is on the node, which it may not survive."""


class RefusedError(Exception):
    """A call that is answered with an error, which ends the creation or the start of a container; says why."""


class Plugin(Protocol):
    """What answers the calls; a method that raises answers with an error."""

    def configured(self, runtime: str, seconds: float) -> None:
        """Take the runtime's name and version, and how long it waits for an answer."""

    async def synchronized(
        self, sandboxes: tuple[Sandbox, ...], containers: tuple[Container, ...]
    ) -> tuple[Update, ...]:
        """Take all that there is on the node."""

    async def created(self, sandbox: Sandbox, container: Container) -> tuple[Edits, tuple[Update, ...]]:
        """Edit a container that is about to be created."""

    async def started(self, sandbox: Sandbox, container: Container) -> None:
        """Take a container that is created, before its first instruction."""

    async def updated(self, container: Container, cpus: int, mems: int) -> tuple[Update, ...]:
        """Take what a container's CPUs and NUMA nodes are about to become, where that is stated."""

    async def stopped(self, container: str) -> None:
        """Take the id of a container that has ended or is about to."""

    async def removed(self, container: str) -> None:
        """Take the id of a container that is removed."""

    async def sandbox_removed(self, sandbox: str) -> None:
        """Take the id of a sandbox that is stopped or removed."""


async def serve(socket: str, name: str, index: str, plugin: Plugin, until: asyncio.Event) -> None:
    """Register a plugin, and answer the runtime's calls until the event is set; a call under way is answered first.

    Raises UntoldError: the connection ends before the runtime has told the node's state. NriError: nobody listens, the
    runtime refuses the plugin or ends the connection, or what it says cannot be read. The connection is closed in any
    case.
    """
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(socket)
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        raise NriError(f"{socket}: the container runtime's NRI does not answer ({reason})") from error
    connection = _Connection(reader, writer, plugin)
    try:
        await connection.serve(name, index, until)
    except FrameError as error:
        raise NriError(f"{socket}: not NRI: {error}") from error
    except OSError as error:
        raise connection.ended(f"{socket}: the connection has ended ({error.strerror})") from error
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class _Connection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, plugin: Plugin) -> None:
        self._reader = reader
        self._writer = writer
        self._plugin = plugin
        self._told = False  # whether the runtime has told all that there is on the node
        self._parts = 0
        self._sandboxes: list[Sandbox] = []
        self._containers: list[Container] = []
        self._methods = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "StartContainer": self._start,
            "UpdateContainer": self._update,
            "StopContainer": self._stop,
            "RemoveContainer": self._remove,
            "StopPodSandbox": self._remove_sandbox,
            "RemovePodSandbox": self._remove_sandbox,
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
        }

    async def serve(self, name: str, index: str, until: asyncio.Event) -> None:
        """Register, and answer calls until the event is set."""
        request = messages.make("RegisterPluginRequest", plugin_name=name, plugin_idx=index)
        call = messages.make("Request", service=f"{messages.PACKAGE}.Runtime", method="RegisterPlugin", payload=request)
        await self._send(Frame(RUNTIME, 1, REQUEST, call))
        frames = Frames()
        ended = asyncio.ensure_future(until.wait())
        try:
            while not until.is_set():
                arriving = asyncio.ensure_future(self._reader.read(_CHUNK))
                await asyncio.wait({arriving, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not arriving.done():
                    arriving.cancel()
                    return
                data = await arriving
                if not data:
                    raise self.ended(_ENDED)
                await self._take(frames.feed(data))
        finally:
            ended.cancel()

    def ended(self, what: str) -> NriError:
        """The error of a connection that has ended."""
        return NriError(what) if self._told else UntoldError(f"{what} {_NOT_TOLD}")

    async def _take(self, arrived: list[Frame]) -> None:
        for frame in arrived:
            if (frame.connection, frame.kind) == (PLUGIN, REQUEST):
                answer = await self._answer(frame.body)
                if len(answer) > MAX_BYTES:
                    answer = _failed(_UNKNOWN, f"koordgate's answer has {len(answer)} bytes, too many for NRI")
                await self._send(Frame(PLUGIN, frame.stream, RESPONSE, answer))
            elif (frame.connection, frame.kind) == (RUNTIME, RESPONSE):
                self._registered(frame.body)
            else:
                raise FrameError("a request where an answer belongs, or the reverse")

    async def _send(self, frame: Frame) -> None:
        self._writer.write(encode(frame))
        await self._writer.drain()

    def _registered(self, body: bytes) -> None:
        try:
            status = messages.read("Response", body).status
        except MessageError as error:
            raise FrameError(str(error)) from error
        if status.code:
            raise NriError(f"the container runtime refuses the plugin: {excerpt(status.message)}")

    async def _answer(self, body: bytes) -> bytes:
        """Make the Response to a Request."""
        method = "a call"
        try:
            request = messages.read("Request", body)
            method = excerpt(request.method)
            if request.method not in self._methods:
                return _failed(_UNIMPLEMENTED, f"koordgate does not answer {method}")
            answer = messages.make("Response", payload=await self._methods[request.method](request.payload))
        except RefusedError as error:
            return _failed(_UNKNOWN, f"koordgate: {error}")
        except MessageError as error:
            _LOG.warning("the container runtime's request cannot be read", extra={"method": method}, exc_info=True)
            return _failed(_INVALID, f"koordgate cannot read {method}: {error}")
        except Exception as error:  # noqa: BLE001 a bug: the runtime is told, and goes on
            _LOG.exception("a call of the container runtime failed", extra={"method": method})
            return _failed(_UNKNOWN, f"koordgate failed in {method}: {type(error).__name__}; see the enforcer's log")
        return answer

    async def _configure(self, payload: bytes) -> bytes:
        asked = messages.read("ConfigureRequest", payload)
        self._plugin.configured(f"{asked.runtime_name} {asked.runtime_version}".strip(), asked.request_timeout / 1000)
        return messages.make("ConfigureResponse", events=_EVENTS)

    async def _synchronize(self, payload: bytes) -> bytes:
        asked = messages.read("SynchronizeRequest", payload)
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise RefusedError(f"the node's state has more than {_MAX_PARTS} parts")
        self._sandboxes += map(messages.sandbox, asked.pods)
        self._containers += messages.there(asked.containers)
        if asked.more:
            return messages.make("SynchronizeResponse", more=True)
        all_of_it = tuple(self._sandboxes), tuple(self._containers)
        self._parts, self._sandboxes, self._containers = 0, [], []
        updates = await self._plugin.synchronized(*all_of_it)
        self._told = True
        return messages.make("SynchronizeResponse", update=messages.updates(updates))

    async def _create(self, payload: bytes) -> bytes:
        asked = messages.read("ContainerRequest", payload)
        edits, updates = await self._plugin.created(messages.sandbox(asked.pod), messages.container(asked.container))
        return messages.make(
            "CreateContainerResponse", adjust=messages.adjustment(edits), update=messages.updates(updates)
        )

    async def _start(self, payload: bytes) -> bytes:
        asked = messages.read("ContainerRequest", payload)
        await self._plugin.started(messages.sandbox(asked.pod), messages.container(asked.container))
        return b""

    async def _update(self, payload: bytes) -> bytes:
        asked = messages.read("UpdateContainerRequest", payload)
        cpu = asked.linux_resources.cpu
        updates = await self._plugin.updated(
            messages.container(asked.container), messages.listed(cpu.cpus), messages.listed(cpu.mems)
        )
        return messages.make("UpdateResponse", update=messages.updates(updates))

    async def _stop(self, payload: bytes) -> bytes:
        await self._plugin.stopped(messages.read("ContainerRequest", payload).container.id)
        return b""

    async def _remove(self, payload: bytes) -> bytes:
        await self._plugin.removed(messages.read("ContainerRequest", payload).container.id)
        return b""

    async def _remove_sandbox(self, payload: bytes) -> bytes:
        await self._plugin.sandbox_removed(messages.read("ContainerRequest", payload).pod.id)
        return b""

    async def _state_change(self, payload: bytes) -> bytes:
        """Runtimes before NRI 0.12 tell of starts and removals in this way."""
        event: Any = messages.read("StateChangeEvent", payload)
        if event.event == _START:
            await self._plugin.started(messages.sandbox(event.pod), messages.container(event.container))
        elif event.event == _REMOVE:
            await self._plugin.removed(event.container.id)
        elif event.event in {_STOP_SANDBOX, _REMOVE_SANDBOX}:
            await self._plugin.sandbox_removed(event.pod.id)
        return b""

    async def _shutdown(self, _payload: bytes) -> bytes:
        return b""


def _failed(code: int, message: str) -> bytes:
    return messages.make("Response", status={"code": code, "message": message})
