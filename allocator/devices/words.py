"""Devices and asks in a user's words."""

from collections.abc import Sequence
from typing import Final

from allocator.quantity import format_bytes, whole_mebibytes
from allocator.topology.sets import WITHIN
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, Scope
from allocator.vocabulary.devicetype import DeviceType, Unit

_NAMED: Final = 8  # containers of a group that a message names


def how_many(count: int, kind: DeviceType) -> str:
    """Count devices: "1 GPU", "2 rdma devices"."""
    return f"{count} {kind.plural if count != 1 else kind.plural.removesuffix('s')}"


def fitting(count: int, ask: DeviceAsk) -> str:
    """Say how many devices fit an ask: "1 GPU fits 2 x (core 100 %, memory 100 %)"."""
    return f"{how_many(count, ask.type)} {'fits' if count == 1 else 'fit'} {describe(ask)}"


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


def describe(ask: DeviceAsk) -> str:
    """Write an ask for people: `2 x (core 100 %, memory 100 %)`."""
    kind = ask.type
    if not kind.simple and kind.unit is Unit.DEVICES and ask.whole:
        return f"{ask.count} x (whole)"
    template = f"{ask.template}: " if ask.template else ""
    return f"{ask.count} x ({template}{describe_amounts(kind, ask.amounts, ask.amounts)})"


def describe_amounts(
    kind: DeviceType, amounts: Sequence[int | None], stated: Sequence[int | None] | None = None
) -> str:
    """Write amounts of a device, one for each of the type's tails: `core 50 %, memory 40Gi (50 %)`.

    `stated`: those that somebody stated, None for each that nobody did. Bytes that were stated are written exactly,
    others as an amount that a Pod could ask for instead: in whole MiB, rounded down.
    """
    exact = [amount is not None for amount in stated or (None,) * len(amounts)]
    parts: dict[str, list[str]] = {}
    for tail, word, unit, amount, told in zip(kind.tails, kind.words, kind.units, amounts, exact, strict=True):
        if amount or (amount == 0 and (kind.simple or tail in (kind.memory or ()))):
            text = f"{amount}{' %' if unit is Unit.PERCENT else ''}"
            if unit is Unit.BYTES:
                text = format_bytes(amount if told else whole_mebibytes(amount))
            parts.setdefault(word, []).insert(0, text)
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
