"""The enforcer on a real container runtime: what it decides is in the container's first instruction, or it is held.

Pods are bound here by hand, with the annotations that a bind writes. The reporter's facts are written here too. The
card is a CDI device: a file of the container says that it was brought.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import pytest_asyncio
import yaml
from node import images, nvidia
from node.harness import Node

from localplane.admin import AdminClient, JsonObject
from localplane.process import Process
from localplane.replicas import this_koordgate
from localplane.waiting import until
from reporter import exchange
from reporter.exchange import CardPlace, Cpus, Facts, State

CARD = "GPU-5eed0000-0000-4000-8000-000000000001"
KIND = "koordgate.test/card"
ALL = Path("/sys/devices/system/cpu/online").read_text().strip()
LAST = ALL.replace("-", ",").split(",")[-1]
CLASS = {"koordinator.sh/qosClass": "LSR"}
OWN = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": LAST})}
WITH_CARD = {
    "nri.koordgate.io/main": CARD,
    "visible-devices.koordgate.io/main": "void",
    "required-plugins.noderesource.dev": '["koordgate"]',
}
LIMITED = {**WITH_CARD, "nvidia-gpu-memory-limit.koordgate.io/main": "512", "koordgate.io/limits": "require"}
HELD_S = 60.0  # the kubelet tries again every 10 to 15 s
TELL = (
    "grep Cpus_allowed_list /proc/self/status; echo card=$(ls /dev/koordgate-card 2>/dev/null)"
    " limit=$CUDA_DEVICE_MEMORY_LIMIT_0 library=$(ls /usr/local/vgpu/libvgpu.so 2>/dev/null)"
    " visible=$NVIDIA_VISIBLE_DEVICES;"
)
SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def pod(name: str, script: str = TELL + SLEEP, **spec: Any) -> JsonObject:
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": VOID,
        "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
    }
    whole = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": CLASS}, "spec": whole}


class Enforcer:
    """The node's enforcer as a process of this machine; an async context manager."""

    def __init__(self, node: Node, workdir: Path, name: str = "enforcer") -> None:
        library = workdir / "libvgpu.so"
        library.touch()
        told = {
            "roots": {"state": str(workdir / "state")},
            "logFormat": "text",
            "enforcement": {
                "enabled": True,
                "closed": True,
                "socket": str(node.nri_socket),
                "hamiCore": {"library": str(library)},
            },
        }
        config = workdir / "enforcer.yaml"
        config.write_text(yaml.safe_dump(told))
        self.folder = exchange.folder(str(workdir / "state"))
        self.process = Process(
            name, (*this_koordgate(), "enforcer", "--config", str(config)), workdir / f"{name}.log", env=os.environ
        )

    async def __aenter__(self) -> Self:
        self.tell()
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.process.stop()

    def tell(self, **facts: Any) -> None:
        """Tell it the node's facts, as the reporter does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
        there = Facts(
            cpus=Cpus(shared=ALL, best_effort=ALL),
            cards={CARD: CardPlace("0000:01:00.0", 80 * 2**30)},
            kinds={"gpu": KIND},
            provider="HAMi-core",
        )
        (self.folder / ".facts").write_bytes(msgspec.json.encode(msgspec.structs.replace(there, **facts)))
        (self.folder / ".facts").replace(self.folder / exchange.FACTS)

    async def start(self) -> None:
        """Start or restart it, and wait until it is registered."""
        self.process.start()
        await self.registered()

    async def registered(self) -> None:
        """Wait until it is registered, by what the reporter sees of it."""

        async def is_so() -> bool:
            return held(self.folder) and bool(self.state.runtime) and not self.state.problems

        await until(is_so, "the enforcer is registered", deadline_s=HELD_S, poll_s=0.05)

    @property
    def state(self) -> State:
        try:
            return msgspec.json.decode((self.folder / exchange.STATE).read_bytes(), type=State)
        except FileNotFoundError:
            return State()

    def log_has(self, text: str) -> bool:
        return text in self.process.log.read_text()


def held(folder: Path) -> bool:
    """Whether somebody holds the lock."""
    with contextlib.suppress(FileNotFoundError), (folder / exchange.LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture(scope="module")
def card(nvidia_toolkit: nvidia.Toolkit) -> Iterator[str]:
    """A card of the node, by CDI; its only sign in a container is a device file."""
    device = {"path": "/dev/koordgate-card", "hostPath": "/dev/null"}
    edits = {"deviceNodes": [device], "env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": CARD, "containerEdits": edits}]}
    file = nvidia_toolkit.specs / "koordgate-test.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(spec))
    yield CARD
    file.unlink()


@pytest_asyncio.fixture(loop_scope="session")
async def enforcer(node: Node, card: str, tmp_path: Path) -> AsyncIterator[Enforcer]:
    async with Enforcer(node, tmp_path) as running:
        yield running


class Bench:
    """One test's Pods; they are deleted at the end."""

    def __init__(self, node: Node, admin: AdminClient, namespace: str) -> None:
        self.node = node
        self.admin = admin
        self.namespace = namespace

    async def bind(self, one: JsonObject, *annotations: dict[str, str]) -> str:
        """Create and bind a Pod with annotations; returns its name."""
        made = await self.admin.create(f"/api/v1/namespaces/{self.namespace}/pods", one)
        await self.node.bind(made, {key: value for part in annotations for key, value in part.items()})
        name: str = made["metadata"]["name"]
        return name

    async def runs(self, name: str, deadline_s: float = HELD_S) -> str:
        """Wait until a Pod runs; returns what it said."""
        await self.node.phase(self.namespace, name, "Running", deadline_s=deadline_s)
        return await self.says(name)

    async def says(self, name: str, container: str = "main") -> str:
        said: list[str] = []

        async def something() -> bool:
            said[:] = [await self.node.logs(self.namespace, name, container)]
            return "visible=" in said[0]

        await until(something, f"{name} says something")
        return said[0]

    async def waits(self, name: str) -> str:
        """Wait until the kubelet could not create or start a container; returns why."""
        why: list[str] = []

        async def waiting() -> bool:
            found = await self.admin.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
            for status in found["status"].get("containerStatuses") or ():
                state = status["state"].get("waiting") or {}
                if state.get("reason") in {"CreateContainerError", "RunContainerError"}:
                    why[:] = [state["message"]]
            return bool(why)

        await until(waiting, f"{name} is held", deadline_s=HELD_S, poll_s=0.1)
        return why[0]


