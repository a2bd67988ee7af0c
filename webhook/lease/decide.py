"""What the keeper of the health lease does next, decided from what it has seen itself (pure).

Times are the keeper's own, of a monotonic clock: how long it has seen a Lease that nobody renewed. What the Lease says
about time is never read, so that clocks which differ by hours do no harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from webhook.lease.entries import Guarded, Stands
from webhook.lease.record import Beat
from webhook.lease.selftest import Judged, Verdict

_MISSED: Final = 3  # looks that may fail; what happened in a longer gap is unknown


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """When something is done.

    Attributes:
        every: seconds between two looks.
        open_after: seconds of silence.
        self_tests: how many must pass in a row.
    """

    every: float
    open_after: float
    self_tests: int


@dataclass(frozen=True, slots=True)
class LeaseMemory:
    """What the keeper remembers from look to look.

    Attributes:
        beat: of the Lease as it was last seen; None if there was none.
        since: when silence began, or when the keeper began to look.
        looked: when it last read the Lease; None if never.
        passed: self-tests that passed in a row while something was open.
        renewals: looks that found the Lease renewed, without a pause that is longer than a replica's slip.
        untold: self-tests in a row that proved nothing while something was open.
    """

    beat: Beat | None = None
    since: float = 0.0
    looked: float | None = None
    passed: int = 0
    renewals: int = 0
    untold: int = 0


@dataclass(frozen=True, slots=True)
class LeaseLook:
    """What was read at one moment.

    Attributes:
        now: monotonic seconds.
        beat: of the Lease; None if there is none.
        stands: how the entries stand.
    """

    now: float
    beat: Beat | None
    stands: Mapping[Guarded, Stands]

    @property
    def open(self) -> bool:
        """Whether the keeper has opened something that is still open."""
        return Stands.OPEN in self.stands.values()

    def shut(self, guarded: Guarded) -> bool:
        """Whether an entry may be opened."""
        return self.stands[guarded] in {Stands.SHUT, Stands.STALE}


class LeaseWish(Enum):
    """What to do."""

    NOTHING = "nothing"
    TEST = "make a self-test"
    OPEN_MUTATING = "open the mutating entry"
    CHECK_POLICY = "see whether the policy is in force; `checked` says what follows"
    OPEN_VALIDATING = "open the validating entry"
    SHUT_VALIDATING = "shut the validating entry"
    SHUT = "shut what is open"
    TIDY = "forget that entries were open which somebody else has shut"


def notice(memory: LeaseMemory, look: LeaseLook, rules: LeaseRules) -> LeaseMemory:
    """Take in what was read.

    Silence begins again after a gap in which the keeper could not read: replicas could not write either, and need their
    time. It also begins again once somebody else has shut what was open: an upgrade brings new replicas, or takes this
    keeper away, which then must not leave an entry open behind it.
    """
    gap = memory.looked is None or look.now - memory.looked > _MISSED * rules.every
    renewed = look.beat is not None and look.beat != memory.beat
    upgraded = not look.open and Stands.STALE in look.stands.values()
    since = look.now if gap or renewed or upgraded else memory.since
    paused = gap or look.now - since > _MISSED * rules.every
    renewals = 0 if paused else memory.renewals + int(renewed)
    passed, untold = (memory.passed, memory.untold) if look.open else (0, 0)
    return LeaseMemory(look.beat, since, look.now, passed, renewals, untold)


def silence(memory: LeaseMemory, now: float) -> float:
    """For how many seconds nobody has renewed the Lease, in the keeper's sight."""
    return 0.0 if memory.looked is None else max(0.0, now - memory.since)


