"""Which device each number means, and meant (pure): the history that the Device object's annotation states.

Who names devices by number means those of the time at which a Pod started. Before the first entry nothing is known.
That entry reaches back to the boot if nothing has changed since: the minors of cards, which the driver gives once, have
no gap, and NVML lists the cards in their order. The minors of other devices are the reporter's own: they change as it
tells them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.wire.numberings import DEVICE_NUMBERS, MOST_NUMBERINGS, read_numberings
from reporter.inventory.pci import PciDevice
from reporter.reading import GpuView

_MOST_OTHERS: Final = 256  # devices with those that have gone


def numberings(
    live: Mapping[str, Any] | None, gpus: GpuView, now: float, others: Iterable[PciDevice] = ()
) -> Numberings:
    """The history with the present numbers.

    `gpus`: the node's cards. While NVML cannot be read the history stays.
    """
    metadata = (live or {}).get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    known, _ = read_numberings((annotations if isinstance(annotations, dict) else {}).get(DEVICE_NUMBERS))
    unread = not gpus.indexes or gpus.outage is not None
    if unread and not known and (gpus.node.cards or gpus.outage is not None):
        return known  # so that the first entry has the cards, and may reach back to the boot
    last = known[-1] if known else Numbering(0, 0)
    cards = (card.facts for card in gpus.node.cards.values() if card.health.present)
    indexes = last.indexes if unread else gpus.indexes
    minors = last.minors if unread else tuple(sorted((facts.minor, facts.uuid) for facts in cards))
    told = _told(last, others)
    if last == replace(last, indexes=indexes, minors=minors, others=told):
        return known
    oldest = last.since
    if known and (last.indexes, last.minors) == (indexes, minors):
        since = after = max(int(now) + 1, oldest)
    elif minors == tuple(enumerate(indexes)) and gpus.booted > oldest:
        since = after = int(gpus.booted)  # a boot makes new numbers at one moment
    else:
        since = max(int(now) + 1, oldest)
        after = max(oldest, min(int(gpus.until), since)) if known else since
    return (*known, Numbering(since, after, indexes, minors, told))[-MOST_NUMBERINGS:]


def _told(last: Numbering, others: Iterable[PciDevice]) -> tuple[tuple[str, int, str], ...]:
    """The devices besides cards, with those that have gone: one that comes and goes must not push out the history."""
    there = {(one.type, one.minor): one.bus for one in others}
    every = {(kind, minor): identity for kind, minor, identity in last.others} | there
    return tuple(sorted((*key, identity) for key, identity in (every if len(every) <= _MOST_OTHERS else there).items()))
