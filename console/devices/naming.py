"""How people name a device of a node: by its id, a part of it, its type and minor, or its PCI address."""

from collections.abc import Mapping
from typing import Any, Final

from console.devices.nodestate import CommandError, NodeState, there_are

_SHORTEST: Final = 4  # characters of an id's beginning


def identity_of(
    state: NodeState, word: str, device_object: Mapping[str, Any] | None = None, *, held: bool = False
) -> str:
    """Find the id of the device that a word names; a cordon whose device is gone is found by its id as well.

    `word`: an id, the beginning of one id, `type/minor` such as gpu/3, or a PCI address. `device_object`: the node's
    Device object, which states the PCI addresses of cards. `held`: whether devices that Pods hold and the node does not
    list are found too. Raises CommandError: the word names no device, or several.
    """
    devices = [(device.type, device.minor, device.id) for device in state.devices]
    devices += [(share.type, share.minor, share.id) for share in state.strays()] if held else []
    ids = [identity for _, _, identity in devices]
    if word in ids or word in state.cordoned:
        return word
    by_minor = [identity for kind, minor, identity in devices if word == f"{kind}/{minor}"]
    by_address = _by_address(device_object, word)
    begun = [identity for identity in ids if is_begun(identity, word)]
    found = dict.fromkeys(by_minor or [identity for identity in by_address if identity in ids] or begun)
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise CommandError(f"node {state.node} has several devices {word!r}; {there_are(found)}")
    names = [f"{kind} {minor} {identity}" for kind, minor, identity in devices]
    raise CommandError(f"node {state.node} has no device {word!r}; {there_are(names)}")


def _by_address(device_object: Mapping[str, Any] | None, word: str) -> list[str]:
    """The ids of the devices at a PCI address, as their entries' topology states it."""
    spec = (device_object or {}).get("spec")
    listed = spec.get("devices") if isinstance(spec, dict) else None
    found = []
    for entry in listed if isinstance(listed, list) else ():
        topology = entry.get("topology") if isinstance(entry, dict) else None
        bus = topology.get("busID") if isinstance(topology, dict) else None
        identity = (entry.get("id") or entry.get("uuid")) if isinstance(entry, dict) else None
        if isinstance(bus, str) and isinstance(identity, str) and bus and address_of(bus) == address_of(word):
            found.append(identity)
    return found


def is_begun(identity: str, word: str) -> bool:
    """Whether a word is the beginning of an id, in letters of either case; a UUID may be begun after its `GPU-`."""
    whole, begun = identity.lower(), word.lower()
    number = whole.removeprefix("gpu-").removeprefix("mig-")
    return len(word) >= _SHORTEST and (whole.startswith(begun) or number.startswith(begun))


def address_of(text: str) -> str:
    """Write a PCI address as sysfs does: NVML writes the domain with eight digits, and letters in upper case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else text.lower()
