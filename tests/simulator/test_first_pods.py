"""What the first Pods of an empty cluster do to its whole nodes, with the settings as they are by default."""

from typing import Any, Final

import pytest
from builders import device_entry, device_object
from simulator.clusters import Raw, asking, gpus, nic, node

from console.simulator.cluster import OfflineCluster, PodFate
from webhook.settings import WebhookSettings, parse

NODES: Final = ("n1", "n2", "n3")
PACKING: Final = parse("scheduler: {preference: packing}")


def bare(name: str, cards: int) -> list[Raw]:
    """A node of so many cards, none of them linked, and 64 CPUs."""
    return [node(name), device_object(*(device_entry(at, id=f"GPU-{name}-{at}") for at in range(cards)), name=name)]


def machine(name: str) -> list[Raw]:
    """A node of four cards, two NICs and two FPGAs, none of them linked."""
    cards = [device_entry(minor, id=f"GPU-{name}-{minor}") for minor in range(4)]
    fpga: Raw = {"type": "fpga", "health": True, "resources": {"koordinator.sh/fpga": "100"}}
    boards = [{**fpga, "minor": minor, "id": f"0000:8{minor}:00.0"} for minor in range(2)]
    return [node(name), device_object(*cards, nic(0), nic(1), *boards, name=name)]


async def taken(settings: WebhookSettings, *pods: Raw) -> list[str]:
    """The nodes of Pods that come one after another; "" for one that fits nowhere."""
    return await taken_of([obj for name in NODES for obj in machine(name)], settings, *pods)


async def taken_of(nodes: list[Raw], settings: WebhookSettings, *pods: Raw) -> list[str]:
    cluster = OfflineCluster.in_process(settings)
    await cluster.load(nodes)
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


# What Pods ask for, one after another, and their nodes: a-eight has 8 cards, b-four 4 and c-two 2, with as many CPUs

SIZES: Final[dict[str, tuple[list[int], list[str]]]] = {
    "two cards fill the node of two": ([200], ["c-two"]),
    "one card begins the node of two": ([100, 100], ["c-two", "c-two"]),
    "a share begins the node of two": ([50], ["c-two"]),
    "what is in use is not filled, so the next size is begun": ([200, 200], ["c-two", "b-four"]),
    "a node in use comes before a larger one": ([200, 200, 200], ["c-two", "b-four", "b-four"]),
    "four cards fill the node of four": ([400], ["b-four"]),
    "all sizes one after another": ([200, 400, 800], ["c-two", "b-four", "a-eight"]),
    "three cards do not fit on the smallest": ([300], ["b-four"]),
}


@pytest.mark.parametrize(("asked", "expected"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("amounts", [{}, {"cpu": "4", "memory": "8Gi"}], ids=["cards alone", "with CPU and memory"])
async def test_of_idle_nodes_that_are_equal_otherwise_the_one_with_the_fewest_cards_is_begun(
    amounts: dict[str, str], asked: list[int], expected: list[str]
) -> None:
    nodes = [*bare("a-eight", 8), *bare("b-four", 4), *bare("c-two", 2)]
    pods = [asking(f"p{at}", {"kubernetes.io/gpu": str(percent), **amounts}) for at, percent in enumerate(asked)]
    assert await taken_of(nodes, WebhookSettings(), *pods) == expected
