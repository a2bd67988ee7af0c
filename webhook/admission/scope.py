"""Which Pods are put under the NUMA policies of nodes, although they state nothing about CPUs (pure).

The CPU proposal, "Resource status": koord-scheduler aligns the Pods that it binds on nodes that require it.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.request.cpus import IN_SCOPE, NO_CPU_ASK, QOS_LABEL, read_cpu_ask
from allocator.request.devices import names_devices
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import NUMA_SCOPE, RESOURCE_MAPS
from webhook.patch import Operation, set_annotations

_HELD: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class PolicyScope:
    """Pods that NUMA policies hold for: of our scheduler, of any of these namespaces, or with all these labels."""

    namespaces: frozenset[str] = frozenset()  # every Pod of these
    labels: Mapping[str, str] = field(default_factory=dict)  # every Pod with all of these; no Pod if there are none
    # every Pod that names one of these schedulers and no node, and asks for neither devices nor CPUs
    schedulers: Container[str] = ()

    def includes(self, namespace: str, pod: Mapping[str, Any], types: DeviceTypes) -> bool:
        """Whether a Pod is in scope: it also requests CPU or memory, and its QoS class is not stated."""
        found: Mapping[str, str] = (pod.get("metadata") or {}).get("labels") or {}
        spec: Mapping[str, Any] = pod.get("spec") or {}
        always = namespace in self.namespaces or (bool(self.labels) and self.labels.items() <= found.items())
        if not always and (spec.get("schedulerName") not in self.schedulers or spec.get("nodeName")):
            return False
        if found.get(QOS_LABEL) or not any(name in amounts for amounts in _amounts(spec) for name in _HELD):
            return False
        return always or self._asks_nothing(pod, spec, types)

    def _asks_nothing(self, pod: Mapping[str, Any], spec: Mapping[str, Any], types: DeviceTypes) -> bool:
        """Whether a Pod asks for neither devices nor CPUs."""
        # koordgate itself may have sent one of ours there, which NUMA policies hold for anyway.
        annotations = (pod.get("metadata") or {}).get("annotations")
        return not names_devices(spec, types, annotations) and read_cpu_ask(pod, types=types) == NO_CPU_ASK

    def lacks_mark(self, namespace: str, pod: Mapping[str, Any], types: DeviceTypes) -> bool:
        """Whether a Pod is in scope and its annotation does not say so."""
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        return annotations.get(NUMA_SCOPE) != IN_SCOPE and self.includes(namespace, pod, types)

    def marks(self, namespace: str, pod: Mapping[str, Any], types: DeviceTypes) -> list[Operation]:
        """Write the annotation that puts a Pod in scope; nothing if it is not, or has it."""
        return set_annotations(pod, {NUMA_SCOPE: IN_SCOPE}) if self.lacks_mark(namespace, pod, types) else []


NO_SCOPE: Final = PolicyScope()


def _amounts(spec: Mapping[str, Any]) -> Iterator[Mapping[str, object]]:
    """The requests and the limits of a Pod's containers, and those of the Pod as a whole."""
    for holder in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()), spec):
        resources = holder.get("resources") or {}
        for key in RESOURCE_MAPS:
            yield resources.get(key) or {}
