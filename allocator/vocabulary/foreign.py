"""Names of devices that only a vendor's device plugin and the kubelet can give, so that koordgate reads none of them.

A Pod with one of them beside devices of ours could not work: koordgate decides what its containers see.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple


class Foreign(NamedTuple):
    """Names of a device plugin.

    Attributes:
        name: of a resource, or how names begin.
        begins: whether other names begin with it.
        what: what it counts.
        cure: what makes koordgate allocate such devices; "" for nothing.
    """

    name: str
    begins: bool
    what: str
    cure: str = ""

    def has(self, name: str) -> bool:
        """Return whether a resource is one of these."""
        return name.startswith(self.name) if self.begins else name == self.name


# NVIDIA/k8s-device-plugin: MIG strategies and renamed replicas; nebuly-ai/nos: slices of a card by MPS.
FOREIGN: Final = (
    Foreign("nvidia.com/mig-", True, "MIG devices"),
    Foreign("nvidia.com/gpu.shared", False, "replicas of a card, whose size only the node knows"),
    Foreign("nvidia.com/gpu-", True, "slices of a card"),
    Foreign("huawei.com/Ascend", True, "NPUs", "declare a type with these names in devices.types"),
    Foreign("huawei.com/npu", True, "NPUs", "declare a type with these names in devices.types"),
)


def foreign_names(spec: Mapping[str, Any], known: Mapping[str, object]) -> Iterator[tuple[str, str, Foreign]]:
    """List the names of other device plugins that a Pod's containers ask for some of.

    Args:
        spec: of the Pod.
        known: names that are read, and therefore not foreign.

    Yields:
        The container's path, the name, and what it is.
    """
    for path, name, amount in asked_names(spec):
        if amount in {0, "0"} or name in known:
            continue
        found = next((one for one in FOREIGN if one.has(name)), None)
        if found is not None:
            yield path, name, found


def asked_names(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """List what a Pod's containers state: path, resource and amount, of requests first."""
    for of in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(of) or ()):
            resources = container.get("resources") or {}
            for key in ("requests", "limits"):
                for name, amount in (resources.get(key) or {}).items():
                    yield f"spec.{of}[{index}]", name, amount
