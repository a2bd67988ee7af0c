"""Limits on a real container runtime: each container has its own, by what programs in it get of a card.

CUDA, HAMi-core's library and the MPS daemon are stand-ins. Cards come by CDI, as device files of which no driver knows.
The driver's own limits need cgroup v2: programs under these are in `enforcer/test_limited_programs.py`.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import cuda_standin
import mps_standin
import pytest
import pytest_asyncio
from cuda_standin import Cuda
from mps_standin import Daemon
from node import images, nvidia
from node.enforcers import HELD_S, Bench, Enforcer, pod
from node.harness import Node

from localplane.admin import JsonObject
from localplane.waiting import until
from reporter.exchange import CardPlace, Facts

KIND = "koordgate.test/limited"
CARDS = tuple(f"GPU-5eed0000-0000-4000-8000-00000000001{number}" for number in range(2))
PROGRAM = "koordgate.local/allocate:1"
WHOLE = 80 * 1024  # MiB
MIB = 2**20


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
    built = cuda_standin.build(folder, Path("/sys/fs/cgroup"), {0: WHOLE * MIB, 1: WHOLE * MIB})
    await node.load(images.around(PROGRAM, built.program, folder / "allocate.tar"))
    return built


class Limiting(Enforcer):
    """An enforcer with the stand-ins."""

    def __init__(self, node: Node, workdir: Path, cuda: Cuda) -> None:
        """Describe it; `daemon` is the MPS daemon."""
        self.daemon = Daemon(workdir / "mps", 2)
        places = {card: CardPlace(f"0000:0{number}:00.0", WHOLE * MIB) for number, card in enumerate(CARDS)}
        enforcement = {"hamiCore": {"library": str(cuda.limiter)}, "mps": {"pipe": str(self.daemon.pipe)}}
        env = {**os.environ, "PATH": mps_standin.PATH}
        super().__init__(node, workdir, Facts(cards=places, kinds={"gpu": KIND}), enforcement, env=env)


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


async def test_by_the_library_each_container_has_its_own_share_of_each_of_its_cards(
    bench: Bench, enforcer: Limiting, cuda: Cuda
) -> None:
    await enforcer.anew(provider="HAMi-core")
    containers = {"small": ["0:513", "0:512"], "two": ["0:1025", "1:1025", "0:1024", "1:1024"], "bare": ["0:1"]}
    annotations = {**decided("small", CARDS[1], memory=512), **decided("two", *CARDS, memory=1024)}
    name = await bench.bind(programs("shares", cuda, **containers), annotations)

    assert await output(bench, name, "small") == ["card 0: 512 MiB", "0:513 -> 2", "0:512 -> 0"]
    assert await output(bench, name, "two") == [
        "card 0: 1024 MiB",
        "card 1: 1024 MiB",
        "0:1025 -> 2",
        "1:1025 -> 2",
        "0:1024 -> 0",
        "1:1024 -> 0",
    ]
    assert f"card 0: {WHOLE} MiB" in await output(bench, name, "bare")  # no card was brought, nor a limit
    folder = enforcer.folder / "caches"
    assert len(list(folder.iterdir())) == 2
    await bench.admin.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{name}", gracePeriodSeconds="0")

    async def removed() -> bool:
        return not list(folder.iterdir())

    await until(removed, "the folders went with their containers", deadline_s=HELD_S)


async def test_by_the_library_a_restarted_container_has_an_empty_folder_of_its_own(
    bench: Bench, enforcer: Limiting, cuda: Cuda
) -> None:
    await enforcer.anew(provider="HAMi-core")
    for name, memory in (("before", 512), ("after", 1024)):
        asked = [f"0:{memory}", "0:1"]
        one = await bench.bind(programs(name, cuda, main=asked), decided("main", CARDS[0], memory=memory))
        said = await output(bench, one, "main")
        assert said == [f"card 0: {memory} MiB", f"0:{memory} -> 0", "0:1 -> 2"]


LOOK = "ls -A /tmp/nvidia-mps; cat /tmp/nvidia-mps/percent 2>/dev/null; env | grep ^CUDA_MPS | sort; echo visible="


async def test_by_mps_each_container_is_in_a_namespace_of_its_own_with_its_percentage(
    bench: Bench, enforcer: Limiting
) -> None:
    (enforcer.daemon.state / "protocol").write_text("3")
    (enforcer.daemon.state / "servers").write_text(f"all, 0, 7, ACTIVE, /run/nvidia-mps/all, {';'.join(CARDS)}\n")
    (enforcer.daemon.pipe / "all").mkdir()
    await enforcer.anew(provider="mps")
    one = pod("namespaces", LOOK, restartPolicy="Never")
    (main,) = one["spec"]["containers"]
    main["env"] = [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/elsewhere"}]
    one["spec"]["containers"] = [main, {**main, "name": "side"}]
    annotations = {**decided("main", CARDS[0], cores=25), **decided("side", *CARDS, cores=60)}
    name = await bench.bind(one, annotations)
    for container, percent in (("main", 25), ("side", 60)):
        await bench.node.phase(bench.namespace, name, "Succeeded", deadline_s=HELD_S)
        assert (await bench.node.logs(bench.namespace, name, container)).splitlines() == [
            "percent",
            f"{percent}",
            f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}",
            "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
            "visible=",
        ]
    await bench.admin.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{name}", gracePeriodSeconds="0")

    async def removed() -> bool:
        return not enforcer.daemon.namespaces("all")

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


@pytest.mark.skipif(Path("/sys/fs/cgroup/cgroup.controllers").exists(), reason="this machine has cgroup v2 alone")
async def test_the_drivers_own_limits_are_refused_on_cgroup_v1_with_the_cure(bench: Bench, enforcer: Limiting) -> None:
    await enforcer.anew(provider="cgroup")
    cure = "boot it with systemd.unified_cgroup_hierarchy=1"
    assert enforcer.state.limits is not None
    assert enforcer.state.limits.endswith(cure)
    await bench.bind(pod("held"), decided("main", CARDS[0], memory=512))
    assert cure in await bench.waits("held")
    await bench.bind(pod("free"), decided("main", CARDS[0], require=False, memory=512))
    await bench.runs("free")
