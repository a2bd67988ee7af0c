"""The Kubernetes Events of a round (pure): one per change."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allocator.vocabulary.delivery import Keeping
from reporter.gpu.health import NOTHING_KNOWN, CardState, NodeRecord
from reporter.pods import NodeIdentity
from reporter.proof.agree import MEMORY, UNSHOWN, Agreement, CardClaim
from reporter.proof.memory import Judged, exceeded_message, missing_message
from reporter.publish import device
from reporter.publish.events import Occurrence, about_node, about_pod
from reporter.reading import GpuView, HostReading

_MISSING: Final = "LimitMissing"
_EXCEEDED: Final = "ShareExceeded"
_Key = tuple[str, str, str]  # of a Pod's container and a card, as `Judged.key`


@dataclass(frozen=True, slots=True)
class EventMemory:
    """What Events were already written about, so that none is written twice."""

    health: NodeRecord = NOTHING_KNOWN  # the cards' record as last reported
    # the Device object as last reported; at the start, the one in the cluster ({} if there is none). None until that is
    # known: a restart must not repeat Events.
    device: Mapping[str, Any] | None = None
    # what was so in the last round: UID, reason and message of each Event
    standing: frozenset[tuple[str, str, str]] = frozenset()
    # the containers and cards without their memory limit, with the proof in which that was first seen
    missing: Mapping[_Key, int] = field(default_factory=dict)
    # what Events were written about of containers' memory: the reason, and the container and card
    memory: frozenset[tuple[str, _Key]] = frozenset()


def occurrences(
    node: NodeIdentity,
    reported: EventMemory,
    host: HostReading,
    cards: GpuView,
    body: Mapping[str, Any],
    agreements: Iterable[Agreement],
    unread: Iterable[Occurrence] = (),
) -> tuple[EventMemory, tuple[Occurrence, ...]]:
    """Find the Events of a round.

    `unread`: events of Pods whose annotations cannot be read, or that name cards which nobody gave them.
    """
    found = health_events(node, reported.health, cards.node, reported.device, body)
    standing: dict[tuple[str, str, str], Occurrence] = {}
    if (outage := outage_event(node, cards, host)) is not None:
        standing[node.uid, outage.reason, ""] = outage  # its message may change while it lasts
    of_files = []
    for problem in host.problems:
        reason = "PodResourcesUnusable" if problem == host.pod_resources.problem else "KubeletFileUnusable"
        of_files.append(Occurrence(about_node(node), reason, problem))
    for one in (*mismatch_events(agreements), *of_files, *unread):
        standing[one.about["uid"], one.reason, one.message] = one
    found += [one for key, one in standing.items() if key not in reported.standing]
    after = replace(
        reported, health=cards.node, device=body if reported.device is not None else None, standing=frozenset(standing)
    )
    return after, tuple(found)


def health_events(
    node: NodeIdentity,
    before: NodeRecord,
    after: NodeRecord,
    reported: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
) -> list[Occurrence]:
    """List cards with a changed state or further errors, and other devices with changed health."""
    found = [] if reported is None or now is None else _device_events(node, reported, now)
    for uuid, card in sorted(after.cards.items()):
        health = card.health
        known = before.cards.get(uuid)
        was = known.health if known is not None else None
        if was is None and health.state is CardState.HEALTHY:
            continue
        further = health.count - (was.count if was is not None else 0)
        if was is not None and was.state is health.state and further <= 0:
            continue
        cause = health.cause
        if health.state in {CardState.HEALTHY, CardState.RECOVERING} or cause is None:
            message = f"card {uuid} is {health.state.value}"
            found.append(Occurrence(about_node(node), f"Gpu{health.state.value.capitalize()}", message, "Normal"))
        else:
            message = f"card {uuid} is {health.state.value}: {cause.message}"
            found.append(Occurrence(about_node(node), cause.reason, message, count=max(further, 1)))
    return found


def _device_events(node: NodeIdentity, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Occurrence]:
    """List devices other than cards that became unusable, have another reason, became usable again, or are gone.

    As with cards, a cordon causes no Event. A device may fail or recover while it is cordoned; the Event about its
    state is written after the cordon.
    """
    found = []
    before, after = device.others(was), device.others(now)
    for identity, one in sorted(after.items()):
        known = before.get(identity)
        about = f"device {identity} ({one.type}) is"
        if one.healthy:
            if was and (known is None or not known.healthy):  # a device that appears may have been gone before
                found.append(Occurrence(about_node(node), "DeviceHealthy", f"{about} healthy", "Normal"))
        elif one.reason != device.SET_ASIDE and (known is None or known.healthy or known.reason != one.reason):
            found.append(Occurrence(about_node(node), one.reason, f"{about} unusable: {one.message}"))
    for identity, one in sorted(before.items()):
        if identity not in after:
            message = f"device {identity} ({one.type}) is gone"
            found.append(Occurrence(about_node(node), "DeviceGone", message))
    return found


def outage_event(node: NodeIdentity, view: GpuView, host: HostReading) -> Occurrence | None:
    """Report that NVML is out of reach on a node with cards, or that a card without a known UUID is lost."""
    if view.outage is None:
        return Occurrence(about_node(node), "GpuLost", "; ".join(view.problems)) if view.unnamed else None
    if not (view.node.cards or host.nvidia):
        return None
    return Occurrence(about_node(node), view.outage.reason, view.outage.message)


def memory_occurrences(
    reported: EventMemory, judged: Iterable[Judged], proofs: int
) -> tuple[EventMemory, tuple[Occurrence, ...]]:
    """Find the Events about containers' memory."""
    judged = tuple(judged)
    missing = missing_since(reported.missing, judged, proofs)
    events = memory_events(judged, missing, proofs)
    new = tuple(one for key, one in events.items() if key not in reported.memory)
    return replace(reported, missing=missing, memory=frozenset(events)), new


