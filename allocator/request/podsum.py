"""What Koordinator's own scheduler makes of a Pod's GPU requests: it reads their sum, and no container's share.

Every card of the Pod gets the same part of the sum (Koordinator, pkg/scheduler/plugins/deviceshare). A Pod whose
containers ask for unequal parts would be refused on every node, there or in the bind.
"""

from collections.abc import Iterable
from typing import Final

from allocator.request.cpuamounts import peak
from allocator.request.devices import ContainerReading
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.outcome import Problem

_CURE: Final = "ask for the same of each card in every container, or give the containers Pods of their own"
_Ask = tuple[ContainerReading, DeviceAsk]


def unequal_parts(containers: Iterable[ContainerReading]) -> list[Problem]:
    """Find the first container whose part of a card is not what Koordinator's scheduler would give it."""
    found: list[_Ask] = [(one, ask) for one in containers for ask in one.requests if ask.type.states_memory]
    for kind in dict.fromkeys(ask.type for _, ask in found):
        asks = [(one, ask) for one, ask in found if ask.type == kind]
        problem = _two_units(kind, asks) or _too_large(kind, asks)
        if problem is not None:
            return [problem]
    return []


def _two_units(kind: DeviceType, asks: list[_Ask]) -> Problem | None:
    """Find memory that one container states in bytes and another in percent."""
    if kind.memory is None:
        return None
    size, ratio = kind.memory
    of_bytes, of_ratio = ([one for one, ask in asks if ask.amount(tail) is not None] for tail in (size, ratio))
    if not (of_bytes and of_ratio):
        return None
    return Problem(
        f"{of_bytes[0].path}.resources",
        f"{size} here and {ratio} in {of_ratio[0].path}: Koordinator's scheduler takes one of them for the whole Pod; "
        "write the same one in every container",
    )


def _too_large(kind: DeviceType, asks: list[_Ask]) -> Problem | None:
    """Find a container that asks for more of a card than an equal part of the Pod's sum."""
    cards = peak((one.phase, ask.count) for one, ask in asks)
    for at, tail in enumerate(kind.tails):
        total = peak((one.phase, (ask.amounts[at] or 0) * ask.count) for one, ask in asks)
        for one, ask in asks:
            own = ask.amounts[at] or 0
            if own * cards > total:
                return Problem(
                    f"{one.path}.resources",
                    f"{tail} {own} of a card, but Koordinator's scheduler gives each of the Pod's {cards} cards the "
                    f"same part of the Pod's {tail} {total}; {_CURE}",
                )
    return None
