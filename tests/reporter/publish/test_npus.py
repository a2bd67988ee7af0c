"""NPUs recognised by PCI ids: the Device object has what the settings state about them, and it is read back."""

import pytest
from npus import CAPACITY, NPU, TYPES, TYPES_TEXT

from allocator.vocabulary.device import Device
from koordgate.settings import SettingsError
from reporter import settings
from reporter.gpu.entries import DeviceReport
from reporter.inventory import PciDevice
from reporter.pods import NodeIdentity
from reporter.publish import device, nodestatus

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
