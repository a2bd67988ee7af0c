"""Which card each number means, and meant (pure): the history that the Device object's annotation states.

Products that name cards by number mean those of the time at which a Pod started. Before the first entry nothing is
known. That entry reaches back to the boot if nothing has changed since: the minors, which the driver gives once, have
no gap, and NVML lists the cards in their order.
"""

from collections.abc import Mapping
from typing import Any

from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.wire.numberings import DEVICE_NUMBERS, MOST_NUMBERINGS, read_numberings
from reporter.reading import GpuView


def numberings(live: Mapping[str, Any] | None, gpus: GpuView, now: float) -> Numberings:
    """The history with the present numbers.

    Args:
        live: the Device object in the cluster.
        gpus: the node's cards. While NVML cannot be read the history stays.
        now: seconds since 1970.
    """
    metadata = (live or {}).get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    known, _ = read_numberings((annotations if isinstance(annotations, dict) else {}).get(DEVICE_NUMBERS))
    if not gpus.indexes or gpus.outage is not None:
        return known
    cards = (card.facts for card in gpus.node.cards.values() if card.health.present)
    minors = tuple(sorted((facts.minor, facts.uuid) for facts in cards))
    last = known[-1] if known else None
    if last is not None and (last.indexes, last.minors) == (gpus.indexes, minors):
        return known
    oldest = last.since if last is not None else 0
    if minors == tuple(enumerate(gpus.indexes)) and gpus.booted > oldest:
        since = after = int(gpus.booted)  # a boot makes new numbers at one moment
    else:
        since = max(int(now) + 1, oldest)
        after = since if last is None else max(oldest, min(int(gpus.until), since))
    return (*known, Numbering(since, after, gpus.indexes, minors))[-MOST_NUMBERINGS:]
