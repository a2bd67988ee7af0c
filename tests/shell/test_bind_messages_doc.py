"""docs/annotations.md quotes the bind's own messages about Pods that are not bound."""

import re
from pathlib import Path

import pytest
from builders import app, asking, gpu, gpus, holding, node, part, request
from machines import SERVER_CPUS, server, server_cpu

from allocator.place import place
from allocator.vocabulary.asks import PodRequest, Wishes
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.cpuset import parse
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from webhook.scheduling.extender import unformatted

TEXT = (Path(__file__).parents[2] / "docs" / "annotations.md").read_text(encoding="utf-8")
CARDS = [gpu(minor) for minor in range(8)]
FULL_CARDS = [holding(f"u{card.minor}", part(card, 80 if card.minor == 3 else 90, "x")) for card in CARDS]
MOST_CPUS = holding("most", cpus=CpuShare("LSR", parse("4-31")))


def own(cpus: int, policy: str | None = None) -> PodRequest:
    numa = None if policy is None else {"numaTopologyPolicy": policy}
    return asking({"cpu": str(cpus), "memory": "1Gi"}, qos="LSR", numa=numa)


def cpu_node(cpu: CpuNode | None) -> NodeSnapshot:
    return node(cpu=cpu)


CASES: dict[str, tuple[PodRequest, NodeSnapshot]] = {
    "no free device is large enough": (request(app("main", gpus(50))), node(*CARDS, holdings=FULL_CARDS)),
    "the Pod selects too few devices": (
        asking({"kubernetes.io/gpu": 200}, hint={"gpu": {"selector": {"matchLabels": {"koordgate.io/uuid": "GPU-6"}}}}),
        node(*CARDS),
    ),
    "too few CPUs are free": (own(8), server([MOST_CPUS])),
    "the node has no NodeResourceTopology": (own(2), cpu_node(None)),
    "the held or reserved CPUs cannot be read": (
        own(2),
        cpu_node(server_cpu(holders_unknown=True, reserved=SERVER_CPUS.all)),
    ),
    "the kubelet would refuse the Pod": (own(1), cpu_node(server_cpu(whole_cores=True))),
    "the Pod fits, but not under its NUMA policy": (own(20, "SingleNUMANode"), server()),
    "the node does not keep the memory limits that the Pod requires": (
        request(app("main", gpus(50)), wishes=Wishes(limits=True)),
        node(*CARDS),
    ),
    "the node has no Device object": (request(app("main", gpus(50))), node()),
}


def quoted() -> dict[str, str]:
    section = TEXT.split("\n### When a Pod is bound\n")[1].split("\nThe guard ")[0]
    return dict(re.findall(r"^\| ([^|`]+) \| `([^`]+)`", section, re.MULTILINE))


def test_each_reason_has_its_case() -> None:
    assert set(quoted()) == set(CASES)


@pytest.mark.parametrize("cause", CASES)
def test_each_reason_is_quoted_as_the_bind_writes_it(cause: str) -> None:
    asked, on = CASES[cause]
    answer = place(asked, on)
    assert isinstance(answer, Refusal)
    told = unformatted(answer.message).removeprefix("node-1: ")
    words = quoted()[cause]
    assert told == words or (words.endswith("...") and told.startswith(words.removesuffix("...")))
