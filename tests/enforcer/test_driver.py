"""The driver's limits of cgroups' memory, as the enforcer sets them, over the stand-in for NVIDIA's library."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import nvml_standin
import pytest
from nvml_standin import QUICK, Played
from waiting import until

from reporter.enforcer import driver
from reporter.enforcer.driver import CardLimits
from reporter.enforcer.model import CardLimit
from reporter.gpu.guarded import Patience

GIB = 2**30
CARDS = tuple(f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in range(8))
IMPATIENT = replace(QUICK, answer=0.05)
POD = "kubepods/burstable/pod1"
ONE, TWO, GONE = (letter * 64 for letter in "abc")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_standin.build(tmp_path_factory.mktemp("standin"))


class Node:
    """A node with cgroup v2, eight cards, and one Pod with two containers."""

    def __init__(self, played: Played, stack: AsyncExitStack) -> None:
        self.played = played
        self.cgroups = played.folder / "cgroup"
        self.nvml = played.nvml()
        self._stack = stack
        played.play("a100x8")
        for name in (ONE, TWO):
            self.cgroup(f"{POD}/{name}")
        (self.cgroups / "cgroup.controllers").touch()

    def cgroup(self, name: str) -> str:
        path = self.cgroups / name
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    def door(self, patience: Patience = QUICK, seconds: float = 30.0) -> CardLimits:
        self.nvml = self.played.nvml(patience, deaf=True)
        made = CardLimits(self.nvml, self.cgroups, seconds)
        self._stack.push_async_callback(made.aclose)
        return made

    def kept(self) -> set[tuple[int, int, int, str]]:
        """What the driver keeps: number of a card, soft and hard limit, and the cgroup."""
        if not self.played.limits.exists():
            return set()
        lines = (line.split(" ", 3) for line in self.played.limits.read_text().splitlines())
        return {
            (int(card), int(soft), int(hard), os.path.relpath(path, self.cgroups)) for card, soft, hard, path in lines
        }

    def soft(self, name: str) -> int:
        """The soft limit of a cgroup on the first card."""
        return sum(soft for card, soft, _, path in self.kept() if card == 0 and path == name)


@pytest.fixture
async def node(library: Path, tmp_path: Path) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        yield Node(Played(library, tmp_path, stack), stack)


async def test_limits_are_in_force_once_the_call_returns_and_none_clears_one(node) -> None:
    door, path = node.door(), node.cgroup(f"{POD}/{ONE}")
    limits = (CardLimit(CARDS[0], path, GIB, 2 * GIB), CardLimit(CARDS[1], path, 0, 3 * GIB))
    assert await door.limit(limits) == {}
    assert node.kept() == {(0, GIB, 2 * GIB, f"{POD}/{ONE}"), (1, 0, 3 * GIB, f"{POD}/{ONE}")}
    assert await door.limit((limits[1]._replace(hard=None),)) == {}
    assert node.kept() == {(0, GIB, 2 * GIB, f"{POD}/{ONE}")}
    assert await door.limit(()) == {}


async def test_what_is_not_in_force_is_told_apart_from_what_is(node) -> None:
    door, path = node.door(), node.cgroup(f"{POD}/{ONE}")
    node.played.change({"gpu.1.lost": "1", "gpu.2.mig_mode": "1"})
    limits = tuple(CardLimit(card, path, 0, GIB) for card in CARDS[:3])
    told = await door.limit(limits)
    assert told == {
        limits[1]: f"card {CARDS[1]} has fallen off the bus; restart the node",
        limits[2]: told[limits[2]],
    }
    assert "a card without MIG" in told[limits[2]]
    assert node.kept() == {(0, 0, GIB, f"{POD}/{ONE}")}


def test_a_container_waits_half_a_second_for_the_driver_and_a_hang_is_noticed_within_it() -> None:
    assert (driver.SECONDS, driver.PATIENCE.answer) == (0.5, 0.4)


async def test_a_driver_that_hangs_is_told_and_its_process_ends_and_comes_back_by_itself(node) -> None:
    door, path = node.door(IMPATIENT), node.cgroup(f"{POD}/{ONE}")
    limit = CardLimit(CARDS[0], path, 0, GIB)
    assert await door.look(CARDS) == ""
    first = node.nvml.pid
    node.played.change({"hang": "nvmlDeviceSetMemoryLimits_v1"})
    told = await door.limit((limit,))
    assert told == {
        limit: "NVML did not answer for 0.05 s; if that goes on, the driver hangs: restart the node",
    }
    node.played.change({"hang": None})
    await until(lambda: node.nvml.outage is None and node.nvml.pid not in {None, first})
    assert await door.limit((limit,)) == {}


async def test_a_driver_that_wakes_its_cards_is_given_up_by_the_call_and_not_killed(node) -> None:
    door, path = node.door(seconds=0.05), node.cgroup(f"{POD}/{ONE}")
    node.played.change({"hang": "nvmlInitWithFlags"})
    limit = CardLimit(CARDS[0], path, 0, GIB)
    told = await door.limit((limit,))
    assert told == {limit: "NVML did not answer within 0.05 s: it has just started, or the driver hangs"}
    await until(node.played.hung.exists)
    assert node.nvml.pid is not None
    os.kill(node.nvml.pid, signal.SIGKILL)


async def test_an_nvml_process_that_dies_while_a_call_waits_is_told_and_comes_back(node) -> None:
    door, path = node.door(), node.cgroup(f"{POD}/{ONE}")
    limit = CardLimit(CARDS[0], path, 0, GIB)
    assert await door.look(CARDS) == ""
    node.played.change({"crash": "nvmlDeviceSetMemoryLimits_v1"})
    (told,) = (await door.limit((limit,))).values()
    assert told.startswith("the NVML library crashed (SIGSEGV)")
    node.played.change({"crash": None})
    await until(lambda: node.nvml.outage is None and node.nvml.pid)
    assert await door.limit((limit,)) == {}


# Whether a node keeps limits


async def test_a_node_that_keeps_limits_is_told_by_a_try_that_leaves_nothing_behind(node) -> None:
    door = node.door()
    before = sorted(node.cgroups.rglob("*"))
    assert await door.look(CARDS) == ""
    assert node.kept() == set()
    assert sorted(node.cgroups.rglob("*")) == before
    assert node.nvml.pid  # it is there before a container needs it


async def test_a_lost_card_and_one_in_mig_mode_do_not_speak_for_the_others(node) -> None:
    node.played.change({"gpu.0.lost": "1", "gpu.1.mig_mode": "1"})
    assert await node.door().look(CARDS) == ""


LACKS = {
    "no permission": ({"root": "no"}, "the driver takes limits from a process with CAP_SYS_ADMIN alone"),
    "not supported": ({"cgroups": "no"}, "that needs cgroup v2"),
    "every card is in MIG mode": ({"gpu.*.mig_mode": "1"}, "a card without MIG"),
    "the library fails": ({"error.nvmlDeviceGetHandleByUUID": "9"}, "the NVIDIA kernel driver is not loaded"),
}


@pytest.mark.parametrize(("changes", "told"), LACKS.values(), ids=LACKS)
async def test_what_a_node_lacks_is_told_with_its_cure(node, changes, told) -> None:
    if "gpu.*.mig_mode" in changes:
        node.played.change({f"gpu.{card}.mig_mode": None for card in range(8)})
    node.played.change(changes)
    assert told in await node.door().look(CARDS)


async def test_cgroup_v1_is_told_with_its_cure_and_no_process_is_started(node) -> None:
    (node.cgroups / "cgroup.controllers").unlink()
    told = await node.door().look(CARDS)
    assert told.endswith("boot it with systemd.unified_cgroup_hierarchy=1")
    assert node.nvml.pid is None


async def test_a_hierarchy_that_cannot_be_written_is_told_with_its_cure(node) -> None:
    (node.cgroups / "kubepods" / "koordgate-probe").touch()
    told = await node.door().look(CARDS)
    assert told.endswith(f"(File exists): mount {node.cgroups} of the host writable, at this path")


async def test_of_a_node_without_cards_it_is_not_known_and_of_one_with_mig_devices_alone_it_is(node) -> None:
    door = node.door()
    assert await door.look(()) is None
    assert await door.look(("MIG-a1000000-0000-4000-8000-000000000000",)) == (
        "the driver keeps no limits on cards in MIG mode: MIG itself keeps them"
    )


# Soft limits


@pytest.fixture(params=["misc", "dmem"])
def counted(node: Node, request: pytest.FixtureRequest) -> Node:
    """By the driver, or by the kernel, where soft limits are added to those of the cgroups above."""
    node.played.change({"dmem": "yes" if request.param == "dmem" else None})
    return node


async def test_a_soft_limit_is_zero_after_its_container_has_stopped(counted) -> None:
    door, path = counted.door(), counted.cgroup(f"{POD}/{ONE}")
    limit = CardLimit(CARDS[0], path, GIB, 2 * GIB)
    assert await door.limit((limit,)) == {}
    assert counted.soft(f"{POD}/{ONE}") == GIB
    assert await door.limit((limit._replace(soft=0),)) == {}
    assert {counted.soft(path) for path in (f"{POD}/{ONE}", POD, "kubepods")} == {0}


async def test_a_limit_of_the_pod_does_not_take_its_containers_what_they_are_guaranteed(node) -> None:
    node.played.change({"dmem": "yes"})
    door = node.door()
    assert await door.limit((CardLimit(CARDS[0], node.cgroup(f"{POD}/{ONE}"), GIB, 2 * GIB),)) == {}
    assert await door.limit((CardLimit(CARDS[0], node.cgroup(POD), 0, 4 * GIB),)) == {}
    assert node.soft(POD) == GIB
    assert (0, GIB, 4 * GIB, POD) in node.kept()


async def test_soft_limits_of_containers_that_are_no_more_are_zeroed_at_the_start(counted) -> None:
    before = counted.door()
    for name, soft in ((ONE, 1), (TWO, 2), (GONE, 4)):
        limit = CardLimit(CARDS[0], counted.cgroup(f"{POD}/{name}"), soft * GIB, 8 * GIB)
        assert await before.limit((limit,)) == {}
    (counted.cgroups / POD / GONE).rmdir()  # its limit was not taken back before
    door = counted.door()
    door.sweep([ONE], ())
    assert await door.look(CARDS) == ""
    assert (counted.soft(f"{POD}/{ONE}"), counted.soft(f"{POD}/{TWO}")) == (GIB, 0)
    above = GIB if "yes" in (counted.played.folder / "node.nvml").read_text() else 0
    assert {counted.soft(path) for path in (POD, "kubepods/burstable", "kubepods")} == {above}
    assert (0, 0, 8 * GIB, f"{POD}/{TWO}") in counted.kept()  # the hard limit stays


async def test_a_sweep_spares_what_was_limited_since(node) -> None:
    door = node.door()
    door.sweep([], ())
    limit = CardLimit(CARDS[0], node.cgroup(f"{POD}/{ONE}"), GIB, 2 * GIB)
    assert await door.limit((limit,)) == {}
    assert await door.look(CARDS) == ""
    assert node.soft(f"{POD}/{ONE}") == GIB


async def test_a_sweep_is_done_by_itself_once_the_driver_has_answered(node) -> None:
    door = node.door()
    assert await door.look(CARDS) == ""
    node.played.limit(3, node.cgroup(f"{POD}/{TWO}"), GIB, 2 * GIB)
    door.sweep([ONE], ())
    await until(lambda: node.kept() == {(3, 0, 2 * GIB, f"{POD}/{TWO}")})


async def test_a_sweep_during_which_the_driver_fails_is_done_later(node) -> None:
    door = node.door(replace(IMPATIENT, memory=0.0))
    node.played.limit(0, node.cgroup(f"{POD}/{TWO}"), GIB, 2 * GIB)
    assert await door.look(CARDS) == ""
    node.played.change({"hang": "nvmlDeviceGetMemoryLimits_v1"})
    door.sweep([ONE], ())
    await until(lambda: node.nvml.outage is not None)
    node.played.change({"hang": None})
    await until(lambda: node.soft(f"{POD}/{TWO}") == 0)
