"""What people have as the state of a cluster: its objects, devices that are assumed, and running Pods that hold theirs.

`read_cluster` reads files or the output of kubectl, `standing` makes a cluster of it in which every Pod that is bound
holds what it holds. Commands that ask what would happen begin with these two.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.wire.noderuntime import NODE_RUNTIME, read_runtime
from console.simulator.assumed import assume_devices
from console.simulator.cluster import OfflineCluster, Result, stands
from console.simulator.objects import Objects, read
from console.simulator.predicates import unready


def read_cluster(
    paths: Iterable[str], memory: Mapping[str, int] | None = None, types: DeviceTypes = BUILT_IN
) -> Objects:
    """Read all objects of files, folders and `-`, as `with_devices` completes them.

    Raises:
        InputError: something cannot be used.
    """
    return with_devices(read(paths), memory, types)


def with_devices(objects: Objects, memory: Mapping[str, int] | None = None, types: DeviceTypes = BUILT_IN) -> Objects:
    """Give Nodes without a Device object devices that are assumed, and remark what the input leaves out.

    Args:
        objects: changed, and returned.
        memory: bytes of a card by model, where the user states it; "" for any other model.
        types: the device types.
    """
    assumed = assume_devices(objects.nodes, objects.devices, objects.pods, memory, types)
    objects.devices += assumed.devices
    objects.notes += (*assumed.notes, *unready(objects.nodes), *_without_classes(objects))
    return objects


def _without_classes(objects: Objects) -> Iterator[str]:
    """Remark that RuntimeClasses may have been left out, where nodes show their cards to Pods with one only."""
    for device in objects.devices if not objects.runtimes else ():
        annotations = device["metadata"].get("annotations") or {}
        runtime, _ = read_runtime(annotations.get(NODE_RUNTIME))
        if runtime is not None and runtime.default_shows is False and not runtime.nri:
            yield (
                "no RuntimeClass is in the input, and nodes show containers no cards without one: if the cluster has "
                "some, add what `kubectl get runtimeclasses -o yaml` prints"
            )
            return


async def standing(objects: Objects, cluster: OfflineCluster) -> dict[tuple[str, str], Result]:
    """Load all but the Pods that are still to be scheduled into an empty cluster.

    Pods that are bound and have not finished hold what their annotations, their products, or a device plugin gave them.

    Returns:
        The Pods that are there, by namespace and name.

    Raises:
        InputError: an amount of a Node, or of a Pod on it, is not a quantity.
    """
    there = [pod for pod in objects.pods if stands(pod)]
    loaded = await cluster.load([*objects.cluster, *objects.groups, *there])
    return {key_of(one.pod): one for one in loaded}


def key_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """The namespace and the name of a Pod."""
    return pod["metadata"].get("namespace") or "default", pod["metadata"]["name"]
