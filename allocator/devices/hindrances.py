"""What keeps a device out of a choice, whatever is free of it: one table, for counts and for the single device.

A holder of some of a device keeps a Pod off it only as far as nothing of the device is free.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from allocator.devices.offers import selectable
from allocator.devices.terms import Terms
from allocator.vocabulary.device import Device


class Hindrance(NamedTuple):
    """One reason why devices are not chosen."""

    words: str  # what such a device is, for people: "cordoned"
    holds: Callable[[Device], bool]  # whether a device of the type is


def hindrances(terms: Terms) -> Iterator[Hindrance]:
    """Go through all reasons that apply to devices of the type on the node; several may hold for one device."""
    node = terms.node
    yield Hindrance("unhealthy", lambda one: not one.healthy and not one.cordoned)
    yield Hindrance("cordoned", lambda one: one.cordoned)
    if pods := unread_holders(terms):
        more = f" and of {len(pods) - 1} more" if len(pods) > 1 else ""
        yield Hindrance(f"held because the annotation of Pod {pods[0]}{more} cannot be read", lambda _one: True)
    vendor = terms.asks[0].ask.vendor  # a Pod asks for a type in one dialect
    if vendor:
        yield Hindrance("of another vendor", lambda one: not one.is_of(vendor))
    selector = terms.hint.selector
    if selector:
        yield Hindrance("not selected", lambda one: not selector.matches(selectable(one, node)))
    yield Hindrance("held by the kubelet's device plugin", lambda one: one.id in node.kubelet_held)
    yield Hindrance("stated differently by the ledger and by a Pod's annotation", lambda one: one.id in node.disputed)
    only = terms.only
    if only is not None:
        yield Hindrance("not named", lambda one: one.id not in only)


def other_holders(terms: Terms) -> Iterator[Hindrance]:
    """Go through those who hold devices beside koordgate, to count them. What they leave free can be chosen."""
    claimed, adopted = terms.node.claimed, terms.node.adopted
    yield Hindrance("held by ResourceClaims", lambda one: one.id in claimed and not _left(one, terms))
    yield Hindrance("held in part by ResourceClaims", lambda one: one.id in claimed and _left(one, terms))
    yield Hindrance("held by Pods of other products", lambda one: one.id in adopted and not _left(one, terms))
    yield Hindrance("held in part by Pods of other products", lambda one: one.id in adopted and _left(one, terms))


def _left(device: Device, terms: Terms) -> bool:
    """Whether a Pod could have a part of a device: of types that have memory no share goes without it."""
    memory = terms.kind.memory
    return any(terms.node.free(device, memory[:1] if memory else terms.kind.tails))


def unread_holders(terms: Terms) -> list[str]:
    """The Pods that hold all devices of the type because their annotations cannot be read, by namespace and name."""
    kind, holdings = terms.kind.name, terms.node.holdings.values()
    return sorted(f"{one.namespace}/{one.name}" for one in holdings if kind in one.unread)
