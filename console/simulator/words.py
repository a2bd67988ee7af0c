"""Pods, requests and shares in words, for the tables (pure)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from allocator.adopted import in_doubt
from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL, names_cpus
from allocator.vocabulary.adopted import ConflictKind, ForeignHolding
from allocator.vocabulary.asks import DeviceQuota
from allocator.vocabulary.cpunode import MILLI, CpuShare, NumaShare
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import read_limits
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ORDER,
    DEVICE_SHARING,
    LIMITS,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_MAPS,
)
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.podallocated import NONE, UNLIMITED, read_quotas
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from allocator.wire.values import UNREADABLE, parse_json
from console.simulator.account import Account
from console.simulator.apiserver import AddedDefault
from console.simulator.assumed import ASSUMED
from webhook.view.nodereport import DeviceReport, told_tails
from webhook.view.podinfo import PodInfo, read_pod_info

Raw = Mapping[str, Any]

_GIB: Final = 2**30
_SHORT: Final = 12  # GPU- and eight digits, or a PCI address: unique on a node
_NAME: Final = 32
_UNSTATED: Final = "an amount that is not stated"
_WISHES: Final = (RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, *HINT_ANNOTATIONS, DEVICE_SHARING, DEVICE_ORDER, LIMITS, OWN_CPUS)
_MAX_LENGTH: Final = 200  # characters of an annotation that are shown


def name_of(pod: Raw) -> str:
    """Name a Pod with its namespace."""
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"


def asked(pod: Raw, types: DeviceTypes, added: Iterable[AddedDefault] = ()) -> tuple[str, ...]:
    """What a Pod's author asked for: a line for each container that asks for devices or CPUs, and one per wish.

    What LimitRanges added to that follows, a line each.
    """
    others = (f"{one.container}: {one.resource}={one.amount} (added by LimitRange {one.by})" for one in added)
    return (*_lines(pod, _originals(pod), types), *others)


def admitted(pod: Raw, types: DeviceTypes) -> tuple[str, ...]:
    """What a Pod asks for after admission, in the same form as `asked`."""
    return tuple(_lines(pod, {}, types))


def _lines(pod: Raw, originals: Mapping[str, Any], types: DeviceTypes) -> Iterator[str]:
    spec = pod["spec"]
    orchestrated = names_cpus(pod)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        texts = _amounts(originals.get(container["name"]) or resources, types.resources)
        if orchestrated:
            texts = [*_amounts(resources, ("cpu",)), *texts]
        if texts:
            yield f"{container['name']}: {' '.join(texts)}"
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if stated := [key for key in (QOS_LABEL, PRIORITY_CLASS_LABEL) if labels.get(key)]:
        yield " ".join(f"{key.rpartition('/')[2]}={labels[key]}" for key in stated)
    stated = [key for key in types.annotations if key in annotations]  # of dialects that ask by annotations
    stated += sorted(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX) or types.form_of(key))
    if stated:
        yield " ".join(f"{key}={_cut(' '.join(str(annotations[key]).split()))}" for key in stated)
    for key in _WISHES:
        if key in annotations:
            yield f"{key.rpartition('/')[2]} {_cut(' '.join(str(annotations[key]).split()))}"


def _amounts(resources: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The amounts that a container states of these resources: requests, and limits that differ."""
    wanted = set(names)
    requests, limits = (
        {name: amount for name, amount in (resources.get(key) or {}).items() if name in wanted} for key in RESOURCE_MAPS
    )
    return [
        f"{name}={amount}" + (f" (limit {limits[name]})" if str(limits.get(name, amount)) != str(amount) else "")
        for name, amount in {**limits, **requests}.items()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def _originals(pod: Raw) -> Mapping[str, Any]:
    """The resources that admission replaced, by container; empty if they cannot be read."""
    try:
        originals = parse_json((pod["metadata"].get("annotations") or {}).get(ORIGINAL_REQUEST, "{}"))
        json.dumps(originals, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError, if it cannot be printed
    except UNREADABLE:
        return {}
    if not isinstance(originals, dict):
        return {}
    return {name: kept for name, kept in originals.items() if _is_resources(kept)}


def _is_resources(kept: object) -> bool:
    return isinstance(kept, dict) and all(isinstance(value, dict) for value in kept.values())


def trouble(pod: Raw, account: Account) -> str:
    """What is wrong with the allocation of a Pod that is bound; "" if nothing is."""
    theirs = account.adopted(pod)
    if theirs is not None and theirs.doubt is not ConflictKind.UNCOUNTED:
        return f"in doubt: {theirs.why}" if in_doubt(theirs) else ""
    info = read_pod_info(pod, types=account.types)
    if info is None or not info.node or info.finished:
        return ""
    assumed = (pod["metadata"].get("annotations") or {}).get(ASSUMED)
    if assumed == "0":
        return "holds devices that the kubelet's device plugin gave it"
    if assumed:
        return "holds devices that the kubelet's device plugin gave it; which ones is unknown, so idle ones are assumed"
    if info.annotation_problem:
        return f"has an unreadable allocation, so what it may hold takes no new Pods: {info.annotation_problem}"
    missing = info.asks and not info.holds
    told = "carries no allocation, so it holds none; to place it, remove spec.nodeName"
    return f"asks for {_what(info)} and {told}" if missing else ""


def _what(info: PodInfo) -> str:
    return "CPUs" if info.request.cpu is not None and not info.request.containers else "devices"


# Devices


def shown_id(identity: str, kind: DeviceType) -> str:
    """Shorten an id to a part that is unique on a node; the id of a software class is a name."""
    return short_id(identity) if kind.unit is not Unit.UNITS else identity[:_NAME]


def short_id(identity: str) -> str:
    """Shorten the id of a card; one that was assumed keeps its number, and the node's name is left out."""
    return "-".join(identity.split("-")[:2]) if identity.startswith("assumed-") else identity[:_SHORT]


def short_name(pod: str) -> str:
    """Leave out the namespace `default`."""
    return pod.removeprefix("default/")


def gib(amount: int) -> str:
    """Write bytes in GiB, rounded to tenths."""
    tenths = (amount * 10 + _GIB // 2) // _GIB
    return f"{tenths // 10} GiB" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10} GiB"


def share_of(share: Share, kind: DeviceType) -> str:
    """How much of a device a share is, in full."""
    amounts = share.amounts
    if not kind.simple and set(kind.tails) <= amounts.keys():
        texts = [_amount_of(tail, kind, amounts) for tail in told_tails(kind)]
    else:
        texts = [f"{tail} {amount}{_unit(kind, tail)}" for tail, amount in sorted(amounts.items())]
    if share.functions:
        texts.append(f"virtual function {_functions(share)}")
    return ", ".join(texts) or _UNSTATED


def _amount_of(tail: str, kind: DeviceType, amounts: Mapping[str, int]) -> str:
    """Write the amount of one resource with the resource's word; memory in bytes and in percent."""
    amount, ratio = amounts[tail], _ratio(kind)
    text = gib(amount) if kind.in_bytes(tail) else f"{amount}{_unit(kind, tail)}"
    percent = f" ({amounts[ratio]} %)" if tail == kind.restated else ""
    return f"{_spoken(tail, kind)} {text}{percent}"


def part_of(share: Share, kind: DeviceType) -> str:
    """How much of a device a share is, in brief."""
    percent = {tail: share.amounts[tail] for tail in _percent(kind) if tail in share.amounts}
    if kind.unit is Unit.UNITS or not percent:
        texts = ", ".join(str(amount) for amount in share.amounts.values()) or _UNSTATED
    elif set(percent.values()) == {FULL}:
        texts = "whole"
    elif len(set(percent.values())) == 1:
        texts = f"{next(iter(percent.values()))} %"
    else:
        texts = ", ".join(f"{_spoken(tail, kind)} {amount} %" for tail, amount in percent.items() if amount)
    return f"{texts}, function {_functions(share)}" if share.functions else texts


def used_of(one: DeviceReport) -> str:
    """How much of a device is held, and of what total."""
    kind, device = one.kind, one.device
    texts = []
    for tail in told_tails(kind):
        used, total = one.used.get(tail, 0), one.total.get(tail)
        word = "" if kind.simple else f"{_spoken(tail, kind)} "
        if kind.in_bytes(tail):
            word = "" if tail == kind.restated else word
            texts.append(word + (gib(used) if total is None else f"{gib(used).removesuffix(' GiB')} of {gib(total)}"))
        elif _unit(kind, tail):
            texts.append(f"{word}{used} %")
        else:
            texts.append(f"{word}{used}" + ("" if total is None else f" of {total}"))
    if device is not None and device.functions:
        taken = sum(len(share.functions) for _, share in one.held)
        texts.append(f"{taken} of {len(device.functions)} functions")
    return ", ".join(texts)


def _percent(kind: DeviceType) -> tuple[str, ...]:
    """A type's resources that are counted in percent of a device."""
    return tuple(tail for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent)


def _ratio(kind: DeviceType) -> str:
    """The tail that states in percent what another states in bytes; "" if there is none."""
    return kind.memory[1] if kind.memory else ""


def _unit(kind: DeviceType, tail: str) -> str:
    return " %" if tail in _percent(kind) else ""


def _spoken(tail: str, kind: DeviceType) -> str:
    return kind.words[kind.tails.index(tail)]


def _functions(share: Share) -> str:
    return ", ".join(function.bus_id or "without a bus id" for function in share.functions)


def device(share: Share, kind: DeviceType) -> str:
    """Name the device of a share, and how much of it the share is."""
    return f"{share.type} {share.minor} {shown_id(share.id, kind)}: {share_of(share, kind)}"


def quotas(pod: Raw, types: DeviceTypes) -> list[str]:
    """What each container may use of each device, as far as the Pod's annotation states it."""
    annotations = pod["metadata"].get("annotations") or {}
    return [
        f"{container} may use of {one.type.name} {shown_id(one.id, one.type)}: {quota_of(one)}"
        for container, listed in read_quotas(annotations, types).items()
        for one in listed
    ]


def limits(pod: Raw) -> list[str]:
    """What each container may use of the memory of each of its GPUs, as the bind stated it to what keeps limits."""
    stated = read_limits(pod["metadata"].get("annotations") or {})
    return [f"{container} is kept to {most} MiB of each of its GPUs" for container, most in stated.items()]


def quota_of(quota: DeviceQuota) -> str:
    """How much of a device a container may use, in full."""
    kind, texts = quota.type, []
    for tail, amount in quota.amounts.items():
        if tail != _ratio(kind):
            known = {one: found for one, found in quota.amounts.items() if found}
            text = UNLIMITED if amount is None else NONE if not amount else ""
            texts.append(f"{_spoken(tail, kind)} {text}" if text else _amount_of(tail, kind, {_ratio(kind): 0} | known))
    return ", ".join(texts)


# CPUs


def cpus_of(share: CpuShare) -> str:
    """The CPUs and NUMA nodes that a Pod holds; "" if the kubelet manages them."""
    texts = []
    if share.cpus:
        policy = f", {share.bind}" if share.bind else ""
        texts.append(f"CPUs {format_cpuset(share.cpus)} ({share.qos}{policy})")
    if share.numa:
        texts.append("; ".join(f"NUMA node {one.node}: {numa_of(one)}" for one in share.numa))
    return ", ".join(texts)


def numa_of(one: NumaShare) -> str:
    """What a Pod holds in one NUMA node."""
    texts = [f"{cpu(one.milli)} CPU"] if one.milli else []
    texts += [gib(one.memory)] if one.memory else []
    return ", ".join(texts) or "its shared pool"


def cpu(milli: int) -> str:
    """Write thousandths of a CPU as Kubernetes does."""
    return str(milli // MILLI) if milli % MILLI == 0 else f"{milli}m"


def held(holding: Holding, types: DeviceTypes) -> list[str]:
    """What a Pod holds: its devices, by type and minor, and its CPUs."""
    texts = _devices(holding.shares, types)
    cpus = cpus_of(holding.cpus) if holding.cpus is not None else ""
    return [*texts, cpus] if cpus else texts


def adopted(holding: ForeignHolding, types: DeviceTypes) -> list[str]:
    """What a Pod of another product holds: its devices, and what says so."""
    texts = _devices(holding.shares, types)
    return [*texts, f"by {holding.evidence}"] if texts else []


def _devices(shares: Iterable[Share], types: DeviceTypes) -> list[str]:
    order = {name: place for place, name in enumerate(types.by_name)}
    ordered = sorted(shares, key=lambda share: (order[share.type], share.minor))
    return [device(share, types.by_name[share.type]) for share in ordered]
