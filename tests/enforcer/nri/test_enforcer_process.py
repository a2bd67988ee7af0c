"""The enforcer's process around its decisions: one registration a node, what it reads and writes, and its faults."""

import asyncio
import fcntl
import json
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import waiting
from nri_runtime import CREATE, REMOVE, START, STOP, UPDATE, CallError, Registered, Runtime, container, pod

from reporter import exchange, settings
from reporter.enforced import EnforcerFiles, held
from reporter.enforcer import exchanged, process
from reporter.enforcer.mirror import Mirror
from reporter.enforcer.model import CardLimit, MpsShare
from reporter.exchange import CardPlace, Cpus, Facts, State
from reporter.settings import Enforcement

CARD = "GPU-11111111-0000-4000-8000-000000000001"
GIB = 2**30
BURSTABLE = {"cgroup_parent": "/kubepods/burstable/podx"}
HALF = {
    "visible-devices.koordgate.io/main": "void",
    "nri.koordgate.io/main": CARD,
    "nvidia-gpu-memory-limit.koordgate.io/main": "1024",
    "koordgate.io/limits": "require",
}
SHOWN = {"nri.koordgate.io/main": CARD, "visible-devices.koordgate.io/main": "void"}
FACTS = Facts(
    cpus=Cpus(shared="0-3", best_effort="0-3"),
    cards={CARD: CardPlace("0000:01:00.0", 80 * GIB)},
    kinds={"gpu": "nvidia.com/gpu"},
    provider="cgroup",
)
CHECKPOINTS = Path(__file__).parents[2] / "reporter" / "kubelet" / "checkpoints"
ANOTHER = "another enforcer is registered on this node: this one waits until that process has ended"
POD = "/kubepods/burstable/pod11111111-0000-4000-8000-000000000001"


@dataclass
class Node:
    """Doors to a node that does what it is told, or says why not."""

    limits: list[CardLimit] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    swept: list[tuple[Collection[str], set[str]]] = field(default_factory=list)
    shares: list[MpsShare] = field(default_factory=list)
    looked: list[tuple[str, Collection[str]]] = field(default_factory=list)
    why_not: str = ""
    ready: str | None = ""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)  # whether limits can be kept

    async def limit(self, limits: Sequence[CardLimit]) -> Mapping[CardLimit, str]:
        await self.open.wait()
        self.limits += limits
        return dict.fromkeys(limits, self.why_not) if self.why_not else {}

    async def empty(self, folders: Sequence[str]) -> str:
        self.folders += folders
        return self.why_not

    async def remove(self, folders: Sequence[str]) -> None:
        self.folders = [one for one in self.folders if one not in folders]

    async def sweep(self, containers: Collection[str], limits: Collection[CardLimit]) -> None:
        self.swept.append((containers, {one.cgroup for one in limits}))

    async def share(self, share: MpsShare) -> str:
        self.shares.append(share)
        return self.why_not

    async def unshare(self, share: MpsShare) -> None:
        self.shares.remove(share)

    async def look(self, provider: str, cards: Collection[str]) -> tuple[str | None, str]:
        self.looked.append((provider, tuple(cards)))
        await self.answers.wait()
        return self.ready, ""


class Bench:
    """One enforcer in this process, its folder, and the runtime that it registers with."""

    def __init__(self, tmp_path: Path, runtime: Runtime) -> None:
        self.runtime = runtime
        self.node = Node()
        self.node.open.set()
        self.node.answers.set()
        self.until = asyncio.Event()
        self.checkpoint = tmp_path / "plugins" / "kubelet_internal_checkpoint"
        self.checkpoint.parent.mkdir()
        self.settings: dict[str, Any] = {
            "roots": {"state": str(tmp_path)},
            "kubelet": {"deviceCheckpoint": str(self.checkpoint)},
            "enforcement": {"socket": str(runtime.socket)},
        }
        self.folder = exchange.folder(str(tmp_path))
        self.folder.mkdir()
        self.task: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return json.dumps(self.settings)

    def tell(self, facts: Facts = FACTS) -> None:
        """Write the reporter's file, as it does."""
        assert EnforcerFiles(self.folder, Enforcement()).tell(facts) == ""

    async def start(self, **state: Any) -> Registered:
        self.task = asyncio.create_task(process.run(settings.parse(self.text), self.node, self.until))
        return await self.runtime.registered(**state)

    @property
    def state(self) -> State:
        return EnforcerFiles(self.folder, Enforcement()).read().state

    async def says(self, condition: Callable[[State], object]) -> State:
        """Wait until the state that it writes meets a condition."""
        await waiting.until(lambda: condition(self.state))
        return self.state

    async def end(self) -> None:
        self.until.set()
        if self.task is not None:
            await self.task


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "nri.sock") as running:
        yield running


