"""Limits on a real container runtime: each container has its own, by what programs in it get of a card.

CUDA, NVML, HAMi-core's library and the MPS daemon are stand-ins. Cards come by CDI, as device files of which no driver
knows. The driver keeps its own limits in cgroup v2. On a machine with v1 the enforcer gets a view in which v1's
hierarchy of CPUs is that one, and the stand-in for CUDA looks there as well.
"""

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import cuda_standin
import mps_standin
import nvml_standin
import pytest
import pytest_asyncio
from cuda_standin import Cuda
from mps_standin import Daemon
from node import images, nvidia
from node.enforcers import HELD_S, SLEEP, Bench, Told, pod
from node.harness import CGROUP, Node
from node.nvidia import limits_in
from nvml_standin import Played

from localplane.admin import JsonObject
from localplane.waiting import until
from reporter.exchange import CardPlace, Facts

KIND = "koordgate.test/limited"
CARDS = tuple(f"GPU-5eed0000-0000-4000-8000-00000000001{number}" for number in range(2))
PROGRAM = "koordgate.local/allocate:1"
WHOLE = 80 * 1024  # MiB
MIB = 2**20
MOUNT = Path("/sys/fs/cgroup")
UNIFIED = (MOUNT / "cgroup.controllers").exists()


@pytest.fixture(scope="module")
def cards(nvidia_toolkit: nvidia.Toolkit) -> Iterator[None]:
    """Two cards, by CDI."""
    devices = [
        {"name": card, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}", "hostPath": "/dev/null"}]}}
        for number, card in enumerate(CARDS)
    ]
    file = nvidia_toolkit.specs / "koordgate-limited.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": KIND, "devices": devices}))
    yield
    file.unlink()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cuda(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Cuda:
    """CUDA, and an image with a program of it."""
    folder = tmp_path_factory.mktemp("cuda")
    folder.chmod(0o755)
    built = cuda_standin.build(folder, MOUNT, {0: WHOLE * MIB, 1: WHOLE * MIB}, "" if UNIFIED else "cpuset")
    await node.load(images.around(PROGRAM, built.program, folder / "allocate.tar"))
    return built


class Limiting(Told):
    """An enforcer with the stand-ins.

    Attributes:
        daemon: The MPS daemon.
    """

    def __init__(
        self,
        node: Node,
        workdir: Path,
        cuda: Cuda,
        *,
        provider: str = "none",
        env: Mapping[str, str] = os.environ,
        **how: Any,
    ) -> None:
        self.daemon = Daemon(workdir / "mps", 2)
        places = {card: CardPlace(f"0000:0{number}:00.0", WHOLE * MIB) for number, card in enumerate(CARDS)}
        enforcement = {"hamiCore": {"library": str(cuda.limiter)}, "mps": {"pipe": str(self.daemon.pipe)}}
        env = {**env, "PATH": mps_standin.PATH}
        facts = Facts(cards=places, kinds={"gpu": KIND}, provider=provider)
        super().__init__(node, workdir, facts, enforcement, env=env, **how)


@pytest_asyncio.fixture(loop_scope="session")
async def enforcer(node: Node, cards: None, cuda: Cuda, tmp_path: Path) -> AsyncIterator[Limiting]:
    async with Limiting(node, tmp_path, cuda) as running:
        yield running


def decided(container: str, *cards: str, require: bool = True, **limits: int) -> dict[str, str]:
    """The annotations of a container's cards and limits, as a bind writes them."""
    annotations = {
        f"nri.koordgate.io/{container}": ",".join(cards),
        f"visible-devices.koordgate.io/{container}": "void",
        f"required-plugins.noderesource.dev/container.{container}": '["koordgate"]',
    }
    if require:
        annotations["koordgate.io/limits"] = "require"
    if "request" in limits:
        annotations[f"nvidia-gpu-memory-request.koordgate.io/{container}"] = str(limits["request"])
    if "memory" in limits:
        annotations[f"nvidia-gpu-memory-limit.koordgate.io/{container}"] = str(limits["memory"])
    if "cores" in limits:
        annotations[f"gpu-core-limit.koordgate.io/{container}"] = str(limits["cores"])
    return annotations


def programs(name: str, cuda: Cuda, **containers: list[str]) -> JsonObject:
    """A Pod whose containers run the program, one after another as it were; what is left of CUDA is mounted."""
    one = pod(name, restartPolicy="Never", volumes=[{"name": "cuda", "hostPath": {"path": str(cuda.folder)}}])
    (main,) = one["spec"]["containers"]
    mounts = [{"name": "cuda", "mountPath": str(cuda.folder), "readOnly": True}]
    one["spec"]["containers"] = [
        {**main, "name": name, "image": PROGRAM, "command": ["/bin/allocate", *said], "volumeMounts": mounts}
        for name, said in containers.items()
    ]
    return one


async def output(bench: Bench, name: str, container: str) -> list[str]:
    await bench.node.phase(bench.namespace, name, "Succeeded", deadline_s=HELD_S)
    said: list[str] = (await bench.node.logs(bench.namespace, name, container)).splitlines()
    return said


SHARES = {"small": ["0:513", "0:512"], "two": ["0:1025", "1:1025", "0:1024", "1:1024"]}


async def has_its_shares(bench: Bench, name: str) -> None:
    assert await output(bench, name, "small") == ["card 0: 512 MiB", "0:513 -> 2", "0:512 -> 0"]
    assert await output(bench, name, "two") == [
        "card 0: 1024 MiB",
        "card 1: 1024 MiB",
        "0:1025 -> 2",
        "1:1025 -> 2",
        "0:1024 -> 0",
        "1:1024 -> 0",
    ]


async def test_by_the_library_each_container_has_its_own_share_of_each_of_its_cards(
    bench: Bench, enforcer: Limiting, cuda: Cuda
) -> None:
    await enforcer.anew(provider="HAMi-core")
    annotations = {**decided("small", CARDS[1], memory=512), **decided("two", *CARDS, memory=1024)}
    name = await bench.bind(programs("shares", cuda, **SHARES, bare=["0:1"]), annotations)

    await has_its_shares(bench, name)
    assert f"card 0: {WHOLE} MiB" in await output(bench, name, "bare")  # no card was brought, nor a limit
    folder = enforcer.folder / "caches"
    assert len(list(folder.iterdir())) == 2
    await bench.admin.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{name}", gracePeriodSeconds="0")

    async def removed() -> bool:
        return not list(folder.iterdir())

    await until(removed, "the folders went with their containers", deadline_s=HELD_S)


async def change(bench: Bench, name: str, annotations: dict[str, str]) -> None:
    """Give a Pod other annotations and another sandbox: a sandbox keeps those of its creation."""
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{name}"
    await bench.admin.patch(path, {"metadata": {"annotations": annotations}})

    async def named() -> JsonObject | None:
        found = await bench.admin.get(path)
        return found if all("containerID" in one for one in found["status"]["containerStatuses"]) else None

    found = await until(named, "the status names the containers, which have said something already")
    containers = {one["containerID"].rpartition("/")[2] for one in found["status"]["containerStatuses"]}
    for cgroup, pids in bench.node.processes(found).items():
        for pid in pids if cgroup.name not in containers else ():
            os.kill(pid, signal.SIGKILL)


async def test_by_the_library_a_container_has_its_larger_share_of_each_card_after_a_restart_of_its_pod(
    bench: Bench, enforcer: Limiting, cuda: Cuda
) -> None:
    await enforcer.anew(provider="HAMi-core")
    one = programs("grows", cuda, main=["0:512", "0:512", "1:1024", "1:1"])
    name = await bench.bind(
        {**one, "spec": {**one["spec"], "restartPolicy": "Always"}}, decided("main", *CARDS, memory=512)
    )
    small = ["card 0: 512 MiB", "card 1: 512 MiB", "0:512 -> 0", "0:512 -> 2", "1:1024 -> 2", "1:1 -> 0"]
    large = ["card 0: 1024 MiB", "card 1: 1024 MiB", "0:512 -> 0", "0:512 -> 0", "1:1024 -> 0", "1:1 -> 2"]

    async def says(last: list[str]) -> list[str]:
        said = (await bench.node.logs(bench.namespace, name, "main")).splitlines()
        return said if said[-len(last) :] == last else []

    await until(lambda: says(small), "it has its share of each card", deadline_s=HELD_S)
    await change(bench, name, decided("main", *CARDS, memory=1024))
    said = await until(lambda: says(large), "it has the larger one", deadline_s=HELD_S)
    starts = [said[at : at + len(small)] for at in range(0, len(said), len(small))]
    assert all(one in (small, large) for one in starts)


LOOK = "ls -A /tmp/nvidia-mps; cat /tmp/nvidia-mps/percent 2>/dev/null; env | grep ^CUDA_MPS | sort; echo visible=;"


def in_namespace(percent: int) -> str:
    """What a container says."""
    variables = f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}\nCUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n"
    return f"percent\n{percent}\n{variables}visible=\n"


