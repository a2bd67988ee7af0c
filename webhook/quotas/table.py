"""The quotas and LimitRanges of all namespaces that name devices, as their watches report them."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError
from allocator.vocabulary.devicetype import DeviceTypes
from webhook.quotas.limits import NO_LIMITS, NamespaceLimits, ReadRanges, read_ranges, tightest
from webhook.quotas.mirror import Quota, limited, read_quota
from webhook.view.feed import Complain, Listing

Raw = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
_NONE: Final[Mapping[Any, Any]] = {}


class LimitTable:
    """What namespaces limit; only objects that name devices are kept, and LimitRanges that add CPU to containers."""

    def __init__(self, types: DeviceTypes) -> None:
        self.types = types
        # called with the namespace and name of a quota that changed or is gone
        self.changed: Callable[[Key], object] = lambda _key: None
        self._quotas: dict[str, dict[str, Quota]] = defaultdict(dict)  # namespace -> name -> quota
        self._ranges: dict[str, dict[str, ReadRanges]] = defaultdict(dict)
        self._limits: dict[str, NamespaceLimits] = {}

    def of(self, namespace: str) -> NamespaceLimits:
        """What a namespace limits."""
        if namespace not in self._quotas and namespace not in self._ranges:
            return NO_LIMITS
        known = self._limits.get(namespace)
        if known is None:
            known = self._limits[namespace] = self._sum(namespace)
        return known

    def _sum(self, namespace: str) -> NamespaceLimits:
        quotas = self._quotas.get(namespace, _NONE).values()
        listed = dict(sorted(self._ranges.get(namespace, _NONE).items()))
        added = sorted({name for one in listed.values() for name in one.added})
        return NamespaceLimits(
            frozenset(name for quota in quotas for name in limited(quota, self.within(namespace))),
            tightest(limit for one in listed.values() for limit in one.ranges),
            tuple(sorted({name for one in listed.values() for name in one.zeros})),
            {name: tuple(by for by, one in listed.items() if name in one.added) for name in added},
        )

    def within(self, namespace: str) -> DeviceTypes:
        """The device types, with the dialects that are read in a namespace."""
        return self.types.within(namespace)

    def quota(self, key: Key) -> Quota | None:
        """A quota that names devices, or a mirror."""
        return self._quotas.get(key[0], _NONE).get(key[1])

    def quotas(self, namespace: str) -> Mapping[str, Quota]:
        """The quotas of a namespace that name devices, and the mirrors there, by name."""
        return self._quotas.get(namespace, _NONE)

    def namespaces(self) -> list[str]:
        """The namespaces that have quotas of these kinds, in order."""
        return sorted(self._quotas)

    def put_quota(self, key: Key, quota: Quota | None) -> None:
        """A quota is there; None if it is gone or names no devices."""
        if quota is None and self.quota(key) is None:
            return
        _put(self._quotas, key, quota)
        self._limits.pop(key[0], None)
        self.changed(key)

    def put_ranges(self, key: Key, ranges: ReadRanges) -> None:
        """A LimitRange is there; with nothing in it if it is gone, or names no devices and no CPU."""
        _put(self._ranges, key, ranges if any(ranges) else None)
        self._limits.pop(key[0], None)


def _put(table: dict[str, dict[str, Any]], key: Key, value: object) -> None:
    namespace, name = key
    if value is not None:
        table[namespace][name] = value
    elif namespace in table:
        table[namespace].pop(name, None)
        if not table[namespace]:
            del table[namespace]


class QuotaFeed(Listing):
    """Takes in ResourceQuotas."""

    def __init__(self, table: LimitTable) -> None:
        super().__init__()
        self._table = table

    def there(self, obj: Raw) -> None:
        """Take in a ResourceQuota."""
        metadata = obj["metadata"]
        self._table.put_quota(
            (metadata["namespace"], metadata["name"]), read_quota(obj, self._table.within(metadata["namespace"]))
        )

    def gone(self, namespace: str, name: str) -> None:
        """Forget a ResourceQuota."""
        self._table.put_quota((namespace, name), None)


class RangeFeed(Listing):
    """Takes in LimitRanges.

    `complain`: called with a LimitRange's namespace/name and what could not be read of it; nothing when all could.
    """

    def __init__(self, table: LimitTable, complain: Complain) -> None:
        super().__init__()
        self._table = table
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a LimitRange; one that cannot be read limits nothing, and is reported."""
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        problems: tuple[str, ...] = ()
        ranges = ReadRanges()
        try:
            ranges = read_ranges((obj.get("spec") or {}).get("limits") or (), self._table.within(key[0]))
        except QuantityError as error:
            problems = (str(error),)
        self._table.put_ranges(key, ranges)
        self._complain("/".join(key), problems)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a LimitRange."""
        self._table.put_ranges((namespace, name), ReadRanges())
        self._complain(f"{namespace}/{name}", ())
