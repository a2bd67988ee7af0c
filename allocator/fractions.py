"""Exact fractions of what a group of containers holds (FLIP-53, "Fraction Based Quota Strategy").

A fraction is a rational number, so that the parts of an amount sum to it to the byte and to the percent. What is left
after rounding down goes, one by one, to the largest remainders, and of equal ones to the first in the Pod's order.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor

from allocator.vocabulary.phase import Phase
from allocator.vocabulary.sharing import Member

_NOTHING = Fraction(0)


def divide(total: int, parts: Sequence[Fraction]) -> list[int]:
    """Divide an amount.

    Args:
        total: 0 or more, in any unit.
        parts: fractions, 0 or more, whose sum is 1 at most.

    Returns:
        One amount for each part. They sum to the total times the sum of the parts, rounded down.
    """
    exact = [total * part for part in parts]
    found = [floor(one) for one in exact]
    left = floor(sum(exact, _NOTHING)) - sum(found)
    for at in sorted(range(len(parts)), key=lambda at: (found[at] - exact[at], at))[:left]:
        found[at] += 1
    return found


def regions(phases: Sequence[Phase]) -> Iterator[list[int]]:
    """Go through the regions of containers in the Pod's order (FLIP-53, "Slot Sharing").

    A region is what runs at the same time: an init container with the sidecars before it, or all sidecars and apps.

    Returns:
        For each region the positions of its containers, ascending.
    """
    sidecars: list[int] = []
    for at, phase in enumerate(phases):
        if phase is Phase.INIT:
            yield [*sidecars, at]
        elif phase is Phase.SIDECAR:
            sidecars.append(at)
    yield [*sidecars, *(at for at, phase in enumerate(phases) if phase is Phase.APP)]


def divide_among(total: int, members: Sequence[Member], parts: Sequence[Fraction]) -> list[int]:
    """Divide an amount among the members of a group, so that they never have more than it at the same time.

    If the parts of all members sum to more than 1, members of different regions reuse what others had before. A sidecar
    keeps its part in all regions, and the others of a region divide what the sidecars leave of the region's sum.

    Args:
        total: what the group holds of one resource of one device.
        members: of the group, in the Pod's order.
        parts: the fraction of each.

    Returns:
        The amount of each member. Those of a region whose parts sum to 1 sum to the total.
    """
    if sum(parts, _NOTHING) <= 1:
        return divide(total, parts)
    found = [0] * len(members)
    phases = [member.phase for member in members]
    sidecars = [at for at, phase in enumerate(phases) if phase is Phase.SIDECAR]
    for at, amount in zip(sidecars, divide(total, [parts[at] for at in sidecars]), strict=True):
        found[at] = amount
    for region in regions(phases):
        others = [at for at in region if phases[at] is not Phase.SIDECAR]
        weight = sum((parts[at] for at in others), _NOTHING)
        if weight:
            taken = sum(found[at] for at in region)
            rest = max(floor(total * sum((parts[at] for at in region), _NOTHING)) - taken, 0)
            for at, amount in zip(others, divide(rest, [parts[at] / weight for at in others]), strict=True):
                found[at] = amount
    return found
