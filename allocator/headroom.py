"""Whether a node is short of CPU or memory for its free devices, so that Pods without devices are better put elsewhere.

What a free device will need is what the typical requests of the mix ask for, in the mean, with as much of such a
device. A node that has less left than a multiple of this is short. It stays short until it has a greater multiple: each
Pod moves these figures a little, and a bound alone would be crossed again and again. All figures are integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.mix import Mix
from allocator.vocabulary.node import NodeSnapshot, fullness


@dataclass(frozen=True, slots=True)
class Bounds:
    """Multiples of what free devices need, in percent."""

    below: int = 150  # a node that has less becomes short
    until: int = 200  # a short node stays short while it has less; greater than `below`


class Need(NamedTuple):
    """What the typical requests for one type of device ask for together, by weight."""

    kind: DeviceType
    percent: int  # of devices; 100 is one
    cpu: int  # thousandths of a CPU
    memory: int  # bytes


Needs = Mapping[str, Need]


def needs_of(mix: Mix) -> dict[str, Need]:
    """What the mix asks for with each type of device, by its name; requests without devices do not count."""
    needs: dict[str, Need] = {}
    for one in mix.requests:
        ask = one.ask
        if ask is not None and (percent := ask.count * asked_percent(ask)):
            _, had, cpu, memory = needs.get(ask.type.name, Need(ask.type, 0, 0, 0))
            weight = one.weight
            needs[ask.type.name] = Need(
                ask.type, had + weight * percent, cpu + weight * one.cpu, memory + weight * one.memory
            )
    return needs


def asked_percent(ask: DeviceAsk) -> int:
    """How much an ask takes of each device: the greatest of its percentages; all, where it states none."""
    stated = [ask.amount(tail) for tail in fullness(ask.type)]
    return max((amount for amount in stated if amount is not None), default=0) or FULL


def free_percent(kind: DeviceType, node: NodeSnapshot, device: Device) -> int:
    """How much of a device a Pod could still get: the least of its percentages, rounded down."""
    has, unheld = node.stock((device,), kind.tails)[0]
    free = askable(device, kind.tails, has, unheld)
    counted = [kind.tails.index(tail) for tail in fullness(kind)]
    return min((FULL * free[at] // has[at] for at in counted if has[at]), default=0)


def is_short(
    node: NodeSnapshot, cpu: int | None, memory: int | None, needs: Needs, bounds: Bounds, *, was: bool
) -> bool:
    """Whether a node is short. One without free devices of these types is not.

    `cpu`: thousandths of a CPU that no Pod of the node requests; None if unknown, which suffices for everything.
    `memory`: bytes, likewise.
    """
    free: dict[str, int] = {}
    for device in node.devices:
        need = needs.get(device.type)
        if need is not None and node.is_usable(device):
            free[device.type] = free.get(device.type, 0) + free_percent(need.kind, node, device)
    times = bounds.until if was else bounds.below
    wanted_cpu = sum(_part(needs[kind].cpu, percent, needs[kind], times) for kind, percent in free.items())
    wanted_memory = sum(_part(needs[kind].memory, percent, needs[kind], times) for kind, percent in free.items())
    return (cpu is not None and cpu < wanted_cpu) or (memory is not None and memory < wanted_memory)


def _part(amount: int, percent: int, need: Need, times: int) -> int:
    """What this much of devices needs of an amount, times a multiple in percent; rounded up."""
    return -(-amount * percent * times // (need.percent * FULL))
