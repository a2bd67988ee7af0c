"""Choosing GPUs on one node for the containers of one Pod.

Every container gets its own distinct cards. A Pod holds on a card the most that its containers use there at any one
moment of its life (Kubernetes' rule for init containers and sidecars), so an init container uses again what the
later ones need anyway. The first choice that fits, in one fixed order of preference, wins; where it leaves a later
container without a place, the next choices are tried, up to a bound.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Final, NamedTuple

from allocator.device import FULL, Device
from allocator.holdings import NodeSnapshot, Share
from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.outcome import Refusal
from allocator.quantity import format_bytes
from allocator.request import ContainerAsk, DeviceAsk, Phase, PodRequest

MAX_TRIALS: Final = 2000  # combinations of cards looked at for one Pod; bounds the search for Pods of many containers


class Amounts(NamedTuple):
    """So much of one card: percent of compute, bytes of memory, percent of memory."""

    core: int
    memory: int
    ratio: int


_NOTHING: Final = Amounts(0, 0, 0)


class Card:
    """A healthy card during one decision: what is free for this Pod, and what the Pod has taken of it so far."""

    __slots__ = ("capacity", "containers", "device", "free", "idle", "peak", "steps")

    def __init__(self, device: Device, free: Amounts, steps: int, *, idle: bool) -> None:
        capacity = device.capacity
        self.device = device
        self.capacity = Amounts(capacity[GPU_CORE], capacity[GPU_MEMORY], capacity[GPU_MEMORY_RATIO])
        self.free = free
        self.idle = idle
        self.peak = _NOTHING
        self.steps = [_NOTHING] * steps
        self.containers: list[str] = []

    def amounts(self, ask: DeviceAsk) -> Amounts:
        """What an ask takes of this card: ratio to bytes rounds down, bytes to ratio rounds up (design, section 3)."""
        if ask.ratio is not None:
            return Amounts(ask.core, self.capacity.memory * ask.ratio // FULL, ask.ratio)
        memory = ask.memory or 0
        return Amounts(ask.core, memory, -(-memory * FULL // self.capacity.memory))

    def peak_with(self, amounts: Amounts, steps: Sequence[int]) -> Amounts:
        """The Pod's peak on this card if it took so much more during these steps."""
        core, memory, ratio = self.peak
        for step in steps:
            at = self.steps[step]
            core = max(core, at.core + amounts.core)
            memory = max(memory, at.memory + amounts.memory)
            ratio = max(ratio, at.ratio + amounts.ratio)
        return Amounts(core, memory, ratio)

    def preference(self, peak: Amounts) -> tuple[bool, bool, int, int, int, str] | None:
        """Order among cards that hold this peak, least first; None where it does not fit.

        What the Pod holds anyway comes first, then cards in use, then what leaves the least memory and compute over:
        whole cards stay whole. Minor and id make it total.
        """
        free = self.free
        if peak.core > free.core or peak.memory > free.memory or peak.ratio > free.ratio:
            return None
        untouched = self.idle and self.peak == _NOTHING
        return (
            peak != self.peak,
            untouched,
            free.memory - peak.memory,
            free.core - peak.core,
            self.device.minor,
            self.device.id,
        )


class _Wish(NamedTuple):
    """A container still to be served: during which steps of the Pod's life it runs, and its place in the Pod."""

    container: ContainerAsk
    steps: tuple[int, ...]
    place: int


def choose_gpus(request: PodRequest, node: NodeSnapshot) -> tuple[Share, ...] | Refusal:
    """Choose cards for each container.

    Returns:
        One share a card, in the order of minors, or why the node cannot hold the Pod.
    """
    wishes, steps = _wishes(request)
    cards = _cards(node, steps)
    trials = iter(range(MAX_TRIALS))
    if not _serve(wishes, cards, trials):
        return _explain(request, node, cards)
    order = {container.name: index for index, container in enumerate(request.containers)}
    return tuple(
        Share(
            TYPE_GPU,
            card.device.id,
            card.device.minor,
            {GPU_CORE: card.peak.core, GPU_MEMORY: card.peak.memory, GPU_MEMORY_RATIO: card.peak.ratio},
            tuple(sorted(card.containers, key=order.__getitem__)),
        )
        for card in cards
        if card.containers
    )


def _wishes(request: PodRequest) -> tuple[list[_Wish], int]:
    """Order the containers, hardest first, and number the steps of the Pod's life: each init container, the rest."""
    last = sum(container.phase is Phase.INIT for container in request.containers)
    wishes = []
    step = 0
    for index, container in enumerate(request.containers):
        if container.phase is Phase.INIT:
            steps: tuple[int, ...] = (step,)
            step += 1
        elif container.phase is Phase.SIDECAR:
            steps = tuple(range(step, last + 1))
        else:
            steps = (last,)
        wishes.append(_Wish(container, steps, index))
    # Init containers come last: they fit into what the others hold.
    wishes.sort(
        key=lambda w: (w.container.phase is Phase.INIT, -w.container.ask.count, *_size(w.container.ask), w.place)
    )
    return wishes, last + 1


