"""A mix in the form that the index takes: for each device type, its requests as arrays, their devices as wants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocator.index.query import PartOf, Want
from allocator.index.rows import want_of
from allocator.index.table import Ints, Make
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.mix import Mix, TypicalRequest
from allocator.vocabulary.models import model_name
from allocator.vocabulary.names import NVIDIA
from allocator.vocabulary.node import fullness

Small = NDArray[np.int16]
Made = Callable[[Make], bool]

LARGEST_SMALL: Final = np.iinfo(np.int16).max


class Class(NamedTuple):
    """Devices that some typical requests ask for.

    Attributes:
        want: one of them.
        made: which makes serve; None for all.
    """

    want: Want
    made: Made | None


@dataclass(frozen=True, slots=True)
class TypicalOf:
    """The typical requests for devices of one type, those with equal devices together.

    Attributes:
        counted: the classes of a device whose percent count as points.
        classes: the different devices that are asked for; D of them.
        plain: which of these state nothing but amounts that fit into `Small`.
        least: tail -> the amounts of the plain ones, D x 1 x 1; 0 where it is not asked, and for those not plain.
        runs: of the requests of each class, the first and behind the last.
        whose: the class of each request.
        count: devices that each request asks for, requests x 1.
        cpu: thousandths of a CPU, likewise.
        memory: bytes, not those of devices, likewise.
        weight: how common it is, likewise.
    """

    counted: tuple[str, ...]
    classes: tuple[Class, ...]
    plain: tuple[bool, ...]
    least: Mapping[str, Small]
    runs: tuple[tuple[int, int], ...]
    whose: Ints
    count: NDArray[np.uint8]
    cpu: Ints
    memory: Ints
    weight: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Typical:
    """A mix in the form that the index takes.

    Attributes:
        number: tells this mix from others that the same index was given before.
        weight: the sum of all weights, those of requests without devices too.
        kinds: by device type.
    """

    number: int
    weight: int
    kinds: Mapping[str, TypicalOf]


NOTHING_TYPICAL: Final = Typical(0, 0, {})


def typical(mix: Mix, number: int) -> Typical:
    """Turn a mix into the form that the index takes."""
    kinds: dict[str, dict[tuple[object, ...], list[tuple[TypicalRequest, DeviceAsk]]]] = {}
    for one in mix.requests:
        if one.ask is not None:
            ask = replace(one.ask, count=1)
            kinds.setdefault(ask.type.name, {}).setdefault((ask, one.models), []).append((one, ask))
    return Typical(number, mix.weight, {kind: _typical_of(list(groups.values())) for kind, groups in kinds.items()})


def _typical_of(groups: Sequence[Sequence[tuple[TypicalRequest, DeviceAsk]]]) -> TypicalOf:
    kind = groups[0][0][1].type
    classes = tuple(Class(_want(ask), _made(ask, one.models)) for (one, ask), *_ in groups)
    figures = [_figures(one.want) for one in classes]
    least = {
        tail: np.array([[[of.get(tail, 0)]] if of is not None else [[0]] for of in figures], np.int16)
        for tail in kind.tails
    }
    requests = [one for group in groups for one, _ in group]
    sizes = [len(group) for group in groups]
    return TypicalOf(
        counted=fullness(kind),
        classes=classes,
        plain=tuple(of is not None for of in figures),
        least={tail: amounts for tail, amounts in least.items() if amounts.any()},
        runs=tuple(pairwise(accumulate(sizes, initial=0))),
        whose=np.repeat(np.arange(len(sizes)), sizes),
        count=np.array([[one.ask.count if one.ask else 0] for one in requests], np.uint8),
        cpu=np.array([[one.cpu] for one in requests], np.int64),
        memory=np.array([[one.memory] for one in requests], np.int64),
        weight=np.array([[one.weight] for one in requests], np.int32),
    )


def _want(ask: DeviceAsk) -> Want:
    """The want of one device. Bytes that follow from a stated ratio are left out: where it suffices, they do."""
    want = want_of(ask)
    if ask.type.memory is None or not ask.amount(ask.type.memory[1]):
        return want
    size = ask.type.memory[0]
    kept = tuple((tail, one) for tail, one in want.amounts if tail != size or not isinstance(one, PartOf))
    return replace(want, amounts=kept)


def _figures(want: Want) -> dict[str, int] | None:
    """What is asked by tail, if nothing but amounts are stated, and these fit into `Small`; None otherwise."""
    figures = {tail: amount for tail, amount in want.amounts if isinstance(amount, int) and amount <= LARGEST_SMALL}
    return figures if len(figures) == len(want.amounts) else None


def _made(ask: DeviceAsk, models: Sequence[str]) -> Made | None:
    """Whether a make is of the ask's vendor, and among all named models where any are named; None if neither is."""
    among = [frozenset(map(model_name, named)) for named in (models, ask.models) if named]
    if not (ask.vendor or among):
        return None

    def made(make: Make) -> bool:
        vendor, model = make
        if ask.vendor and (vendor or NVIDIA) != ask.vendor:
            return False
        return all(model_name(model) in named for named in among)

    return made
