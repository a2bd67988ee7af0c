"""The enforcer on a real container runtime: what it decides is in the container's first instruction, or it is held.

Pods are bound here by hand, with the annotations that a bind writes. The reporter's facts are written here too. The
card is a CDI device: a file of the container says that it was brought.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from node import nvidia
from node.enforcers import HELD_S, TELL, Bench, Told, pod
from node.harness import Node
from node.nri_peers import AnotherPlugin, Between

from localplane.waiting import until
from reporter.enforced import held
from reporter.enforcer.model import Edits
from reporter.exchange import CardPlace, Cpus, Facts

CARD = "GPU-5eed0000-0000-4000-8000-000000000001"
KIND = "koordgate.test/card"
ALL = Path("/sys/devices/system/cpu/online").read_text().strip()
FIRST_CPU, *_, LAST = ALL.replace("-", ",").split(",")  # the kubelet reserves the first, where its policy is static
OWN = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": LAST})}
WITH_CARD = {
    "nri.koordgate.io/main": CARD,
    "visible-devices.koordgate.io/main": "void",
    "required-plugins.noderesource.dev/container.main": '["koordgate"]',
}
LIMITED = {**WITH_CARD, "nvidia-gpu-memory-limit.koordgate.io/main": "512", "koordgate.io/limits": "require"}


def enforcer_of(node: Node, workdir: Path, name: str = "enforcer", **settings: Any) -> Told:
    library = workdir / "libvgpu.so"
    library.touch()
    facts = Facts(
        cpus=Cpus(shared=ALL, best_effort=ALL),
        cards={CARD: CardPlace("0000:01:00.0", 80 * 2**30)},
        kinds={"gpu": KIND},
        provider="HAMi-core",
    )
    return Told(node, workdir, facts, {"closed": True, "hamiCore": {"library": str(library)}, **settings}, name)


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
async def enforcer(node: Node, card: str, tmp_path: Path) -> AsyncIterator[Told]:
    async with enforcer_of(node, tmp_path) as running:
        yield running


AS_DECIDED = "card=/dev/koordgate-card limit=512m library=/usr/local/vgpu/libvgpu.so visible=void\n"
BARE = "card= limit= library= visible=void\n"


async def test_cpus_card_and_limiter_are_in_the_first_instruction_of_each_container(
    bench: Bench, enforcer: Told
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


async def test_an_ephemeral_container_has_its_pods_cpus_and_no_card(bench: Bench, enforcer: Told) -> None:
    one = pod("debugged")
    await bench.runs(await bench.bind(one, OWN, LIMITED))
    (main,) = one["spec"]["containers"]
    debug = {key: main[key] for key in ("image", "imagePullPolicy", "command")}
    asks = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    added = {"spec": {"ephemeralContainers": [{**debug, "name": "debug", "env": asks}]}}
    await bench.admin.patch(f"/api/v1/namespaces/{bench.namespace}/pods/debugged/ephemeralcontainers", added)

    said = await bench.says("debugged", "debug")
    assert said == f"Cpus_allowed_list:\t{LAST}\n{BARE}"


async def test_others_make_room_in_the_same_answer(bench: Bench, enforcer: Told) -> None:
    shared = pod("shared")
    shared["metadata"]["labels"] = {"koordinator.sh/qosClass": "LS"}
    said = await bench.runs(await bench.bind(shared))
    assert said == f"Cpus_allowed_list:\t{ALL}\n{BARE}"

    await bench.runs(await bench.bind(pod("own"), OWN))

    pid = await bench.node.container_pid(bench.namespace, "shared", "main")
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0) - {int(LAST)}


async def test_what_image_or_author_say_of_cards_becomes_void(bench: Bench, enforcer: Told) -> None:
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


async def containerd(bench: Bench, enforcer: Told) -> None:
    await bench.node.restart_containerd()


async def kubelet(bench: Bench, enforcer: Told) -> None:
    await bench.node.restart_kubelet()


async def ours(bench: Bench, enforcer: Told) -> None:
    await enforcer.process.stop()
    await enforcer.start()


async def killed(bench: Bench, enforcer: Told) -> None:
    enforcer.process.kill()
    await enforcer.start()


Restart = Callable[[Bench, Told], Any]


@pytest.mark.parametrize("restart", [containerd, kubelet, ours, killed])
async def test_after_a_restart_it_is_as_before(bench: Bench, enforcer: Told, restart: Restart) -> None:
    before = await bench.runs(await bench.bind(pod("before"), LIMITED))

    await restart(bench, enforcer)
    await enforcer.registered()

    assert await bench.runs(await bench.bind(pod("after"), LIMITED)) == before

    async def both() -> bool:
        kept = [cards[CARD].keeping for cards in enforcer.state.containers.values()]
        return kept == ["injected", "injected"]

    await until(both, "it knows the one from before the restart too")


async def test_while_it_is_away_who_requires_it_is_held_and_starts_after_its_return(
    bench: Bench, enforcer: Told
) -> None:
    await enforcer.process.stop()
    await bench.bind(pod("held"), LIMITED)
    assert "koordgate" in await bench.waits("held")
    await bench.runs(await bench.bind(pod("free")))

    await enforcer.start()

    assert AS_DECIDED in await bench.runs("held")


async def test_a_card_that_is_not_there_holds_its_container_says_why_and_hurts_nobody_else(
    bench: Bench, enforcer: Told
) -> None:
    other = {"nri.koordgate.io/main": "GPU-5eed0000-0000-4000-8000-00000000dead"}
    await bench.bind(pod("lost"), {**WITH_CARD, **other})

    assert "koordgate: card GPU-5eed0000-0000-4000-8000-00000000dead was allocated" in await bench.waits("lost")
    await bench.runs(await bench.bind(pod("other"), LIMITED))
    (remark,) = {one.reason: one for one in enforcer.state.remarks}.values()
    assert (remark.reason, remark.namespace, remark.name) == ("ContainerRefused", bench.namespace, "lost")


async def test_200_kb_of_annotations_delay_nobody(bench: Bench, enforcer: Told) -> None:
    large = pod("large")
    large["metadata"]["annotations"] = {f"team.example/{number}": "x" * 2000 for number in range(100)}

    assert AS_DECIDED in await bench.runs(await bench.bind(large, LIMITED))


async def test_two_are_never_registered_at_once(bench: Bench, enforcer: Told, tmp_path: Path) -> None:
    second = enforcer_of(bench.node, tmp_path, "second")
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


Spoil = Callable[[bytes], bytes]
HEAD = 18  # bytes: a frame of the connection, and the head of a message
SPOILT: dict[str, tuple[Spoil, str]] = {  # and what the container then has
    "late": (lambda _: b"", BARE),
    "no frame": (lambda data: b"\xff" * len(data), BARE),
    "no message": (lambda data: data[:HEAD] + b"\xff" * (len(data) - HEAD), AS_DECIDED),
}


@pytest.mark.parametrize(("spoil", "hit"), SPOILT.values(), ids=SPOILT)
async def test_an_answer_that_is_late_or_garbage_costs_its_container_card_and_limiter_or_time_and_nobody_else_anything(
    node: Node, bench: Bench, card: str, tmp_path: Path, spoil: Spoil, hit: str
) -> None:
    """The runtime gives up a plugin that is late or speaks no NRI; an answer that it cannot read fails the creation."""
    async with (
        Between(node.nri_socket.with_name("between.sock"), node.nri_socket) as between,
        enforcer_of(node, tmp_path, socket=str(between.socket)) as enforcer,
    ):
        between.spoil("hit", spoil)
        await bench.bind(pod("hit"), LIMITED)
        await between.once()
        assert BARE in await bench.runs(await bench.bind(pod("free")))

        assert hit in await bench.runs("hit")
        await enforcer.registered()
        assert AS_DECIDED in await bench.runs(await bench.bind(pod("after"), LIMITED))
        kept = {"injected", "missing"} if hit == BARE else {"injected"}

        async def told() -> bool:
            return {cards[CARD].keeping for cards in enforcer.state.containers.values()} == kept

        await until(told, "the state tells what keeps each container")


async def test_a_cdi_specification_that_lost_the_card_holds_its_container_and_nobody_else(
    bench: Bench, enforcer: Told
) -> None:
    enforcer.tell(kinds={"gpu": "koordgate.test/gone"})
    await bench.bind(pod("lost"), LIMITED)
    assert f"unresolvable CDI devices koordgate.test/gone={CARD}" in await bench.waits("lost")
    await bench.runs(await bench.bind(pod("free")))

    enforcer.tell()

    assert AS_DECIDED in await bench.runs("lost")


DECIDED = {key: LIMITED[key] for key in LIMITED if key.startswith("nvidia-gpu-memory-limit")}
KILLED = {
    "limits are required": LIMITED,
    "limits are not required": {**DECIDED, "visible-devices.koordgate.io/main": CARD},
}


@pytest.mark.parametrize("annotations", KILLED.values(), ids=KILLED)
async def test_all_containers_start_and_none_has_a_card_and_no_limiter_though_the_enforcer_is_killed_inside_calls(
    bench: Bench, enforcer: Told, annotations: dict[str, str]
) -> None:
    chance = random.Random(32)
    starts = int(os.environ.get("KOORDGATE_STARTS", "10"))
    ended = asyncio.Event()
    held_pods: set[str] = set()

    async def kill() -> int:
        kills = 0
        while not ended.is_set():
            await enforcer.registered()  # on a slow machine it might never be otherwise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), chance.uniform(0.4, 1.2))
            enforcer.process.kill()
            kills += 1
            enforcer.process.start()
        return kills

    async def one(number: int) -> str:
        name = await bench.bind(pod(f"p{number}", TELL), annotations)
        await bench.node.phase(bench.namespace, name, "Running", "Succeeded", "Failed", deadline_s=300)
        said = await bench.says(name)
        if await bench.was_held(name):
            held_pods.add(name)
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

    with_card = said.count(AS_DECIDED)
    about = (starts, kills, with_card, said.count(BARE), len(held_pods))
    logging.getLogger(__name__).info("%d starts, %d kills: %d with card and limiter, %d with neither; %d held", *about)
    assert kills > 1
    assert set(said) <= {AS_DECIDED, BARE}
    assert len(said) == starts
    if annotations is not LIMITED:
        assert not held_pods


# The kubelet's static policy; the node keeps it to the end of this module


async def test_under_the_static_policy_a_pod_has_its_own_cpus_and_not_the_kubelets_whatever_the_kubelet_does_later(
    bench: Bench, enforcer: Told, static_node: Node
) -> None:
    enforcer.tell(cpus=Cpus(shared=LAST, best_effort=LAST, static=True, default=ALL))
    one = pod("own")
    one["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "16Mi"}}
    first = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": FIRST_CPU})}
    assert await bench.runs(await bench.bind(one, first, LIMITED)) == f"Cpus_allowed_list:\t{FIRST_CPU}\n{AS_DECIDED}"
    identity = await static_node.container_id(bench.namespace, "own", "main")
    entries = json.loads((static_node.root / "cpu_manager_state").read_text())["entries"]
    (by_kubelet,) = (cpus for containers in entries.values() for cpus in containers.values())
    assert by_kubelet != FIRST_CPU

    peer = AnotherPlugin(Edits())
    async with peer.registered(static_node.nri_socket):
        await static_node.restart_kubelet()

        async def updated() -> bool:
            return identity in peer.changed

        await until(updated, "the kubelet gives the container its CPUs again", deadline_s=HELD_S)
    later = pod("later")
    later["spec"]["containers"][0]["resources"] = {}  # no CPU is left to request
    await bench.runs(await bench.bind(later))  # Calls are made one after another.
    pid = await static_node.container_pid(bench.namespace, "own", "main")
    assert os.sched_getaffinity(pid) == {int(FIRST_CPU)}
