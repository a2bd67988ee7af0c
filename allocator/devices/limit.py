"""Keeps what a Pod holds of one type within what quotas count of the Pod.

Quotas count the peak of the sums over containers, and a Pod holds the sum of the peaks on its devices. Both are equal
if containers that follow one another use the same devices. What a decision must not exceed is in the request
(`PodRequest.most`), so that a filter, a bind and a dry run say the same.
"""

from collections.abc import Iterable
from typing import NamedTuple

from allocator.devices.offer import Amounts
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Share


class TypeLimit(NamedTuple):
    """What a Pod may hold in sum of the devices of one type.

    Attributes:
        kind: the type.
        names: the limited resources that quotas count.
        places: the place of each in `DeviceType.counted`.
        most: the limit of each.
    """

    kind: DeviceType
    names: tuple[str, ...]
    places: tuple[int, ...]
    most: Amounts

    def of(self, amounts: Amounts) -> Amounts:
        """What counts of one device of which these amounts are held, by limited resource."""
        counted = self.kind.counted(amounts)
        return tuple([counted[place] for place in self.places])


def limit_of(kind: DeviceType, request: PodRequest) -> TypeLimit | None:
    """Find what a Pod may hold of a type; None if that is not limited."""
    if not request.most:
        return None
    most = dict(request.most)
    limited = [(name, place, most[name]) for place, name in enumerate(kind.charged.values()) if name in most]
    if not limited:
        return None
    names, places, amounts = zip(*limited, strict=True)
    return TypeLimit(kind, names, places, amounts)


def beyond(request: PodRequest, shares: Iterable[Share]) -> str:
    """Say which limit of a Pod these shares exceed together; "" if none.

    Args:
        request: of the Pod.
        shares: all that it would hold.
    """
    held = list(shares)
    for kind in request.types():
        limit = limit_of(kind, request)
        of = [tuple([share.amounts.get(tail, 0) for tail in kind.tails]) for share in held if share.type == kind.name]
        if limit is None:
            continue
        for name, most, *each in zip(limit.names, limit.most, *map(limit.of, of), strict=True):
            if sum(each) > most:
                return f"{name} {sum(each)} is more than quotas count of the Pod ({most})"
    return ""