@pytest_asyncio.fixture(loop_scope="session")
async def bench(node: Node, node_admin: AdminClient, node_namespace: str) -> AsyncIterator[Bench]:
    yield Bench(node, node_admin, node_namespace)
    await node_admin.delete(f"/api/v1/namespaces/{node_namespace}/pods", gracePeriodSeconds="1")

    async def gone() -> bool:
        return not await node_admin.items(f"/api/v1/namespaces/{node_namespace}/pods")

    await until(gone, "all Pods are gone")


AS_DECIDED = "card=/dev/koordgate-card limit=512m library=/usr/local/vgpu/libvgpu.so visible=void\n"


async def test_cpus_card_and_limiter_are_in_the_first_instruction_of_each_container(
    bench: Bench, enforcer: Enforcer
) -> None:
    one = pod("first")
    (main,) = one["spec"]["containers"]
    one["spec"]["initContainers"] = [{**main, "name": "init", "command": ["/bin/sh", "-c", TELL]}]
    of_init = {key.replace("main", "init"): value for key, value in LIMITED.items()}
    said = await bench.runs(await bench.bind(one, OWN, LIMITED, of_init))

    assert said == f"Cpus_allowed_list:\t{LAST}\n{AS_DECIDED}"
    assert await bench.says("first", "init") == said

    os.kill(await bench.node.container_pid(bench.namespace, "first", "main"), signal.SIGKILL)

    async def again() -> bool:
        return await bench.node.logs(bench.namespace, "first", "main") == 2 * said

    await until(again, "the restarted container says the same", deadline_s=HELD_S)

    async def told() -> bool:
        kept = [one.provider for cards in enforcer.state.containers.values() for one in cards.values()]
        return kept == ["HAMi-core"]

    await until(told, "the state tells of the running container alone")


async def test_others_make_room_in_the_same_answer(bench: Bench, enforcer: Enforcer) -> None:
    shared = pod("shared")
    shared["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
    said = await bench.runs(await bench.bind(shared))
    assert said == f"Cpus_allowed_list:\t{ALL}\ncard= limit= library= visible=void\n"

    await bench.runs(await bench.bind(pod("own"), OWN))

    pid = await bench.node.container_pid(bench.namespace, "shared", "main")
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0) - {int(LAST)}


async def test_what_image_or_author_say_of_cards_becomes_void(bench: Bench, enforcer: Enforcer) -> None:
    path = f"/api/v1/namespaces/{bench.namespace}/configmaps"
    await bench.admin.create(
        path,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hidden"},
            "data": {"NVIDIA_VISIBLE_DEVICES": "all"},
        },
    )
    one = pod("greedy")
    (main,) = one["spec"]["containers"]
    main["env"], main["envFrom"] = [], [{"configMapRef": {"name": "hidden"}}]

    assert (await bench.runs(await bench.bind(one))).endswith("visible=void\n")


async def containerd(bench: Bench, enforcer: Enforcer) -> None:
    await bench.node.restart_containerd()