def _size(ask: DeviceAsk) -> tuple[int, int, int]:
    return (-ask.core, -(ask.ratio or 0), -(ask.memory or 0))


def _cards(node: NodeSnapshot, steps: int) -> list[Card]:
    cards = []
    used = node.used
    for device in node.devices:
        if device.type != TYPE_GPU or not device.healthy or device.id in node.kubelet_held:
            continue
        held = used.get(device.id)
        capacity = device.capacity
        if held is None:
            free = Amounts(capacity[GPU_CORE], capacity[GPU_MEMORY], capacity[GPU_MEMORY_RATIO])
        else:
            free = Amounts(
                *(max(capacity[tail] - held.get(tail, 0), 0) for tail in (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO))
            )
        cards.append(Card(device, free, steps, idle=held is None))
    return cards


def _serve(wishes: Sequence[_Wish], cards: Sequence[Card], trials: Iterator[int]) -> bool:
    """Give the first wish its cards and the rest theirs; undo and try the next choice where the rest finds no place."""
    if not wishes:
        return True
    wish, rest = wishes[0], wishes[1:]
    ask = wish.container.ask
    options = []
    for card in cards:
        amounts = card.amounts(ask)
        peak = card.peak_with(amounts, wish.steps)
        preference = card.preference(peak)
        if preference is not None:
            options.append((preference, card, amounts, peak))
    if len(options) < ask.count:
        return False
    options.sort(key=lambda option: option[0])
    choices = combinations(options, ask.count) if rest else islice(combinations(options, ask.count), 1)
    for choice in choices:
        if next(trials, None) is None:
            return False
        undo = [(card, card.peak, list(card.steps)) for _, card, _, _ in choice]
        for _, card, amounts, peak in choice:
            _take(card, wish, amounts, peak)
        if _serve(rest, cards, trials):
            return True
        for card, peak, steps in undo:
            card.peak, card.steps = peak, steps
            card.containers.pop()
    return False


def _take(card: Card, wish: _Wish, amounts: Amounts, peak: Amounts) -> None:
    card.peak = peak
    card.containers.append(wish.container.name)
    for step in wish.steps:
        at = card.steps[step]
        card.steps[step] = Amounts(at.core + amounts.core, at.memory + amounts.memory, at.ratio + amounts.ratio)


def _explain(request: PodRequest, node: NodeSnapshot, cards: Sequence[Card]) -> Refusal:
    """Say in a user's words why the node cannot hold the Pod, with the nearest thing that would fit."""
    gpus = [device for device in node.devices if device.type == TYPE_GPU]
    if not gpus:
        return Refusal(f"{node.name}: no GPUs known here (no Device object, or none in it)", permanent=True)
    away = [f"{sum(not d.healthy for d in gpus)} unhealthy"] if any(not d.healthy for d in gpus) else []
    if taken := sum(d.id in node.kubelet_held for d in gpus):
        away.append(f"{taken} held by the kubelet's device plugin")
    less = f" ({', '.join(away)})" if away else ""
    for container in request.containers:
        ask = container.ask
        fitting = sum(1 for card in cards if card.preference(card.amounts(ask)) is not None)
        if fitting >= ask.count:
            continue
        possible = sum(
            1 for card in cards if all(a <= c for a, c in zip(card.amounts(ask), card.capacity, strict=True))
        )
        told = f"{node.name}: container {container.name} asks {describe(ask)}; "
        told += f"{fitting} of {len(gpus)} GPUs{less} can hold it{_nearest(cards)}"
        return Refusal(told, permanent=possible < ask.count and not away)
    together = ", ".join(f"{container.name} {describe(container.ask)}" for container in request.containers)
    return Refusal(
        f"{node.name}: each container fits alone, not all together ({together}); {len(cards)} GPUs usable{less}"
    )


def _nearest(cards: Sequence[Card]) -> str:
    if not cards:
        return ""
    best = max(cards, key=lambda card: (card.free.ratio, card.free.core, -card.device.minor))
    free = best.free
    return (
        f"; the most free is gpu {best.device.minor} with core {free.core} %, "
        f"memory {free.ratio} % ({format_bytes(free.memory)})"
    )


def describe(ask: DeviceAsk) -> str:
    """Write an ask as a person would: `2 x (core 100 %, memory 100 %)`."""
    memory = f"memory {ask.ratio} %" if ask.ratio is not None else f"memory {format_bytes(ask.memory or 0)}"
    core = f"core {ask.core} %, " if ask.core else ""
    return f"{ask.count} x ({core}{memory})"
