"""A plugin's connection to a runtime: what it is told, what it answers, and what strangers may send."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nri_runtime import (
    CREATE,
    REMOVE,
    REMOVE_SANDBOX,
    START,
    STATE_CHANGE,
    STOP,
    SYNCHRONIZE,
    UPDATE,
    CallError,
    Registered,
    Runtime,
    container,
    pod,
)

from reporter.enforcer.limits import _OF_HAMI, _OF_MPS, _SWITCHES
from reporter.enforcer.model import Container, Edits, Mount, Sandbox, Update
from reporter.enforcer.nri import messages
from reporter.enforcer.nri.connection import NriError, RefusedError, serve
from reporter.enforcer.nri.frames import MAX_BYTES, PLUGIN, REQUEST, RESPONSE, Frame, encode

FIVE = 0b11111


@dataclass
class Recorder:
    """A plugin that records its calls, and answers what a test wants."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    edits: Edits = field(default_factory=Edits)
    updates: tuple[Update, ...] = ()
    fails: Exception | None = None

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails:
            raise self.fails

    def configured(self, runtime: str, seconds: float) -> None:
        self._called("configured", runtime, seconds)

    async def synchronized(
        self, sandboxes: tuple[Sandbox, ...], containers: tuple[Container, ...]
    ) -> tuple[Update, ...]:
        self._called("synchronized", sandboxes, containers)
        return self.updates

    async def created(self, sandbox: Sandbox, container: Container) -> tuple[Edits, tuple[Update, ...]]:
        self._called("created", sandbox, container)
        return self.edits, self.updates

    async def started(self, sandbox: Sandbox, container: Container) -> None:
        self._called("started", sandbox, container)

    async def updated(self, container: Container, cpus: int, mems: int) -> tuple[Update, ...]:
        self._called("updated", container.id, cpus, mems)
        return self.updates

    async def stopped(self, container: str) -> None:
        self._called("stopped", container)

    async def removed(self, container: str) -> None:
        self._called("removed", container)

    async def sandbox_removed(self, sandbox: str) -> None:
        self._called("sandbox_removed", sandbox)


@pytest.fixture
def plugin() -> Recorder:
    return Recorder()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "nri.sock"


@pytest_asyncio.fixture
async def runtime(socket: Path) -> AsyncIterator[Runtime]:
    async with Runtime(socket) as running:
        yield running


@pytest_asyncio.fixture
async def ended() -> asyncio.Event:
    return asyncio.Event()


@pytest_asyncio.fixture
async def serving(runtime: Runtime, plugin: Recorder, ended: asyncio.Event) -> AsyncIterator[asyncio.Task[None]]:
    """The plugin's end of the connection."""
    task = asyncio.create_task(serve(str(runtime.socket), "koordgate", "99", plugin, ended))
    yield task
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, NriError):
        await task


@pytest_asyncio.fixture
async def there(runtime: Runtime, serving: asyncio.Task[None], plugin: Recorder) -> Registered:
    """The runtime's end of it, once the plugin is registered."""
    found = await runtime.registered()
    plugin.calls.clear()
    return found


async def test_it_registers_last_of_all_and_is_told_the_node(runtime, serving, plugin) -> None:
    plugin.updates = (Update("p-main", 0b1010, 0b1), Update("p-side", 0))
    found = await runtime.registered(
        pods=[pod(annotations={"koordgate.io/limits": "require"}, runtime_handler="nvidia")],
        containers=[container(), container("ended", state=4)],
    )

    assert (found.name, found.index) == ("koordgate", "99")
    assert {one for one in range(1, 15) if found.events >> one - 1 & 1} == {2, 3, 4, 6, 8, 10, 11}
    (name, runtime_name, seconds), (_, sandboxes, containers) = plugin.calls
    assert (name, runtime_name, seconds) == ("configured", "containerd v2.4.2", 2.0)
    assert sandboxes == (
        Sandbox("sandbox-p", "uid-p", "ns", "p", {}, {"koordgate.io/limits": "require"}, handler="nvidia"),
    )
    assert [one.id for one in containers] == ["p-main"], "the runtime would refuse to update what has ended"
    (update,) = found.synchronized.update
    assert (update.container_id, update.ignore_failure) == ("p-main", True)
    assert (update.linux.resources.cpu.cpus, update.linux.resources.cpu.mems) == ("1,3", "0")


async def test_a_node_that_is_told_in_parts_is_one(there, plugin) -> None:
    for number in range(3):
        part = {"pods": [pod(f"p{number}")], "containers": [container(of=f"p{number}")]}
        answer = await there.call(SYNCHRONIZE, **part, more=True)
        assert answer.more
    answer = await there.call(SYNCHRONIZE, pods=[pod("last")])

    assert not answer.more
    ((_, sandboxes, containers),) = plugin.calls
    assert [one.name for one in sandboxes] == ["p0", "p1", "p2", "last"]
    assert [one.id for one in containers] == ["p0-main", "p1-main", "p2-main"]


