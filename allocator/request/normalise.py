"""From amounts of a type's tails to a number of devices and the amounts of each, or what is wrong with them.

Sources: the device proposal ("User apply device resources scenarios") and Koordinator's admission and request rules.
"""

from collections.abc import Mapping
from typing import Final

from allocator.request.statedamounts import MAX_COUNT, StatedAmounts
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import FULL, DeviceType, Unit

_SHOWN: Final = 8  # templates that a message names


def normalise(kind: DeviceType, said: StatedAmounts, *, derived: bool) -> DeviceAsk | str:
    """Turn what a container states of a type into an ask, or say in one sentence what is wrong with it.

    `derived`: bytes beside a ratio follow from it and are no ask.
    """
    if said.template:
        return _of_template(kind, said)
    if kind.simple:
        return _simple(kind, said.tails[kind.plain])
    if kind.plain in said.tails:
        return _all_alike(kind, said.tails)
    return _apart(kind, said.tails, derived=derived)


def _of_template(kind: DeviceType, said: StatedAmounts) -> DeviceAsk | str:
    beside = sorted(tail for tail, amount in said.tails.items() if amount)
    if beside:
        return (
            f"template {said.template} already states what is asked of each {kind.noun}; {' and '.join(beside)} beside "
            "it contradicts; keep one"
        )
    return DeviceAsk(kind, said.count, kind.template(said.template).amounts, template=said.template)


def _simple(kind: DeviceType, amount: int) -> DeviceAsk | str:
    """Normalise the only resource of a type that has no others."""
    if not amount:
        return f"{kind.plain} must be greater than zero; or remove it"
    if kind.unit is Unit.UNITS:
        return DeviceAsk(kind, 1, (amount,))
    count = _count(kind, {}, {kind.plain: amount})
    return count if isinstance(count, str) else DeviceAsk(kind, count, (amount // count,))


def _all_alike(kind: DeviceType, tails: Mapping[str, int]) -> DeviceAsk | str:
    """Normalise the plain resource of a type that has others: the same percentage of everything that a device has."""
    beside = sorted(tail for tail in tails if tail not in {kind.plain, kind.split})
    if beside:
        return (
            f"{kind.plain} already states {_all_words(kind)}, {' and '.join(beside)} beside it contradicts; keep "
            f"{kind.plain}, or the others"
        )
    amount = tails[kind.plain]
    if not amount:
        noun = kind.noun
        return (
            f"{kind.plain} must be greater than zero: 50 is half a {noun}, 100 one {noun}, 200 two; or remove it"
            if kind.unit is Unit.PERCENT
            else f"{kind.plain} must be greater than zero; or remove it"
        )
    count = _count(kind, tails, {kind.plain: amount})
    if isinstance(count, str):
        return count
    part = amount // count
    ask = DeviceAsk(kind, count, tuple(part if percent else None for percent in kind.percent))
    return _cut(kind, ask)


def _all_words(kind: DeviceType) -> str:
    return " and ".join(dict.fromkeys(kind.words))


def _apart(kind: DeviceType, tails: Mapping[str, int], *, derived: bool) -> DeviceAsk | str:
    """Normalise amounts of the single resources that a device consists of."""
    asked = {tail: tails.get(tail, 0) for tail in kind.tails}
    if kind.memory:
        wrong = _memory(kind, kind.memory, asked, derived=derived)
        if wrong:
            return wrong
    elif not any(asked.values()):
        return f"nothing above 0 is asked; ask {kind.plain}, or some of {', '.join(kind.tails)}"
    percents = {tail: asked[tail] for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent}
    count = _count(kind, tails, {tail: amount for tail, amount in percents.items() if amount})
    if isinstance(count, str):
        return count
    for tail, amount in asked.items():
        if amount % count:
            unit = " bytes" if kind.in_bytes(tail) else ""
            return f"{tail} {amount} does not split evenly over {count} devices; ask {_nearest(amount, count)}{unit}"
    amounts = [asked[tail] // count or (None if tail in (kind.memory or ()) else 0) for tail in kind.tails]
    return _cut(kind, DeviceAsk(kind, count, tuple(amounts)))


def _memory(kind: DeviceType, pair: tuple[str, str], asked: dict[str, int], *, derived: bool) -> str:
    """Find what is wrong with memory asked in bytes, in percent, in both or not at all; "" if nothing is."""
    size, ratio = pair
    if derived and asked[ratio]:
        asked[size] = 0
    if asked[size] and asked[ratio]:
        return f"{size} and {ratio} are both asked for; keep the one you mean (bytes, or percent of a {kind.noun})"
    if asked[size] or asked[ratio] or (kind.templates and any(asked.values())):
        return ""  # the template states how much memory comes with the other amounts
    without = [f"{tail} {amount}" for tail, amount in asked.items() if amount]
    wrong = f"{' and '.join(without)} is asked without memory" if without else "nothing above 0 is asked"
    both = "both" if len(set(kind.words)) == len(pair) else "all"
    return f"{wrong}; add {ratio} (percent of a {kind.noun}) or {size} (bytes), or ask {kind.plain} alone for {both}"


def _cut(kind: DeviceType, ask: DeviceAsk) -> DeviceAsk | str:
    """Round a part of a device up to the smallest of the type's templates that covers the ask."""
    if not kind.templates or ask.whole:
        return ask
    for template in kind.templates:
        if template.covers(ask.amounts):
            return DeviceAsk(kind, ask.count, template.amounts, template=template.name)
    names = ", ".join(template.name for template in kind.templates[:_SHOWN])
    return f"no template of a {kind.name} has as much as is asked of each ({names}); ask less, or whole devices"


def _count(kind: DeviceType, tails: Mapping[str, int], percents: Mapping[str, int]) -> int | str:
    """Find over how many devices an ask spreads, or say why its parts do not agree.

    `tails`: the amounts of one map, among them the split if it is stated. `percents`: the amounts that are asked in
    percent, by tail.
    """
    if kind.split in tails:
        return _count_split(kind, tails[kind.split], percents)
    for tail, amount in percents.items():
        if amount > FULL and amount % FULL:
            low = amount - amount % FULL
            return (
                f"{tail} {amount} is over 100, where only multiples of 100 are whole devices; ask {low} or {low + FULL}"
            )
        if amount > FULL * MAX_COUNT:
            return (
                f"{tail} {amount} is more than {MAX_COUNT} devices, which no node has; ask {FULL * MAX_COUNT} at most"
            )
    counts = {tail: max(amount // FULL, 1) for tail, amount in percents.items()}
    first = next(iter(counts), "")
    other = next((tail for tail in counts if counts[tail] != counts[first]), "")
    if other:
        return (
            f"{first} {percents[first]} is {counts[first]} device(s) but {other} {percents[other]} is {counts[other]}; "
            "above 100 both must be the same multiple of 100"
        )
    return counts.get(first, 1)


def _count_split(kind: DeviceType, split: int, percents: Mapping[str, int]) -> int | str:
    if split not in range(1, MAX_COUNT + 1):
        return f"{kind.split} must be from 1 to {MAX_COUNT}, the number of {kind.noun}s to split the request over"
    for tail, amount in percents.items():
        if amount % split:
            return f"{tail} {amount} does not split evenly over {kind.split} {split}; ask {_nearest(amount, split)}"
        if amount // split > FULL:
            return (
                f"{tail} {amount} over {kind.split} {split} is more than 100 of each {kind.noun}; ask {FULL * split} "
                "at most"
            )
    return split


def _nearest(amount: int, step: int) -> str:
    low = amount - amount % step
    return f"{low} or {low + step}" if low else f"{step}"
