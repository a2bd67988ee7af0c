"""What a probe's Pod shows: how far it came, and what is wrong where it saw other cards than it was given (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, TYPE_GPU
from allocator.wire.deviceallocated import read_allocation
from console.doctor.checks.delivery import Chosen
from console.doctor.probe.pod import SHELL, Seen, container_status, read_seen
from console.doctor.proof import DeliveryProof, Result

LEFT_ALONE: Final = "koordgate leaves Pods of this namespace alone"
_LONGEST: Final = 400  # characters of another's message
NO_IMAGE: Final = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NOT_MADE: Final = frozenset({"CreateContainerError", "RunContainerError"})
_NOT_BEGUN: Final = frozenset({"StartError", "ContainerCannotRun"})
_UNSCHEDULABLE: Final = "Unschedulable"


class Verdict(StrEnum):
    """What is to be thought of it; those that are also a `Result` say something of delivery."""

    RIGHT = "right"
    MISSING = "without its card"
    OTHERS = "other cards too"
    NOT_CREATED = "not created"
    NOT_GIVEN = "given no card"
    NOT_PLACED = "not placed"
    NOT_RUN = "not run"

    @property
    def result(self) -> Result | None:
        """What it proves of delivery; None for nothing."""
        return _RESULTS.get(self)


_RESULTS: Final = {
    Verdict.RIGHT: Result.RIGHT,
    Verdict.MISSING: Result.MISSING,
    Verdict.OTHERS: Result.OTHERS,
    Verdict.NOT_CREATED: Result.NOT_CREATED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a node's probe.

    Attributes:
        node: its name.
        found: how Pods get their cards there.
        verdict: what is to be thought of it.
        why: what happened, a part of a sentence; "" if all is right.
        given: the cards that the bind gave.
        seen: what the container saw; None if it did not run.
        proof: the record of it; None if it proves nothing.
    """

    node: str
    found: Chosen
    verdict: Verdict
    why: str = ""
    given: tuple[Share, ...] = ()
    seen: Seen | None = None
    proof: DeliveryProof | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a Pod ended: with what it saw, or why it saw nothing.

    Attributes:
        verdict: RIGHT if it saw something, which is yet to be compared.
        why: why not, as somebody else says it.
        seen: what it saw.
    """

    verdict: Verdict
    why: str = ""
    seen: Seen | None = None


def given_to(pod: Mapping[str, Any]) -> tuple[Share, ...]:
    """The cards that the bind gave a Pod."""
    shares = read_allocation(pod["metadata"].get("annotations") or {}).shares
    return tuple(one for one in shares if one.type == TYPE_GPU)


def ending(pod: Mapping[str, Any]) -> Ending | None:
    """How a Pod ended, or will not get any further; None while it is on its way."""
    status, state = pod.get("status") or {}, container_status(pod).get("state") or {}
    if ended := state.get("terminated"):
        return _ended(ended)
    if status.get("phase") in {"Failed", "Succeeded"}:
        return Ending(Verdict.NOT_RUN, _said(status.get("reason"), status.get("message")))
    waiting = state.get("waiting") or {}
    reason, why = waiting.get("reason", ""), _said(waiting.get("reason"), waiting.get("message"))
    if reason in _NOT_MADE:
        return _not_made(why)
    if reason in NO_IMAGE or reason == "CreateContainerConfigError":
        return Ending(Verdict.NOT_RUN, why)
    scheduled = _condition(pod)
    if not (pod.get("spec") or {}).get("nodeName") and scheduled.get("reason") == _UNSCHEDULABLE:
        return Ending(Verdict.NOT_PLACED, _said("", scheduled.get("message")))
    return None


def _ended(ended: Mapping[str, Any]) -> Ending:
    message, reason = str(ended.get("message") or ""), ended.get("reason")
    seen = read_seen(message)
    if seen is not None:
        return Ending(Verdict.RIGHT, seen=seen)
    if reason in _NOT_BEGUN:
        return _not_made(_said(reason, message))
    return Ending(Verdict.NOT_RUN, f"its command ended with {ended.get('exitCode')} ({_said(reason, message)})")


def _not_made(why: str) -> Ending:
    """The container could not be created; that the image has no shell says nothing of cards."""
    return Ending(Verdict.NOT_RUN if f'exec: "{SHELL}"' in why else Verdict.NOT_CREATED, why)


def late(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]], seconds: float) -> Ending:
    """Why a Pod has come no further after so many seconds.

    Args:
        pod: as it is.
        events: that were recorded about it, the oldest first.
        seconds: that were waited.
    """
    waited = f"after {seconds:.0f} s"
    warned = [one for one in events if one.get("type") == "Warning"]
    said = _said(warned[-1].get("reason"), warned[-1].get("message")) if warned else ""
    if not (pod.get("spec") or {}).get("nodeName"):
        why = said or _said("", _condition(pod).get("message")) or "koord-scheduler has said nothing of it: see its log"
        return Ending(Verdict.NOT_PLACED, f"it waits for its node {waited}: {why}")
    state = container_status(pod).get("state") or {}
    if "running" in state:
        return Ending(Verdict.NOT_RUN, f"its command still runs {waited}")
    if warned and warned[-1].get("reason") == "FailedCreatePodSandBox":
        return Ending(Verdict.NOT_CREATED, said)
    waiting = state.get("waiting") or {}
    why = said or _said(waiting.get("reason"), waiting.get("message")) or "the kubelet has said nothing of it"
    return Ending(Verdict.NOT_RUN, f"its container does not run {waited}: {why}")


def _condition(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    stated = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in stated if one.get("type") == "PodScheduled"), {})


def _said(reason: object, message: object) -> str:
    text = " ".join(str(message or "").split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
    return ": ".join(filter(None, [str(reason or ""), text]))


def compared(node: str, found: Chosen, given: tuple[Share, ...], end: Ending) -> Outcome:
    """Compare what a Pod was given with what it saw."""
    seen = end.seen
    if seen is None:
        return Outcome(node, found, end.verdict, end.why, given)
    if not given:
        why = f"it was bound without a card: its annotation {DEVICE_ALLOCATED} names none"
        return Outcome(node, found, Verdict.NOT_GIVEN, why, given, seen)
    lacks = _lacks(given, seen)
    if lacks:
        instead = f", and sees {_cards(seen)}" if seen.minors or seen.uuids else ""
        return Outcome(node, found, Verdict.MISSING, f"the container lacks {', '.join(lacks)}{instead}", given, seen)
    if len(seen.minors) > len(given) or set(seen.uuids) - {one.id for one in given}:
        why = f"the container was given {_named(given)}, and sees {_cards(seen)}"
        return Outcome(node, found, Verdict.OTHERS, why, given, seen)
    return Outcome(node, found, Verdict.RIGHT, "", given, seen)


def _lacks(given: Iterable[Share], seen: Seen) -> list[str]:
    """The cards that are not seen: by UUID where nvidia-smi lists any, otherwise by their device nodes."""
    if seen.uuids:
        return [one.id for one in given if one.id not in seen.uuids]
    return [f"/dev/nvidia{one.minor}" for one in given if one.minor not in seen.minors]


def _cards(seen: Seen) -> str:
    nodes = [f"/dev/nvidia{minor}" for minor in seen.minors]
    return ", ".join(seen.uuids if len(seen.uuids) >= len(nodes) else nodes)


def _named(given: Iterable[Share]) -> str:
    return ", ".join(one.id for one in given)
