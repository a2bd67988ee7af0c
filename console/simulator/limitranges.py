"""What LimitRanges do to a Pod that is created, as the API server's plugin LimitRanger does it (pure).

Defaults are written before koordgate's webhooks see the Pod, bounds are checked after them. Bounds on devices that
koordgate translates are the webhook's own business (`webhook.quotas.limits`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from allocator.amounts import pod_amounts
from allocator.quantity import parse
from webhook.quotas.limits import defaults_of

Raw = dict[str, Any]
Limit = Mapping[str, Any]
_MILLI: Final = 1000


class AddedDefault(NamedTuple):
    """An amount that a container has from a LimitRange.

    Attributes:
        container: its name.
        resource: of which it states no limit or no request itself.
        amount: as the LimitRange writes it; the limit, where it gives one.
        by: the LimitRange's name.
    """

    container: str
    resource: str
    amount: str
    by: str


def write_defaults(pod: Raw, ranges: Mapping[str, Iterable[Limit]]) -> list[AddedDefault]:
    """Write the defaults of a namespace's LimitRanges into a Pod's containers.

    Args:
        pod: is changed.
        ranges: `spec.limits` of the LimitRanges by their names, in the order of these.

    Returns:
        What was written, each resource of a container once.
    """
    limit_of: dict[str, tuple[Any, str]] = {}  # resource -> amount and LimitRange
    request_of: dict[str, tuple[Any, str]] = {}  # a default limit is a default request too
    for by, limits in ranges.items():
        for limit in limits:
            of_limits, of_requests = defaults_of(limit)
            limit_of |= {name: (amount, by) for name, amount in of_limits.items()}
            request_of |= {name: (amount, by) for name, amount in of_requests.items()}
    added: list[AddedDefault] = []
    for container in _containers(pod["spec"]) if request_of else ():
        own = container.get("resources") or {}
        resources = container["resources"] = {**own}
        missing: dict[str, tuple[Any, str]] = {}
        for key, default in (("requests", request_of), ("limits", limit_of)):
            stated = resources.get(key) or {}
            given = {name: found for name, found in default.items() if name not in stated}
            if default:
                resources[key] = {**{name: amount for name, (amount, _) in given.items()}, **stated}
            missing |= given
        added += (AddedDefault(container["name"], name, str(amount), by) for name, (amount, by) in missing.items())
    return added


def beyond(pod: Mapping[str, Any], limits: Iterable[Limit]) -> Iterator[str]:
    """Find where a Pod is outside the bounds of its namespace, a sentence each, in Kubernetes' words.

    Raises:
        QuantityError: an amount is no quantity.
        BadQuantityError: likewise.
    """
    spec = pod["spec"]
    for limit in limits:
        match limit.get("type"):
            case "Container":
                for container in _containers(spec):
                    resources = container.get("resources") or {}
                    yield from _outside(limit, *(_read(resources.get(key)) for key in ("requests", "limits")))
            case "Pod":
                yield from _outside(limit, _sum(spec), _sum(limits_as_requests(spec)))
            case _:
                pass


def _outside(limit: Limit, requests: Mapping[str, Fraction], limits: Mapping[str, Fraction]) -> Iterator[str]:
    of = limit["type"]
    for name, quantity in sorted((limit.get("min") or {}).items()):
        if name not in requests:
            yield f"minimum {name} usage per {of} is {quantity}.  No request is specified"
        elif requests[name] < parse(quantity):
            yield f"minimum {name} usage per {of} is {quantity}, but request is {_told(requests[name])}"
    for name, quantity in sorted((limit.get("max") or {}).items()):
        if name not in limits:
            yield f"maximum {name} usage per {of} is {quantity}.  No limit is specified"
        elif limits[name] > parse(quantity):
            yield f"maximum {name} usage per {of} is {quantity}, but limit is {_told(limits[name])}"
    for name, quantity in sorted((limit.get("maxLimitRequestRatio") or {}).items()):
        asked, most = requests.get(name, Fraction()), limits.get(name, Fraction())
        if not asked or not most:
            yield f"{name} max limit to request ratio per {of} is {quantity}, but no request or no limit is specified"
        elif most / asked > parse(quantity):
            ratio = float(most / asked)
            yield f"{name} max limit to request ratio per {of} is {quantity}, but provided ratio is {ratio:.6f}"


def _sum(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """What all containers request in sum, as the scheduler counts it."""
    sums = {name: Fraction(amount) for name, amount in pod_amounts(spec).items()}
    if "cpu" in sums:
        sums["cpu"] /= _MILLI
    return sums


def limits_as_requests(spec: Mapping[str, Any]) -> Raw:
    """Copy the part of a Pod's spec that states amounts, with its limits in place of its requests."""

    def turned(holder: Mapping[str, Any]) -> Raw:
        limits = (holder.get("resources") or {}).get("limits")
        return {**holder, "resources": {"requests": limits or {}}}

    made = {key: [turned(one) for one in spec.get(key) or ()] for key in ("initContainers", "containers")}
    whole = {"resources": {"requests": spec["resources"].get("limits") or {}}} if spec.get("resources") else {}
    return {**made, **whole, "overhead": spec.get("overhead")}


def _containers(spec: Mapping[str, Any]) -> Iterator[Raw]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _read(amounts: Mapping[str, Any] | None) -> dict[str, Fraction]:
    return {name: parse(quantity) for name, quantity in (amounts or {}).items()}


def _told(amount: Fraction) -> str:
    whole, rest = divmod(amount.numerator, amount.denominator)
    return f"{math.floor(amount * _MILLI)}m" if rest else str(whole)
