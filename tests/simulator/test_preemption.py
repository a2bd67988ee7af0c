"""Whom a Pod that fits nowhere would evict, as kube-scheduler and the extender choose; nobody is evicted."""

import json
from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import asking, gpus, held, machine, node, saved

from console.simulator.cluster import OfflineCluster, PodFate
from koordgate.cli import main

Raw = dict[str, Any]
CLASSES: list[dict[str, Any]] = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never" if name == "patient" else "PreemptLowerPriority",
    }
    for name, value in (("high", 1000), ("patient", 1000), ("middle", 500), ("low", 10))
]


def of_class(pod: Raw, name: str, **about: Any) -> Raw:
    return {**pod, "spec": {**pod["spec"], "priorityClassName": name, **about}}


def running(name: str, of: str, *shares: tuple[int, int], on: str = "node-1") -> Raw:
    """A Pod of a class that holds (minor, percent) of the cards of a node already."""
    values = {one["metadata"]["name"]: one["value"] for one in CLASSES}
    return of_class(held(name, on, *shares), of, priority=values[of])


def full() -> list[Raw]:
    """A node of two cards: one is held by two Pods of low priority, one by a Pod of the middle one."""
    return [
        *CLASSES,
        *machine(cards=2),
        running("low-1", "low", (0, 50)),
        running("low-2", "low", (0, 50)),
        running("middle", "middle", (1, 100)),
    ]


CASES: dict[str, tuple[Raw, str]] = {
    "a part of a card": (of_class(gpus("new", 50), "high"), "by preempting default/low-1; nobody"),
    "a whole card": (of_class(gpus("new", 100), "high"), "by preempting default/low-1, default/low-2; nobody"),
    "two cards": (of_class(gpus("new", 200), "high"), "default/low-1, default/low-2, default/middle; nobody"),
    "CPUs alone": (of_class(asking("new", {"cpu": "100000"}), "high"), ""),
    "an equal priority": (of_class(gpus("new", 50), "low"), ""),
    "only those below": (of_class(gpus("new", 200), "middle"), ""),
    "no class": (gpus("new", 50), ""),
    "a class that never preempts": (of_class(gpus("new", 50), "patient"), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_whom_a_pod_would_evict(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod, told = CASES[name]
    assert main(["simulate", "-f", saved(tmp_path, [*full(), pod]), "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    new = next(item for item in items if item["metadata"]["name"] == "new")
    assert "nodeName" not in new["spec"]
    message = new["status"]["message"]
    assert (told in message) if told else ("preempting" not in message), message
    assert [item["metadata"]["name"] for item in items if item["spec"].get("nodeName")] == ["low-1", "low-2", "middle"]


def test_a_running_pod_that_states_no_priority_has_that_of_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    standing = [
        of_class(held("other", "node-1", (0, 100)), "middle"),
        of_class(held("last", "node-1", (1, 100)), "low"),
    ]
    objects = [*CLASSES, *machine(cards=2), *standing, of_class(gpus("new", 200), "middle")]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert "preempting" not in capsys.readouterr().out
    objects[-1] = of_class(gpus("new", 200), "high")
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert "would fit on node-1 by preempting default/last, default/other; nobody" in capsys.readouterr().out


def test_the_node_with_the_least_victims_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = running("alone", "low", (0, 100), on="node-2")
    objects = [*full(), *machine("node-2", cards=1), other, of_class(gpus("new", 100), "high")]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert "would fit on node-2 by preempting default/alone; nobody is evicted here" in capsys.readouterr().out


# In the cluster itself


async def told(*objects: Raw, new: Raw) -> str:
    """Whom a Pod would evict that fits nowhere; "" for nobody."""
    cluster = OfflineCluster.in_process()
    await cluster.load(objects)
    result = await cluster.submit(new)
    assert result.state is PodFate.UNSCHEDULABLE
    (settled,) = await cluster.settle([result])
    return settled.reasons[-1] if len(settled.reasons) > len(result.reasons) else ""


def there(name: str, cpu: str, priority: int | None, on: str = "n", **fields: Any) -> Raw:
    made = asking(name, {"cpu": cpu}, nodeName=on, priority=priority)
    return {**made, "metadata": {**made["metadata"], **fields}}


def by(on: str, *names: str) -> str:
    return f"would fit on {on} by preempting {', '.join(f'default/{name}' for name in names)}; nobody is evicted here"


ON_CPU: dict[str, tuple[list[Raw], Raw, str]] = {
    "a Pod without a priority is below one of 1": ([there("a", "4", None)], {"priority": 1}, by("n", "a")),
    "it is not below another": ([there("a", "4", None)], {}, ""),
    "it is above one below 0": ([there("a", "4", -1)], {}, by("n", "a")),
    "it is not above one of 0": ([there("a", "4", 0)], {}, ""),
    "a Pod with gates evicts nobody": ([there("a", "4", 1)], {"priority": 9, "schedulingGates": [{"name": "x"}]}, ""),
    "who never preempts evicts nobody": ([there("a", "4", 1)], {"priority": 9, "preemptionPolicy": "Never"}, ""),
    "the highest are put back first": ([there("a", "2", 3), there("b", "2", 1)], {"priority": 9}, by("n", "b")),
    "of equals the first by UID is put back": (
        [there("a", "2", 1, uid="3"), there("b", "2", 1, uid="1")],
        {"priority": 9},
        by("n", "a"),
    ),
    "a Pod that is being deleted cannot be evicted": (
        [there("a", "3", 1, deletionTimestamp="2026-01-01T00:00:00Z"), there("b", "1", 1)],
        {"priority": 9},
        "",
    ),
    "those of a node that is gone are none of its victims": (
        [there("a", "4", 2), there("b", "4", 1, on="gone")],
        {"priority": 9},
        by("n", "a"),
    ),
}


@pytest.mark.parametrize("name", ON_CPU)
async def test_whom_a_pod_of_cpu_alone_would_evict(name: str) -> None:
    pods, fields, expected = ON_CPU[name]
    new = asking("new", {"cpu": "2"}, **fields)
    assert await told(node("m", cpu="6"), node("n", cpu="4"), there("own", "5", 9, on="m"), *pods, new=new) == expected
