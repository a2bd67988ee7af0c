"""Names of devices that only a vendor's device plugin and the kubelet can give, so that koordgate reads none of them.

A Pod with one of them beside devices of ours could not work: koordgate decides what its containers see.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from allocator.vocabulary.names import RESOURCE_MAPS, TYPE_GPU


class Foreign(NamedTuple):
    """Names of a device plugin."""

    name: str  # of a resource, or how names begin
    begins: bool  # whether other names begin with it
    what: str
    cure: str = ""  # what makes koordgate allocate such devices; "" for nothing
    # the type of the devices of koordgate's that the plugin would give to whoever asks for these; "" for none
    of: str = ""

    def has(self, name: str) -> bool:
        """Return whether a resource is one of these."""
        return name.startswith(self.name) if self.begins else name == self.name


# NVIDIA/k8s-device-plugin: MIG strategies and renamed replicas; nebuly-ai/nos: slices of a card by MPS.
FOREIGN: Final = (
    Foreign("nvidia.com/mig-", True, "MIG devices"),
    Foreign("nvidia.com/gpu.shared", False, "replicas of a card, whose size only the node knows", of=TYPE_GPU),
    Foreign("nvidia.com/gpu-", True, "slices of a card", of=TYPE_GPU),
    Foreign("huawei.com/Ascend", True, "NPUs", "declare a type with these names in devices.types"),
    Foreign("huawei.com/npu", True, "NPUs", "declare a type with these names in devices.types"),
)
_BEGINNINGS: Final = tuple(one.name for one in FOREIGN)


def foreign_of(name: str) -> Foreign | None:
    """What a name counts that only a device plugin gives; None for any other name."""
    if not name.startswith(_BEGINNINGS):  # a Pod may state thousands of names
        return None
    return next((one for one in FOREIGN if one.has(name)), None)


def asked_names(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """List what a Pod's containers state: path, resource and amount, of requests first."""
    for of in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(of) or ()):
            resources = container.get("resources") or {}
            for key in RESOURCE_MAPS:
                amounts = resources.get(key)
                if amounts:
                    path = f"spec.{of}[{index}]"
                    yield from ((path, name, amount) for name, amount in amounts.items())
