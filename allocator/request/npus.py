"""Shares of NPUs that no declared type has: a Pod that requests some is left alone as a whole."""

from collections.abc import Mapping
from typing import Any, Final

from allocator.quantity import is_zero
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import RESOURCE_MAPS

_NPU: Final = "huawei.com/npu-"


def foreign_npus(spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> str:
    """Name the first resource of an NPU that a Pod requests and no type has; "" for none.

    Koordinator's names for a share of a Huawei NPU (huawei.com/npu-core, npu-cpu, npu-dvpp) are used beside those for
    the memory of GPUs. Without a type of these names such a share could not be counted, so the whole Pod is left alone.
    """
    for of in ("initContainers", "containers"):
        for container in spec.get(of) or ():
            for amounts in map((container.get("resources") or {}).get, RESOURCE_MAPS):
                for name, amount in (amounts or {}).items():
                    if name.startswith(_NPU) and name not in types.resources and not is_zero(amount):
                        return str(name)
    return ""
