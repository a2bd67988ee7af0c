"""The mix: which requests are typical of a cluster, and how common each is.

FGD (docs/develop/architecture.md) measures by it how much of the free devices is of no use: the popularity of requests
that the paper draws from a trace. CPU counts in thousandths and memory in bytes, both for a whole Pod, as
kube-scheduler counts.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from allocator.vocabulary.asks import DeviceAsk

MAX_TYPICAL: Final = 64  # requests of a mix for one type of devices; the others count as not made
MAX_WEIGHT: Final = 2**20  # of all requests of a mix together, so that no sum leaves int64
MAX_COUNT: Final = 128  # devices of one request; no node has more
MAX_MODELS: Final = 32  # that one request names


class MixError(ValueError):
    """A typical request or its weight is out of bounds; the message says which and what is right."""


@dataclass(frozen=True, slots=True)
class TypicalRequest:
    """One typical Pod: what it asks of a node, and how often such a Pod comes beside the others of the mix.

    Raises MixError: a figure is out of bounds.
    """

    cpu: int  # thousandths of a CPU that the Pod requests in sum
    memory: int  # bytes that the Pod requests in sum; not those of devices
    # the devices, of one type: their number, and the same amounts of each. None for a Pod without devices.
    ask: DeviceAsk | None = None
    models: tuple[str, ...] = ()  # the models that the devices may have, sorted; empty: any
    weight: int = 1  # how common it is, from 1; only its ratio to the others' counts

    def __post_init__(self) -> None:
        if self.cpu < 0 or self.memory < 0:
            raise MixError(f"a typical request of {self.cpu} thousandths of a CPU and {self.memory} bytes: from 0")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise MixError(f"the weight {self.weight} of a typical request: from 1 to {MAX_WEIGHT}")
        if self.ask is not None and not 0 < self.ask.count <= MAX_COUNT:
            raise MixError(f"a typical request of {self.ask.count} devices: from 1 to {MAX_COUNT}")
        if len(self.models) > MAX_MODELS or tuple(sorted(set(self.models))) != self.models:
            raise MixError(f"a typical request names {len(self.models)} models: each once, at most {MAX_MODELS}")
        if self.models and self.ask is None:
            raise MixError("a typical request without devices names models; leave them out")

    @property
    def order(self) -> tuple[object, ...]:
        """What it asks, as a stable order that depends on its values alone."""
        ask = self.ask
        if ask is None:
            return ("", self.cpu, self.memory)
        # An amount that follows from another comes before all stated ones.
        amounts = tuple([-1 if amount is None else amount for amount in ask.amounts])
        return (ask.type.name, ask.count, amounts, ask.template, ask.vendor, self.models, self.cpu, self.memory)


@dataclass(frozen=True)
class Mix:
    """Typical requests: each once, in the order of `TypicalRequest.order`; made by `mix_of`."""

    # at most `MAX_TYPICAL` for each type of devices; none if nothing is known
    requests: tuple[TypicalRequest, ...] = field(default=())

    @cached_property
    def weight(self) -> int:
        """The sum of all weights, at most `MAX_WEIGHT`; 0 if nothing is known."""
        return sum(one.weight for one in self.requests)

    def __bool__(self) -> bool:
        """Return whether anything is known."""
        return bool(self.requests)


NO_MIX: Final = Mix()


def weighing(one: TypicalRequest, weight: int) -> TypicalRequest:
    """The same request with another weight."""
    return replace(one, weight=weight)


def mix_of(requests: Iterable[TypicalRequest]) -> Mix:
    """Make a mix: the weights of equal requests are added, and the commonest requests for each type are kept.

    Requests for one type therefore push out none for another. Of equally common ones, those are kept that come first by
    what they ask. The order in which they are given does not matter. If the weights exceed `MAX_WEIGHT` together, all
    are divided by one power of two, rounded down; what is left with 0 is dropped.
    """
    weights: Counter[TypicalRequest] = Counter()
    for one in requests:
        weights[replace(one, weight=1)] += one.weight
    by_type: dict[str, list[TypicalRequest]] = {}
    for one in sorted(weights, key=lambda one: (-weights[one], one.order)):
        by_type.setdefault(one.ask.type.name if one.ask is not None else "", []).append(one)
    commonest = [one for of_type in by_type.values() for one in of_type[:MAX_TYPICAL]]
    total = sum(weights[one] for one in commonest)
    shift = ((total - 1) // MAX_WEIGHT).bit_length()
    kept = [replace(one, weight=weights[one] >> shift) for one in commonest if weights[one] >> shift]
    return Mix(tuple(sorted(kept, key=lambda one: one.order)))
