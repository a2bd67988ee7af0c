"""Taking one device of a node out, and putting it back: `koordgate devices cordon` and `uncordon`."""

from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.device import Device
from allocator.vocabulary.names import CORDONED
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict
from koordgate.kube.resource import DEVICES, NODES
from webhook.devices.nodestate import (
    CommandError,
    Known,
    NodeState,
    find,
    find_record,
    read_node,
    there_are,
    unknown_node,
)
from webhook.ledger.store import Store

_ATTEMPTS: Final = 8  # to write a cordon while others write the same object


@dataclass(frozen=True, slots=True)
class Marked:
    """A device that is cordoned, or is no more.

    Attributes:
        state: of its node, after it.
        device: None where the node does not have it, which a cordon may outlive.
        changed: whether anything had to be written.
    """

    state: NodeState
    identity: str
    device: Device | None
    changed: bool


async def mark(
    kube: KubeClient, store: Store, node: str, identity: str, known: Known, *, cordon: bool, dry_run: bool = False
) -> Marked:
    """Cordon a device or end that, by compare-and-swap; done twice it changes nothing more.

    It is written on the object that tells of the device: the Device object, or the Node for one of a software class.

    Args:
        kube: the open client.
        store: of the ledger.
        node: its node.
        identity: its id: a GPU's UUID, another device's PCI address, the name in a software class.
        known: what the settings say.
        cordon: or uncordon.
        dry_run: the API server checks it and stores nothing.

    Raises:
        CommandError: there is no such node or device, or others wrote the object again and again.
        KubeError: the API server refuses, or cannot be reached.
    """
    for _ in range(_ATTEMPTS):
        objects = {of: await find(kube, of, node) for of in (DEVICES, NODES)}
        state = read_node(node, objects[DEVICES], None, objects[NODES], known)
        if objects[DEVICES] is None and not state.classes:
            raise await unknown_node(kube, node)
        on_node = _is_class(state, identity, cordon=cordon)
        where = NODES if on_node else DEVICES
        before = state.cordoned_classes if on_node else state.listed.cordoned
        after = before | {identity} if cordon else before - {identity}
        obj = objects[where]
        if after != before and obj is not None:
            annotations = {CORDONED: ",".join(sorted(after)) or None}
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": annotations}
            try:
                objects[where] = await kube.patch(where.path(node), {"metadata": metadata}, "merge", dry_run=dry_run)
            except Conflict:
                continue
        state = read_node(node, objects[DEVICES], await find_record(store, node), objects[NODES], known)
        device = next((device for device in state.devices if device.id == identity), None)
        return Marked(state, identity, device, after != before)
    raise CommandError(f"the cordons of node {node} were changed by others again and again; try again")


def _is_class(state: NodeState, identity: str, *, cordon: bool) -> bool:
    """Tell whether an id is one of a software class; a cordon may be ended of a device that is not there any more.

    Raises:
        CommandError: it stands nowhere.
    """
    if identity in {device.id for device in state.listed.devices}:
        return False
    if identity in {device.id for device in state.classes}:
        return True
    if cordon or identity not in state.cordoned:
        told = [f"{device.type} {device.minor} {device.id}" for device in state.devices]
        raise CommandError(f"node {state.node} has no device {identity!r}; {there_are(told)}")
    return identity in state.cordoned_classes
