"""Takes one device of a node out of service, and puts it back: `koordgate devices cordon` and `uncordon`."""

from dataclasses import dataclass, replace
from typing import Final

from allocator.vocabulary.device import Device
from allocator.vocabulary.names import CORDONED
from console.devices.drain import DryRun
from console.devices.naming import identity_of
from console.devices.nodestate import (
    CommandError,
    Known,
    NodeState,
    find,
    find_record,
    read_node,
    require_ledger,
    there_are,
    unknown_node,
)
from console.devices.others import nobody, read_others
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict
from koordgate.kube.resource import DEVICES, NODES
from webhook.ledger.store import Store

_ATTEMPTS: Final = 8  # to write a cordon while others write the same object


@dataclass(frozen=True, slots=True)
class Marked:
    """The result of cordoning or uncordoning a device."""

    state: NodeState  # of its node, after the change
    identity: str
    # the device; None if the node does not list it: a cordon outlives its device, and so do holdings
    device: Device | None
    changed: bool  # whether anything had to be written


async def mark(
    kube: KubeClient,
    store: Store,
    node: str,
    word: str,
    known: Known,
    *,
    cordon: bool,
    held: bool = False,
    dry_run: DryRun = DryRun.NONE,
) -> Marked:
    """Cordon or uncordon a device, by compare-and-swap; idempotent.

    The cordon is written on the object that lists the device: the Device object, or the Node for a software class. For
    a device that no object lists, none can be written.
    `held`: whether a device that Pods hold and no object lists is accepted, without a cordon. `dry_run`: nothing is
    stored; on the server, the API server checks the change. Raises CommandError: there is no such node or device, or
    others kept writing the object; KubeError: the API server refuses, or cannot be reached.
    """
    for _ in range(_ATTEMPTS):
        objects = {of: await find(kube, of, node) for of in (DEVICES, NODES)}
        record = await find_record(store, node)
        state = read_node(node, objects[DEVICES], record, objects[NODES], known)
        if objects[DEVICES] is None and not state.classes and not (held and state.strays()):
            raise _unlisted(state) if state.strays() else await unknown_node(kube, node)
        identity = identity_of(state, word, objects[DEVICES], held=held)
        if record is None:
            await require_ledger(store)
        if held and identity in {share.id for share in state.strays()}:
            return Marked(state, identity, None, changed=False)
        on_node = _is_class(state, identity, cordon=cordon)
        where = NODES if on_node else DEVICES
        before = state.cordoned_classes if on_node else state.listed.cordoned
        after = before | {identity} if cordon else before - {identity}
        obj = objects[where]
        if after != before and obj is not None and dry_run is not DryRun.CLIENT:
            annotations = {CORDONED: ",".join(sorted(after)) or None}
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": annotations}
            dry = dry_run is DryRun.SERVER
            try:
                objects[where] = await kube.patch(where.path(node), {"metadata": metadata}, "merge", dry_run=dry)
            except Conflict:
                continue
        others = nobody() if on_node else await read_others(kube, known.adoption, [node])
        state = read_node(node, objects[DEVICES], await find_record(store, node), objects[NODES], known, others=others)
        state = replace(state, problems=(*state.problems, *filter(None, [others.unread])))
        device = next((device for device in state.devices if device.id == identity), None)
        return Marked(state, identity, device, after != before)
    raise CommandError(f"others changed the cordons of node {node} during each of {_ATTEMPTS} attempts; try again")


def _unlisted(state: NodeState) -> CommandError:
    names = there_are(f"{share.type} {share.minor} {share.id}" for share in state.strays())
    return CommandError(
        f"node {state.node} has no Device object, so no cordon can be written; `koordgate devices drain` evicts the "
        f"Pods that hold its devices by the ledger; {names}"
    )


def _is_class(state: NodeState, identity: str, *, cordon: bool) -> bool:
    """Whether an id is that of a device of a software class; a device that is gone can still be uncordoned.

    Raises CommandError: the node has no device or cordon of this id.
    """
    if identity in {device.id for device in state.listed.devices}:
        return False
    if identity in {device.id for device in state.classes}:
        return True
    if cordon or identity not in state.cordoned:
        names = [f"{device.type} {device.minor} {device.id}" for device in state.devices]
        raise CommandError(f"node {state.node} has no device {identity!r}; {there_are(names)}")
    return identity in state.cordoned_classes
