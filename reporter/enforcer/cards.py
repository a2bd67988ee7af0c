"""Which devices a container gets, and how (pure): names from its Pod's annotations, nothing else.

The container's specification may show a card already, by NVIDIA_VISIBLE_DEVICES or a CDI device; such a card is not
brought twice. NVIDIA's runtime looks for mounts before it looks at the variable (NVIDIA Container Toolkit 1.20,
internal/config/image), and a CDI specification of NVIDIA's sets the variable to `void` itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from posixpath import normpath
from typing import Final

from allocator.vocabulary.delivery import VOID, unqualified
from allocator.vocabulary.names import (
    TYPE_GPU,
    VISIBLE_DEVICES_ENV,
    enforcer_cards,
    fractions_cards,
    shown_by,
    visible_devices,
)
from allocator.vocabulary.outcome import excerpt
from reporter.enforcer.model import Container, Mount, Sandbox
from reporter.exchange import Facts

MOUNTED: Final = "/var/run/nvidia-container-devices"
_NOTHING: Final = "/dev/null"
_ALL: Final = "all"
# NVIDIA's runtime cleans the path first, and asks for no slash after it.
_SHOWS: Final = re.compile(r"/*(?:var/)?run/nvidia-container-devices.")
_LOST: Final = (
    "look for its fault (koordgate doctor), or delete the Pod, so that the one in its place is given another card"
)
_NO_WAY: Final = (
    "shows containers no cards, and no CDI specification of the node names every card by its UUID: let one be written "
    "(nvidia-ctk cdi generate), or name a RuntimeClass of NVIDIA's runtime in the Pod"
)


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of a container."""

    names: tuple[str, ...] = ()  # by UUID
    only: bool = False  # whether nothing but the enforcer brings them


@dataclass(frozen=True, slots=True)
class Brought:
    """What brings a container its devices."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()
    refusal: str = ""


def cards_of(annotations: Mapping[str, str], container: str) -> Cards:
    """The cards that were allocated to a container."""
    brought = annotations.get(enforcer_cards(container))
    if brought is not None:
        return Cards(_listed(brought), only=True)
    return Cards(_listed(annotations.get(visible_devices(container), "")))


def bring(sandbox: Sandbox, container: Container, cards: Cards, facts: Facts) -> Brought:
    """Bring a container its cards, and its devices of other types that have a CDI kind."""
    others = _others(sandbox.annotations, container, facts)
    stated = _listed(container.environment.get(VISIBLE_DEVICES_ENV, ""))
    if not cards.names or (not cards.only and set(stated) == set(cards.names)):
        return Brought(cdi=others)  # The runtime brings them.
    brought = _bring(sandbox, container, cards, facts)
    if brought.refusal and not cards.only:
        brought = Brought()  # Somebody else may bring them.
    return replace(brought, cdi=(*brought.cdi, *others))


def _bring(sandbox: Sandbox, container: Container, cards: Cards, facts: Facts) -> Brought:
    absent = next((card for card in cards.names if card not in facts.cards), "")
    if absent:
        which = f"card {excerpt(absent)} was allocated to container {container.name}"
        return Brought(refusal=f"{which}, and the node does not have it: {_LOST}")
    there = set(map(unqualified, container.cdi))
    lacking = tuple(card for card in cards.names if card not in there)
    kind = facts.kinds.get(TYPE_GPU)
    if kind or not lacking:
        shut = container.environment.get(VISIBLE_DEVICES_ENV) == VOID
        return Brought({} if shut else {VISIBLE_DEVICES_ENV: VOID}, cdi=tuple(f"{kind}={card}" for card in lacking))
    if not (sandbox.handler in facts.showing if sandbox.handler else facts.default_shows):
        handler = f"runtime handler {sandbox.handler}" if sandbox.handler else "the default runtime handler"
        return Brought(refusal=f"{handler} {_NO_WAY}")
    if facts.mounts:
        below = f"{MOUNTED}/cdi/{facts.variable}" if facts.variable else MOUNTED
        return Brought(mounts=tuple(Mount(_NOTHING, f"{below}/{card}") for card in cards.names))
    named = (f"{facts.variable}={card}" if facts.variable else card for card in cards.names)
    return Brought({VISIBLE_DEVICES_ENV: ",".join(named)})


def mounts_others(container: Container, cards: Cards, facts: Facts | None) -> str:
    """Refuse a container that has mounts for other cards, where NVIDIA's runtime may take such; "" for all else.

    No answer can take a mount away.
    """
    if facts is not None and not facts.mounts:
        return ""
    for mount in map(normpath, container.mounts):
        if _SHOWS.match(mount) and mount.rpartition("/")[2] not in cards.names:
            return (
                f"container {container.name} has a mount at {excerpt(mount)}, by which NVIDIA's runtime shows a card "
                "that was not allocated to it: remove the mount from the Pod"
            )
    return ""


Held = Mapping[str, tuple[str, ...]]
"""Pod UID to the containers that have cards of NVIDIA's device plugin."""


def held_by_others(sandbox: Sandbox, container: Container, held: Held | None) -> bool:
    """Whether others may have given a container cards: NVIDIA's device plugin, or its fractioning operator.

    `held`: None if that is not known. The device plugin names single cards, or where it mounts them, in the variable,
    or it shows them by CDI, for which the variable does not matter. No author may write the operator's annotation.
    """
    if held is None:
        stated = _listed(container.environment.get(VISIBLE_DEVICES_ENV, ""))
        by_plugin = bool(stated) and _ALL not in stated
    else:
        by_plugin = container.name in held.get(sandbox.uid, ())
    return by_plugin or fractions_cards(container.name) in sandbox.annotations


def _others(annotations: Mapping[str, str], container: Container, facts: Facts) -> tuple[str, ...]:
    """The CDI devices of other types that a container is to have, and that nobody else gives it."""
    found = []
    for key, text in annotations.items():
        kind, name = shown_by(key) or ("", "")
        if name == container.name and kind != TYPE_GPU and kind in facts.kinds:
            found += [f"{facts.kinds[kind]}={one}" for one in text.split(",") if one]
    return tuple(one for one in found if one not in container.cdi)


def _listed(text: str) -> tuple[str, ...]:
    names = (unqualified(one.strip()) for one in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name and name != VOID))
