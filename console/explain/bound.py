"""Why a bound Pod is where it is: the same decision once more, on the cluster as it is now without the Pod."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.index.search import NodeFigures
from allocator.place import Placement, opened
from allocator.reasons import CardReason, card_reasons
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from console.explain.reading import mapping
from console.explain.scene import Scene
from webhook.view.podinfo import annotated_holding, read_pod_info

_REASONS: Final = ("DevicesAllocated",)


@dataclass(frozen=True, slots=True)
class Rival:
    """One node in the order in which koordgate would offer it to the Pod now."""

    name: str
    level: int  # how many levels of nodes are better; 0 for the best
    parts: NodeFigures  # the figures of the comparison


@dataclass(frozen=True, slots=True)
class TypeLeft:
    """The devices of one type on the Pod's node."""

    type: str  # their type
    total: int  # how many there are
    idle_before: int  # how many are usable and idle without the Pod
    idle_after: int  # how many of these the Pod left idle


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Why a bound Pod is where it is."""

    node: str
    holding: Holding | None  # what it holds there; None if that is not known
    order: Sequence[Rival]  # nodes that could hold it now, the best first
    own: Rival | None  # its node among them; None if the node could not hold it now
    why_not: str  # why not
    placed: Placement | None  # what `place()` would choose on its node now; None if nothing
    opened: tuple[int, int]  # idle devices, and PCIe roots without a device in use, that it took into use
    beside: Mapping[str, Sequence[str]]  # by id of a device that it holds, the other holders of the device
    left: Sequence[TypeLeft]  # what it left whole
    cards: Sequence[CardReason]  # the other devices of its types, as they are without the Pod
    recorded: Sequence[str]  # what was recorded when it was bound, a sentence each

    @property
    def shares(self) -> Sequence[Share]:
        """The shares of devices that it holds."""
        return self.holding.shares if self.holding is not None else ()

    @property
    def same(self) -> bool:
        """Whether `place()` would choose the same devices and CPUs now."""
        if self.placed is None or self.holding is None:
            return False
        ids = {share.id for share in self.holding.shares}
        cpus = (one.cpus.cpus if one.cpus is not None else 0 for one in (self.placed, self.holding))
        return ids == {share.id for share in self.placed.shares} and len(set(cpus)) == 1


def standing(scene: Scene) -> Whereabouts | None:
    """Explain where a bound Pod is; None for one that asks for nothing that koordgate gives."""
    info, node = scene.info, str(scene.given["spec"]["nodeName"])
    given = read_pod_info(scene.given, types=scene.types)
    if info is None or not info.request or given is None:
        return None
    ranking, view = scene.ranking, scene.seen.view
    without = ranking.snapshot(node)
    holding = annotated_holding(view.compared(given), without.devices, 0, without.own_cpus)
    names = sorted(view.nodes.known())
    levels = ranking.standing(info, names)
    parts = ranking.parts(info, names)
    order = sorted((Rival(name, level, parts[name]) for name, level in levels.items()), key=_place)
    verdict = ranking.verdict(node, ranking.wanted(info), info.uid)
    shares = holding.shares if holding is not None else ()
    return Whereabouts(
        node=node,
        holding=holding,
        order=order,
        own=next((one for one in order if one.name == node), None),
        why_not="" if isinstance(verdict, Placement) else verdict.message.removeprefix(f"{node}: "),
        placed=verdict if isinstance(verdict, Placement) else None,
        opened=opened(shares, without, info.request.wishes.order),
        beside={share.id: _holders(without, share.id) for share in shares},
        left=_left(without, shares),
        cards=card_reasons(info.request, without),
        recorded=_recorded(scene),
    )


def _place(one: Rival) -> tuple[int, str]:
    return one.level, one.name


def _holders(node: NodeSnapshot, device: str) -> list[str]:
    return sorted(
        f"{one.namespace}/{one.name}"
        for one in itertools.chain[Holding | ForeignHolding](node.given(), node.foreign.values())
        if any(share.id == device for share in one.shares)
    )


def _left(node: NodeSnapshot, shares: Sequence[Share]) -> list[TypeLeft]:
    taken = {share.id for share in shares}
    found = []
    for kind in dict.fromkeys(share.type for share in shares):
        there = [one for one in node.devices if one.type == kind]
        idle = [one.id for one in there if node.is_usable(one) and one.id not in node.used]
        found.append(TypeLeft(kind, len(there), len(idle), len([one for one in idle if one not in taken])))
    return found


def _recorded(scene: Scene) -> list[str]:
    """What koordgate said when it bound the Pod, in the order of time."""
    uid = scene.given["metadata"].get("uid")
    about = [
        event
        for event in scene.others.get("Event", ())
        if event.get("reason") in _REASONS and mapping(event.get("involvedObject")).get("uid") == uid
    ]
    about.sort(key=lambda event: str(event.get("lastTimestamp") or ""))
    return [f"{event.get('lastTimestamp') or 'time unknown'}: {event.get('message')}" for event in about]
