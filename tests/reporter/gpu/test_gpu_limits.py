"""Memory limits that the driver keeps by cgroup: the stand-in's, and what the NVML process reads of them."""

import subprocess
import sys

import nvml_standin
import pytest
from nvml_standin import Played

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