@pytest_asyncio.fixture
async def bench(tmp_path: Path, runtime: Runtime) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, runtime)
    yield made
    await made.end()


def problems(caplog: pytest.LogCaptureFixture) -> set[str]:
    """The problems that were logged."""
    return {getattr(record, "problem", "") for record in caplog.records}


def card_pod(annotations: Mapping[str, str] = HALF, name: str = "p") -> dict[str, Any]:
    return pod(name, annotations=annotations, linux={"cgroup_parent": POD})


async def test_while_it_is_registered_it_holds_the_lock_and_says_with_whom(bench) -> None:
    bench.tell()
    await bench.start()

    assert held(bench.folder)
    said = await bench.says(lambda state: state.runtime and state.limits == "")
    assert (said.runtime, said.problems, said.cpus) == ("containerd v2.4.2", (), True)
    assert (bench.folder / exchange.STATE).stat().st_mode & 0o777 == 0o600

    await bench.end()
    assert not held(bench.folder)


async def test_its_file_has_a_new_time_every_now_and_then_though_nothing_has_changed(bench, monkeypatch) -> None:
    monkeypatch.setattr(exchange, "BEAT_S", 0.01)
    monkeypatch.setattr(exchanged, "_WRITE_S", 0.01)
    bench.tell()
    await bench.start()
    said = await bench.says(lambda state: state.runtime and state.limits == "")
    path = bench.folder / exchange.STATE
    os.utime(path, ns=(1, 1))

    await waiting.until(lambda: path.stat().st_mtime_ns > 1)

    assert bench.state == said
    path.unlink()
    await waiting.until(path.exists)


async def test_a_runtime_that_was_restarted_is_found_at_its_new_socket(bench, runtime) -> None:
    bench.tell()
    first = await bench.start()
    first.writer.transport.abort()
    runtime._server.close()
    runtime.socket.unlink()
    await bench.says(lambda state: any("NRI does not answer" in one for one in state.problems))
    assert not held(bench.folder)

    async with Runtime(runtime.socket) as again:
        await again.registered()

        assert held(bench.folder)
        await bench.says(lambda state: not state.problems)


