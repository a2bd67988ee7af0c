"""Devices, CPUs and who holds them in words (pure): one voice for all commands."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.quantity import in_gib
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.asks import DeviceQuota
from allocator.vocabulary.cpunode import MILLI, CpuShare, NumaShare
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import MIB, Keeping, MemoryUse, read_limits
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.holdings import Holding, Share
from allocator.wire.podallocated import NONE, UNLIMITED, read_quotas
from webhook.view.nodereport import DeviceReport, Holder, told_tails

Raw = Mapping[str, Any]

_SHORT: Final = 12  # GPU- and eight digits, or a PCI address: unique on a node
_NAME: Final = 32
_UNSTATED: Final = "an amount that is not stated"


def told_holder(one: Holder) -> str:
    """Name who holds something; a Pod of another product with that product, and whether what it holds is certain."""
    if isinstance(one, Holding):
        return one.holder
    return f"{one.holder} ({one.peer.value}{'' if one.doubt is None else ', in doubt'})"


def told_use(use: MemoryUse) -> str:
    """Write what a container has of a card's memory, and whether it is kept to it."""
    used = "" if use.used is None else f" uses {in_gib(use.used)}"
    most = "" if use.limit is None else f" of at most {in_gib(use.limit)}"
    wanted = f", not kept to {in_gib(use.wanted)}" if use.wanted is not None and use.limit != use.wanted else ""
    over = ", more than it holds" if use.exceeds else ""
    by = f" by {use.provider}" if use.keeping is Keeping.INJECTED else ""
    return f"{use.container}{used}{most}{wanted} ({use.keeping}{by}{over})"


def told_share(share: Share, types: DeviceTypes) -> str:
    """How much of a device a share is, in full; also of a type that is not known."""
    kind = types.by_name.get(share.type)
    if kind is None:
        return ", ".join(f"{tail} {amount}" for tail, amount in share.amounts.items()) or _UNSTATED
    return share_of(share, kind)


def shown_id(identity: str, kind: DeviceType) -> str:
    """Shorten an id to a part that is unique on a node; the id of a software class is a name."""
    return short_id(identity) if kind.unit is not Unit.UNITS else identity[:_NAME]


def short_id(identity: str) -> str:
    """Shorten the id of a card; one that was assumed keeps its number, and the node's name is left out."""
    return "-".join(identity.split("-")[:2]) if identity.startswith("assumed-") else identity[:_SHORT]


def short_name(pod: str) -> str:
    """Leave out the namespace `default`."""
    return pod.removeprefix("default/")


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
    text = in_gib(amount) if kind.in_bytes(tail) else f"{amount}{_unit(kind, tail)}"
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


def used_of_total(used: int, total: int, between: str) -> str:
    """Write two amounts of bytes; one unit stands for both where it is the same."""
    total_in = in_gib(total)
    unit = total_in.rpartition(" ")[2]
    return f"{in_gib(used).removesuffix(f' {unit}')}{between}{total_in}"


def used_of(one: DeviceReport) -> str:
    """How much of a device is held, and of what total."""
    kind, device = one.kind, one.device
    texts = []
    for tail in told_tails(kind):
        used, total = one.used.get(tail, 0), one.total.get(tail)
        word = "" if kind.simple else f"{_spoken(tail, kind)} "
        if kind.in_bytes(tail):
            word = "" if tail == kind.restated else word
            texts.append(word + (in_gib(used) if total is None else used_of_total(used, total, " of ")))
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
    return [f"{container} is kept to {in_gib(most * MIB)} of each of its GPUs" for container, most in stated.items()]


def quota_of(quota: DeviceQuota) -> str:
    """How much of a device a container may use, in full."""
    kind, texts = quota.type, []
    for tail, amount in quota.amounts.items():
        if tail != _ratio(kind):
            known = {one: found for one, found in quota.amounts.items() if found}
            text = UNLIMITED if amount is None else NONE if not amount else ""
            texts.append(f"{_spoken(tail, kind)} {text}" if text else _amount_of(tail, kind, {_ratio(kind): 0} | known))
    return ", ".join(texts)


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
    texts += [in_gib(one.memory)] if one.memory else []
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
