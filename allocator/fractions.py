"""Exact fractions of what a group of containers holds (FLIP-53, "Fraction Based Quota Strategy").

A fraction is a rational number, so that the parts of an amount sum to it to the byte and to the percent. What is left
after rounding down goes, one by one, to the largest remainders, and of equal ones to the first in the Pod's order.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import lcm

from allocator.vocabulary.asks import Member
from allocator.vocabulary.names import Phase


def divide(total: int, parts: Sequence[Fraction]) -> list[int]:
    """Divide an amount.

    `total`: 0 or more, in any unit. `parts`: fractions, 0 or more, whose sum is 1 at most. Returns one amount for each
    part. They sum to the total times the sum of the parts, rounded down.
    """
    return _divide(total, *_over_one(parts))


def _over_one(parts: Sequence[Fraction]) -> tuple[list[int], int]:
    """Write fractions as whole numbers over one denominator."""
    under = lcm(*(part.denominator for part in parts))
    return [part.numerator * (under // part.denominator) for part in parts], under


def _divide(total: int, over: Sequence[int], under: int) -> list[int]:
    exact = [divmod(total * one, under) for one in over]
    found = [amount for amount, _ in exact]
    left = total * sum(over) // under - sum(found)
    for at in sorted(range(len(over)), key=lambda at: (-exact[at][1], at))[:left]:
        found[at] += 1
    return found


def regions(phases: Sequence[Phase]) -> Iterator[list[int]]:
    """Go through the regions of containers in the Pod's order (FLIP-53, "Slot Sharing").

    A region is what runs at the same time: an init container with the sidecars before it, or all sidecars and apps.
    Returns for each region the positions of its containers, ascending.
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
    `total`: what the group holds of one resource of one device. Returns the amount of each member. Those of a region
    whose parts sum to 1 sum to the total.
    """
    over, under = _over_one(parts)
    if sum(over) <= under:
        return _divide(total, over, under)
    found = [0] * len(members)
    phases = [member.phase for member in members]
    sidecars = [at for at, phase in enumerate(phases) if phase is Phase.SIDECAR]
    for at, amount in zip(sidecars, _divide(total, [over[at] for at in sidecars], under), strict=True):
        found[at] = amount
    for region in regions(phases):
        others = [at for at in region if phases[at] is not Phase.SIDECAR and over[at]]
        if others:
            rest = total * sum([over[at] for at in region]) // under
            rest = max(rest - sum([found[at] for at in region]), 0)
            own = [over[at] for at in others]
            for at, amount in zip(others, _divide(rest, own, sum(own)), strict=True):
                found[at] = amount
    return found
