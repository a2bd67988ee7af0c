"""What a Pod holds over its whole life if its init containers reuse the devices of its other containers (pure).

On each device a Pod holds its peak over the steps of its life, and it holds all its devices from the bind to its end.
Where an init container needs devices that no other container takes, or more of one than is left there, the sum of these
peaks is more than the peak of the sums, which is what Kubernetes counts. How much more depends on which containers
share devices. Here they are divided among devices that are all free, in the better of two ways: sidecars and apps
together on as few as possible, or each on devices of its own. Init containers then take the devices on which the Pod's
peak grows least.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from allocator.request.spoken import MAX_COUNT
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.phase import Phase

Amounts = tuple[int, ...]
_MOST_DEVICES: Final = MAX_COUNT


class Take(NamedTuple):
    """What one container takes of a type.

    Attributes:
        phase: when it runs.
        devices: number of distinct devices.
        each: of each device, one amount for each of the type's tails.
        percents: of each device, one for each tail in percent: `each`, or the most that it can be. They say which
            containers may share a device, and must not depend on what a replica knows of the cluster's devices.
    """

    phase: Phase
    devices: int
    each: Amounts
    percents: Amounts


_Places = list[tuple[int, ...]]
"""The devices of each part, by number."""


def least_held(kind: DeviceType, parts: Sequence[Take]) -> Amounts | None:
    """Find what a Pod holds of a type in sum, if all devices are free.

    Args:
        kind: the type.
        parts: what its containers take of it, in the Pod's order.

    Returns:
        What quotas count of it: one amount for each of `kind.charged`, in its order. None if it needs more devices than
        any node has.
    """
    ways = [places for packed in (True, False) if (places := _divided(parts, packed=packed)) is not None]
    if not ways:
        return None
    percents = [part.percents for part in parts]
    best = min(ways, key=lambda places: sum(max(peak, default=FULL) for peak in _peaks(parts, places, percents)))
    peaks = _peaks(parts, best, [part.each for part in parts])
    return tuple(map(sum, zip(*map(kind.counted, peaks), strict=True)))


def _divided(parts: Sequence[Take], *, packed: bool) -> _Places | None:
    """Give each part its devices; None if they are more than any node has."""
    nothing = (0,) * len(parts[0].percents)
    steady: list[Amounts] = []  # of each device: what sidecars and apps take
    places: _Places = [()] * len(parts)
    for at, part in enumerate(parts):
        if part.phase is not Phase.INIT:
            fitting = [number for number, taken in enumerate(steady) if _fits(taken, part.percents)] if packed else []
            places[at] = _filled(fitting, part.devices, len(steady))
            steady += [nothing] * (max(places[at]) + 1 - len(steady))
            for number in places[at]:
                steady[number] = _sum(steady[number], part.percents)
        if len(steady) > _MOST_DEVICES:
            return None
    peaks, running = steady, [nothing] * len(steady)
    for at, part in enumerate(parts):
        if part.phase is Phase.INIT:
            grown = [
                (_growth(peaks[number], now, part.percents), number)
                for number, now in enumerate(running)
                if _fits(now, part.percents)
            ]
            places[at] = _filled([number for _, number in sorted(grown)], part.devices, len(peaks))
            more = [nothing] * (max(places[at]) + 1 - len(peaks))
            peaks, running = [*peaks, *more], [*running, *more]
            for number in places[at]:
                peaks[number] = _most(peaks[number], _sum(running[number], part.percents))
        elif part.phase is Phase.SIDECAR:
            for number in places[at]:
                running[number] = _sum(running[number], part.percents)
    return places if len(peaks) <= _MOST_DEVICES else None


def _filled(known: Sequence[int], count: int, new: int) -> tuple[int, ...]:
    """The first of the known devices, and new ones if these are too few."""
    taken = tuple(known[:count])
    return (*taken, *range(new, new + count - len(taken)))


def _peaks(parts: Sequence[Take], places: _Places, amounts: Sequence[Amounts]) -> list[Amounts]:
    """The most that the Pod holds of each device in any step of its life."""
    nothing = (0,) * len(amounts[0])
    count = max(number for of in places for number in of) + 1
    steady, running = [nothing] * count, [nothing] * count
    for part, of, each in zip(parts, places, amounts, strict=True):
        for number in of if part.phase is not Phase.INIT else ():
            steady[number] = _sum(steady[number], each)
    peaks = list(steady)
    for part, of, each in zip(parts, places, amounts, strict=True):
        for number in of:
            if part.phase is Phase.INIT:
                peaks[number] = _most(peaks[number], _sum(running[number], each))
            elif part.phase is Phase.SIDECAR:
                running[number] = _sum(running[number], each)
    return peaks


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return tuple([a + b for a, b in zip(one, other, strict=True)])


def _most(one: Amounts, other: Amounts) -> Amounts:
    return tuple([max(a, b) for a, b in zip(one, other, strict=True)])


def _fits(taken: Amounts, more: Amounts) -> bool:
    return all(a + b <= FULL for a, b in zip(taken, more, strict=True))


def _growth(peak: Amounts, now: Amounts, more: Amounts) -> tuple[int, int]:
    """How much a device's peak grows: its greatest share, then the sum of its shares."""
    grown = _most(peak, _sum(now, more))
    return max(grown, default=0) - max(peak, default=0), sum(grown) - sum(peak)