async def test_one_that_the_runtime_does_not_tell_what_runs_is_not_registered_and_says_so(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_UNTOLD_S", 0.01)
    bench.tell()
    bench.task = asyncio.create_task(process.run(settings.parse(bench.text), bench.node, bench.until))
    for _ in range(2):  # At the second try it holds the lock, and has told what the first has come to.
        there = await bench.runtime.connected()
        await there.accept(tells=False)
        await bench.says(lambda state: state.runtime)
        reading = EnforcerFiles(bench.folder, Enforcement()).read()
        assert (held(bench.folder), reading.registered) == (True, False)
        there.writer.transport.abort()
        await bench.says(lambda state: any("before it had told what runs" in one for one in state.problems))


async def test_a_runtime_that_may_have_died_of_telling_what_runs_is_left_alone_for_longer_each_time(
    bench, monkeypatch
) -> None:
    waits: list[float] = []

    async def waited(_: asyncio.Event, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(process, "wait", waited)
    bench.task = asyncio.create_task(process.run(settings.parse(bench.text), bench.node, bench.until))
    for _ in range(3):
        there = await bench.runtime.connected()
        await there.accept(tells=False)
        there.writer.transport.abort()
    there = await bench.runtime.registered()
    there.writer.transport.abort()
    await bench.runtime.registered()

    _, *untold, after = waits
    assert [5 <= 2 * one / 2**number <= 10 for number, one in enumerate(untold)] == [True, True, True]
    assert after < 1


async def test_a_second_enforcer_waits_and_says_so_until_the_first_has_closed_its_connection(bench, caplog) -> None:
    bench.tell()
    first = await bench.start()
    said = await bench.says(lambda state: state.runtime)
    until, node = asyncio.Event(), Node()
    node.answers.set()
    second = asyncio.create_task(process.run(settings.parse(bench.text), node, until))
    await waiting.until(lambda: ANOTHER in problems(caplog))
    assert bench.runtime.connections == 1
    assert bench.state == said, "it leaves the first one's state alone"

    await bench.end()
    await first.ended()
    await bench.runtime.registered()

    until.set()
    await second


async def test_one_that_ends_while_it_waits_does_not_register(bench, caplog) -> None:
    with (bench.folder / exchange.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        bench.task = asyncio.create_task(process.run(settings.parse(bench.text), bench.node, bench.until))
        await waiting.until(lambda: ANOTHER in problems(caplog))
        await bench.end()

    assert bench.runtime.connections == 0
    assert not (bench.folder / exchange.STATE).exists()


async def test_card_and_limit_come_in_one_answer_and_the_state_tells_it(bench) -> None:
    bench.tell()
    there = await bench.start()

    answer = await there.call(CREATE, pod=card_pod(), container=container())

    assert [one.name for one in answer.adjust.CDI_devices] == [f"nvidia.com/gpu={CARD}"]
    assert bench.node.limits == [CardLimit(CARD, f"/sys/fs/cgroup{POD}", 0, GIB)]
    await there.call(START, pod=card_pod(), container=container(pid=7, linux={"cgroups_path": f"{POD}/p-main"}))
    assert bench.node.limits[1:] == [CardLimit(CARD, f"/sys/fs/cgroup{POD}/p-main", 0, GIB)]
    said = await bench.says(lambda state: state.containers)
    assert said.containers["p-main"][CARD] == exchange.CardState("cgroup", "enforced", GIB)

    await there.call(REMOVE, pod=card_pod(), container=container())
    await bench.says(lambda state: not state.containers)


async def test_a_limit_that_cannot_be_set_refuses_who_requires_it_and_is_told_of_others(bench) -> None:
    bench.tell()
    there = await bench.start()
    bench.node.why_not = "the driver does not keep limits: update it"

    with pytest.raises(CallError, match="container main requires limits of its cards: the driver does not keep"):
        await there.call(CREATE, pod=card_pod(), container=container())
    freely = {key: value for key, value in HALF.items() if key != "koordgate.io/limits"}
    answer = await there.call(CREATE, pod=card_pod(freely, "q"), container=container(of="q"))

    assert answer.adjust.CDI_devices
    said = await bench.says(lambda state: len(state.remarks) == 2)
    assert [(one.reason, one.name) for one in said.remarks] == [("ContainerRefused", "p"), ("LimitMissing", "q")]
    assert said.containers["q-main"][CARD].keeping == "missing"
    assert "p-main" not in said.containers


async def test_who_is_refused_again_and_again_is_told_once(bench) -> None:
    bench.tell(msgspec.structs.replace(FACTS, cards={}))
    there = await bench.start()
    for number in range(3):
        with pytest.raises(CallError, match="the node does not have it"):
            await there.call(CREATE, pod=card_pod(), container=container(id=f"attempt-{number}"))

    said = await bench.says(lambda state: state.remarks)
    assert len(said.remarks) == 1


async def test_limits_are_looked_for_before_the_runtime_asks_about_a_container(bench) -> None:
    bench.tell()
    bench.task = asyncio.create_task(process.run(settings.parse(bench.text), bench.node, bench.until))

    await bench.runtime.connected()

    assert bench.node.looked == [("cgroup", (CARD,))]


async def test_a_look_that_takes_long_delays_the_registration_only_a_little(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_FIRST_LOOK_S", 0.01)
    bench.tell()
    bench.node.answers.clear()
    await bench.start()
    said = await bench.says(lambda state: state.runtime)
    assert (said.provider, said.limits) == ("", None)

    bench.node.answers.set()
    assert await bench.says(lambda state: (state.provider, state.limits) == ("cgroup", ""))


async def test_what_runs_is_told_anew_once_it_is_known_whether_limits_can_be_kept(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(process, "_FACTS_S", 0.01)
    running = {"pods": [card_pod()], "containers": [container(pid=7, linux={"cgroups_path": f"{POD}/p-main"})]}
    bench.tell()
    bench.node.answers.clear()
    first = await bench.start(**running)
    assert not bench.node.limits

    bench.node.answers.set()
    await first.ended()
    await bench.runtime.registered(**running)
    await waiting.until(lambda: len(bench.node.limits) == 2)


HAMI = {"library": "/opt/libvgpu.so"}


async def test_only_a_look_for_the_nodes_own_provider_counts(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_LOOKED_S", 0.01)
    bench.settings["enforcement"]["hamiCore"] = HAMI
    bench.tell()
    there = await bench.start()
    assert await bench.says(lambda state: (state.provider, state.limits) == ("cgroup", ""))
    bench.tell(msgspec.structs.replace(FACTS, provider="HAMi-core"))
    bench.node.answers.clear()

    with pytest.raises(CallError, match="the enforcer is still finding out whether HAMi-core keeps limits"):
        await there.call(CREATE, pod=card_pod(), container=container())
    assert bench.state.provider == "cgroup"
    whole = await there.call(CREATE, pod=card_pod(SHOWN, "w"), container=container(of="w"))
    assert whole.adjust.CDI_devices  # which has no limits

    bench.node.answers.set()
    await bench.says(lambda state: state.provider == "HAMi-core")
    answer = await there.call(CREATE, pod=card_pod(), container=container())
    assert "/usr/local/vgpu/libvgpu.so" in [one.destination for one in answer.adjust.mounts]


async def test_a_container_waits_for_a_look_that_takes_a_moment(bench) -> None:
    bench.settings["enforcement"]["hamiCore"] = HAMI
    bench.tell()
    there = await bench.start()
    bench.tell(msgspec.structs.replace(FACTS, provider="HAMi-core"))

    answer = await there.call(CREATE, pod=card_pod(), container=container())

    assert "/usr/local/vgpu/libvgpu.so" in [one.destination for one in answer.adjust.mounts]
    assert [provider for provider, _ in bench.node.looked] == ["cgroup", "HAMi-core"]


async def test_a_change_of_the_nodes_cards_is_looked_at_without_a_call(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_FACTS_S", 0.01)
    bench.tell()
    bench.node.ready = "the driver is older than R615: update it"
    await bench.start()
    assert (await bench.says(lambda state: state.limits)).limits == bench.node.ready

    bench.tell(msgspec.structs.replace(FACTS, cards={}))
    await waiting.until(lambda: len(bench.node.looked) == 2)

    assert bench.node.looked == [("cgroup", (CARD,)), ("cgroup", ())]


async def test_without_facts_only_who_needs_them_is_refused_and_the_next_call_reads_them(bench) -> None:
    there = await bench.start()

    assert not (await there.call(CREATE, pod=pod(), container=container())).adjust.ByteSize()
    with pytest.raises(CallError, match="told the enforcer nothing of this node"):
        await there.call(CREATE, pod=card_pod(), container=container())
    assert any("told nothing" in one for one in (await bench.says(lambda state: state.problems)).problems)

    bench.tell()
    assert (await there.call(CREATE, pod=card_pod(), container=container())).adjust.CDI_devices


GREEDY = "NVIDIA_VISIBLE_DEVICES"


async def shown(there: Registered, stated: str, **fields: Any) -> str:
    """What a container that says this of itself sees of cards."""
    answer = await there.call(CREATE, pod=pod(**fields), container=container(env=[f"{GREEDY}={stated}"]))
    edited: dict[str, str] = {one.key: one.value for one in answer.adjust.env}
    return edited.get(GREEDY, stated)


async def test_a_closed_node_keeps_containers_from_cards_before_the_first_facts(bench) -> None:
    bench.settings["enforcement"] |= {"closed": True, "exemptNamespaces": ["monitoring"]}
    there = await bench.start()

    assert await shown(there, "all") == "void"
    assert await shown(there, CARD) == "void"
    assert await shown(there, "all", namespace="monitoring") == "all"


async def test_a_closed_node_that_does_not_know_the_device_plugins_cards_says_so_and_leaves_single_cards(bench) -> None:
    bench.settings["enforcement"]["closed"] = True
    bench.checkpoint.write_text("{")
    bench.tell()
    there = await bench.start()

    assert await shown(there, "all") == "void"
    assert await shown(there, CARD) == CARD
    (told,) = (await bench.says(lambda state: state.runtime)).problems
    assert told.startswith("who has cards of NVIDIA's device plugin is not known")
    assert str(bench.checkpoint) in told

    bench.checkpoint.unlink()
    bench.checkpoint.write_bytes((CHECKPOINTS / "devices-v2-empty.json").read_bytes())
    assert await shown(there, CARD) == "void"
    await bench.says(lambda state: not state.problems)


async def test_a_closed_node_that_does_not_see_the_kubelets_folder_says_what_to_mount(bench) -> None:
    bench.settings["enforcement"]["closed"] = True
    bench.checkpoint.parent.rmdir()
    bench.tell()
    there = await bench.start()

    assert await shown(there, "all") == "void"
    (told,) = (await bench.says(lambda state: state.runtime)).problems
    assert told.endswith(f"{bench.checkpoint.parent} is not there: mount the host's folder at this path")


async def test_a_closed_node_keeps_containers_from_cards_after_a_bug(bench, monkeypatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    bench.settings["enforcement"]["closed"] = True
    bench.tell()
    there = await bench.start()
    monkeypatch.setattr(Mirror, "created", bug)

    assert await shown(there, "all") == "void"


async def test_the_folder_is_roots_alone_from_the_start(bench) -> None:
    bench.folder.chmod(0o755)  # as the kubelet makes it
    await bench.start()
    assert bench.folder.stat().st_mode & 0o777 == 0o700


async def test_what_ran_before_the_first_facts_is_decided_about_once_they_are_there(bench, monkeypatch) -> None:
    monkeypatch.setattr(process, "_FACTS_S", 0.01)
    running = {"pods": [card_pod()], "containers": [container(pid=7, linux={"cgroups_path": f"{POD}/p-main"})]}
    first = await bench.start(**running)
    assert not bench.node.limits

    bench.tell()
    await first.ended()
    await bench.runtime.registered(**running)
    await waiting.until(lambda: len(bench.node.limits) == 2)

    assert held(bench.folder)


async def test_facts_that_cannot_be_read_are_told_and_those_before_count(bench) -> None:
    bench.tell()
    there = await bench.start()
    await there.call(CREATE, pod=card_pod(), container=container())
    (bench.folder / exchange.FACTS).write_text("{")

    assert (await there.call(CREATE, pod=card_pod(), container=container())).adjust.CDI_devices
    await bench.says(lambda state: any("facts.json" in one for one in state.problems))


async def test_a_node_that_hangs_refuses_who_holds_cards_and_lets_all_others_through(bench) -> None:
    bench.tell()
    there = await bench.start()
    await there.raw("Configure", b"\x28\x64")  # request_timeout: 100 ms
    bench.node.open.clear()

    with pytest.raises(CallError, match=r"the enforcer failed \(no answer within 0.06 s\)"):
        await there.call(CREATE, pod=card_pod(), container=container())
    await there.call(CREATE, pod=pod("q"), container=container(of="q"))


async def test_a_bug_refuses_who_holds_cards_and_lets_all_others_through(bench, monkeypatch) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError

    bench.tell()
    there = await bench.start()
    for name in ("created", "started", "updated"):
        monkeypatch.setattr(Mirror, name, bug)

    for call in (CREATE, START):
        with pytest.raises(CallError, match="the enforcer failed"):
            await there.call(call, pod=card_pod(SHOWN), container=container())
        await there.call(call, pod=pod("q"), container=container(of="q"))
    assert not (await there.call(UPDATE, pod=pod("q"), container=container(of="q"))).update


async def test_after_a_bug_whoever_was_to_make_room_is_asked_again(bench, monkeypatch) -> None:
    bench.tell()
    shared = container(of="q", linux={"resources": {"cpu": {"cpus": "0-3"}}}, pid=1)
    there = await bench.start(pods=[pod("q", linux=BURSTABLE)], containers=[shared])
    own = {
        "linux": BURSTABLE,
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {"scheduling.koordinator.sh/resource-status": '{"cpuset":"2"}'},
    }

    async def bug(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(process.Enforcer, "_limited", bug)
        unedited = await there.call(CREATE, pod=pod("p", **own), container=container(of="p"))
    assert not unedited.update

    answer = await there.call(CREATE, pod=pod("r", linux=BURSTABLE), container=container(of="r"))
    assert [(one.container_id, one.linux.resources.cpu.cpus) for one in answer.update] == [("q-main", "0-1,3")]


async def test_containers_that_run_are_limited_after_it_has_registered(bench) -> None:
    bench.tell()
    bench.node.open.clear()
    running = container(pid=7, linux={"cgroups_path": f"{POD}/p-main"})
    await bench.start(pods=[card_pod()], containers=[running])
    cgroups = {f"/sys/fs/cgroup{POD}", f"/sys/fs/cgroup{POD}/p-main"}
    assert bench.node.swept == [(["p-main"], cgroups)]
    assert not bench.state.containers

    bench.node.open.set()
    said = await bench.says(lambda state: state.containers)

    assert {one.cgroup for one in bench.node.limits} == cgroups
    assert said.containers["p-main"][CARD].keeping == "enforced"


async def started_with_soft_limit(there: Registered, name: str) -> dict[str, Any]:
    both = {**HALF, "nvidia-gpu-memory-request.koordgate.io/main": "512"}
    made = container(id=name, of=name, pid=7, linux={"cgroups_path": f"{POD}/{name}"})
    about = {"pod": card_pod(both, name), "container": made}
    await there.call(CREATE, **about)
    await there.call(START, **about)
    return about


async def test_a_soft_limit_is_taken_back_before_a_stop_is_answered_after_which_the_cgroup_goes(bench) -> None:
    bench.tell()
    there = await bench.start()
    about = await started_with_soft_limit(there, "p")
    assert bench.node.limits[-1].soft == GIB // 2

    await there.call(STOP, **about)

    assert bench.node.limits[-1] == CardLimit(CARD, f"/sys/fs/cgroup{POD}/p", 0, GIB)


async def test_a_soft_limit_that_cannot_be_taken_back_is_so_later_whatever_stops_meanwhile(bench) -> None:
    bench.tell()
    there = await bench.start()
    first, second, _ = [await started_with_soft_limit(there, name) for name in "pqr"]
    bench.node.why_not = "the driver hangs"
    bench.node.swept.clear()

    await there.call(STOP, **first)
    await waiting.until(lambda: bench.node.swept and set(bench.node.swept[-1][0]) == {"q", "r"})
    await there.call(STOP, **second)
    await waiting.until(lambda: set(bench.node.swept[-1][0]) == {"r"})


async def test_200_kb_annotations_change_nothing_for_anybody(bench) -> None:
    bench.tell()
    there = await bench.start()
    large = {f"team.example/{number}": "x" * 2000 for number in range(100)}

    answer = await there.call(CREATE, pod=card_pod({**SHOWN, **large}), container=container())

    assert answer.adjust.CDI_devices