async def test_parts_without_end_are_refused(there, plugin) -> None:
    for _ in range(64):
        assert (await there.call(SYNCHRONIZE, more=True)).more
    with pytest.raises(CallError, match="more than 64 parts"):
        await there.call(SYNCHRONIZE, more=True)
    assert not plugin.calls


async def test_a_container_is_edited_as_decided(there, plugin) -> None:
    plugin.edits = Edits(
        cpus=0b1101,
        mems=0b1,
        environment={"NVIDIA_VISIBLE_DEVICES": "void", "A": ""},
        mounts=(Mount("/host/lib.so", "/lib.so"), Mount("/host/cache", "/cache", writable=True)),
        cdi=("nvidia.com/gpu=GPU-1",),
    )
    plugin.updates = (Update("other-main", 0b10),)

    answer = await there.call(
        CREATE,
        pod=pod(linux={"cgroup_parent": "/kubepods/podx"}),
        container=container(
            env=["CUDA_A=1", "CUDA_B=x=y", "CUDA_A=2", "CUDA_BARE"],
            mounts=[{"destination": "/etc/hosts", "type": "bind", "source": "/x"}],
            linux={"resources": {"cpu": {"cpus": "0-4", "mems": "0"}}, "cgroups_path": "/c"},
            CDI_devices=[{"name": "vendor.com/nic=1"}],
            pid=7,
        ),
    )

    ((_, sandbox, seen),) = plugin.calls
    assert sandbox.cgroup == "/kubepods/podx"
    assert seen == Container(
        "p-main",
        "sandbox-p",
        "main",
        {"CUDA_A": "2", "CUDA_B": "x=y", "CUDA_BARE": ""},
        ("/etc/hosts",),
        ("vendor.com/nic=1",),
        FIVE,
        1,
        "/c",
        7,
    )
    adjust = answer.adjust
    assert [(one.key, one.value) for one in adjust.env] == [("NVIDIA_VISIBLE_DEVICES", "void"), ("A", "")]
    assert [(one.source, one.destination, one.type, list(one.options)) for one in adjust.mounts] == [
        ("/host/lib.so", "/lib.so", "bind", ["bind", "ro"]),
        ("/host/cache", "/cache", "bind", ["bind", "rw"]),
    ]
    assert [one.name for one in adjust.CDI_devices] == ["nvidia.com/gpu=GPU-1"]
    assert (adjust.linux.resources.cpu.cpus, adjust.linux.resources.cpu.mems) == ("0,2-3", "0")
    assert [one.container_id for one in answer.update] == ["other-main"]


async def test_a_container_that_nothing_is_decided_about_is_left_alone(there) -> None:
    answer = await there.call(CREATE, pod=pod(), container=container())

    assert answer.adjust.ByteSize() == 0
    assert not answer.update


async def test_each_other_call_is_passed_on(there, plugin) -> None:
    plugin.updates = (Update("p-main", 0b100),)
    both = {"pod": pod(), "container": container()}
    update = await there.call(UPDATE, **both, linux_resources={"cpu": {"cpus": "0-4"}})
    assert update.update[0].linux.resources.cpu.cpus == "2"
    for call in (START, STOP, REMOVE, REMOVE_SANDBOX):
        await there.call(call, **both)

    assert [call[0] for call in plugin.calls] == ["updated", "started", "stopped", "removed", "sandbox_removed"]
    assert plugin.calls[0] == ("updated", "p-main", FIVE, 0)
    assert [call[1] for call in plugin.calls[2:]] == ["p-main", "p-main", "sandbox-p"]


async def test_older_runtimes_tell_of_starts_and_removals_as_changes_of_state(there, plugin) -> None:
    for event in (6, 11, 3, 1, 7, 2):
        await there.call(STATE_CHANGE, event=event, pod=pod(), container=container())

    assert [call[0] for call in plugin.calls] == ["started", "removed", "sandbox_removed", "sandbox_removed"]


async def test_what_is_refused_is_an_error_of_that_call_alone(there, plugin) -> None:
    plugin.fails = RefusedError("no card; run the reporter")
    with pytest.raises(CallError, match=r"^koordgate: no card; run the reporter$"):
        await there.call(CREATE, pod=pod(), container=container())
    plugin.fails = ValueError("a bug")
    with pytest.raises(CallError, match="koordgate failed in StartContainer: ValueError; see the enforcer's log"):
        await there.call(START, pod=pod(), container=container())

    plugin.fails = None
    await there.call(START, pod=pod(), container=container())