def mismatch_events(agreements: Iterable[Agreement]) -> list[Occurrence]:
    """List each contradiction between what a Pod has and what was allocated to it."""
    found = []
    for one in agreements:
        for mismatch in one.mismatches:
            reason = "CardsNotShown" if mismatch.kind == UNSHOWN else "AllocationMismatch"
            found.append(Occurrence(about_pod(one.pod), reason, mismatch.message))
    return found


def without_memory(agreements: Iterable[Agreement], judged: Iterable[Judged]) -> list[Agreement]:
    """Leave out that Pods use too much memory where `memory_events` names the container."""
    exceeding = {one.pod.uid for one in judged if one.use.exceeds}
    return [
        replace(one, mismatches=tuple(found for found in one.mismatches if found.kind != MEMORY))
        if one.pod.uid in exceeding
        else one
        for one in agreements
    ]


def missing_since(before: Mapping[_Key, int], judged: Iterable[Judged], proofs: int) -> dict[_Key, int]:
    """Since which proof each container lacks its memory limit of a card."""
    return {one.key: before.get(one.key, proofs) for one in judged if one.use.keeping is Keeping.MISSING}


def memory_events(
    judged: Iterable[Judged], missing: Mapping[_Key, int], proofs: int
) -> dict[tuple[str, _Key], Occurrence]:
    """List limits that two proofs in a row did not find, and containers that use more memory than they hold.

    A container that was just created may not have its limit yet.
    """
    found: dict[tuple[str, _Key], Occurrence] = {}
    for one in judged:
        if missing.get(one.key, proofs) < proofs:
            found[_MISSING, one.key] = Occurrence(about_pod(one.pod), _MISSING, missing_message(one.use))
        if one.use.exceeds:
            found[_EXCEEDED, one.key] = Occurrence(about_pod(one.pod), _EXCEEDED, exceeded_message(one.use))
    return found


def claim_events(claims: Iterable[CardClaim]) -> list[Occurrence]:
    """List the cards that containers name without having them."""
    return [Occurrence(about_pod(one.pod), "CardsNotAllocated", one.message) for one in claims]
