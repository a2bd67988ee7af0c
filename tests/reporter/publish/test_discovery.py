"""The labels of NVIDIA's feature discovery: written where nobody else writes them, and never fought over."""

from typing import Any

import pytest
from fake_kube import FakeKube
from npus import CAPACITY, NPU, TYPES, TYPES_TEXT

from allocator.vocabulary.device import Device
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODES
from koordgate.settings import SettingsError
from reporter import settings
from reporter.gpu.entries import DeviceReport
from reporter.gpu.facts import GpuFacts
from reporter.inventory import PciDevice
from reporter.pods import MANAGER, NodeIdentity
from reporter.publish import device, nodestatus
from reporter.publish.keep import Target, apply
from reporter.publish.nodestatus import discovery_labels

Raw = dict[str, Any]
PRODUCT, MEMORY, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.count"
H100 = {PRODUCT: "NVIDIA-H100-80GB-HBM3", MEMORY: "81559", COUNT: "2"}
MIB = 2**20


def cards(*models: tuple[str, int | None]) -> list[GpuFacts]:
    return [
        GpuFacts(uuid=f"GPU-{at}", minor=at, model=model, memory=None if mib is None else mib * MIB + 5)
        for at, (model, mib) in enumerate(models)
    ]


TWO = cards(*[("NVIDIA H100 80GB HBM3", 81559)] * 2)


def node(labels: Raw | None = None, **owners: tuple[str, ...]) -> Raw:
    """A Node with labels, and who owns which of them."""
    entries: list[Raw] = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
    for manager, keys in owners.items():
        fields: Raw = {f"f:{key}": {} for key in keys}
        entries.append({"manager": manager.replace("_", "-"), "fieldsV1": {"f:metadata": {"f:labels": fields}}})
    return {"metadata": {"name": "n1", "labels": labels or {}, "managedFields": entries}}


ALL = (PRODUCT, MEMORY, COUNT)
OTHERS = {"nfd_master": ALL}
OURS = {"koordgate_reporter": ALL}

# The Node, and which labels are written
STANDING: dict[str, tuple[Raw | None, set[str]]] = {
    "a Node without labels": (node(), set(ALL)),
    "a Node without metadata but its name": ({"metadata": {"name": "n1"}}, set(ALL)),
    "ours, written before": (node(H100, **OURS), set(ALL)),
    "ours, of other values": (node({**H100, COUNT: "3"}, **OURS), set(ALL)),
    "another writer's": (node(H100, **OTHERS), set()),
    "another writer's, of other values": (node({PRODUCT: "x", MEMORY: "1", COUNT: "1"}, **OTHERS), set()),
    "both writers'": (node(H100, **OURS, **OTHERS), set()),
    "one is another writer's": (node(H100, koordgate_reporter=(MEMORY, COUNT), nfd_master=(PRODUCT,)), {MEMORY, COUNT}),
    "one is missing": (node({PRODUCT: "x"}, nfd_master=(PRODUCT,)), {MEMORY, COUNT}),
    "nobody's: its owners are not known": ({"metadata": {"name": "n1", "labels": H100}}, set()),
    "as many owners as are looked through": (node(H100, **OURS, **{f"m{at}": () for at in range(254)}), set(ALL)),
    "too many owners to look through": (node(H100, **OURS, **{f"m{at}": () for at in range(255)}), set()),
    "a Node that is not known": (None, set()),
}


@pytest.mark.parametrize(("live", "written"), STANDING.values(), ids=STANDING)
def test_only_labels_that_nobody_else_writes_are_written(live: Raw | None, written: set[str]) -> None:
    assert discovery_labels(TWO, live) == {key: H100[key] for key in written}


CARDS: dict[str, tuple[list[GpuFacts], Raw]] = {
    "no card": ([], {}),
    "alike": (TWO, H100),
    "of two models": (cards(("NVIDIA A10", 100), ("Tesla T4", 100)), {MEMORY: "100", COUNT: "2"}),
    "of two sizes": (cards(("Tesla T4", 100), ("Tesla T4", 200)), {PRODUCT: "Tesla-T4", COUNT: "2"}),
    "of unknown size": (cards(("Tesla T4", None)), {PRODUCT: "Tesla-T4", COUNT: "1"}),
    "of unknown model": (cards(("", 100)), {MEMORY: "100", COUNT: "1"}),
}


@pytest.mark.parametrize(("found", "expected"), CARDS.values(), ids=CARDS)
def test_the_labels_are_those_that_nvidias_discovery_would_write(found: list[GpuFacts], expected: Raw) -> None:
    assert discovery_labels(found, node()) == expected


async def test_a_writer_that_comes_later_has_the_last_word(fake: FakeKube, kube: KubeClient) -> None:
    """The labels as the API server keeps them, round after round."""
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})

    async def a_round(found: list[GpuFacts]) -> Raw:
        live = fake.get(NODES.path("n1"))
        labels = discovery_labels(found, live)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}
        written = await apply(kube, Target(NODES), body)
        return dict(written["metadata"]["labels"])

    assert await a_round(TWO) == H100
    one = {**H100, COUNT: "1"}
    assert await a_round(TWO[:1]) == one

    changed = fake.get(NODES.path("n1"))
    changed["metadata"]["labels"][PRODUCT] = "H100-SHARED"
    fake.put(NODES.path(), changed)
    for _ in range(3):
        assert await a_round(TWO) == {**H100, PRODUCT: "H100-SHARED"}
    assert MANAGER in str(fake.get(NODES.path("n1"))["metadata"]["managedFields"])

    assert await a_round([]) == {PRODUCT: "H100-SHARED"}  # what was ours goes with the cards


NODE = NodeIdentity("n1", "node-uid")
NO_CARDS = DeviceReport((), {}, {}, ())

PCI = "vendor: '0x19e5', device: '0xd500'"
AMOUNTS = "amounts: {core: 8, cpu: 7, memory: 24Gi}"


def parsed(match: str) -> settings.ReporterSettings:
    types = TYPES_TEXT.replace("\n    ", "\n        ")
    return settings.parse(f"devices:\n  types:{types}\n  pci: [{{type: npu, {PCI}, {match}}}]")


def test_a_match_states_what_pci_does_not_say() -> None:
    match, *_ = settings.pci_matches(parsed(f"model: 310P3, {AMOUNTS}"))
    found = PciDevice("npu", "0000:81:00.0", 0, model=match.model, amounts=match.amounts)
    made = device.build(NODE, NO_CARDS, [found], TYPES)
    assert made.problems == ()
    label = {"node.koordinator.sh/gpu-model": "310P3"}
    assert made.devices == (Device("npu", "0000:81:00.0", 0, True, CAPACITY, model="310P3", labels=label),)
    status = nodestatus.amounts(made.devices, TYPES)
    assert status["huawei.com/npu"] == "1"
    assert {tail: int(status[NPU.resource_name("", tail)]) for tail in NPU.tails} == CAPACITY


@pytest.mark.parametrize(
    ("match", "told"),
    [
        ("amounts: {core: 8, cpu: 7}", "PCI does not report how much memory a npu has; state it in amounts"),
        (f"{AMOUNTS[:-1]}, cards: 1}}", "cards is not an amount of npu; use core, cpu, memory, memory-ratio, dvpp"),
        ("amounts: {core: -1}", "-1 is negative"),
    ],
)
def test_amounts_that_are_not_of_the_type_are_refused(match: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(match)
    assert told in str(refused.value)
