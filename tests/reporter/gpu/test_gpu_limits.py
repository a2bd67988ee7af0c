"""Memory limits that the driver keeps by cgroup: the stand-in's, and what the NVML process reads of them."""

import subprocess
import sys
from dataclasses import replace

import nvml_standin
import pytest
from nvml_standin import QUICK, Played

from reporter.gpu.facts import CgroupMemory
from reporter.gpu.guarded import NvmlRefusedError, NvmlUnavailableError, Patience

GIB = 2**30
UNLIMITED = 2**64 - 1
_CALL = """
import sys, pynvml
card, path, *wanted = sys.argv[1:]
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(int(card))
try:
    if wanted:
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), *map(int, wanted))
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(path.encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    print(limits.softLimit, limits.hardLimit, limits.currentUsed)
except pynvml.NVMLError as error:
    print(type(error).__name__.removeprefix("NVMLError_"))
"""


@pytest.fixture
def cgroup(tmp_path) -> str:
    folder = tmp_path / "kubepods.slice" / "cri-containerd-a.scope"
    folder.mkdir(parents=True)
    return str(folder)


def call(played: Played, card: int, path: str, *wanted: int) -> str:
    """What pynvml answers, after it set a limit if one is wanted."""
    command = [sys.executable, "-c", _CALL, str(card), path, *map(str, wanted)]
    return subprocess.run(command, env=played.env, check=True, capture_output=True, text=True).stdout.strip()


def test_a_limit_that_was_set_is_read_back_by_card_and_cgroup_until_it_is_cleared(played, cgroup) -> None:
    played.play("a100x8")
    assert call(played, 0, cgroup) == "NotFound"
    assert call(played, 0, cgroup, 0, 2 * GIB) == f"0 {2 * GIB} 0"
    assert call(played, 1, cgroup, GIB, 3 * GIB) == f"{GIB} {3 * GIB} 0"
    assert call(played, 0, cgroup, GIB, GIB) == f"{GIB} {GIB} 0"
    played.change({f"gpu.0.used.{cgroup}": "4096"})
    assert call(played, 0, cgroup) == f"{GIB} {GIB} 4096"
    assert call(played, 0, f"{cgroup}/below") == "NotFound"
    assert call(played, 0, cgroup, 0, UNLIMITED) == "NotFound"
    assert call(played, 1, cgroup) == f"{GIB} {3 * GIB} 0"


@pytest.mark.parametrize(
    ("changes", "card", "wanted", "answer"),
    [
        pytest.param({}, 0, (2, 1), "InvalidArgument", id="soft above hard"),
        pytest.param({}, 0, (0, 81 * GIB), "InvalidArgument", id="more than the card has"),
        pytest.param({"root": "no"}, 0, (0, GIB), "NoPermission", id="not privileged"),
        pytest.param({"cgroups": "no"}, 0, (0, GIB), "NotSupported", id="a machine that keeps no limits"),
        pytest.param({"gpu.3.mig_mode": "1"}, 3, (0, GIB), "NotSupported", id="a card in MIG mode"),
        pytest.param({"error.nvmlDeviceGetMemoryLimits_v1": "3"}, 0, (), "NotSupported", id="an error that is played"),
        pytest.param({"dmem": "yes"}, 0, (), f"0 {UNLIMITED} 0", id="a kernel that counts without a limit"),
    ],
)
def test_the_stand_in_refuses_what_the_driver_refuses(played, cgroup, changes, card, wanted, answer) -> None:
    played.play("a100x8")
    played.change(changes)
    assert call(played, card, cgroup, *wanted) == answer


def test_a_limit_needs_a_cgroup_that_is_there(played, tmp_path) -> None:
    played.play("a100x8")
    assert call(played, 0, str(tmp_path / "gone"), 0, GIB) == "OperatingSystem"


async def test_a_driver_with_the_calls_is_told_from_one_without_them(played, tmp_path_factory) -> None:
    played.play("a100x8")
    assert (await played.nvml().read()).driver.memory_limits is True
    earlier = nvml_standin.build(tmp_path_factory.mktemp("earlier"), limits=False)
    played.env["LD_LIBRARY_PATH"] = str(earlier)
    assert (await played.nvml().read()).driver.memory_limits is False


