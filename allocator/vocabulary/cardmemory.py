"""A device's memory in its two units, bytes and percent of the device: the one place where either becomes the other.

What is asked in bytes is accounted in bytes, and what is asked in percent in percent. Each is stated in the other unit
too, rounded down: the bytes, because they are handed out; the percent, because the exact rest must not be refused.
Requests whose exact parts of a device sum to no more than all of it therefore always fit, and no sum exceeds the
device in either unit.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import HasShares, sum_used

# Each percentage that was asked for holds up to a byte less than it states, and a device has room for so many of them.
_ROUNDED: Final = FULL


def bytes_of(percent: int, total: int) -> int:
    """A percentage of a device's bytes, rounded down."""
    return total * percent // FULL


def percent_of(memory: int, total: int) -> int:
    """Bytes as a percentage of a device's bytes, rounded down."""
    return memory * FULL // total


def percent_left(percent: int, memory: int, total: int) -> int:
    """The greatest percentage that can still be asked of a device.

    `percent`: that neither percentages nor bytes, which are rounded down, account for. `memory`: bytes that are free.
    `total`: bytes that the device has.
    """
    return min(percent, (FULL * (memory + 1) - 1) // total)


def askable(device: Device, tails: Sequence[str], has: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, ...]:
    """What is free of a device as it can be asked for: of its memory no greater percentage than there are bytes.

    `free`: what nothing accounts for.
    """
    if device.memory is None or not set(device.memory) <= set(tails):
        return free
    size, ratio = map(tails.index, device.memory)
    return *free[:ratio], percent_left(free[ratio], free[size], has[size]), *free[ratio + 1 :]


def sum_held(holders: Iterable[HasShares], devices: Iterable[Device]) -> dict[str, dict[str, int]]:
    """Sum what is held of a node's devices: device id -> resource tail -> amount.

    Earlier releases rounded bytes up to the next percent, for each container, and their records still say so. These
    percent are taken off again where they are more than the bytes that are held.
    """
    holding = tuple(holders)
    used = sum_used(holding)
    for device in devices:
        held = used.get(device.id)
        if held is None or device.memory is None:
            continue
        size, ratio = device.memory
        percent, exact = held.get(ratio, 0), percent_of(held.get(size, 0) + _ROUNDED, device.capacity[size])
        if percent > exact:
            shares = (share for one in holding for share in one.shares if share.id == device.id)
            held[ratio] = max(percent - sum(max(len(share.containers), 1) for share in shares), exact)
    return used
