"""The RuntimeClass with which a Pod gets its cards, and what its author is told about that (pure).

The API server itself puts the overhead, nodeSelector and tolerations of a RuntimeClass on the Pod, once more after its
webhooks (Kubernetes, plugin/pkg/admission/runtimeclass).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from allocator.devices.delivery import AUTO, DeliveryRules
from allocator.request.devices import PodReading
from allocator.vocabulary.delivery import Delivery
from allocator.vocabulary.names import NVIDIA, TYPE_GPU
from webhook.view.reach import DeliveryReach

_PATH: Final = "spec.runtimeClassName"
_LONGEST: Final = 253  # characters of a name


def runtime_class(
    pod: Mapping[str, Any],
    reading: PodReading,
    rules: DeliveryRules,
    reach_of: Callable[[Mapping[str, Any]], DeliveryReach],
    handler_of: Callable[[str], str],
) -> tuple[str, Sequence[str]]:
    """Decide which RuntimeClass a Pod gets.

    `pod`: as submitted; one that names a RuntimeClass keeps it. `reach_of`: how a Pod would get cards on the nodes that
    it selects; asked for Pods that want NVIDIA's cards only. `handler_of`: the handler of a RuntimeClass; "" where the
    cluster has none of this name. Returns the RuntimeClass to set, "" for none; and warnings for the author.
    """
    if not _asks_for_nvidia(reading):
        return "", ()
    reach = reach_of(pod)
    stated = str((pod.get("spec") or {}).get("runtimeClassName") or "")
    if stated and stated != rules.runtime_class:
        handler = handler_of(stated)
        if handler and reach.showing and handler not in reach.showing and not reach.by_nri:
            cure = f"leave it out, or name {rules.runtime_class}" if rules.runtime_class else "leave it out"
            what = f"{stated[:_LONGEST]} has the handler {handler}, which is none of those that show containers cards"
            return "", (f"{_PATH}: {what} ({', '.join(sorted(reach.showing))}): {cure}",)
        return "", ()
    wanted = rules.delivery == Delivery.RUNTIME_CLASS or (rules.delivery == AUTO and reach.classed)
    added = rules.runtime_class if wanted and not stated else ""
    fails = reach.classed_fails if stated or added else reach.plain_fails
    if not fails:
        return added, ()
    what = "no node that this Pod selects can show its containers their cards, and it waits until one can"
    return added, (f"{what}: one {fails}",)


def _asks_for_nvidia(reading: PodReading) -> bool:
    asks = (ask for container in reading.containers for ask in (*container.requests, *container.limits))
    return any(ask.type.name == TYPE_GPU and ask.vendor in {"", NVIDIA} for ask in asks)