@pytest.mark.parametrize(
    ("method", "payload", "said"),
    [
        pytest.param("CreateContainer", b"\xff\xff\xff", "koordgate cannot read CreateContainer", id="malformed"),
        pytest.param("CreateContainer", b"\x0a\x05ab", "koordgate cannot read CreateContainer", id="truncated"),
        pytest.param("ValidateContainerAdjustment", b"", "koordgate does not answer", id="unknown"),
    ],
)
async def test_a_call_that_cannot_be_read_is_an_error_and_the_next_one_is_answered(
    there, method, payload, said
) -> None:
    with pytest.raises(CallError, match=said):
        await there.raw(method, payload)
    await there.call(CREATE, pod=pod(), container=container())


async def test_what_a_tenant_may_write_is_not_kept_unless_it_counts(there, plugin) -> None:
    ours = {
        "visible-devices.koordgate.io/main": "GPU-1",
        "nri.koordgate.io/main": "GPU-1",
        "gpu-core-limit.koordgate.io/main": "10",
        "scheduling.koordinator.sh/resource-status": "{}",
        "koordgate.io/limits": "require",
        "nvidia.com/container.main.gpus.devices": "GPU-1",
    }
    theirs = {f"{domain}/{number}": "x" * 20 for domain in ("team.example", "koordgate.io") for number in range(5000)}
    variables = dict.fromkeys((*_SWITCHES, *_OF_HAMI, _OF_MPS, "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES"), "1")
    others = [f"MINE_{number}=x" for number in range(50_000)]
    labels = {"koordinator.sh/qosClass": "LSR"}

    await there.call(
        CREATE,
        pod=pod(annotations={**ours, **theirs}, labels={**labels, **dict.fromkeys(theirs, "x")}),
        container=container(env=[*others, *(f"{name}=1" for name in variables)]),
    )

    ((_, sandbox, found),) = plugin.calls
    assert (sandbox.annotations, sandbox.labels, found.environment) == (ours, labels, variables)


async def test_an_answer_that_is_too_long_for_nri_is_an_error_and_the_next_one_is_answered(there, plugin) -> None:
    plugin.edits = Edits(environment={"LD_PRELOAD": "x" * MAX_BYTES})
    with pytest.raises(CallError, match=r"koordgate's answer has [0-9]+ bytes, too many for NRI"):
        await there.call(CREATE, pod=pod(), container=container())
    plugin.edits = Edits()
    await there.call(CREATE, pod=pod(), container=container())


async def test_a_runtime_that_ends_before_it_has_told_what_runs_is_told_with_what_to_do(runtime, serving) -> None:
    found = await runtime.connected()
    found.writer.transport.abort()

    with pytest.raises(NriError, match=r"before it had told what runs.*delete the Pods"):
        await serving


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(encode(Frame(PLUGIN, 1, RESPONSE, b"")), id="an answer to no request"),
        pytest.param(encode(Frame(2, 1, RESPONSE, b"\xff")), id="an answer that is none"),
    ],
)
async def test_garbage_ends_the_connection_and_says_so(there, serving, data) -> None:
    there.writer.write(data)

    with pytest.raises(NriError, match=r"nri\.sock: not NRI: "):
        await serving
    await there.ended()


async def test_a_runtime_that_refuses_the_plugin_is_told(runtime, serving) -> None:
    found = await runtime.connected()
    await found.accept(refusal="invalid plugin name")

    with pytest.raises(NriError, match="refuses the plugin: invalid plugin name"):
        await serving


async def test_a_runtime_that_ends_is_told(there, serving) -> None:
    there.writer.transport.abort()

    with pytest.raises(NriError, match="ended"):
        await serving


@pytest.mark.parametrize("make", [Path.resolve, Path.touch], ids=["nothing", "a file that nobody listens to"])
async def test_nobody_who_listens_is_told(socket: Path, plugin, make: Callable[[Path], object]) -> None:
    make(socket)
    with pytest.raises(NriError, match="NRI does not answer"):
        await serve(str(socket), "koordgate", "99", plugin, asyncio.Event())


async def test_one_call_is_answered_after_another(there, plugin) -> None:
    going = asyncio.Event()
    plugin.started = lambda *_: going.wait()
    body = messages.make("Request", method="StartContainer")
    second = messages.make("Request", method="RemovePodSandbox")
    there.writer.write(encode(Frame(PLUGIN, 101, REQUEST, body)) + encode(Frame(PLUGIN, 103, REQUEST, second)))
    going.set()

    assert [(await there._next()).stream for _ in range(2)] == [101, 103]


async def test_at_its_end_it_answers_the_call_under_way_and_closes(there, plugin, serving, ended) -> None:
    going, begun = asyncio.Event(), asyncio.Event()

    async def started(*_: object) -> None:
        begun.set()
        await going.wait()

    plugin.started = started
    call = asyncio.create_task(there.call(START, pod=pod(), container=container()))
    await begun.wait()
    ended.set()
    going.set()

    await call
    await serving
    await there.ended()


async def test_at_its_end_it_waits_for_no_further_call(there, serving, ended) -> None:
    ended.set()

    await serving
    await there.ended()
