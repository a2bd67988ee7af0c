"""What a Pod may still take of one type during one decision, within what quotas count of it."""

from collections.abc import Iterable, Sequence
from operator import le, sub

from allocator.devices.offer import Amounts, Offer
from allocator.devices.options import Option
from allocator.request.quotaamounts import TypeLimit


class Allowance:
    """What a Pod may still take beside what its earlier containers have taken.

    `offers` are all devices of the type that the Pod could get. What the Pod holds stays within the limit if containers
    that follow one another use the same devices.
    """

    def __init__(self, limit: TypeLimit, offers: Iterable[Offer]) -> None:
        self.kind = limit.kind.name
        self._limit = limit
        self._counted = limit.kind.counted
        held = [self._counted(one.peak) for one in offers if one.containers]
        self._fresh = not held
        self._grown: dict[tuple[Amounts, Amounts], Amounts] = {}  # devices are mostly alike
        self._held = _sum([(0,) * len(limit.most), *held])

    def possible(self, options: list[Option], count: int) -> list[Option]:
        """Keep the devices that some set within the limits could contain, of `count` devices or more."""
        grown = list(map(self._growth, options))
        if len(set(grown)) == 1:
            alike = all(map(le, _sum([self._held, *grown[:count]]), self._limit.most))
            return options if alike else []
        within = [True] * len(options)
        for most, held, *each in zip(self._limit.most, self._held, *grown, strict=True):
            *least, last = sorted(each)[:count]
            left = most - held - sum(least)
            within = [one and max(more, last) <= left for one, more in zip(within, each, strict=True)]
        return [option for option, one in zip(options, within, strict=True) if one]

    def why_not(self, chosen: Sequence[Option]) -> str:
        """Say in a user's words which limit these devices together would exceed; "" if none."""
        exceeded = self._limit.exceeded(_sum([self._held, *map(self._growth, chosen)]))
        return next((self._told(name, most) for name, _, most in exceeded), "")

    def _growth(self, option: Option) -> Amounts:
        """How much more the Pod would hold."""
        key = option.peak, option.offer.peak if option.offer.containers else ()
        if key not in self._grown:
            grown, *held = (self._counted(peak) for peak in key if peak)
            self._grown[key] = tuple(map(sub, grown, *held)) if held else grown
        return self._grown[key]

    def _told(self, name: str, most: int) -> str:
        what = f"more than quotas count of the Pod ({name} {most})"
        if self._fresh:
            return (
                f"what it asks is {what} on these {self._limit.kind.plural}: it was created when other devices were in "
                "reach; create it again"
            )
        return (
            f"the Pod would hold {what}: its init containers must use devices of its other containers, and too little "
            "of these is free; let the init containers ask for less, or wait until other Pods end"
        )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))
