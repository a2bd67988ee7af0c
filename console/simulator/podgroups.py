"""Pods that are told of once: those of one owner that asked for the same and fare alike (pure)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.holdings import Holding
from console import devicewords
from console.simulator import words
from console.simulator.account import Account
from console.simulator.cluster import PodFate, Result
from console.terminal import counted

Raw = Mapping[str, Any]

_NOTHING: Final = "no devices, no CPUs of its own"
_ABSENT: Final = frozenset({PodFate.DENIED, PodFate.NOT_CREATED})  # such a Pod is not in the cluster
_MAX_NODES: Final = 4  # of a group
_MAX_REASONS: Final = 4  # lines about why a Pod is on no node


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One Pod, or several of one owner that asked for the same and fare alike."""

    results: Sequence[Result]
    name: str  # with the namespace: the Pod's, or that of the owner of several
    asked: Sequence[str]  # a line each
    became: Sequence[str]  # what admission made of that, as far as it differs
    told: Sequence[str]  # what each got, or why it got nothing, a line each

    @property
    def state(self) -> str:
        """What became of them."""
        return state_of(self.results[0])

    @property
    def many(self) -> str:
        """How many they are; "" for one."""
        return counted(len(self.results), "Pod") if len(self.results) > 1 else ""

    @property
    def nodes(self) -> list[str]:
        """Their nodes, of several Pods with how many are there; the first ones."""
        found = Counter(node_of(one) for one in self.results if node_of(one))
        names = [name if len(self.results) == 1 else f"{name}: {count}" for name, count in sorted(found.items())]
        more = [f"and {len(names) - _MAX_NODES} more nodes"] if len(names) > _MAX_NODES + 1 else []
        return [*names[: _MAX_NODES if more else None], *more]


def node_of(result: Result) -> str:
    """The node that a Pod is bound to; "" for none."""
    return "" if result.state in _ABSENT else result.pod["spec"].get("nodeName") or ""


def state_of(result: Result) -> str:
    """What became of a Pod; of one that was there also how it ended."""
    phase = (result.pod.get("status") or {}).get("phase")
    finished = result.state is PodFate.STANDING and phase in {"Succeeded", "Failed"}
    return f"{result.state} ({phase})" if finished else str(result.state)


def grouped(results: Sequence[Result], account: Account, *, apart: bool = False) -> list[PodGroup]:
    """Group Pods, in the order of the first of each group; the last Pod without a node says why.

    `apart`: each Pod is a group of its own, told in full.
    """
    found: dict[object, list[Result]] = {}
    for at, result in enumerate(results):
        pod = result.given or result.pod
        waits = result.state is PodFate.UNSCHEDULABLE  # how much is free changes from Pod to Pod
        fate = () if waits else tuple(_each(result, account))
        alike = (_owner(pod), state_of(result), asked_of(result, account), fate)
        found.setdefault(at if apart else alike, []).append(result)
    return [_group(alike, account, apart=apart) for alike in found.values()]


def _group(alike: Sequence[Result], account: Account, *, apart: bool) -> PodGroup:
    first = alike[0]
    pod = first.given or first.pod
    asked = asked_of(first, account)
    admitted = () if first.state in _ABSENT else words.admitted(first.pod, account.types)
    became = [line for line in admitted if line not in asked]
    if len(alike) == 1:
        told = outcome(first, account)
        return PodGroup(alike, words.name_of(pod), asked, became, told if apart else _shortened(first, told))
    owner = words.owner_of(pod)
    namespace = pod["metadata"].get("namespace") or "default"
    name = f"{words.name_of(pod)} and others" if owner is None else f"{namespace}/{owner[1]} ({owner[0]})"
    return PodGroup(alike, name, asked, became, _shortened(first, list(_each(alike[-1], account))))


def _owner(pod: Raw) -> tuple[object, ...]:
    return pod["metadata"].get("namespace") or "default", words.owner_of(pod)


def asked_of(result: Result, account: Account) -> tuple[str, ...]:
    """What a Pod's author asked for, a line each."""
    return words.asked(result.given or result.pod, account.types, result.added) or (_NOTHING,)


def outcome(result: Result, account: Account) -> list[str]:
    """What a Pod got, or why it got nothing, as lines; none for one that asked for nothing."""
    holding = None if result.state in _ABSENT else account.holding(result.pod)
    held = devicewords.held(holding, account.types) if holding is not None else []
    adopted = account.adopted(result.pod)
    held += devicewords.adopted(adopted, account.types) if adopted is not None else []
    held += [*devicewords.quotas(result.pod, account.types), *devicewords.limits(result.pod)] if held else []
    return [*held, *_said(result, account)]


def _each(result: Result, account: Account) -> Iterator[str]:
    """What each Pod of a group got, without which devices and CPUs these are, or why it got nothing."""
    holding = None if result.state in _ABSENT else account.holding(result.pod) or account.adopted(result.pod)
    shares = (
        Counter((one.type, devicewords.told_share(one, account.types)) for one in holding.shares) if holding else {}
    )
    for (kind, amounts), count in shares.items():
        yield f"each: {f'{count} x ' if count > 1 else ''}{kind}, {amounts}"
    if isinstance(holding, Holding) and holding.cpus is not None and holding.cpus.cpus:
        yield f"each: {counted(holding.cpus.cpus.bit_count(), 'CPU')} of its own ({holding.cpus.qos})"
    yield from _said(result, account)


def _said(result: Result, account: Account) -> Iterator[str]:
    """What is wrong with a Pod, why it is on no node, and what its author is warned of."""
    trouble = words.trouble(result.pod, account) if result.state is PodFate.STANDING else ""
    if trouble:
        yield trouble
    pod = result.given or result.pod
    for reason in result.reasons:
        yield from words.problems(reason, pod)
    yield from (f"warning: {warning}" for warning in result.warnings)


def _shortened(result: Result, told: list[str]) -> list[str]:
    """The lines of which the last ones are left out where a Pod has many reasons to be on no node."""
    reasons = [line for line in told if not line.startswith("warning: ")]
    if result.state is not PodFate.UNSCHEDULABLE or len(reasons) <= _MAX_REASONS + 1:
        return told
    more = len(reasons) - _MAX_REASONS
    last = reasons[-1:] if reasons[-1].startswith("would fit on ") else []
    kept = reasons[: _MAX_REASONS - len(last)]
    return [*kept, f"... and {counted(more, 'more reason')} (--all)", *last, *told[len(reasons) :]]


def settled(results: Sequence[Result], account: Account) -> list[Result]:
    """The Pods that are told of unless all are wanted: not those that were there and have nothing wrong with them.

    Where there are no others, all are.
    """
    new = [one for one in results if one.state is not PodFate.STANDING or words.trouble(one.pod, account)]
    return new or list(results)
