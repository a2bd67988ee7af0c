"""What a Pod may still take of one type during one decision, within what quotas count of it."""

from collections.abc import Iterable, Sequence
from operator import le

from allocator.devices.limit import TypeLimit
from allocator.devices.offer import Amounts, Offer
from allocator.devices.options import Option


class Allowance:
    """What a Pod may still take beside what its earlier containers have taken.

    Args:
        limit: of the type.
        offers: all devices of the type that the Pod could get.

    Attributes:
        kind: the type's name.
    """

    def __init__(self, limit: TypeLimit, offers: Iterable[Offer]) -> None:
        held = [limit.of(offer.peak) for offer in offers if offer.containers]
        self.kind = limit.kind.name
        self._limit = limit
        self._fresh = not held
        self._left = limit.most
        if held:
            self._left = tuple([most - sum(each) for most, *each in zip(limit.most, *held, strict=True)])
        self._grown: dict[tuple[Amounts, Amounts], Amounts] = {}  # devices are mostly alike

    def possible(self, options: list[Option], count: int) -> list[Option]:
        """Keep the devices that some set within the limits could contain.

        Args:
            options: the devices.
            count: of a set at least, and not more than there are.
        """
        grown = list(map(self._growth, options))
        if len(set(grown)) == 1:
            alike = all(count * more <= left for more, left in zip(grown[0], self._left, strict=True))
            return options if alike else []
        within = [True] * len(options)
        for left, *each in zip(self._left, *grown, strict=True):
            *least, last = sorted(each)[:count]
            most = left - sum(least)
            within = [one and max(more, last) <= most for one, more in zip(within, each, strict=True)]
        return [option for option, one in zip(options, within, strict=True) if one]

    def why_not(self, chosen: Sequence[Option]) -> str:
        """Say in a user's words which limit these devices together would exceed; "" if none."""
        more = tuple(map(sum, zip(*map(self._growth, chosen), strict=True)))
        if all(map(le, more, self._left)):
            return ""
        limit = self._limit
        return next(
            self._told(name, most)
            for name, most, left, one in zip(limit.names, limit.most, self._left, more, strict=True)
            if one > left
        )

    def _growth(self, option: Option) -> Amounts:
        """How much more the Pod would hold."""
        offer = option.offer
        key = option.peak, offer.peak if offer.containers else ()
        grown = self._grown.get(key)
        if grown is None:
            grown = self._limit.of(option.peak)
            if offer.containers:
                grown = tuple([new - old for new, old in zip(grown, self._limit.of(offer.peak), strict=True)])
            self._grown[key] = grown
        return grown

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
