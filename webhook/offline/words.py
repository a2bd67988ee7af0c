"""Pods, requests and shares in words, as people read them in the tables (pure)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from allocator.devicetype import BUILT_IN
from allocator.holdings import Share
from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, ORIGINAL_REQUEST
from webhook.podinfo import read_pod_info

Raw = Mapping[str, Any]

_GIB: Final = 2**30
_SHORT: Final = 12  # GPU- and eight digits: enough to tell cards apart


def name_of(pod: Raw) -> str:
    """Name a Pod with its namespace."""
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"


def asked(pod: Raw) -> tuple[str, ...]:
    """Say what a Pod's author asked, a line for each container that asks for devices."""
    return tuple(_lines(pod, _originals(pod)))


def admitted(pod: Raw) -> tuple[str, ...]:
    """Say what a Pod asks as it stands, a line for each container that asks for devices."""
    return tuple(_lines(pod, {}))


def _lines(pod: Raw, originals: Mapping[str, Any]) -> Iterator[str]:
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = originals.get(container["name"]) or container.get("resources") or {}
        requests, limits = (
            {name: amount for name, amount in (resources.get(key) or {}).items() if name in BUILT_IN.resources}
            for key in ("requests", "limits")
        )
        told = [
            f"{name}={amount}" + (f" (limit {limits[name]})" if str(limits.get(name, amount)) != str(amount) else "")
            for name, amount in {**limits, **requests}.items()
        ]
        if told:
            yield f"{container['name']}: {' '.join(told)}"


def _originals(pod: Raw) -> Mapping[str, Any]:
    """What admission replaced, by container; nothing where it cannot be read, which is then not shown."""
    try:
        originals = json.loads((pod["metadata"].get("annotations") or {}).get(ORIGINAL_REQUEST, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(originals, dict):
        return {}
    return {name: kept for name, kept in originals.items() if _is_resources(kept)}


def _is_resources(kept: object) -> bool:
    return isinstance(kept, dict) and all(isinstance(value, dict) for value in kept.values())


def trouble(pod: Raw) -> str:
    """Say what is wrong with the allocation of a Pod that is bound; "" where nothing is."""
    info = read_pod_info(pod)
    if info is None or not info.node or info.finished:
        return ""
    if info.annotation_problem:
        return f"holds nothing that can be read: {info.annotation_problem}"
    if info.asks and not info.shares:
        return "asks for devices and carries no allocation, so it holds and sees none"
    return ""


def short_id(identity: str) -> str:
    """Shorten a UUID to what tells it apart on a node."""
    return identity[:_SHORT]


def gib(amount: int) -> str:
    """Write bytes for people, to a tenth."""
    tenths = (amount * 10 + _GIB // 2) // _GIB
    return f"{tenths // 10} GiB" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10} GiB"


def share_of(share: Share) -> str:
    """Say how much of a device a share is."""
    amounts = share.amounts
    if not {GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO} <= amounts.keys():
        return ", ".join(f"{tail} {amount}" for tail, amount in sorted(amounts.items()))
    return f"core {amounts[GPU_CORE]} %, memory {gib(amounts[GPU_MEMORY])} ({amounts[GPU_MEMORY_RATIO]} %)"


def device(share: Share) -> str:
    """Name the device of a share, and say how much of it that is."""
    return f"{share.type} {share.minor} {short_id(share.id)}: {share_of(share)}"
