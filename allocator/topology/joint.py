"""Joint allocation: devices of a second type that belong to those chosen of a first (a NIC near each GPU).

The rules are Koordinator's (pkg/scheduler/plugins/deviceshare, device-joint-allocate). Two things differ: any type may
be the second one, GPUs too; and what is left when a PCIe root has no device to give is taken as near as can be (same
NUMA node) and not in any order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from allocator.topology.sets import Candidate


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a device (SR-IOV).

    Attributes:
        minor: its number, None where the node does not say.
        bus_id: its PCI address, its identity on the node.
        labels: of its group on the Device object, for selectors.
    """

    minor: int | None
    bus_id: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


class Matcher(Protocol):
    """Tells whether labels are wanted: a hint's selector."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether these labels are wanted."""


def free_function(
    functions: Iterable[VirtualFunction], selector: Matcher, taken: Collection[str]
) -> VirtualFunction | None:
    """Choose a device's virtual function: of the groups that match, the free one of the smallest bus id, as text.

    Args:
        functions: of the device.
        selector: on the labels of the functions' groups.
        taken: bus ids that somebody holds.
    """
    free = (one for one in functions if one.bus_id not in taken and selector.matches(one.labels))
    return min(free, key=lambda one: one.bus_id, default=None)


def secondary_choice(
    primary: Sequence[Candidate], candidates: Iterable[Candidate], count: int, *, same_pcie: bool = False
) -> tuple[Candidate, ...] | str:
    """Choose the devices that go with those of the first type.

    At least `count`, and one for each PCIe root of the primary devices where so many can be had. Order: one on each of
    these roots, then a second on each, and so on; then the rest, those of the primary devices' NUMA nodes first.

    Args:
        primary: what was chosen of the first type, 1 or more.
        candidates: devices of the second type that can each serve the ask.
        count: devices asked of it.
        same_pcie: both types must be on the very same PCIe roots (Koordinator's requiredScope SamePCIe).

    Returns:
        The devices, or in a user's words why there are none.
    """
    wanted = [device for device in primary if device.pcie is not None]
    roots = list(dict.fromkeys(device.pcie for device in sorted(wanted, key=_order)))
    by_root: dict[str | None, list[Candidate]] = {root: [] for root in roots}
    others: list[Candidate] = []
    for candidate in sorted(candidates, key=_order):
        by_root.get(candidate.pcie, others).append(candidate)
    beside = _in_turn(list(by_root.values()))
    target = max(count, len(roots))
    if not same_pcie:
        numa = {device.numa for device in primary if device.numa is not None}
        others.sort(key=lambda candidate: candidate.numa not in numa)  # stable: the order stays within
        found = (*beside, *others)[:target]
        return found if len(found) >= count else f"{count} devices asked beside the others, {len(found)} can serve it"
    if len(wanted) < len(primary):
        lost = ", ".join(str(device.minor) for device in primary if device.pcie is None)
        return f"SamePCIe asked; the node does not say on which PCIe root the devices {lost} of the first type are"
    if bare := [root for root in roots if not by_root[root]]:
        return f"SamePCIe asked; no device of the second type is left on PCIe root {', '.join(map(str, bare))}"
    if len(beside) < target:
        on = ", ".join(map(str, roots))
        return f"SamePCIe asked; {count} devices asked, {len(beside)} can serve it on the PCIe roots {on}"
    return beside[:target]


def _order(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.rank, candidate.minor, candidate.id)


def _in_turn(groups: Sequence[Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """One of each group, then a second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return tuple(group[turn] for turn in range(longest) for group in groups if turn < len(group))
