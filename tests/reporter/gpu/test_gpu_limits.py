"""Memory limits that the driver keeps by cgroup: the stand-in's, and what the NVML process reads of them."""

import re
from dataclasses import replace

import nvml_standin
import pytest
from nvml_standin import QUICK

from reporter.gpu.facts import CgroupMemory, MemoryLimit
from reporter.gpu.guarded import NvmlRefusedError, NvmlUnavailableError, Patience

GIB = 2**30
UNLIMITED = 2**64 - 1


@pytest.fixture
def cgroup(tmp_path) -> str:
    folder = tmp_path / "kubepods.slice" / "cri-containerd-a.scope"
    folder.mkdir(parents=True)
    return str(folder)


async def test_a_driver_with_the_calls_is_told_from_one_without_them(played, tmp_path_factory) -> None:
    played.play("a100x8")
    assert (await played.nvml().read()).driver.memory_limits is True
    earlier = nvml_standin.build(tmp_path_factory.mktemp("earlier"), limits=False)
    played.env["LD_LIBRARY_PATH"] = str(earlier)
    assert (await played.nvml().read()).driver.memory_limits is False


# What the reporter reads of them

UUIDS = [f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in range(8)]
IMPATIENT = Patience(answer=0.05, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0)


async def test_limits_and_use_of_cgroups_are_read_back_in_the_order_of_the_question(played) -> None:
    played.play("a100x8")
    played.limit(0, "/sys/fs/cgroup/a", GIB, 2 * GIB)
    played.limit(1, "/sys/fs/cgroup/a", 0, UNLIMITED)
    played.change({"gpu.0.used./sys/fs/cgroup/a": "4096", "gpu.3.mig_mode": "1", "gpu.1.used./sys/fs/cgroup/a": "7"})
    asked = ((UUIDS[1], "/sys/fs/cgroup/a"), (UUIDS[0], "/sys/fs/cgroup/a"), (UUIDS[0], "/b"), (UUIDS[3], "/b"))
    assert await played.nvml().memory(asked) == (
        CgroupMemory(None, 7),
        CgroupMemory(2 * GIB, 4096, soft=GIB),
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


# What the enforcer sets


async def test_limits_that_are_set_are_in_force_and_cleared_ones_are_not(played, cgroup) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    wanted = (MemoryLimit(UUIDS[1], cgroup, GIB, 2 * GIB), MemoryLimit(UUIDS[0], cgroup, 0, 3 * GIB))
    read = ((UUIDS[0], cgroup), (UUIDS[1], cgroup), (UUIDS[2], cgroup))
    assert await nvml.limit(wanted) == ("", "")
    assert await nvml.memory(read) == (
        CgroupMemory(3 * GIB, 0),
        CgroupMemory(2 * GIB, 0, soft=GIB),
        CgroupMemory(),
    )
    assert await nvml.limit((MemoryLimit(UUIDS[1], cgroup, 0, None),)) == ("",)
    assert await nvml.memory(read) == (CgroupMemory(3 * GIB, 0), CgroupMemory(), CgroupMemory())


async def test_a_soft_limit_that_is_left_alone_stays_and_one_of_zero_goes(played, cgroup) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    for soft, then in ((GIB, GIB), (None, GIB), (0, 0), (None, 0)):
        assert await nvml.limit((MemoryLimit(UUIDS[0], cgroup, soft, 2 * GIB),)) == ("",)
        assert await nvml.memory(((UUIDS[0], cgroup),)) == (CgroupMemory(2 * GIB, 0, soft=then),)


CANNOT = {
    "an earlier driver": ({"gpu.0.error.nvmlDeviceSetMemoryLimits_v1": "13"}, "older than R615"),
    "not supported": ({"gpu.0.error.nvmlDeviceSetMemoryLimits_v1": "3"}, "cgroup v2 and a card without MIG"),
    "a card in MIG mode": ({"gpu.0.mig_mode": "1"}, "a card without MIG"),
    "no permission": ({"root": "no"}, "CAP_SYS_ADMIN"),
    "more than the card has": ({"gpu.0.memory": "4096"}, "does not take 2147483648 bytes"),
    "a lost card": ({"gpu.0.lost": "1"}, "fallen off the bus; restart the node"),
    "a card to be reset": ({"gpu.0.error.nvmlDeviceSetMemoryLimits_v1": "16"}, "must be reset"),
    "an unknown card": ({"gpu.0.uuid": "GPU-another"}, "knows no card GPU-a1000000-.*nvidia-smi -L"),
    "an unknown error": ({"gpu.0.error.nvmlDeviceSetMemoryLimits_v1": "999"}, r"Unknown Error \(code 999\)"),
    "nothing to be read back": ({"gpu.0.error.nvmlDeviceGetMemoryLimits_v1": "4"}, "cannot be read back"),
    "another limit read back": ({"forget": "yes"}, "reads back another"),
}


@pytest.mark.parametrize(("changes", "told"), CANNOT.values(), ids=CANNOT)
async def test_what_cannot_be_set_is_told_with_its_cure_and_does_not_hinder_the_next(
    played, cgroup, changes, told
) -> None:
    played.play("a100x8")
    played.change(changes)
    wanted = (MemoryLimit(UUIDS[0], cgroup, 0, 2 * GIB), MemoryLimit(UUIDS[1], cgroup, 0, 2 * GIB))
    first, second = await played.nvml().limit(wanted)
    assert re.search(told, first)
    assert (second == "") == all("gpu.0." in key for key in changes)


async def test_a_path_that_is_no_cgroup_is_told(played, cgroup) -> None:
    played.play("a100x8")
    (told,) = await played.nvml().limit((MemoryLimit(UUIDS[0], f"{cgroup}/none", 0, GIB),))
    assert re.search("/none: is it there, and the host's /sys/fs/cgroup mounted writable at the same path", told)


async def test_a_driver_without_the_calls_says_that_it_is_too_old(played, cgroup, tmp_path_factory) -> None:
    played.play("a100x8")
    played.env["LD_LIBRARY_PATH"] = str(nvml_standin.build(tmp_path_factory.mktemp("earlier"), limits=False))
    (told,) = await played.nvml().limit((MemoryLimit(UUIDS[0], cgroup, 0, GIB),))
    assert "older than R615" in told


@pytest.mark.parametrize(("how", "reason"), [("hang", "NvmlHangs"), ("crash", "NvmlCrashed")])
async def test_a_driver_that_fails_as_limits_are_set_is_asked_again(played, cgroup, until, how, reason) -> None:
    played.play("a100x8")
    nvml = played.nvml(IMPATIENT)
    wanted = (MemoryLimit(UUIDS[0], cgroup, 0, GIB),)
    assert await nvml.limit(wanted) == ("",)
    played.change({how: "nvmlDeviceSetMemoryLimits_v1"})
    with pytest.raises(NvmlUnavailableError) as failed:
        await nvml.limit(wanted)
    assert failed.value.outage.reason == reason
    assert nvml.pid is None
    played.change({how: None})
    assert await until(lambda: nvml.limit(wanted)) == ("",)


async def test_a_deaf_process_hears_no_xid_and_lets_no_question_wait_for_one(played) -> None:
    played.play("a100x8")
    played.change({"hang": "nvmlEventSetWait_v2"})
    nvml = played.nvml(deaf=True)
    for _ in range(2):
        assert len((await nvml.read()).gpus) == 8
