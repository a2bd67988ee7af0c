"""Devices and asks in a user's words."""

from collections.abc import Sequence
from typing import Final

from allocator.quantity import format_bytes, in_gib, whole_mebibytes
from allocator.topology.sets import WITHIN
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, Scope
from allocator.vocabulary.devicetype import DeviceType, Unit

_NAMED: Final = 8  # containers of a group that a message names


def how_many(count: int, kind: DeviceType) -> str:
    """Count devices: "1 GPU", "2 rdma devices"."""
    return f"{count} {kind.plural if count != 1 else kind.plural.removesuffix('s')}"


def fitting(count: int, ask: DeviceAsk) -> str:
    """Say that too few devices fit an ask: "only 7 of 9 whole GPUs are free".

    It does not begin with a number: kube-scheduler writes that of the nodes before it.
    """
    kind = ask.type
    one = kind.plural.removesuffix("s")
    size, verb, room = (
        ("whole ", ("is", "are"), "free") if ask.whole else ("", ("has", "have"), f"room for {_each(ask)}")
    )
    if ask.every:
        return f"not all selected {size}{kind.plural} {verb[1]} {room}"
    if not count:
        return f"no {size}{one} {verb[0]} {room}" + (f" ({ask.count} are asked)" if ask.count > 1 else "")
    return f"only {count} of {ask.count} {size}{kind.plural} {verb[count > 1]} {room}"


def plural(kind: DeviceType) -> str:
    """Name several devices of a type: "GPUs"."""
    return kind.plural


def named(of: ContainerAsk) -> str:
    """Name a container, or the containers of a group: `a and b`."""
    names = of.names
    if len(names) > _NAMED:
        names = (*names[:_NAMED], f"{len(names) - _NAMED} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def subject(of: ContainerAsk) -> str:
    """Begin a sentence about what a container, or a group, asks for."""
    return f"container {named(of)} asks" if len(of.names) == 1 else f"containers {named(of)} together ask"


def describe(ask: DeviceAsk, *, typed: bool = False) -> str:
    """Write an ask for people: `2 x (core 100 %, memory 100 %)`; `typed`: bytes as somebody may type them."""
    kind = ask.type
    if not kind.simple and kind.unit is Unit.DEVICES and ask.whole:
        return f"{ask.count} x (whole)"
    return f"{ask.count} x ({_each(ask, typed=typed)})"


def _each(ask: DeviceAsk, *, typed: bool = False) -> str:
    template = f"{ask.template}: " if ask.template else ""
    return f"{template}{describe_amounts(ask.type, ask.amounts, ask.amounts, typed=typed)}"


def describe_amounts(
    kind: DeviceType,
    amounts: Sequence[int | None],
    stated: Sequence[int | None] | None = None,
    *,
    typed: bool = False,
) -> str:
    """Write amounts of a device, one for each of the type's tails: `core 50 %, memory 40 GiB (50 %)`.

    `stated`: those that somebody stated, None for each that nobody did. Bytes that were stated are written exactly.
    `typed`: bytes are a quantity that a Pod could ask for; one that nobody stated is in whole MiB, rounded down.
    """
    exact = [amount is not None for amount in stated or (None,) * len(amounts)]
    parts: dict[str, list[str]] = {}
    for tail, word, unit, amount, told in zip(kind.tails, kind.words, kind.units, amounts, exact, strict=True):
        if amount or (amount == 0 and (kind.simple or tail in (kind.memory or ()))):
            text = f"{amount}{' %' if unit is Unit.PERCENT else ''}"
            if unit is Unit.BYTES and typed:
                text = format_bytes(amount if told else whole_mebibytes(amount))
            elif unit is Unit.BYTES:
                text = in_gib(amount, stated=told)
            parts.setdefault(word, []).append(text)
    return ", ".join(
        f"{name} {texts[0]}" + "".join(f" ({more})" for more in texts[1:]) for name, texts in parts.items()
    )


def too_wide(scope: Scope) -> str:
    """Say that no part of the node of the scope's size has enough for each container of the Pod."""
    where = WITHIN[scope]
    asked = f"devices inside one {where} are requested (requiredTopologyScope)"
    return f"{asked}, and no {where} has enough for each container"


def too_few_on_roots(kind: DeviceType, asked: int, found: int, others: Sequence[DeviceType]) -> str:
    """Say that too few devices of the leading type share a PCIe root with free devices of the others (SamePCIe)."""
    there = " and ".join(map(plural, others))
    few = f"{found} suitable ones have {there} free on their PCIe root"
    return f"SamePCIe is requested; {asked} {plural(kind)} are requested, {few}"


def too_few_together(kind: DeviceType, asked: int, most: int, lead: DeviceType, width: int) -> str:
    """Say that too few devices of a following type are on the PCIe roots that the leading type could use."""
    there = f"where {width} {plural(lead)} could be"
    few = f"at most {most} suitable ones are on PCIe roots {there}"
    return f"SamePCIe is requested; {asked} {plural(kind)} are requested, {few}"
