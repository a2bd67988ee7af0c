"""How nodes that can hold a Pod, and devices that fit, are ordered: an administrator's choice."""

from enum import StrEnum
from typing import Final

NODE_CLASSES: Final = ("cpu", "memory", "ephemeral-storage")  # the resource classes of a node beside its devices'


class Preference(StrEnum):
    """How nodes are compared.

    PACKING keeps whole devices and whole nodes free. LEAST_REQUESTED and MOST_BALANCED are those of the patent,
    claim 7: the least mean request over the node's resource classes, and the least variance. FRAGMENTATION is FGD's:
    the node on which the least becomes useless to the requests that are typical of the cluster; of equally good ones
    the smallest is begun, one in use before an idle one, and then the most balanced one is taken.
    """

    PACKING = "packing"
    LEAST_REQUESTED = "leastRequested"
    MOST_BALANCED = "mostBalanced"
    FRAGMENTATION = "fragmentation"


class DeviceOrder(StrEnum):
    """Which of the fitting devices comes first (patent, claim 10; minor order is the device proposal's).

    SMALLEST and MOST_USED take devices in use before idle ones and keep larger units whole; SMALLEST also takes the
    smallest sufficient device first, on a node and across nodes. `allocator.devices.options` states the whole order.
    """

    SMALLEST = "smallest"
    MOST_USED = "mostUsed"
    LEAST_USED = "leastUsed"
    MINOR = "minor"
