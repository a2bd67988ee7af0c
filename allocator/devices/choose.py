"""Choosing devices on one node for the containers of one Pod: of one type, or of several that belong together.

Each container gets distinct devices of its own. On each device a Pod holds the most that its containers use there at
any moment of its life (Kubernetes' rule for init containers and sidecars), so an init container reuses what the later
containers need anyway. The first choice that fits, in one fixed order of preference, wins. If it leaves a later
container without devices, the next choices are tried, up to a bound.

For types that belong together (Koordinator's joint allocation), a container's devices of the first type are chosen
first, then the devices of the other types beside them, then the next container's. If nothing is left beside one
choice, the next choice is tried.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from allocator.devices.explain import explain
from allocator.devices.offer import Wish
from allocator.devices.options import Option
from allocator.devices.search import Objection, TypeSearch
from allocator.devices.terms import terms_of
from allocator.devices.together import FollowingSearch, LeadingSearch
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

_MAX_TRIALS: Final = 2000  # sets of devices tried for one Pod; bounds the search for Pods of many containers


def choose_devices(
    kind: DeviceType,
    request: PodRequest,
    node: NodeSnapshot,
    numa: frozenset[int] | None = None,
    only: Holding | None = None,
) -> tuple[Share, ...] | Refusal:
    """Choose devices of one type for each container that asks for some.

    Args:
        kind: the type.
        request: of the Pod.
        node: its current state.
        numa: NUMA nodes to stay inside; None for all.
        only: as for `allocator.place.place`.

    Returns:
        One share per device, in the order of minors, or why the node cannot hold the Pod.
    """
    search = TypeSearch(terms_of(kind, request, node, numa, only))
    objections = _serve([_Turn(search, wish) for wish in search.wishes], iter(range(_MAX_TRIALS)))
    return search.shares() if objections is None else explain([search], objections)


def choose_together(
    kinds: Sequence[DeviceType],
    request: PodRequest,
    node: NodeSnapshot,
    numa: frozenset[int] | None = None,
    only: Holding | None = None,
    *,
    same_root: bool = False,
) -> tuple[Share, ...] | Refusal:
    """Choose devices of types that belong together, container by container.

    A container's devices of the first type come first, and the devices of the other types beside them. A container
    that requests none of the first type gets the others beside all devices of that type that the Pod has.

    Args:
        kinds: two or more, each requested.
        request: of the Pod.
        node: its current state.
        numa: NUMA nodes to stay inside; None for all.
        only: as for `allocator.place.place`.
        same_root: the devices of a container must be on the same PCIe roots (requiredScope SamePCIe).

    Returns:
        As `choose_devices` does, type by type.
    """
    lead = LeadingSearch(terms_of(kinds[0], request, node, numa, only), same_root=same_root)
    others = [
        FollowingSearch(terms_of(kind, request, node, numa, only), lead, same_root=same_root) for kind in kinds[1:]
    ]
    lead.followers.extend(others)
    turns = []
    served = set()
    for wish in lead.wishes:
        name = wish.container.name
        served.add(name)
        turns.append(_Turn(lead, wish))
        turns += [_Turn(of, other) for of in others for other in of.wishes if other.container.name == name]
    turns += [_Turn(of, other) for of in others for other in of.wishes if other.container.name not in served]
    objections = _serve(turns, iter(range(_MAX_TRIALS)))
    if objections is not None:
        return explain([lead, *others], objections)
    return tuple(chain.from_iterable(search.shares() for search in (lead, *others)))


class _Turn(NamedTuple):
    """A wish and the search that serves it."""

    search: TypeSearch
    wish: Wish


def _serve(turns: Sequence[_Turn], trials: Iterator[int], at: int = 0) -> dict[str, str] | None:
    """Serve the next wish and then the rest; if the rest cannot be served, undo it and try the next set.

    Returns:
        None if all are served; otherwise the first objection to a set, by type.
    """
    search, wish = turns[at]
    options = search.open_to(wish)
    count = search.count(wish.container.ask)
    objections: dict[str, str] = {}
    last = at + 1 == len(turns)
    if len(options) < count or (last and next(trials, None) is None):
        return objections
    for chosen in search.sets(wish, options, count):
        if isinstance(chosen, Objection):
            objections.setdefault(chosen.type, chosen.why)
            continue
        if last:
            for option in chosen:
                option.offer.hold(wish.container.name, option.peak)
            return None
        if next(trials, None) is None:
            break
        rest = _serve_after(chosen, turns, trials, at)
        if rest is None:
            return None
        objections = {**rest, **objections}
    return objections


def _serve_after(
    chosen: Sequence[Option], turns: Sequence[_Turn], trials: Iterator[int], at: int
) -> dict[str, str] | None:
    """Serve a wish with this set and then the later wishes; undo it if that fails. Returns as `_serve` does."""
    wish = turns[at].wish
    undo = [(of, of.peak, of.steps, of.containers) for of in (option.offer for option in chosen)]
    for option in chosen:
        option.offer.serve(wish.container.name, option.amounts, option.peak, wish.steps)
    objections = _serve(turns, trials, at + 1)
    if objections is not None:
        for offer, peak, steps, containers in undo:
            offer.peak, offer.steps, offer.containers = peak, steps, containers
    return objections
