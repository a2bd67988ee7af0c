"""The self-test: dry runs that show whether the two guarded entries are answered, and what their answers mean (pure).

While an entry is open, the API server ignores that its webhook is not called. What proves a call is therefore what only
the webhook does: the mutating one translates, and the validating one refuses a Pod that asks to be refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from allocator.vocabulary.names import NVIDIA_GPU, ORIGINAL_REQUEST, SELF_TEST
from webhook.lease.entries import Guarded
from webhook.trialpod import UNCALLED, trial_pod

POLICY: Final = "koordgate-while-open"
"""The ValidatingAdmissionPolicy that keeps Pods for devices out while the entries are open."""
_NAME: Final = "koordgate-lease"
_DOMAIN: Final = "koordgate.io"
_LONGEST: Final = 300  # characters of another's message


class Probe(Enum):
    """What is asked, as the value of the Pod's annotation; "" for none."""

    TRANSLATED = ""
    REFUSED = "refused"
    HELD = "held"  # the policy makes no exception for it


class Verdict(Enum):
    """What an answer shows."""

    YES = "what was asked is so"
    DEAD = "what was asked is not so: the webhook is not called, or nobody answers it"
    UNKNOWN = "something else is in the way"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What became of a probe.

    Attributes:
        body: the Pod as it would be stored; None if it would not be.
        message: of the refusal or failure.
    """

    body: Mapping[str, Any] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, with what an administrator needs to know of it."""

    verdict: Verdict
    reason: str = ""


def pod(probe: Probe) -> dict[str, Any]:
    """Write the Pod of a probe: it asks for a card, so that both entries concern it."""
    return trial_pod(_NAME, {NVIDIA_GPU: "1"}, annotations={SELF_TEST: probe.value} if probe.value else None)


def judge(probe: Probe, answer: ProbeAnswer, scheduler: str, *, opened: bool) -> Judged:
    """Judge what became of a probe.

    Args:
        probe: that was made.
        answer: what came back.
        scheduler: the name that a translated Pod gets.
        opened: whether the entry that the probe is about is open. A Pod that passes a Fail entry untouched is none of
            its namespace or of this version: that says nothing about replicas.
    """
    if probe is Probe.HELD:
        return _held(answer)
    if answer.body is None and UNCALLED in answer.message:
        ours = _DOMAIN in answer.message
        return Judged(Verdict.DEAD if ours else Verdict.UNKNOWN, _short(answer.message))
    if probe is Probe.REFUSED:
        return _refused(answer, opened=opened)
    if answer.body is None:
        return Judged(Verdict.UNKNOWN, f"something else refuses the Pod of the self-test: {_short(answer.message)}")
    notes = (answer.body.get("metadata") or {}).get("annotations") or {}
    sent = (answer.body.get("spec") or {}).get("schedulerName")
    if sent == scheduler and ORIGINAL_REQUEST in notes:
        return Judged(Verdict.YES)
    return _passed(f"{Guarded.MUTATING.entry} did not translate", opened=opened)


def _passed(what: str, *, opened: bool) -> Judged:
    if opened:
        return Judged(Verdict.DEAD, f"{what} the Pod of the self-test")
    todo = "name a namespace in which koordgate enforces (healthLease.tryIn), or wait for the end of a roll-out"
    return Judged(Verdict.UNKNOWN, f"{what} the Pod of the self-test although it is Fail: {todo}")


def _refused(answer: ProbeAnswer, *, opened: bool) -> Judged:
    if answer.body is not None:
        return _passed(f"{Guarded.VALIDATING.entry} did not refuse", opened=opened)
    if Guarded.VALIDATING.entry in answer.message and SELF_TEST in answer.message:
        return Judged(Verdict.YES)
    return Judged(Verdict.UNKNOWN, f"something else refuses the Pod of the self-test: {_short(answer.message)}")


def _held(answer: ProbeAnswer) -> Judged:
    if answer.body is None and POLICY in answer.message:
        return Judged(Verdict.YES)
    if answer.body is None:
        told = _short(answer.message)
        return Judged(Verdict.UNKNOWN, f"whether ValidatingAdmissionPolicy {POLICY} is in force is not known: {told}")
    todo = "helm upgrade; if it is there, name a namespace in which koordgate enforces (healthLease.tryIn)"
    return Judged(Verdict.DEAD, f"ValidatingAdmissionPolicy {POLICY} lets the Pod of the self-test pass: {todo}")


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 4]} ..."
