"""Allocated CPUs put into the kubelet's CPU manager state, and taken out again (pure).

CPU proposal, "Create/Update NodeResourceTopology": when the CPUs of a Pod are allocated by koord-scheduler, replace
the CPUs in the kubelet's state file. What a kubelet checks at its start (Kubernetes v1.37, staticPolicy.validateState)
holds for every planned state: the kubelet would not start otherwise.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from allocator.vocabulary.cpuset import format_cpuset
from reporter.kubelet.cpustate import STATIC_POLICY, CpuState, StateLayout

Cpus = Mapping[str, Mapping[str, int]]  # Pod UID -> container -> CPUs


class TakeOverError(Exception):
    """The kubelet's state is left as it is; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class WantedState:
    """What the kubelet's state should hold.

    Attributes:
        ours: allocated CPUs of every container of each Pod. Other Pods keep what the kubelet gave them.
        live: UIDs of all Pods of the node that have not finished; what we put in for other Pods is taken out again.
        reserved: the kubelet's reserved CPUs.
        strict: whether its option strict-cpu-reservation is on; reserved CPUs are then in no set at all.
    """

    ours: Cpus
    live: Collection[str]
    reserved: int
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The possible part of what is wanted.

    Attributes:
        state: the state to be written.
        accepted: the Pods of `ours` whose CPUs are in it.
        refused: Pod UID to why its CPUs are not.
    """

    state: CpuState
    accepted: Cpus
    refused: Mapping[str, str] = field(default_factory=dict)


def propose(state: CpuState, wish: WantedState, put_in: Cpus) -> Outcome:
    """Put in the CPUs of every Pod that can have them, even if other Pods cannot have theirs.

    Args:
        state: the kubelet's state.
        wish: what it should hold.
        put_in: the CPUs that earlier take-overs put in.

    Raises:
        TakeOverError: the state cannot be taken over at all.
    """
    state = _without_gone(state, put_in, wish.live)
    ours = {uid: containers for uid, containers in wish.ours.items() if containers}
    refused: dict[str, str] = {}
    while found := _first_refused(state, ours, wish.reserved):  # without it, what the kubelet gave it is in the way
        uid, reason = found
        refused[uid] = reason
        del ours[uid]
    return Outcome(plan(state, ours, reserved=wish.reserved, strict=wish.strict), ours, refused)


def _without_gone(state: CpuState, put_in: Cpus, live: Collection[str]) -> CpuState:
    """Take out the entries of finished Pods that are still as we put them in.

    The kubelet removes its own entries of such Pods (cpumanager's removeStaleState). If it had none, it writes nothing;
    our CPUs would then stay in the file and block the next Pod.
    """
    gone = {uid for uid, containers in put_in.items() if uid not in live and state.entries.get(uid) == containers}
    if not gone:
        return state
    left = replace(state, entries={uid: containers for uid, containers in state.entries.items() if uid not in gone})
    return replace(left, default=state.known & ~left.given)


def _first_refused(state: CpuState, ours: Cpus, reserved: int) -> tuple[str, str] | None:
    for uid in sorted(ours):
        if reason := _objection(state, ours, uid, reserved):
            return uid, reason
    return None


def plan(state: CpuState, ours: Cpus, *, reserved: int, strict: bool = False) -> CpuState:
    """Put our CPUs into the kubelet's state.

    Args:
        state: the kubelet's state.
        ours: allocated CPUs of every container of each Pod. Other Pods keep what the kubelet gave them.
        reserved: the kubelet's reserved CPUs.
        strict: whether its option strict-cpu-reservation is on; reserved CPUs are then in no set at all.

    Returns:
        A state that the kubelet accepts at its start.

    Raises:
        TakeOverError: there is no such state.
    """
    if state.policy != STATIC_POLICY:
        raise TakeOverError(
            f"the kubelet's CPU manager policy is {state.policy or 'unset'}: it owns no CPU, nothing to take over"
        )
    if state.layout is StateLayout.V1:
        raise TakeOverError("the file is of a kubelet before 1.18, which names containers by id; update the kubelet")
    ours = {uid: containers for uid, containers in ours.items() if containers}
    if found := _first_refused(state, ours, reserved):
        raise TakeOverError(f"Pod {found[0]} {found[1]}")
    taken = replace(
        state,
        entries={**state.entries, **{uid: dict(containers) for uid, containers in ours.items()}},
        pods={uid: cpus for uid, cpus in state.pods.items() if uid not in ours},
    )
    taken = replace(taken, default=state.known & ~taken.given)
    if not taken.default:
        raise TakeOverError("no CPU would be left for containers that own none, and the kubelet would not start")
    missing = 0 if strict else reserved & ~taken.default
    if missing:
        raise TakeOverError(f"CPUs {format_cpuset(missing)} are reserved by the kubelet, but not in its default set")
    return taken


def _objection(state: CpuState, ours: Cpus, uid: str, reserved: int) -> str:
    """Say why a Pod cannot have its CPUs: the kubelet lacks, reserves or gave them to others; "" if it can."""
    cpus = reduce(or_, ours[uid].values(), 0)
    if not all(ours[uid].values()):
        return "has a container that would own no CPU"
    if cpus & reserved:
        shown = format_cpuset(cpus & reserved)
        return f"was given CPUs {shown}, which the kubelet reserves; reserve them for us as well"
    if cpus & ~state.known:
        return f"was given CPUs {format_cpuset(cpus & ~state.known)}, which the kubelet lacks"
    for other in sorted({*state.entries, *state.pods} - {*ours}):
        if clash := cpus & state.of_pod(other):
            return f"was given CPUs {format_cpuset(clash)}, which the kubelet gave to Pod {other}; delete one"
    for other, theirs in sorted(ours.items()):
        if other != uid and (clash := cpus & reduce(or_, theirs.values(), 0)):
            return f"and Pod {other} were both given CPUs {format_cpuset(clash)}; delete one"
    return ""


def plan_undo(state: CpuState, before: CpuState, ours: Cpus) -> CpuState:
    """Take our CPUs out of the kubelet's state again.

    Containers that still have exactly our CPUs get back what they had before; they get nothing if others have it now.
    Everything that the kubelet did since stays.

    Args:
        state: the kubelet's present state.
        before: its state before the first take-over.
        ours: the CPUs that take-overs put in.
    """
    left = {
        uid: {name: cpus for name, cpus in containers.items() if ours.get(uid, {}).get(name) != cpus}
        for uid, containers in state.entries.items()
    }
    pods = dict(state.pods)
    for uid in [uid for uid, containers in sorted(state.entries.items()) if len(left[uid]) < len(containers)]:
        others = {other: sets for other, sets in left.items() if other != uid}
        refused = replace(state, entries=others, pods=pods).given | ~state.known
        now = state.entries[uid]
        for name, cpus in sorted(before.entries.get(uid, {}).items()):
            taken_from = name not in left[uid] if name in now else name not in ours[uid]
            if taken_from and not cpus & refused:
                left[uid][name] = cpus
        if uid not in pods and uid in before.pods and not before.pods[uid] & refused:
            pods[uid] = before.pods[uid]
    undone = replace(state, entries={uid: containers for uid, containers in left.items() if containers}, pods=pods)
    return replace(undone, default=state.known & ~undone.given)