async def test_by_mps_each_container_is_in_a_namespace_of_its_own_with_its_percentage_the_larger_one_after_a_restart(
    bench: Bench, enforcer: Limiting
) -> None:
    (enforcer.daemon.state / "protocol").write_text("3")
    (enforcer.daemon.state / "servers").write_text(f"all, 0, 7, ACTIVE, /run/nvidia-mps/all, {';'.join(CARDS)}\n")
    (enforcer.daemon.pipe / "all").mkdir()
    await enforcer.anew(provider="mps")
    one = pod("namespaces", LOOK + SLEEP)
    (main,) = one["spec"]["containers"]
    main["env"] = [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/elsewhere"}]
    one["spec"]["containers"] = [main, {**main, "name": "side"}]
    name = await bench.bind(one, decided("main", CARDS[0], cores=25), decided("side", *CARDS, cores=60))
    await bench.runs(name)
    for container, percent in (("main", 25), ("side", 60)):
        await bench.says(name, container)
        assert await bench.node.logs(bench.namespace, name, container) == in_namespace(percent)

    await change(bench, name, {**decided("main", CARDS[0], cores=50), **decided("side", *CARDS, cores=80)})
    both = {"main": in_namespace(25) + in_namespace(50), "side": in_namespace(60) + in_namespace(80)}

    async def larger() -> bool:
        return {container: await bench.node.logs(bench.namespace, name, container) for container in both} == both

    await until(larger, "each has its larger share", deadline_s=HELD_S)
    await bench.admin.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{name}", gracePeriodSeconds="0")

    async def removed() -> bool:
        return not any((enforcer.daemon.pipe / "all").iterdir())

    await until(removed, "the namespaces went with their containers", deadline_s=HELD_S)


async def test_by_mps_a_silent_daemon_holds_who_requires_it_and_is_told_of_who_does_not(
    bench: Bench, enforcer: Limiting
) -> None:
    await enforcer.anew(provider="mps")
    enforcer.daemon.hang()
    await bench.bind(pod("held"), decided("main", CARDS[0], cores=25))
    assert "did not answer within 0.5 s: restart it" in await bench.waits("held")
    await bench.bind(pod("free"), decided("main", CARDS[0], require=False, cores=25))
    await bench.runs("free")
    assert {remark.reason for remark in enforcer.state.remarks} == {"ContainerRefused", "LimitMissing"}
    enforcer.daemon.hang(on=False)
    await bench.runs("held")


@pytest.mark.skipif(UNIFIED, reason="this machine has cgroup v2 alone")
async def test_the_drivers_own_limits_are_refused_on_cgroup_v1_with_the_cure(bench: Bench, enforcer: Limiting) -> None:
    await enforcer.anew(provider="cgroup")
    cure = "boot it with systemd.unified_cgroup_hierarchy=1"
    assert enforcer.state.limits is not None
    assert enforcer.state.limits.endswith(cure)
    await bench.bind(pod("held"), decided("main", CARDS[0], memory=512))
    assert cure in await bench.waits("held")
    await bench.bind(pod("free"), decided("main", CARDS[0], require=False, memory=512))
    await bench.runs("free")


# The driver's own limits, over a stand-in of NVML

AS_V2 = f"""
mount -t tmpfs none "$0" && touch "$0/cgroup.controllers" && mkdir "$0/{CGROUP}"
mount --bind {MOUNT}/cpuset/{CGROUP} "$0/{CGROUP}"
mount --rbind "$0" {MOUNT}
exec "$@"
"""


class Driven(Limiting):
    """An enforcer on a machine with cgroup v2, or one that looks so to it, and a driver that keeps limits.

    Attributes:
        driver: What the driver answers.
    """

    def __init__(self, node: Node, workdir: Path, cuda: Cuda) -> None:
        played = workdir / "driver"
        view = workdir / "cgroups"
        for made in (played, view):
            made.mkdir()
        self.driver = Played(nvml_standin.build(played), played, AsyncExitStack())
        self.driver.play("a100x8")
        self.driver.change({f"gpu.{number}.uuid": card for number, card in enumerate(CARDS)})
        self._limits = cuda.limits
        self._limits.write_text("")
        env = {**self.driver.env, "NVML_STANDIN_LIMITS": str(self._limits)}
        within = () if UNIFIED else ("unshare", "--mount", "sh", "-e", "-c", AS_V2, str(view))
        super().__init__(node, workdir, cuda, provider="cgroup", env=env, within=within)

    def soft(self) -> dict[str, int]:
        """The soft limits in MiB of cgroups that there are, by the cgroup below the node's."""
        below = MOUNT / CGROUP
        there = below if UNIFIED else MOUNT / "cpuset" / CGROUP
        found = [(Path(one.cgroup).relative_to(below), one) for one in limits_in(self._limits.read_text())]
        return {str(path): one.soft // MIB for path, one in found if one.soft and (there / path).is_dir()}


@pytest_asyncio.fixture(loop_scope="session")
async def driven(node: Node, cards: None, cuda: Cuda, tmp_path: Path) -> AsyncIterator[Driven]:
    async with Driven(node, tmp_path, cuda) as running:
        await running.looked()
        assert running.state.limits == ""
        yield running


@pytest.mark.skipif(UNIFIED, reason="a container does not see its own cgroup here, and the stand-in for CUDA must")
async def test_by_the_driver_each_container_has_its_own_share_of_each_of_its_cards(
    bench: Bench, driven: Driven, cuda: Cuda
) -> None:
    annotations = {**decided("small", CARDS[1], memory=512), **decided("two", *CARDS, memory=1024)}
    name = await bench.bind(programs("shares", cuda, **SHARES), annotations)

    await has_its_shares(bench, name)


async def gone(bench: Bench, name: str) -> None:
    """Delete a Pod, and wait until it is gone."""
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{name}"
    one = await bench.admin.get(path)
    await bench.admin.delete(path, gracePeriodSeconds="0")

    async def no_more() -> bool:
        return not bench.node.processes(one)

    await until(no_more, f"{name} is gone", deadline_s=HELD_S)


async def stopped(bench: Bench, driven: Driven) -> None:
    await gone(bench, "more")


async def crashed(bench: Bench, driven: Driven) -> None:
    driven.process.kill()
    await gone(bench, "more")
    assert driven.soft()
    await driven.start()


async def booted(bench: Bench, driven: Driven) -> None:
    driven.process.kill()
    async with bench.node.powered_off():
        pass
    await driven.start()


async def lost(bench: Bench, driven: Driven) -> None:
    driven.process.kill()
    async with bench.node.powered_off():
        shutil.rmtree(driven.folder)
    driven.tell()
    await driven.start()


End = Callable[[Bench, Driven], Awaitable[None]]
ENDS: dict[str, tuple[End, int]] = {
    "its Pod was deleted": (stopped, 0),
    "its Pod was deleted while the enforcer was away": (crashed, 0),
    "the node was booted": (booted, 256),
    "the node was booted and lost the enforcer's folder": (lost, 256),
}


@pytest.mark.parametrize(("end", "left"), ENDS.values(), ids=ENDS)
async def test_no_soft_limit_is_left_of_a_container_when(bench: Bench, driven: Driven, end: End, left: int) -> None:
    """The driver counts soft limits in the cgroups above as well, and even a boot does not make it forget them."""
    driven.driver.change({"dmem": "yes"})
    await bench.runs(await bench.bind(pod("more"), decided("main", CARDS[0], request=256, memory=512)))
    before = driven.soft()
    assert list(before.values()) == [256] * 4

    await end(bench, driven)

    async def so() -> bool:
        now = driven.soft()
        return set(now.values()) == {left} - {0} and len(now) == len(before if left else {}) and (now != before)

    await until(so, "soft limits are those of the containers that there are", deadline_s=HELD_S)


FAULTS: dict[str, tuple[dict[str, str | None], str]] = {
    "none": ({"cgroups": "no"}, "that needs cgroup v2"),
    "lost": ({"gpu.0.lost": "1"}, "has fallen off the bus"),
    "hang": ({"hang": "nvmlDeviceSetMemoryLimits_v1"}, "NVML did not answer"),  # so does it for up to a minute more
}


async def test_a_driver_that_takes_no_limit_holds_who_requires_it_until_it_does_and_nobody_else(
    bench: Bench, driven: Driven
) -> None:
    for name, (fault, why) in FAULTS.items():
        driven.driver.change(fault)
        await bench.bind(pod(name), decided("main", CARDS[0], memory=512))
        assert why in await bench.waits(name)
        await bench.runs(await bench.bind(pod(f"{name}-free"), decided("main", CARDS[0], require=False, memory=512)))
        await bench.runs(await bench.bind(pod(f"{name}-other")))
        driven.driver.change(dict.fromkeys(fault))
        if name == "lost":
            await bench.runs("none")
            await bench.runs("lost")
    told = {(one.reason, one.name) for one in driven.state.remarks}
    assert told >= {("ContainerRefused", name) for name in FAULTS}
    assert told >= {("LimitMissing", f"{name}-free") for name in FAULTS}
