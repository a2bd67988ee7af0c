"""What users are told: asks in words, and why devices cannot be chosen, with the nearest thing that would fit."""

from collections.abc import Sequence
from operator import le
from typing import TYPE_CHECKING

from allocator.quantity import format_bytes
from allocator.topology.sets import WITHIN, choices, why_no_set
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import DeviceType, Unit
from allocator.vocabulary.hints import NO_HINT, Scope
from allocator.vocabulary.outcome import Refusal

if TYPE_CHECKING:  # which has what is said here as its answer
    from allocator.devices.choose import DeviceSearch


def plural(kind: DeviceType) -> str:
    """Name several devices of a type: "GPUs"."""
    return kind.plural


def describe(ask: DeviceAsk) -> str:
    """Write an ask as a person would: `2 x (core 100 %, memory 100 %)`."""
    kind = ask.type
    if not kind.simple and kind.unit is Unit.DEVICES and ask.whole:
        return f"{ask.count} x (whole)"
    template = f"{ask.template}: " if ask.template else ""
    return f"{ask.count} x ({template}{_describe_amounts(kind, ask.amounts)})"


def _describe_amounts(kind: DeviceType, amounts: Sequence[int | None]) -> str:
    told: dict[str, list[str]] = {}
    for tail, word, unit, amount in zip(kind.tails, kind.words, kind.units, amounts, strict=True):
        if amount or (amount == 0 and (kind.simple or tail in (kind.memory or ()))):
            text = format_bytes(amount) if unit is Unit.BYTES else f"{amount}{' %' if unit is Unit.PERCENT else ''}"
            told.setdefault(word, []).insert(0, text)
    return ", ".join(f"{name} {texts[0]}" + "".join(f" ({more})" for more in texts[1:]) for name, texts in told.items())


# Why a node cannot hold a Pod


def explain(searches: "Sequence[DeviceSearch]") -> Refusal:
    """Say why types that were looked for together, or one by itself, were not found.

    First what a container lacks by itself, then what was said against the first choice, else that they do not fit
    together.
    """
    for search in searches:
        short = _too_few(search)
        if short is not None:
            return short
    for search in searches:
        reason = _no_set(search)
        if reason:
            told = f"{search.node.name}: {_asked([search])}: {reason}{_away(search)}"
            return Refusal(told, short=f"{plural(search.kind)}: {reason}")
    for search in searches:
        if search.why:
            why = f"all containers together: {search.why}" if len(search.asks) > 1 else search.why
            return Refusal(f"{search.node.name}: {_asked([search])}: {why}{_away(search)}", short=search.why)
    usable = ", ".join(f"{len(search.offers)} {plural(search.kind)} usable{_away(search)}" for search in searches)
    scopes = dict.fromkeys(search.scope for search in searches if search.scope is not Scope.NODE)
    inside = "".join(f" inside one {WITHIN[scope]}" for scope in scopes)
    told = (
        f"{searches[0].node.name}: each container fits alone, not all together{inside} ({_asked(searches)}); {usable}"
    )
    kinds = " and ".join(plural(search.kind) for search in searches)
    return Refusal(told, short=f"{kinds} fit each container, not all together{inside}")


def _too_few(search: "DeviceSearch") -> Refusal | None:
    """Name the first container for which there are too few devices, whatever the others get."""
    node, kind = search.node, search.kind
    known = [device for device in node.devices if device.type == kind.name]
    if not known:
        told = f"no {plural(kind)} known here (no Device object, or none in it)"
        return Refusal(f"{node.name}: {told}", permanent=True, short=told)
    for wish in sorted(search.wishes, key=lambda wish: wish.place):
        ask = wish.container.ask
        fitting, count = len(search.options(wish)), search.count(ask)
        if fitting >= count:
            continue
        possible = sum(all(map(le, search.amounts(offer.capacity, ask), offer.capacity)) for offer in search.offers)
        asked = f"{describe(ask)}, of each of {count}" if ask.every else describe(ask)
        told = f"container {wish.container.name} asks {asked}; {fitting} of {len(known)} {plural(kind)}{_away(search)} "
        told += f"can hold it{_nearest(search)}"
        free = len(search.offers) == len(known)  # of what may change: health, the kubelet's Pods, others' exclusivity
        never = possible < count and free and search.hint is NO_HINT and search.numa is None
        return Refusal(f"{node.name}: {told}", permanent=never, short=f"{fitting} {plural(kind)} fit {describe(ask)}")
    return None


def _no_set(search: "DeviceSearch") -> str:
    """Say of the first container that finds no set by itself why devices that would do one by one are none."""
    for wish in sorted(search.wishes, key=lambda wish: wish.place):
        rule, count = search.rule(wish.container.ask), search.count(wish.container.ask)
        candidates = search.candidates(wish)
        if next(choices(candidates, count, search.node.wiring.links, rule), None) is None:
            return why_no_set(candidates, count, rule)
    return ""


def _away(search: "DeviceSearch") -> str:
    """Say which devices are out of the question, in brackets."""
    known = [device for device in search.node.devices if device.type == search.kind.name]
    away = [f"{gone} unhealthy"] if (gone := sum(not device.healthy for device in known)) else []
    if taken := sum(device.id in search.node.kubelet_held for device in known):
        away.append(f"{taken} held by the kubelet's device plugin")
    return f" ({', '.join(away)})" if away else ""


def _nearest(search: "DeviceSearch") -> str:
    """Name the device with the most free, where one is left."""
    kind = search.kind
    if not search.offers:
        return ""
    best = max(search.offers, key=lambda offer: (offer.free[-1], offer.free, -offer.device.minor))
    return f"; the most free is {kind.name} {best.device.minor} with {_describe_amounts(kind, best.free)}"


def _asked(searches: "Sequence[DeviceSearch]") -> str:
    return ", ".join(f"{one.name} {describe(one.ask)}" for search in searches for one in search.asks)


def too_wide(scope: Scope) -> str:
    """Of a Pod of several containers: nowhere, in the words of its scope, is there enough for each of them."""
    where = WITHIN[scope]
    return f"devices inside one {where} asked (requiredTopologyScope), and none has enough for each container"


def too_few_on_roots(kind: DeviceType, asked: int, found: int, others: Sequence[DeviceType]) -> str:
    """Of the first of types that must be on the same PCIe roots: too few of it are where the others are."""
    there = " and ".join(map(plural, others))
    return (
        f"SamePCIe asked; {asked} {plural(kind)} asked, {found} that can serve it have {there} free on their PCIe root"
    )


def too_few_together(kind: DeviceType, asked: int, most: int, lead: DeviceType, width: int) -> str:
    """Of another of such types: too few of it are on any PCIe roots on which the first one's devices could be."""
    there = f"where {width} {plural(lead)} could be"
    return f"SamePCIe asked; {asked} {plural(kind)} asked, at most {most} that can serve it are on PCIe roots {there}"
