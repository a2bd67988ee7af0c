"""What the quotas and LimitRanges of a namespace limit, in the resources that quotas count (pure)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from allocator.amounts import CPU
from allocator.quantity import LARGEST, parse
from allocator.request.cpuamounts import peak
from allocator.request.devices import ContainerReading
from allocator.vocabulary.devicetype import FULL, DeviceTypes
from allocator.vocabulary.outcome import Problem

CONTAINER: Final = "Container"
POD: Final = "Pod"
_REQUESTS: Final = "requests."


class Counted(NamedTuple):
    """How quotas count what a name of a dialect states."""

    resource: str
    factor: int  # its units in one unit of the name


def counted(name: str, types: DeviceTypes) -> Counted | None:
    """Find how quotas count a device resource; None for the number of devices that share a request, and templates."""
    meaning = types.resources.get(name)
    if meaning is None:
        return None
    kind, _, term = meaning
    if term.counts:
        return Counted(kind.charged[kind.plain], FULL)
    resource = "" if term.template else kind.charged.get(term.states, "")
    return Counted(resource, term.factor) if resource else None


def device_limits(hard: Mapping[str, object], types: DeviceTypes) -> dict[str, Counted]:
    """The limits of a quota that name device resources: key -> how they are counted."""
    found = ((key, counted(key.removeprefix(_REQUESTS), types)) for key in hard if key.startswith(_REQUESTS))
    return {key: one for key, one in found if one is not None}


def in_units(quantity: object, factor: int) -> int:
    """Convert an amount of a name to an amount that quotas count, rounded down; 0 where it is negative.

    Raises QuantityError: it is no quantity.
    """
    exact = parse(quantity) * factor
    return min(max(exact.numerator // exact.denominator, 0), LARGEST)


@dataclass(frozen=True, slots=True)
class Range:
    """A limit of a LimitRange."""

    of: str  # container or Pod
    name: str  # the resource as the LimitRange names it
    resource: str  # that quotas count for it
    quantity: str  # the limit as written
    amount: int  # the limit in units of `resource`
    least: bool  # whether it is a minimum


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """What a namespace limits."""

    counted: frozenset[str] = frozenset()  # the resources that quotas count and limit there
    ranges: tuple[Range, ...] = ()  # the limits of its LimitRanges that name devices
    # the resources of device plugins that its LimitRanges name. The API server refuses containers that do not state
    # them, and adds defaults to these, so that translated containers state them as 0.
    zeros: tuple[str, ...] = ()
    # device resources, and CPU, that the API server adds to containers that do not state them -> the LimitRanges that
    # give them an amount, by name
    added: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


NO_LIMITS: Final = NamespaceLimits()


class ReadRanges(NamedTuple):
    """What a LimitRange says of devices."""

    ranges: tuple[Range, ...] = ()  # its limits that name devices
    zeros: tuple[str, ...] = ()  # the resources of device plugins in it
    # device resources, and CPU, that the API server adds to containers because of it
    added: frozenset[str] = frozenset()


def defaults_of(limit: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What one of a LimitRange's `spec.limits` adds to containers that do not state it: to their limits and requests.

    As SetDefaults_LimitRangeItem of Kubernetes: a missing default is the maximum, and a missing default of requests is
    that of limits, or else the minimum.
    """
    if limit.get("type") != CONTAINER:
        return {}, {}
    given = {**(limit.get("max") or {}), **(limit.get("default") or {})}
    return given, {**(limit.get("min") or {}), **given, **(limit.get("defaultRequest") or {})}


def read_ranges(limits: Iterable[Mapping[str, Any]], types: DeviceTypes) -> ReadRanges:
    """Read a LimitRange's `spec.limits`, as far as they name devices.

    Raises QuantityError: an amount is no quantity.
    """
    ranges: list[Range] = []
    zeros: set[str] = set()
    added: set[str] = set()
    for item in limits:
        of = item.get("type")
        if of not in {CONTAINER, POD}:
            continue
        for name, quantity in chain.from_iterable(given.items() for given in defaults_of(item)):
            if (name in types.resources or name == CPU) and parse(quantity):
                added.add(name)
        for key in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            for name, quantity in (item.get(key) or {}).items():
                how = counted(name, types)
                if how is None:
                    continue
                meaning = types.resources[name]
                if not meaning.dialect.own:
                    zeros.add(name)
                if key in {"max", "min"}:
                    amount = in_units(quantity, how.factor)
                    ranges.append(Range(of, name, how.resource, str(quantity), amount, key == "min"))
    return ReadRanges(tuple(ranges), tuple(sorted(zeros)), frozenset(added))


def may_be_added(limits: NamespaceLimits, said: str) -> Iterator[Problem]:
    """Say which of the resources that a refusal names the author of the Pod may not have written."""
    for name, by in limits.added.items():
        if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", said):
            names = " and ".join(by)
            who = f"LimitRange {names} adds" if len(by) == 1 else f"LimitRanges {names} add"
            remedy = "state it in requests and limits" if name == CPU else "ask in that name"
            remedy = f"write {name}: 0 in limits to ask for none" if name in limits.zeros else f"{remedy}, or change it"
            yield Problem("spec", f"{who} {name} to containers that do not state it; {remedy}")


def tightest(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Keep, of all limits for one name, the one that lets least through.

    There are few names, and any number of limits.
    """
    kept: dict[tuple[str, str, bool], Range] = {}
    for one in ranges:
        key = one.of, one.name, one.least
        known = kept.get(key)
        if known is None or (one.amount > known.amount if one.least else one.amount < known.amount):
            kept[key] = one
    return tuple(kept.values())


def beyond(
    ranges: Iterable[Range], containers: Sequence[ContainerReading], stated: Sequence[Mapping[str, int]]
) -> Iterator[Problem]:
    """Find what a Pod takes beyond the ranges of its namespace."""
    for one in ranges:
        each = [(c, amounts.get(one.resource, 0)) for c, amounts in zip(containers, stated, strict=True)]
        took = [(f"{c.path}.resources", amount) for c, amount in each]
        if one.of == POD:
            took = [("spec", peak((c.phase, amount) for c, amount in each))]
        for path, amount in took:
            if amount and (amount < one.amount if one.least else amount > one.amount):
                word = "minimum" if one.least else "maximum"
                message = (
                    f"{word} {one.name} usage per {one.of} is {one.quantity} by a LimitRange of the namespace "
                    f"({one.resource} {one.amount}), but {amount} is asked for; ask for "
                    f"{'more' if one.least else 'less'}"
                )
                yield Problem(path, message)