# What the reporter reads of them

UUIDS = [f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in range(8)]
IMPATIENT = Patience(answer=0.05, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0)
FOREVER = Patience(answer=30.0, first_answer=30.0, first_pause=1e9, longest_pause=1e9, end=30.0)


async def test_limits_and_use_of_cgroups_are_read_back_in_the_order_of_the_question(played) -> None:
    played.play("a100x8")
    played.limit(0, "/sys/fs/cgroup/a", GIB, 2 * GIB)
    played.limit(1, "/sys/fs/cgroup/a", 0, UNLIMITED)
    played.change({"gpu.0.used./sys/fs/cgroup/a": "4096", "gpu.3.mig_mode": "1", "gpu.1.used./sys/fs/cgroup/a": "7"})
    asked = ((UUIDS[1], "/sys/fs/cgroup/a"), (UUIDS[0], "/sys/fs/cgroup/a"), (UUIDS[0], "/b"), (UUIDS[3], "/b"))
    assert await played.nvml().memory(asked) == (
        CgroupMemory(None, 7),
        CgroupMemory(2 * GIB, 4096),
        CgroupMemory(),
        CgroupMemory(),
    )


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param("3", CgroupMemory(), id="not supported"),
        pytest.param("6", CgroupMemory(), id="not found"),
        pytest.param("13", CgroupMemory(), id="an earlier driver"),
        pytest.param("4", CgroupMemory(problem="Insufficient Permissions"), id="no permission"),
        pytest.param("17", CgroupMemory(problem="The operating system has blocked the request."), id="no such path"),
        pytest.param("15", CgroupMemory(problem="GPU is lost"), id="the card is lost"),
    ],
)
async def test_no_limit_is_told_from_not_knowing_and_one_card_does_not_hinder_the_others(played, code, told) -> None:
    played.play("a100x8")
    played.limit(1, "/a", 0, GIB)
    played.change({"gpu.0.error.nvmlDeviceGetMemoryLimits_v1": code})
    found = await played.nvml().memory(((UUIDS[0], "/a"), ("GPU-none", "/a"), (UUIDS[1], "/a")))
    assert found == (told, CgroupMemory(problem="Not Found"), CgroupMemory(GIB, 0))


@pytest.mark.parametrize(("how", "reason"), [("hang", "NvmlHangs"), ("crash", "NvmlCrashed")])
async def test_a_driver_that_fails_on_this_question_goes_on_with_the_others_and_is_asked_again_later(
    played, until, how, reason
) -> None:
    played.play("a100x8")
    nvml = played.nvml(IMPATIENT)
    await nvml.read()
    played.change({how: "nvmlDeviceGetMemoryLimits_v1"})
    with pytest.raises(NvmlUnavailableError) as failed:
        await nvml.memory(((UUIDS[0], "/a"),))
    assert failed.value.outage.reason == reason
    assert len((await until(nvml.read)).gpus) == 8
    with pytest.raises(NvmlRefusedError, match=r"next in [89][0-9][0-9] s"):
        await nvml.memory(((UUIDS[0], "/a"),))
    assert nvml.outage is None


async def test_after_a_while_it_is_asked_again(played, until) -> None:
    played.play("a100x8")
    nvml = played.nvml(replace(QUICK, memory=0.0))
    played.change({"crash": "nvmlDeviceGetMemoryLimits_v1"})
    with pytest.raises(NvmlUnavailableError):
        await nvml.memory(((UUIDS[0], "/a"),))
    played.change({"crash": None})
    assert await until(lambda: nvml.memory(((UUIDS[0], "/a"),))) == (CgroupMemory(),)


async def test_an_outage_of_nvml_is_no_failure_of_this_question(bare) -> None:
    nvml = bare.nvml(FOREVER)
    with pytest.raises(NvmlUnavailableError):
        await nvml.read()
    with pytest.raises(NvmlUnavailableError):
        await nvml.memory((("GPU-a", "/a"),))
    assert nvml.outage is not None
    assert nvml.outage.reason == "NvmlNotFound"
