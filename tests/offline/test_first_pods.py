"""What the first Pods of an empty cluster do to its whole nodes, with the settings as they are by default."""

from typing import Any, Final

import pytest
from builders import device_entry, device_object
from offline.clusters import Raw, asking, gpus, nic, node

from webhook.offline.cluster import OfflineCluster, PodFate
from webhook.settings import WebhookSettings, parse

NODES: Final = ("n1", "n2", "n3")
PACKING: Final = parse("scheduler: {preference: packing}")


def machine(name: str) -> list[Raw]:
    """A node of four cards, two NICs and two FPGAs, none of them linked."""
    cards = [device_entry(minor, id=f"GPU-{name}-{minor}") for minor in range(4)]
    fpga: Raw = {"type": "fpga", "health": True, "resources": {"koordinator.sh/fpga": "100"}}
    boards = [{**fpga, "minor": minor, "id": f"0000:8{minor}:00.0"} for minor in range(2)]
    return [node(name), device_object(*cards, nic(0), nic(1), *boards, name=name)]


async def taken(settings: WebhookSettings, *pods: Raw) -> list[str]:
    """The nodes of Pods that come one after another; "" for one that fits nowhere."""
    cluster = OfflineCluster.in_process(settings)
    await cluster.load([obj for name in NODES for obj in machine(name)])
    found = []
    for made in pods:
        result = await cluster.submit(made)
        found.append(result.pod["spec"]["nodeName"] if result.state is PodFate.BOUND else "")
    return found


def four(amounts: dict[str, str]) -> list[Raw]:
    return [asking(f"p{number}", amounts) for number in range(4)]


# What each of four Pods asks for; their nodes

FIRST: Final[dict[str, tuple[dict[str, str], list[str]]]] = {
    "whole cards": ({"kubernetes.io/gpu": "100"}, ["n1"] * 4),
    "whole cards with CPU": ({"kubernetes.io/gpu": "100", "cpu": "4", "memory": "16Gi"}, ["n1"] * 4),
    "whole cards with all of the CPU": ({"kubernetes.io/gpu": "100", "cpu": "16"}, ["n1"] * 4),
    "halves": ({"kubernetes.io/gpu": "50", "cpu": "2"}, ["n1"] * 4),
    "shares of which one fits on a card": ({"kubernetes.io/gpu": "60", "cpu": "2"}, ["n1"] * 4),
    "shares of a NIC": ({"kubernetes.io/rdma": "30", "cpu": "2"}, ["n1"] * 4),
    "whole NICs": ({"kubernetes.io/rdma": "100", "cpu": "2"}, ["n1", "n1", "n2", "n2"]),
    "whole FPGAs": ({"kubernetes.io/fpga": "100", "cpu": "2"}, ["n1", "n1", "n2", "n2"]),
    "a card and a NIC": ({"kubernetes.io/gpu": "100", "kubernetes.io/rdma": "100"}, ["n1", "n1", "n2", "n2"]),
}


@pytest.mark.parametrize(("amounts", "expected"), FIRST.values(), ids=FIRST)
async def test_first_pods_fill_one_node_before_the_next_as_with_packing(
    amounts: dict[str, str], expected: list[str]
) -> None:
    assert await taken(WebhookSettings(), *four(amounts)) == expected
    assert await taken(PACKING, *four(amounts)) == expected


async def test_no_card_is_left_without_cpu_for_the_pods_that_are_typical() -> None:
    more_than_its_part = four({"kubernetes.io/gpu": "100", "cpu": "20"})  # of a node of 64 CPUs and four cards
    assert await taken(WebhookSettings(), *more_than_its_part) == ["n1", "n1", "n2", "n2"]
    assert await taken(PACKING, *more_than_its_part) == ["n1", "n1", "n1", "n2"]


@pytest.mark.parametrize("first", [100, 60, 50, 25])
async def test_pods_of_a_whole_node_fit_after_small_ones(first: int) -> None:
    small: list[dict[str, Any]] = [gpus(f"small-{number}", first) for number in range(3)]
    large = [gpus(f"large-{number}", 400) for number in range(2)]
    assert await taken(WebhookSettings(), *small, *large) == ["n1", "n1", "n1", "n2", "n3"]


async def test_where_whole_nodes_are_typical_an_idle_node_is_kept_by_the_growth() -> None:
    pods = [gpus("large", 400), *(gpus(f"small-{number}", 100) for number in range(4)), gpus("again", 400)]
    assert await taken(WebhookSettings(), *pods) == ["n1", "n2", "n2", "n2", "n2", "n3"]
