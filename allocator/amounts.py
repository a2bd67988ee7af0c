"""What a Pod requests of a node in sum: Kubernetes' own arithmetic, in exact integers.

CPU counts in thousandths, every other resource in its own unit. Resources that only quotas count are left out: no node
has them, and kube-scheduler ignores them.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from allocator.quantity import QuantityError, parse, to_milli
from allocator.vocabulary.names import is_quota_resource

CPU: Final = "cpu"
PODS: Final = "pods"
_MAX_STATED: Final = 2560  # containers and requests of one Pod: ten for each that `allocator.request.original` allows
_MAX_NAMES: Final = 1024  # resources of one node, or of one container
_POD_LEVEL: Final = (CPU, "memory")  # these, and hugepages, may be stated for a Pod as a whole

Amounts = Mapping[str, int]


class BadQuantityError(ValueError):
    """An amount is not a quantity; the message says which and where."""


def amounts(quantities: Mapping[str, Any] | None, where: str) -> dict[str, int]:
    """Read a map of quantities.

    Raises BadQuantityError: one is not a quantity, or there are too many.
    """
    read = {}
    if len(quantities or ()) > _MAX_NAMES:
        raise BadQuantityError(f"{where}: more than {_MAX_NAMES} resources")
    for name, quantity in (quantities or {}).items():
        try:
            # 1 and True are the same to the cache.
            reading = _rounded_up if isinstance(quantity, str) else _rounded_up.__wrapped__
            read[name] = reading(quantity, name == CPU)
        except QuantityError as error:
            raise BadQuantityError(f"{where}[{name}]: {error}") from error
    return read


@lru_cache(maxsize=1024)  # the Pods of one template state the same few amounts
def _rounded_up(quantity: object, milli: bool) -> int:  # noqa: FBT001 the cache goes by position
    """Read a quantity as Kubernetes counts it; with `milli` in thousandths."""
    if milli:
        return to_milli(quantity)
    value = parse(quantity)
    return -(-value.numerator // value.denominator)


def pod_amounts(spec: Mapping[str, Any]) -> dict[str, int]:
    """Sum a Pod's requests as k8s.io/component-helpers' PodRequests does; the Pod itself counts as one of `pods`.

    Raises BadQuantityError: a request is not a quantity.
    """
    total = Counter(_peak(spec, counted=False))
    for name, amount in _requests(spec, "spec.resources.requests").items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            total[name] = amount
    total.update(amounts(spec.get("overhead"), "spec.overhead"))
    total[PODS] = 1
    return dict(total)


def pod_charges(spec: Mapping[str, Any]) -> dict[str, int]:
    """Sum, likewise, what a translated Pod states for quotas.

    Raises BadQuantityError: an amount is not a quantity.
    """
    return _peak(spec, counted=True)


def _peak(spec: Mapping[str, Any], *, counted: bool) -> dict[str, int]:
    """The greatest sum of requests over the steps of a Pod's life, of those that only quotas count or of the others."""
    listed = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    stated = len(listed) + sum(len((one.get("resources") or {}).get("requests") or ()) for one in listed)
    if stated > _MAX_STATED:
        raise BadQuantityError(f"spec: more than {_MAX_STATED} containers and requests")
    steady: Counter[str] = Counter()
    for index, container in enumerate(spec.get("containers") or ()):
        steady.update(_requests(container, f"spec.containers[{index}].resources.requests", counted=counted))
    sidecars: Counter[str] = Counter()
    peak: dict[str, int] = {}
    for index, container in enumerate(spec.get("initContainers") or ()):
        own = _requests(container, f"spec.initContainers[{index}].resources.requests", counted=counted)
        if container.get("restartPolicy") == "Always":
            steady.update(own)
            sidecars.update(own)
            now = sidecars
        else:
            now = sidecars + Counter(own)
        peak = _greatest(peak, now)
    return _greatest(peak, steady)


def node_amounts(node: Mapping[str, Any]) -> dict[str, int]:
    """Read what a Node has for Pods: its capacity where it states no allocatable, the API server's own default.

    Raises BadQuantityError: an amount is no quantity.
    """
    status = node.get("status") or {}
    stated = status.get("allocatable")
    if stated is None:
        stated = status.get("capacity")
    return amounts(stated, f"Node {node['metadata']['name']}: status.allocatable")


def _requests(holder: Mapping[str, Any], where: str, *, counted: bool = False) -> dict[str, int]:
    requests = (holder.get("resources") or {}).get("requests") or {}
    return amounts({name: amount for name, amount in requests.items() if is_quota_resource(name) is counted}, where)


def _greatest(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(each[name] for each in (one, other) if name in each) for name in {**one, **other}}