def begin(memory: LeaseMemory, look: LeaseLook, rules: LeaseRules) -> LeaseWish:
    """Say what to do after a look was noticed; a self-test is judged by `conclude`.

    The policy that keeps Pods for devices out follows the mutating entry: it holds while that one is open by us. If
    somebody else has opened that one, the other is shut at once.
    """
    if look.open:
        kept = look.stands[Guarded.MUTATING] is Stands.OPEN or look.shut(Guarded.MUTATING)
        return LeaseWish.TEST if kept else LeaseWish.SHUT
    if silence(memory, look.now) >= rules.open_after:
        return LeaseWish.TEST if look.shut(Guarded.MUTATING) else LeaseWish.NOTHING
    return LeaseWish.TIDY if Stands.STALE in look.stands.values() else LeaseWish.NOTHING


def conclude(
    memory: LeaseMemory, look: LeaseLook, rules: LeaseRules, test: Judged
) -> tuple[LeaseMemory, LeaseWish, str]:
    """Say what to do after a self-test.

    Returns:
        The new memory, what to do, and what an administrator should look at; "" for nothing.
    """
    if test.verdict is Verdict.YES:
        return _answered(memory, look, rules)
    unknown = look.open and test.verdict is Verdict.UNKNOWN
    memory = replace(memory, passed=0, untold=memory.untold + 1 if unknown else 0)
    if test.verdict is Verdict.UNKNOWN:
        # Fail is what holds without a health lease: if replicas live and nothing else can be known, nothing stays open.
        # One test that proves nothing is no evidence: those before it may have shown that nobody answers.
        shut = memory.untold >= rules.self_tests and _lives(memory, rules)
        return memory, LeaseWish.SHUT if shut else LeaseWish.NOTHING, f"the self-test says nothing: {test.reason}"
    if silence(memory, look.now) < rules.open_after:
        since = f"the health lease was renewed, or this process began to look, less than {rules.open_after:g} s ago"
        told = f"{since}, and the self-test fails: {test.reason}"
        return memory, LeaseWish.CHECK_POLICY if look.open else LeaseWish.NOTHING, told
    if look.shut(Guarded.MUTATING):
        return memory, LeaseWish.OPEN_MUTATING, ""
    concerned = look.shut(Guarded.VALIDATING) or look.stands[Guarded.VALIDATING] is Stands.OPEN
    return memory, LeaseWish.CHECK_POLICY if concerned else LeaseWish.NOTHING, ""


def checked(memory: LeaseMemory, look: LeaseLook, rules: LeaseRules, held: Judged) -> LeaseWish:
    """Say what to do after the policy that keeps Pods for devices out was tried.

    Without it the validating entry must not be open. If replicas live besides, the namespace of self-tests may have
    left koordgate's hands: then no self-test will ever pass, and the mutating entry must not wait for one.
    """
    if held.verdict is Verdict.DEAD:
        if _lives(memory, rules):
            return LeaseWish.SHUT
        opened = look.stands[Guarded.VALIDATING] is Stands.OPEN
        return LeaseWish.SHUT_VALIDATING if opened else LeaseWish.NOTHING
    silent = silence(memory, look.now) >= rules.open_after
    if held.verdict is Verdict.YES and silent and look.shut(Guarded.VALIDATING):
        return LeaseWish.OPEN_VALIDATING
    return LeaseWish.NOTHING


def _lives(memory: LeaseMemory, rules: LeaseRules) -> bool:
    """Whether replicas renew the Lease steadily. That silence is short says less: this process may have just begun."""
    return memory.renewals >= rules.self_tests


def _answered(memory: LeaseMemory, look: LeaseLook, rules: LeaseRules) -> tuple[LeaseMemory, LeaseWish, str]:
    """Say what to do after a self-test that passed, as `conclude` does."""
    if not look.open:
        told = "replicas answer, but nobody renews the health lease: see the log of deployment/koordgate"
        return memory, LeaseWish.NOTHING, told
    passed = memory.passed + 1
    done = passed >= rules.self_tests
    return replace(memory, passed=0 if done else passed, untold=0), LeaseWish.SHUT if done else LeaseWish.NOTHING, ""
