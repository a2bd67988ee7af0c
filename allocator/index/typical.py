"""A mix in the form that the index takes: for each device type, its requests as arrays, their devices as wants."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocator.index.query import FULL, MAX_AMOUNT, PartOf, Want
from allocator.index.rows import want_of
from allocator.index.table import MAX_SLOTS, Bools, Ints, Make
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.mix import Mix, TypicalRequest
from allocator.vocabulary.models import model_name
from allocator.vocabulary.names import NVIDIA
from allocator.vocabulary.node import fullness

Small = NDArray[np.signedinteger[Any]]

LARGEST_SMALL: Final = np.iinfo(np.int16).max
FEW: Final = 64  # nodes for which the number of operations counts more than their length
_MOST_POINTS: Final = MAX_SLOTS * FULL  # that one class of a node's devices has


def narrowest(most: int) -> type[np.signedinteger[Any]]:
    """The narrowest type of integers that holds a figure: the narrower, the more are computed at once."""
    if most <= LARGEST_SMALL:
        return np.int16
    return np.int32 if most <= np.iinfo(np.int32).max else np.int64


@dataclass(frozen=True, slots=True)
class Made:
    """The makes of which a device must be."""

    vendor: str  # of the device; "" for any
    among: frozenset[frozenset[str]]  # sets of models; it is in all of them

    def __call__(self, make: Make) -> bool:
        """Whether a make is one of these."""
        vendor, model = make
        if self.vendor and (vendor or NVIDIA) != self.vendor:
            return False
        return all(model_name(model) in named for named in self.among)


class Class(NamedTuple):
    """Devices that some typical requests ask for."""

    want: Want  # one of them
    made: Made | None  # which makes serve; None for all


@dataclass(frozen=True, slots=True)
class TypicalOf:
    """The typical requests for devices of one type, those with equal devices together."""

    counted: tuple[str, ...]  # the classes of a device whose percent count as points
    pair: tuple[str, str] | None  # the classes that state a device's memory in bytes and in percent; None for none
    points: type[np.signedinteger[Any]]  # the type of numbers that holds the points of a node
    total: int  # the sum of the weights of these requests and of those without devices
    measured: type[np.signedinteger[Any]]  # the type of numbers that holds the points of a node times this sum
    classes: tuple[Class, ...]  # the different devices that are asked for; D of them
    plain: tuple[bool, ...]  # which of these state nothing but amounts that fit into `Small`
    # tail -> the amounts of the plain ones, D x 1 x 1; 0 where it is not asked, and for those not plain
    least: Mapping[str, NDArray[np.int16]]
    starts: tuple[int, ...]  # of the requests of each class, the first
    whose: Ints  # the class of each request
    count: NDArray[np.uint8]  # devices that each request asks for, requests x 1
    cpu: "Levels"  # thousandths of a CPU, of all requests
    memory: "Levels"  # bytes, not those of devices, of all requests
    weight: Small  # how common each request is, requests x 1; the array's type holds the sum

    def enough(self, counts: NDArray[np.uint8]) -> Bools:
        """Whether each request finds enough devices, requests x nodes, by how many each class finds."""
        return counts[self.whose] >= self.count

    def by_class(self, fits: Bools) -> Small:
        """The weights of the requests of each class that fit, classes x nodes."""
        weights = fits * self.weight
        if weights.shape[1] <= FEW:
            few: Small = np.add.reduceat(weights, self.starts, axis=0, dtype=weights.dtype)
            return few
        many = np.empty((len(self.starts), weights.shape[1]), weights.dtype)
        for at, (start, end) in enumerate(pairwise((*self.starts, len(weights)))):
            np.add.reduce(weights[start:end], axis=0, out=many[at])  # many times as quick as by `reduceat`
        return many


class Levels(NamedTuple):
    """Amounts of few different values, numbered, so that many nodes are compared with them at once."""

    values: Ints  # the different amounts, the least first
    each: NDArray[np.uint8]  # for each request how many values are at most its own, requests x 1

    def suffices(self, left: Ints) -> Bools:
        """Whether these amounts suffice for each request, requests x nodes."""
        return np.searchsorted(self.values, left, side="right").astype(np.uint8) >= self.each


@dataclass(frozen=True, slots=True)
class Typical:
    """A mix in the form that the index takes."""

    number: int  # distinguishes this mix from others that the same index was given before
    kinds: Mapping[str, TypicalOf]  # by device type


NOTHING_TYPICAL: Final = Typical(0, {})


def typical(mix: Mix, number: int) -> Typical:
    """Turn a mix into the form that the index takes."""
    kinds: dict[str, dict[tuple[object, ...], list[tuple[TypicalRequest, DeviceAsk]]]] = {}
    for one in mix.requests:
        if one.ask is not None:
            each = replace(one.ask, count=1)
            kinds.setdefault(each.type.name, {}).setdefault((each, one.models), []).append((one, one.ask))
    bare = sum(one.weight for one in mix.requests if one.ask is None)
    return Typical(number, {kind: _typical_of(list(groups.values()), bare) for kind, groups in kinds.items()})


def _typical_of(groups: Sequence[Sequence[tuple[TypicalRequest, DeviceAsk]]], bare: int) -> TypicalOf:
    kind = groups[0][0][1].type
    counted = fullness(kind)
    points = _MOST_POINTS * len(counted)
    classes = tuple(Class(_want(replace(ask, count=1)), _made(ask, one.models)) for (one, ask), *_ in groups)
    figures = [_figures(one.want) for one in classes]
    least = {
        tail: np.array([[[of.get(tail, 0)]] if of is not None else [[0]] for of in figures], np.int16)
        for tail in kind.tails
    }
    requests = [one for group in groups for one, _ in group]
    sizes = [len(group) for group in groups]
    weight = sum(one.weight for one in requests)
    return TypicalOf(
        counted=counted,
        pair=kind.memory,
        points=narrowest(points),
        total=weight + bare,
        measured=narrowest(points * (weight + bare)),
        classes=classes,
        plain=tuple(of is not None for of in figures),
        least={tail: amounts for tail, amounts in least.items() if amounts.any()},
        starts=tuple(accumulate(sizes[:-1], initial=0)),
        whose=np.repeat(np.arange(len(sizes)), sizes),
        count=np.array([[ask.count] for group in groups for _, ask in group], np.uint8),
        cpu=_levels(one.cpu for one in requests),
        memory=_levels(one.memory for one in requests),
        weight=np.array([[one.weight] for one in requests], narrowest(weight)),
    )


def _levels(asked: Iterable[int]) -> Levels:
    """Number amounts. One that no node could state counts as the most, which only a node that states nothing has."""
    amounts = [min(amount, MAX_AMOUNT) for amount in asked]
    values = sorted({*amounts})
    return Levels(np.array(values, np.int64), np.array([[values.index(one) + 1] for one in amounts], np.uint8))


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
    """Which makes are of the ask's vendor, and among all named models where any are named; None: all are."""
    among = frozenset(frozenset(map(model_name, named)) for named in (models, ask.models) if named)
    return Made(ask.vendor, among) if ask.vendor or among else None
