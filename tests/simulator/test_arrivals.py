"""In which order Pods are created and scheduled."""

from collections.abc import Sequence
from typing import Any

import pytest
from simulator.clusters import asking, node

from console.simulator.arrivals import Arrivals, key_of
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.workloads import WantedPod


async def arrive(wanted: Sequence[WantedPod], cpu: str = "4") -> tuple[list[Result], list[tuple[str, int]], list[int]]:
    """The results; each Pod that was scheduled with how many Pods there were; and what was told."""
    cluster = OfflineCluster.in_process()
    standing = await cluster.load([node(cpu=cpu), *(one.pod for one in wanted if one.pod["spec"].get("nodeName"))])
    scheduled: list[tuple[str, int]] = []
    told: list[int] = []

    schedule = cluster.schedule

    async def noted(admitted: Result) -> Result:
        result = await schedule(admitted)
        scheduled.append((result.pod["metadata"]["name"], len(cluster.pods)))
        return result

    vars(cluster)["schedule"] = noted
    there = {key_of(one.pod): one for one in standing}
    results = await Arrivals(cluster, there, told.append).run(wanted)
    return results, scheduled, told


def wanted(name: str, cpu: str = "1", follows: str = "", **spec: Any) -> WantedPod:
    return WantedPod(asking(name, {"cpu": cpu}, **spec), of="Set s", follows=("default", follows) if follows else None)


async def test_pods_of_one_priority_are_scheduled_as_they_are_created() -> None:
    old = wanted("old", nodeName="node-1", priority=9)
    _, scheduled, told = await arrive([wanted("a"), old, wanted("b"), wanted("c")])
    assert scheduled == [("a", 2), ("b", 3), ("c", 4)]
    assert told == [1, 2, 3]


@pytest.mark.parametrize("key", ["priority", "priorityClassName"])
async def test_pods_of_two_priorities_are_all_created_first(key: str) -> None:
    every: dict[str, list[Any]] = {"priority": [0, 0, 1], "priorityClassName": ["x", "x", "system-node-critical"]}
    classes = every[key]
    _, scheduled, _ = await arrive([wanted(name, **{key: of}) for name, of in zip("abc", classes, strict=True)])
    assert scheduled == [("c", 3), ("a", 3), ("b", 3)]


async def test_a_pod_that_follows_is_created_once_the_one_before_it_runs() -> None:
    pods = [
        wanted("there", nodeName="node-1"),
        wanted("after-there", follows="there"),
        wanted("a"),
        wanted("b", follows="a"),
        wanted("big", cpu="99"),
        wanted("after-big", follows="big"),
        wanted("after-after", follows="after-big"),
        wanted("c", follows="b"),
    ]
    results, scheduled, _ = await arrive(pods, cpu="9")
    assert [one.state for one in results] == [
        PodFate.STANDING,
        PodFate.BOUND,
        PodFate.BOUND,
        PodFate.BOUND,
        PodFate.UNSCHEDULABLE,
        PodFate.NOT_CREATED,
        PodFate.NOT_CREATED,
        PodFate.BOUND,
    ]
    assert [name for name, _ in scheduled] == ["after-there", "a", "b", "big", "c"]
    assert results[5].reasons == ("Set s creates it once Pod default/big runs",)
    assert results[5].given is pods[5].pod


async def test_a_pod_that_follows_one_of_a_lower_priority_comes_after_it() -> None:
    pods = [wanted("b", follows="a", priority=9), wanted("c", priority=5), wanted("a", priority=1)]
    results, scheduled, _ = await arrive(pods)
    assert [name for name, _ in scheduled] == ["c", "a", "b"]
    assert [one.state for one in results] == [PodFate.BOUND] * 3


async def test_a_pod_that_follows_one_that_has_ended_waits() -> None:
    ended = WantedPod({**asking("ended"), "status": {"phase": "Failed"}}, of="Set s")
    cluster = OfflineCluster.in_process()
    there = {key_of(ended.pod): Result(ended.pod, PodFate.DENIED)}
    _, after = await Arrivals(cluster, there).run([ended, wanted("after", follows="ended")])
    assert after.state is PodFate.NOT_CREATED
