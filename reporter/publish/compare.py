"""Whether an object in the cluster is as wanted (pure)."""

from collections.abc import Mapping
from typing import Any, Final

from allocator.quantity import QuantityError, parse

_AMOUNTS: Final = ("capacity", "allocatable")


def holds(live: Any, wanted: Any, key: str = "") -> bool:
    """Whether a live value has everything that is wanted; what others added does not matter.

    An empty map may be missing: the API server does not keep one. Amounts are compared as numbers, since the API server
    may rewrite them. A list is one field and must be equal; owner references are the exception, as they have many
    owners.
    """
    if isinstance(wanted, Mapping):
        same = _same_amount if key in _AMOUNTS else holds
        return isinstance(live, Mapping) and all(
            same(live[name], wanted[name], name) if name in live else wanted[name] == {} for name in wanted
        )
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return False
        if key == "ownerReferences":
            return all(any(holds(one, ref) for one in live) for ref in wanted)
        return len(live) == len(wanted) and all(map(holds, live, wanted))
    return bool(live == wanted)


def _same_amount(live: Any, wanted: Any, _name: str) -> bool:
    try:
        return parse(live) == parse(wanted)
    except QuantityError:
        return False
