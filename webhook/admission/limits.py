"""Which Pods must have their memory limits kept, and what is wrong in one of them (pure)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.devices.isolation import is_share
from allocator.memorylimits import long_name
from allocator.request.devices import PodReading
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.delivery import KEEPERS, MIB, NOTHING_KEEPS, LimitProvider, by_enforcer
from allocator.vocabulary.names import GPU_MEMORY, LIMITS, NVIDIA, TYPE_GPU
from allocator.vocabulary.outcome import Problem
from allocator.wire.strict import annotation_path

EVERYWHERE: Final = "*"
"""In place of namespaces: all."""


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """What keeps memory limits, and where they are required of Pods that do not ask for them."""

    provider: LimitProvider = LimitProvider.NONE
    namespaces: frozenset[str] = frozenset()  # those in which Pods for parts of GPUs must have them, or `EVERYWHERE`

    def requires(self, pod: Mapping[str, Any], request: PodRequest, namespace: str) -> bool:
        """Whether the limits of a Pod must be kept: its author asks for that, or the installation of its namespace.

        The latter holds for Pods that take a part of a GPU. One that takes whole GPUs has nobody beside it on them. So
        does Koordinator's label for what keeps Pods on one GPU apart, where it names what the enforcer keeps limits by:
        on the nodes that have the same label, that is the provider. Where the installation names nothing of the
        enforcer's, such a label speaks of what an administrator brought by other means.
        """
        gpus = [one.ask for one in request.containers if one.ask.type.name == TYPE_GPU]
        if not gpus or request.wishes.limits or self._asked(pod):
            return bool(gpus)
        labelled = by_enforcer(self.provider) and by_enforcer(request.wishes.isolation)
        required = labelled or not self.namespaces.isdisjoint((EVERYWHERE, namespace))
        return required and any(map(is_share, gpus))

    def _asked(self, pod: Mapping[str, Any]) -> bool:
        """Whether the author asks the provider itself, which then needs the rest of what the bind writes."""
        asked_by = KEEPERS[self.provider].asked_by if self.provider in KEEPERS else ""
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        return bool(asked_by) and any(key.startswith(asked_by) for key in annotations)

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables of containers with GPUs of such a Pod, as `Keeper.variables`."""
        return KEEPERS[self.provider].variables if self.provider in KEEPERS else {}

    def problems(self, reading: PodReading) -> Iterator[Problem]:
        """Find why the limits of a readable Pod for which they are required can be kept nowhere."""
        keeper = KEEPERS.get(self.provider)
        if keeper is None:
            yield Problem(annotation_path(LIMITS), NOTHING_KEEPS)
            return
        for container in reading.containers:
            for ask in (one for one in container.requests if one.type.name == TYPE_GPU):
                if ask.vendor not in {"", NVIDIA}:
                    message = f"only NVIDIA's GPUs have memory limits, and the Pod asks for {ask.vendor}; remove it"
                    yield Problem(annotation_path(LIMITS), message)
                if 0 < (ask.amount(GPU_MEMORY) or MIB) < MIB:
                    message = "less than 1 MiB of a card is too little for a memory limit; ask for 1Mi or more"
                    yield Problem(f"{container.path}.resources", message)
                if len(container.name) > keeper.longest_name:
                    yield Problem(f"{container.path}.name", long_name(container.name, keeper.longest_name))


NOT_REQUIRED: Final = LimitPolicy()
