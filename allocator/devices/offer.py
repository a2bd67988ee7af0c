"""A device during one decision: what is free for a Pod, and what the Pod's containers take."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from allocator.vocabulary.asks import ContainerAsk, DeviceAsk
from allocator.vocabulary.cardmemory import bytes_of, percent_of
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Function
from allocator.vocabulary.names import Phase

Amounts = tuple[int, ...]  # one for each of the type's tails


class Demand(NamedTuple):
    """A container still to be served, the steps of the Pod's life during which it runs, and its place in the Pod."""

    container: ContainerAsk
    steps: tuple[int, ...]
    place: int


class Offer:
    """A usable device during one decision: what is free for this Pod, and what the Pod has taken so far.

    `held`: what other Pods hold of it; None if they hold nothing. `steps`: what the Pod takes of it in each step of the
    Pod's life; nothing yet.
    """

    __slots__ = ("capacity", "containers", "device", "free", "function", "idle", "peak", "steps")

    def __init__(
        self,
        device: Device,
        held: Mapping[str, int] | None,
        capacity: Amounts,
        free: Amounts,
        steps: tuple[Amounts, ...],
    ) -> None:
        self.device = device
        self.capacity = capacity
        self.free = free
        self.idle = held is None
        self.peak = steps[0]  # nothing
        self.steps = steps
        self.containers: tuple[str, ...] = ()
        self.function: Function | None = None

    def comes_with(self, function: Function) -> None:
        """Attach the virtual function that comes with the device."""
        self.function = function

    def hold(self, containers: tuple[str, ...], peak: Amounts) -> None:
        """Give the device to one more container or group; `peak` is the most that the Pod then holds of it."""
        self.peak = peak
        self.containers += containers

    def peak_with(self, amounts: Amounts, steps: Sequence[int]) -> Amounts:
        """The Pod's peak on this device if it took these amounts in addition during these steps."""
        if not self.containers:
            return amounts
        peak = self.peak
        for step in steps:
            now = (at + more for at, more in zip(self.steps[step], amounts, strict=True))
            peak = tuple([max(known, new) for known, new in zip(peak, now, strict=True)])
        return peak

    def serve(self, containers: tuple[str, ...], amounts: Amounts, peak: Amounts, steps: Sequence[int]) -> None:
        """Do as `hold` does, and record the amounts by step, so that later containers see what is left."""
        self.hold(containers, peak)
        self.steps = tuple(
            [
                tuple([at + more for at, more in zip(taken, amounts, strict=True)]) if step in steps else taken
                for step, taken in enumerate(self.steps)
            ]
        )


def completed(ask: DeviceAsk, capacity: Amounts) -> Amounts:
    """The amounts that an ask takes of a device; an unstated memory amount follows from the stated one.

    It takes all of every other resource whose amount was not stated.
    """
    kind = ask.type
    if None not in ask.amounts:
        return ask.amounts  # type: ignore[return-value] # none of them is None
    stated = list(ask.amounts)
    if kind.memory is not None:
        size, ratio = kind.tails.index(kind.memory[0]), kind.tails.index(kind.memory[1])
        memory = stated[size]
        if memory is None:
            stated[size] = bytes_of(stated[ratio] or 0, capacity[size])
        elif stated[ratio] is None:
            stated[ratio] = percent_of(memory, capacity[size])
    return tuple([has if amount is None else amount for amount, has in zip(stated, capacity, strict=True)])


def demands_of(containers: Sequence[ContainerAsk]) -> tuple[list[Demand], int]:
    """Order the containers, hardest first, and number the steps of the Pod's life: each init container, the rest."""
    if len(containers) == 1:
        return [Demand(containers[0], (0,), 0)], 1
    last = sum(container.phase is Phase.INIT for container in containers)
    demands = []
    step = 0
    for index, container in enumerate(containers):
        if container.phase is Phase.INIT:
            steps: tuple[int, ...] = (step,)
            step += 1
        elif container.phase is Phase.SIDECAR:
            steps = tuple(range(step, last + 1))
        else:
            steps = (last,)
        demands.append(Demand(container, steps, index))
    # Init containers come last: they fit into what the others hold.
    demands.sort(
        key=lambda w: (w.container.phase is Phase.INIT, -w.container.ask.count, _size(w.container.ask), w.place)
    )
    return demands, last + 1


def _size(ask: DeviceAsk) -> list[int]:
    return [-(amount or 0) for amount in ask.amounts]