async def kubelet(bench: Bench, enforcer: Enforcer) -> None:
    await bench.node.restart_kubelet()


async def ours(bench: Bench, enforcer: Enforcer) -> None:
    await enforcer.process.stop()
    await enforcer.start()


async def killed(bench: Bench, enforcer: Enforcer) -> None:
    enforcer.process.kill()
    await enforcer.start()


Restart = Callable[[Bench, Enforcer], Any]


@pytest.mark.parametrize("restart", [containerd, kubelet, ours, killed])
async def test_after_a_restart_it_is_as_before(bench: Bench, enforcer: Enforcer, restart: Restart) -> None:
    before = await bench.runs(await bench.bind(pod("before"), LIMITED))

    await restart(bench, enforcer)
    await enforcer.registered()

    assert await bench.runs(await bench.bind(pod("after"), LIMITED)) == before

    async def both() -> bool:
        kept = [cards[CARD].keeping for cards in enforcer.state.containers.values()]
        return kept == ["injected", "injected"]

    await until(both, "it knows the one from before the restart too")


async def test_while_it_is_away_who_requires_it_is_held_and_starts_after_its_return(
    bench: Bench, enforcer: Enforcer
) -> None:
    await enforcer.process.stop()
    await bench.bind(pod("held"), LIMITED)
    assert "koordgate" in await bench.waits("held")
    await bench.runs(await bench.bind(pod("free")))

    await enforcer.start()

    assert AS_DECIDED in await bench.runs("held")


async def test_a_card_that_is_not_there_holds_its_container_says_why_and_hurts_nobody_else(
    bench: Bench, enforcer: Enforcer
) -> None:
    other = {"nri.koordgate.io/main": "GPU-5eed0000-0000-4000-8000-00000000dead"}
    await bench.bind(pod("lost"), {**WITH_CARD, **other})

    assert "koordgate: card GPU-5eed0000-0000-4000-8000-00000000dead was allocated" in await bench.waits("lost")
    await bench.runs(await bench.bind(pod("other"), LIMITED))
    (remark,) = {one.reason: one for one in enforcer.state.remarks}.values()
    assert (remark.reason, remark.namespace, remark.name) == ("ContainerRefused", bench.namespace, "lost")


async def test_200_kb_of_annotations_delay_nobody(bench: Bench, enforcer: Enforcer) -> None:
    large = pod("large")
    large["metadata"]["annotations"] = {f"team.example/{number}": "x" * 2000 for number in range(100)}

    assert AS_DECIDED in await bench.runs(await bench.bind(large, LIMITED))


async def test_two_are_never_registered_at_once(bench: Bench, enforcer: Enforcer, tmp_path: Path) -> None:
    second = Enforcer(bench.node, tmp_path, "second")
    second.process.start()
    try:

        async def said() -> bool:
            return second.log_has("another enforcer is registered on this node")

        await until(said, "the second one waits")
        assert AS_DECIDED in await bench.runs(await bench.bind(pod("beside"), LIMITED))
        assert not second.log_has("registered with the container runtime\n")

        enforcer.process.kill()

        async def taken_over() -> bool:
            return second.log_has("INFO") or held(enforcer.folder)

        await until(taken_over, "the second one takes over")
        await second.registered()
        assert AS_DECIDED in await bench.runs(await bench.bind(pod("later"), LIMITED))
    finally:
        await second.process.stop()


async def test_no_container_has_a_card_and_no_limiter_though_the_enforcer_is_killed_inside_calls(
    bench: Bench, enforcer: Enforcer
) -> None:
    chance = random.Random(32)
    starts = int(os.environ.get("KOORDGATE_STARTS", "40"))
    ended = asyncio.Event()

    async def kill() -> int:
        kills = 0
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), chance.uniform(0.4, 1.2))
            enforcer.process.kill()
            kills += 1
            enforcer.process.start()
        return kills

    async def one(number: int) -> str:
        name = await bench.bind(pod(f"p{number}", TELL), LIMITED)
        await bench.node.phase(bench.namespace, name, "Running", "Succeeded", "Failed", deadline_s=300)
        said = await bench.says(name)
        await bench.admin.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{name}", gracePeriodSeconds="0")
        return said.splitlines()[1] + "\n"

    killing = asyncio.create_task(kill())
    numbers = iter(range(starts))
    said: list[str] = []

    async def some() -> None:
        for number in numbers:
            said.append(await one(number))  # noqa: PERF401 several take from the numbers

    try:
        await asyncio.gather(*(some() for _ in range(4)))
    finally:
        ended.set()
        kills = await killing

    assert kills > 3
    logging.getLogger(__name__).info("%d starts, %d kills", starts, kills)
    with_card = [line for line in said if "card=/dev" in line]
    assert set(with_card) <= {AS_DECIDED}
    assert len(said) == starts
