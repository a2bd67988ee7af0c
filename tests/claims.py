"""Makers of ResourceClaims and ResourceSlices, as the API server stores them."""

from collections.abc import Iterable, Mapping
from typing import Any

Raw = dict[str, Any]
DRIVER = "gpu.nvidia.com"
PCI = "resource.kubernetes.io/pciBusID"


def listed(name: str, uuid: str = "", **attributes: str) -> Raw:
    """A device of a slice; `attributes` are texts by name, `pci` for the standard one."""
    texts = {**({"uuid": uuid} if uuid else {}), **attributes}
    return {"name": name, "attributes": {PCI if key == "pci" else key: {"string": one} for key, one in texts.items()}}


def cards(node: str, count: int) -> list[Raw]:
    """The cards of a node, as gpu-0 and so on."""
    return [listed(f"gpu-{minor}", f"GPU-{node}-{minor}") for minor in range(count)]


def resource_slice(node: str, devices: Iterable[Raw], *, name: str = "", generation: int = 1, **spec: Any) -> Raw:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": list(devices), **spec}
    return {"kind": "ResourceSlice", "metadata": {"name": name or f"slice-{node}"}, "spec": body}


def result(device: str, pool: str = "n1", **fields: Any) -> Raw:
    return {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device, **fields}


def allocation(*results: Raw, node: str = "n1") -> Raw:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"devices": {"results": list(results)}, **({"nodeSelector": {"nodeSelectorTerms": terms}} if node else {})}


def claim(name: str = "c", *results: Raw, node: str = "n1", namespace: str = "default", **metadata: Any) -> Raw:
    """A claim that is allocated these results, or not allocated."""
    made: Raw = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", **metadata},
    }
    return {**made, "status": {"allocation": allocation(*results, node=node)}} if results else made


def with_status(obj: Mapping[str, Any], given: Raw | None) -> Raw:
    """The same claim with another allocation."""
    return {**obj, "status": {"allocation": given} if given is not None else {}}
