"""How the containers of a Pod share what the Pod holds of a device (FLIP-53, "Slot Sharing").

The source's words: an operator is a container here, a slot is the Pod's holding on its devices, a slot sharing group is
a group of containers that use one holding, and a pipelined region is what runs at the same time: an init container with
the sidecars started before it, or the sidecars and apps together.
"""

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple

from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.phase import Phase

LARGEST_WEIGHT: Final = 1000


class Regions(StrEnum):
    """Whether containers that run at the same time share one holding by default, or have one each."""

    ONE_GROUP = "OneGroup"
    GROUP_EACH = "GroupEach"


class TypeSharing(NamedTuple):
    """How containers share the devices of one type."""

    users: tuple[str, ...] = ()  # the containers that use such devices and state no amount
    weights: tuple[tuple[str, int], ...] = ()  # (container, weight) pairs of users; 1 for those that are not named
    # (name, containers) pairs: those that share one holding because the Pod's author says so
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    regions: Regions = Regions.ONE_GROUP  # what holds for all others
    slot: int = 0  # percent of one device that a group of users gets; 0 if it is not stated


class Member(NamedTuple):
    """A container of a group, and its part of the group's holding."""

    name: str
    place: int  # its place in the Pod, init containers first
    phase: Phase
    # of each of the type's tails, the container's fraction of what the group holds on a device; None if the container
    # cannot state it in its dialect, so that it is not counted and not limited
    parts: tuple[Fraction | None, ...]


class DeviceQuota(NamedTuple):
    """What one container may use of one device."""

    type: DeviceType  # device type
    id: str
    # resource tail -> percent, bytes or units; None for one that is not limited, because nobody counts it
    amounts: Mapping[str, int | None]
    # resource tail -> the container's part of what its group holds of the device, of those that are limited; empty if
    # it is in no group
    fractions: Mapping[str, Fraction] = {}


Quotas = dict[str, list[DeviceQuota]]  # container -> its quotas, by type, then in the order of minors
