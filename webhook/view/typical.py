"""The mix that is learned: which requests are typical of the Pods that hold devices now.

It depends on nothing but these Pods: on no time, and not on the order in which they came. Replicas that saw the same
Pods have the same mix, and one that starts has it as soon as it has listed them. A Pod counts while it is bound and has
not finished, so that nobody changes the mix without holding devices: Pods that wait could be made for nothing.

A Pod has the weight of the devices that it holds, in percent, and at most that of a quarter of a device: a card counts
as four Pods at most, however small the shares are that its Pods hold. Each type of devices is counted by itself, so
that many Pods with NICs alone make no request for GPUs rare. Pods without devices are left out. To each of them all
devices are useless wherever others go, so they would weigh on all nodes alike and change no order.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from allocator.budget import Steps
from allocator.request.typical import typical_of
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.mix import NO_MIX, Mix, TypicalRequest, mix_of, weighing
from koordgate.breaks import at_once
from webhook.view.podinfo import PodInfo

MAX_PERCENT: Final = 25
"""The weight of a Pod that holds a quarter of a device or more."""
STEPS: Final = 10
"""The sum of the weights for a type is below 2^10: rarer requests count as not made, so that few are looked at."""
_DIGITS: Final = 3


class SeenMix:
    """Counts the Pods that hold devices by what is typical of them."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[TypicalRequest, int]] = {}  # UID -> what counts of a Pod, and its weight
        self._kinds: dict[str, _SeenOfType] = {}  # device type -> the requests for it
        self._mix: Mix | None = NO_MIX

    def move(self, known: PodInfo | None, pod: PodInfo | None) -> None:
        """Take in what a Pod is now, in place of what it was before; None where it is not there."""
        if known is not None and (gone := self._of.pop(known.uid, None)) is not None:
            self._add(gone[0], -gone[1])
        if pod is not None and (counted := _counted(pod)) is not None:
            self._of[pod.uid] = counted
            self._add(*counted)

    def _add(self, one: TypicalRequest, weight: int) -> None:
        kind = one.ask.type.name if one.ask is not None else ""
        if self._kinds.setdefault(kind, _SeenOfType()).add(one, weight):
            self._mix = None
        if not self._kinds[kind].sums:
            del self._kinds[kind]

    def now(self) -> Mix:
        """The mix of the Pods that hold devices now; the same object while it is the same."""
        if self._mix is None:
            weights = [each for kind in self._kinds.values() for each in kind.weights.items()]
            self._mix = mix_of(weighing(one, weight) for one, weight in weights)
        return self._mix

    def check_invariants(self, pods: Iterable[PodInfo]) -> None:
        """Compare the mix with one that is counted from scratch.

        Raises InvariantError: they disagree.
        """
        fresh = learned(pods)
        sums = Counter[TypicalRequest]()
        for one, weight in self._of.values():
            sums[one] += weight
        counted = {one: total for kind in self._kinds.values() for one, total in kind.sums.items()}
        if sums != counted or fresh != self.now():
            raise InvariantError(f"the mix is {self.now()}, not {fresh}")


class _SeenOfType:
    """The requests for one type of devices."""

    def __init__(self) -> None:
        self.sums: dict[TypicalRequest, int] = {}  # the weights of all Pods that ask so
        # of the mix, which are scaled and rounded; those of requests that are not too rare
        self.weights: dict[TypicalRequest, int] = {}
        self._total = 0
        self._shift = 0

    def add(self, one: TypicalRequest, weight: int) -> bool:
        """Add to the weight of a request; whether the weights of the mix changed."""
        total = self.sums.pop(one, 0) + weight
        if total:
            self.sums[one] = total
        self._total += weight
        shift = _shift(self._total)
        if shift != self._shift:
            self._shift = shift
            weights = {each: _coarse(of, shift) for each, of in self.sums.items()}
            self.weights = {each: of for each, of in weights.items() if of}
            return True
        now = _coarse(total, shift)
        if now == self.weights.get(one, 0):
            return False
        if now:
            self.weights[one] = now
        else:
            del self.weights[one]
        return True


def learned(pods: Iterable[PodInfo]) -> Mix:
    """The mix of these Pods, counted from scratch and at once."""
    return at_once(seen_in(pods))


def seen_in(pods: Iterable[PodInfo]) -> Steps[Mix]:
    """The mix of these Pods, counted from scratch; yields after each Pod."""
    seen = SeenMix()
    for pod in pods:
        seen.move(None, pod)
        yield 0
    return seen.now()


def _shift(total: int) -> int:
    return max(total.bit_length() - STEPS, 0)


def _coarse(weight: int, shift: int) -> int:
    """A weight in few different values, so that the mix, and with it the figures of all nodes, seldom changes."""
    kept = weight >> shift
    drop = max(kept.bit_length() - _DIGITS, 0)
    return kept >> drop << drop


def _counted(pod: PodInfo) -> tuple[TypicalRequest, int] | None:
    """What counts of a Pod, and its weight; None where it holds no devices, or its request cannot be read."""
    if not pod.node or pod.finished or not pod.shares:
        return None
    one = typical_of(pod.request, pod.requests, pod.models)
    if one is None or one.ask is None:
        return None
    kind = one.ask.type
    percents = [tail for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent]
    held = sum(
        max((share.amounts.get(tail, 0) for tail in percents), default=0) or FULL
        for share in pod.shares
        if share.type == kind.name
    )
    return (one, min(max(held, 1), MAX_PERCENT)) if held else None
