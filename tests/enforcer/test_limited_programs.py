"""Programs under limits: what they get of a card, over stand-ins for CUDA that keep to them."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import cuda_standin
import nvml_standin
import pytest
from cuda_standin import Cuda
from nvml_standin import QUICK, Played

from reporter.enforcer.driver import CardLimits
from reporter.enforcer.folders import Folders
from reporter.enforcer.limits import Rules, limiter
from reporter.enforcer.model import CardLimit, Container, Sandbox
from reporter.exchange import Facts

GIB, MIB = 2**30, 2**20
CARDS = tuple(f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in range(2))
WHOLE = 80 * 1024  # MiB


def hierarchy() -> Path | None:
    """Where cgroup v2 is; on a machine with v1 as well, it is often mounted beside."""
    places = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    return next((place for place in places if (place / "cgroup.controllers").exists()), None)


MOUNT = hierarchy()
on_cgroups = pytest.mark.skipif(
    MOUNT is None or not os.access(MOUNT, os.W_OK), reason="needs a cgroup v2 hierarchy, and root"
)


@pytest.fixture
def cuda(tmp_path: Path) -> Cuda:
    folder = tmp_path / "cuda"
    folder.mkdir()
    return cuda_standin.build(folder, MOUNT or tmp_path, {0: WHOLE * MIB, 1: WHOLE * MIB})


@pytest.fixture
def pod() -> Iterator[Path]:
    """A cgroup of a Pod, with one of a container."""
    assert MOUNT is not None
    made = MOUNT / f"koordgate-test-{os.getpid()}"
    (made / "container").mkdir(parents=True)
    yield made
    for one in (made / "container", made):
        with suppress(FileNotFoundError):
            one.rmdir()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_standin.build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
async def door(library: Path, tmp_path: Path, cuda: Cuda) -> AsyncIterator[CardLimits]:
    assert MOUNT is not None
    async with AsyncExitStack() as stack:
        played = Played(library, tmp_path, stack)
        played.env["NVML_STANDIN_LIMITS"] = str(cuda.limits)
        played.play("a100x8")
        yield CardLimits(played.nvml(QUICK, deaf=True), MOUNT, 30.0)


def run(command: list[str], cgroup: Path | None = None, env: dict[str, str] | None = None) -> list[str]:
    """Run a program in a cgroup, from its first instruction on; returns what it prints."""
    entered = ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup)] if cgroup is not None else []
    return subprocess.run([*entered, *command], env=env, check=True, capture_output=True, text=True).stdout.splitlines()


@on_cgroups
async def test_a_program_has_its_share_and_no_more_whatever_its_environment_says(door, cuda, pod) -> None:
    own = pod / "container"
    limits = [CardLimit(CARDS[0], str(pod), 0, 4 * GIB), CardLimit(CARDS[0], str(own), 0, 2 * GIB)]
    assert await door.limit(limits) == {}
    said = ["card 0: 2048 MiB", f"card 1: {WHOLE} MiB", "0:2049 -> 2", "0:1024 -> 0", "0:1024 -> 0", "0:1 -> 2"]
    program = [str(cuda.program), "0:2049", "0:1024", "0:1024", "0:1"]
    assert run(program, own) == said
    assert run(["env", "-i", *program], own) == said
    assert run(program, own, {"CUDA_DEVICE_MEMORY_LIMIT": "0", "NVIDIA_VISIBLE_DEVICES": "all"}) == said
    assert run([str(cuda.program), "0:4096", "1:4096"])[2:] == ["0:4096 -> 0", "1:4096 -> 0"]  # outside of the Pod


@on_cgroups
async def test_two_cards_have_a_limit_each_and_a_limit_of_the_pod_holds_below_it(door, cuda, pod) -> None:
    assert await door.limit([CardLimit(CARDS[0], str(pod), 0, GIB), CardLimit(CARDS[1], str(pod), 0, 3 * GIB)]) == {}
    assert run([str(cuda.program), "0:1024", "0:1", "1:3072", "1:1"], pod / "container") == [
        f"card 0: {WHOLE} MiB",  # CUDA shows the limit of the own cgroup alone
        f"card 1: {WHOLE} MiB",
        "0:1024 -> 0",
        "0:1 -> 2",
        "1:3072 -> 0",
        "1:1 -> 2",
    ]


@on_cgroups
async def test_a_limit_above_the_request_is_had_and_what_was_freed_is_had_again(door, cuda, pod) -> None:
    own = pod / "container"
    assert await door.limit([CardLimit(CARDS[0], str(own), GIB, 6 * GIB)]) == {}
    assert run([str(cuda.program), "0:6144", "0:1", "0:-6144", "0:6143", "0:2"], own)[2:] == [
        "0:6144 -> 0",
        "0:1 -> 2",
        "0:-6144 -> 0",
        "0:6143 -> 0",
        "0:2 -> 2",
    ]


@on_cgroups
async def test_a_cleared_limit_is_gone(door, cuda, pod) -> None:
    own = pod / "container"
    limit = CardLimit(CARDS[0], str(own), 0, GIB)
    for one, code in ((limit, 2), (limit._replace(hard=None), 0)):
        assert await door.limit([one]) == {}
        assert run([str(cuda.program), "0:1025"], own)[2:] == [f"0:1025 -> {code}"]


# HAMi-core: what the enforcer gives a container, to a library that reads it

NAME = "c" * 64


async def environment_of(tmp_path: Path, cuda: Cuda, memory: int, cards: int = 1, **stated: str) -> dict[str, str]:
    """What a container has, with its paths turned into those of this machine."""
    annotations = {
        "nvidia-gpu-memory-limit.koordgate.io/main": str(memory),
        "visible-devices.koordgate.io/main": ",".join(CARDS[:cards]),
    }
    sandbox = Sandbox("s", "u", "team", "pod", annotations=annotations)
    rules = Rules(library=str(cuda.limiter), preload="", caches=str(tmp_path / "caches"))
    given = limiter(sandbox, Container(NAME, "s", "main", stated), Facts(provider="HAMi-core"), rules)
    assert (given.why_not, await Folders(tmp_path / "caches").empty(given.caches)) == ("", "")
    environment = {**stated, **given.environment, "LD_PRELOAD": str(cuda.limiter)}
    for mount in given.mounts:
        if mount.writable:
            environment = {name: value.replace(mount.destination, mount.source) for name, value in environment.items()}
    return environment


async def test_by_the_library_a_program_has_its_share_and_the_authors_own_switches_are_gone(tmp_path, cuda) -> None:
    environment = await environment_of(
        tmp_path, cuda, 512, CUDA_DEVICE_MEMORY_LIMIT="0", CUDA_DEVICE_MEMORY_LIMIT_0="9g"
    )
    assert run([str(cuda.program), "0:512", "0:1"], env=environment) == [
        "card 0: 512 MiB",
        f"card 1: {WHOLE} MiB",
        "0:512 -> 0",
        "0:1 -> 2",
    ]


async def test_by_the_library_two_cards_have_a_limit_each(tmp_path, cuda) -> None:
    environment = await environment_of(tmp_path, cuda, 512, cards=2)
    assert run([str(cuda.program), "0:513", "1:513", "0:512", "1:512"], env=environment)[2:] == [
        "0:513 -> 2",
        "1:513 -> 2",
        "0:512 -> 0",
        "1:512 -> 0",
    ]


async def test_by_the_library_a_larger_share_is_had_after_a_restart_because_the_folder_is_empty_then(
    tmp_path, cuda
) -> None:
    for memory in (512, 1024):
        environment = await environment_of(tmp_path, cuda, memory)
        assert run([str(cuda.program), f"0:{memory}", "0:1"], env=environment)[2:] == [f"0:{memory} -> 0", "0:1 -> 2"]
        # Without the empty folder the earlier limit would stay.
        more = {**environment, "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"}
        assert run([str(cuda.program), "0:2048"], env=more)[2:] == ["0:2048 -> 2"]


async def test_the_library_holds_nobody_who_drops_its_variables(tmp_path, cuda) -> None:
    environment = await environment_of(tmp_path, cuda, 512)
    assert run(["env", "-i", str(cuda.program), "0:4096"], env=environment)[2:] == ["0:4096 -> 0"]
