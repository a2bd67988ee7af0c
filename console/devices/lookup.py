"""How people name a device of a whole cluster: with its node, or by what only one device has (pure)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from allocator.vocabulary.names import TYPE_GPU
from console.devices.naming import address_of, is_begun
from console.devices.nodestate import CommandError, NodeState, there_are


class NamedDevice(NamedTuple):
    """A device, as messages name it."""

    node: str  # name of its node
    type: str  # its type; "" for one that only a cordon names
    minor: int  # its number there; -1 likewise
    id: str
    bus: str = ""  # its PCI address; "" if unknown

    def __str__(self) -> str:
        return f"{self.node}/{self.type}/{self.minor} {self.id}" if self.type else f"{self.node}/{self.id} (cordoned)"


HOW: Final = (
    "a device is named by its UUID or the beginning of it, by NODE/MINOR (a GPU), NODE/TYPE/MINOR, NODE/UUID or "
    "NODE/PCI-ADDRESS, and by its PCI address alone where one node has it"
)

_DIGITS: Final = 9  # of a minor


def place_of(word: str) -> str:
    """The node that a word names, "" if it names none."""
    node, slash, _ = word.partition("/")
    return node if slash else ""


def find_device(states: Sequence[NodeState], word: str) -> NamedDevice:
    """Find the one device that a word names; a device that only Pods or a cordon still name is found too.

    `states`: the nodes that it may be on. Raises CommandError: it names none, or several; the message names the
    candidates.
    """
    node, slash, rest = word.partition("/")
    known = [one for state in states if not slash or state.node == node for one in _devices(state)]
    wanted = rest if slash else word
    by_minor = [one for one in known if slash and _minor(wanted) == (one.type, one.minor)]
    exact = [one for one in known if one.id == wanted]
    address = address_of(wanted)
    by_address = [one for one in known if one.bus and address_of(one.bus) == address]
    begun = [one for one in known if is_begun(one.id, wanted)]
    found = sorted(dict.fromkeys(exact or by_minor or by_address or begun))
    if len(found) == 1:
        (only,) = found
        return only
    if found:
        raise CommandError(f"{word!r} names several devices; {there_are(map(str, found))}")
    if not slash and any(state.node == word for state in states):
        there = there_are(str(one) for one in known if one.node == word)
        raise CommandError(f"{word} is a node: name a device of it, as {word}/0; {there}")
    there = f"; {there_are(map(str, known))}" if slash else ""
    raise CommandError(f"{f'node {node}' if slash else 'the cluster'} has no device {wanted!r}{there}; {HOW}")


def _devices(state: NodeState) -> list[NamedDevice]:
    """The devices of a node, those that Pods hold and it does not list, and those that are only cordoned still."""
    listed = [NamedDevice(state.node, one.type, one.minor, one.id, one.bus) for one in state.devices]
    gone = [NamedDevice(state.node, one.type, one.minor, one.id) for one in state.strays()]
    ids = {one.id for one in (*listed, *gone)}
    return [*listed, *gone, *(NamedDevice(state.node, "", -1, one) for one in sorted(state.cordoned - ids))]


def _minor(text: str) -> tuple[str, int] | None:
    """Read `3` as the GPU of this minor, and `rdma/1`; None for anything else."""
    kind, slash, minor = text.rpartition("/")
    if not (minor.isascii() and minor.isdigit() and len(minor) <= _DIGITS):
        return None
    return (kind if slash else TYPE_GPU), int(minor)
