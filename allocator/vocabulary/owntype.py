"""Device types that the settings declare and that consist of several resources, as GPUs and NPUs do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from allocator.vocabulary.device import RATIO
from allocator.vocabulary.devicetype import DeviceType, DeviceTypeError, Template, Unit
from allocator.vocabulary.partition import Board


class Part(NamedTuple):
    """One of the resources that a device consists of.

    Attributes:
        name: as records, messages and templates name it.
        resource: the full name under which Pods ask for it.
        unit: percent, bytes or units.
        ratio: for bytes, the full name under which Pods ask for them in percent of a device; "" for none.
    """

    name: str
    resource: str
    unit: Unit = Unit.PERCENT
    ratio: str = ""


class TemplateSpec(NamedTuple):
    """A template as declared: amounts by the name of a part, or in percent by the name of bytes with `-ratio`."""

    name: str
    amounts: Mapping[str, int]
    models: tuple[str, ...] = ()


def composed_type(
    plain: DeviceType,
    parts: Sequence[Part],
    *,
    split: str = "",
    templates: Iterable[TemplateSpec] = (),
    boards: Iterable[Board] = (),
    partitioned: bool = False,
) -> DeviceType:
    """Make a type whose devices consist of several resources.

    Args:
        plain: the type as `own_type` makes it. Its resource asks for all parts of a device alike, in percent or as
            whole devices.
        parts: what a device consists of, in the order in which people read them.
        split: the full name that states over how many devices the amounts are split; "" for none.
        templates: the only shares of a device that are available; empty: any share is.
        boards: partition tables by model.
        partitioned: whole devices follow the node's partition table, whether stated or by board.

    Raises:
        DeviceTypeError: the declarations contradict each other; the message says which.
    """
    name = plain.name
    if plain.unit is Unit.UNITS:
        raise DeviceTypeError(f"device type {name}: with amounts its unit is percent or devices, not units")
    _check_parts(plain, parts)
    tails: list[str] = []
    units: list[Unit] = []
    words: list[str] = []
    names = dict(plain.names)
    memory: tuple[str, str] | None = None
    for part in parts:
        tails.append(part.name)
        units.append(part.unit)
        words.append(part.name)
        names[part.name] = part.resource
        if part.ratio:
            ratio = part.name + RATIO
            memory = (part.name, ratio)
            tails.append(ratio)
            units.append(Unit.PERCENT)
            words.append(part.name)
            names[ratio] = part.ratio
    listed = tuple(boards)
    over = f"{name}.shared"
    if split:
        names[over] = split
    scarce = [units.index(Unit.BYTES)] if Unit.BYTES in units else []
    return DeviceType(
        name,
        tails=tuple(tails),
        unit=plain.unit,
        units=tuple(units),
        words=tuple(words),
        plain=plain.plain,
        split=over if split else "",
        memory=memory,
        names=names,
        environment=plain.environment,
        fit=tuple(dict.fromkeys((*scarce, 0))),
        model_of_node=True,
        partitioned=partitioned or bool(listed),
        boards=listed,
        templates=_templates(name, tails, memory, templates),
    )


def _check_parts(plain: DeviceType, parts: Sequence[Part]) -> None:
    """Check that amounts contradict neither each other nor the type's unit.

    Raises:
        DeviceTypeError: one does.
    """
    name = plain.name
    taken = {plain.plain, f"{name}.shared"}
    pairs = 0
    for part in parts:
        for tail in (part.name, part.name + RATIO) if part.ratio else (part.name,):
            if tail in taken:
                raise DeviceTypeError(f"device type {name}: its amount {tail} has a name that is taken; use another")
            taken.add(tail)
        if part.unit is Unit.DEVICES:
            raise DeviceTypeError(f"device type {name}: its amount {part.name} counts percent, bytes or units of one")
        if part.ratio and part.unit is not Unit.BYTES:
            raise DeviceTypeError(f"device type {name}: its amount {part.name} has a ratio, which only bytes have")
        pairs += bool(part.ratio)
        if plain.unit is Unit.PERCENT and part.unit is not Unit.PERCENT and not part.ratio:
            raise DeviceTypeError(
                f"device type {name}: percent of it say nothing of {part.unit} of {part.name}; set its unit to devices"
            )
    if pairs > 1:
        raise DeviceTypeError(f"device type {name}: two of its amounts have a ratio; only one of them may")


def _templates(
    name: str, tails: Sequence[str], memory: tuple[str, str] | None, templates: Iterable[TemplateSpec]
) -> tuple[Template, ...]:
    """Make templates with one amount per tail, the smallest first.

    Raises:
        DeviceTypeError: one names an amount that the type does not have, states bytes and their ratio, or repeats a
            name.
    """
    made: list[Template] = []
    for one in templates:
        strange = sorted(one.amounts.keys() - set(tails))
        if strange or not any(one.amounts.values()):
            why = f"the type has no amount {strange[0]}" if strange else "it has no amount above 0"
            raise DeviceTypeError(f"device type {name}: template {one.name}: {why}; use {', '.join(tails)}")
        if memory and all(tail in one.amounts for tail in memory):
            raise DeviceTypeError(f"device type {name}: template {one.name}: keep one of {' and '.join(memory)}")
        if any(one.name == other.name for other in made):
            raise DeviceTypeError(f"device type {name}: template {one.name} is declared twice")
        follows = "" if memory is None else memory[0] if memory[1] in one.amounts else memory[1]
        amounts = tuple(None if tail == follows else one.amounts.get(tail, 0) for tail in tails)
        made.append(Template(one.name, amounts, one.models))
    return tuple(sorted(made, key=lambda template: [amount or 0 for amount in template.amounts]))
