"""What the keeper of the health lease decides: what it has seen, and what it then does."""

from dataclasses import replace

import pytest

from webhook.lease.decide import (
    LeaseLook,
    LeaseMemory,
    LeaseRules,
    LeaseWish,
    begin,
    checked,
    conclude,
    notice,
    silence,
)
from webhook.lease.entries import Guarded, Stands
from webhook.lease.selftest import Judged, Verdict

RULES = LeaseRules(every=10.0, open_after=120.0, self_tests=3)
SHUT, STALE, OPEN, FOREIGN, ABSENT = Stands.SHUT, Stands.STALE, Stands.OPEN, Stands.FOREIGN, Stands.ABSENT
YES, DEAD, UNKNOWN = Judged(Verdict.YES), Judged(Verdict.DEAD, "refused"), Judged(Verdict.UNKNOWN, "a quota")
BEAT, NEXT = ("webhook-a", "1", ""), ("webhook-a", "2", "")


def look(
    now: float, mutating: Stands = SHUT, validating: Stands = SHUT, beat: tuple[str, str, str] | None = BEAT
) -> LeaseLook:
    return LeaseLook(now, beat, {Guarded.MUTATING: mutating, Guarded.VALIDATING: validating})


def silent(seconds: float, passed: int = 0, renewals: int = 0) -> tuple[LeaseMemory, float]:
    """A keeper that has seen silence for some time, and the present moment."""
    seen = LeaseMemory(BEAT, since=1000.0, looked=1000.0 + seconds, passed=passed, renewals=renewals)
    return seen, 1000.0 + seconds


# Silence


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        pytest.param([(0, BEAT)], 0, id="the first look begins it"),
        pytest.param([(0, BEAT), (10, BEAT), (20, BEAT)], 20, id="a Lease that stays the same"),
        pytest.param([(0, BEAT), (10, NEXT), (20, NEXT)], 10, id="a renewal ends it"),
        pytest.param([(0, None), (10, None)], 10, id="no Lease"),
        pytest.param([(0, BEAT), (10, None), (20, None)], 20, id="a Lease that was deleted is no renewal"),
        pytest.param([(0, None), (10, BEAT), (20, BEAT)], 10, id="a Lease that was made is one"),
        pytest.param([(0, BEAT), (10, None), (20, BEAT)], 0, id="a Lease that was made again is one"),
        pytest.param([(0, BEAT), (30, BEAT)], 30, id="two looks may be missed"),
        pytest.param([(0, BEAT), (31, BEAT)], 0, id="after a longer gap it begins again"),
        pytest.param([(0, BEAT), (10, ("webhook-b", "1", ""))], 0, id="another replica"),
        pytest.param([(0, BEAT), (10, ("webhook-a", "0", ""))], 0, id="a replica whose clock was set back"),
    ],
)
def test_silence_is_the_time_since_the_lease_changed_in_the_keepers_sight(
    beats: list[tuple[float, tuple[str, str, str] | None]], expected: float
) -> None:
    memory = LeaseMemory()
    for now, beat in beats:
        memory = notice(memory, look(now, beat=beat), RULES)
    assert silence(memory, beats[-1][0]) == expected


def test_a_keeper_that_has_not_looked_knows_of_no_silence() -> None:
    assert silence(LeaseMemory(), 10_000.0) == 0


def test_self_tests_in_a_row_count_only_while_something_is_open() -> None:
    memory, now = silent(10, passed=2)
    assert notice(memory, look(now, OPEN), RULES).passed == 2
    assert notice(memory, look(now), RULES).passed == 0


# Before a self-test


@pytest.mark.parametrize(
    ("seconds", "mutating", "validating", "expected"),
    [
        pytest.param(0, SHUT, SHUT, LeaseWish.NOTHING, id="a replica lives"),
        pytest.param(119.9, SHUT, SHUT, LeaseWish.NOTHING, id="silence is too short"),
        pytest.param(120, SHUT, SHUT, LeaseWish.TEST, id="silence"),
        pytest.param(120, STALE, STALE, LeaseWish.TEST, id="silence after an upgrade"),
        pytest.param(120, FOREIGN, SHUT, LeaseWish.NOTHING, id="an administrator opened the mutating entry"),
        pytest.param(120, ABSENT, SHUT, LeaseWish.NOTHING, id="there is no mutating entry"),
        pytest.param(120, SHUT, FOREIGN, LeaseWish.TEST, id="an administrator opened the validating entry"),
        pytest.param(0, OPEN, OPEN, LeaseWish.TEST, id="open, and somebody renews"),
        pytest.param(500, OPEN, OPEN, LeaseWish.TEST, id="open, and silence"),
        pytest.param(0, OPEN, SHUT, LeaseWish.TEST, id="half open"),
        pytest.param(0, SHUT, OPEN, LeaseWish.TEST, id="half open the other way: the mutating entry is Fail"),
        pytest.param(0, STALE, OPEN, LeaseWish.TEST, id="half open after somebody shut the mutating entry"),
        pytest.param(0, FOREIGN, OPEN, LeaseWish.SHUT, id="the policy does not hold: somebody else opened mutating"),
        pytest.param(500, FOREIGN, OPEN, LeaseWish.SHUT, id="the same in silence"),
        pytest.param(500, ABSENT, OPEN, LeaseWish.SHUT, id="the policy does not hold: no mutating entry"),
        pytest.param(0, STALE, STALE, LeaseWish.TIDY, id="an upgrade shut them"),
        pytest.param(0, SHUT, STALE, LeaseWish.TIDY, id="an upgrade shut one"),
        pytest.param(0, FOREIGN, FOREIGN, LeaseWish.NOTHING, id="an administrator opened both"),
    ],
)
def test_what_is_done_after_a_look(seconds: float, mutating: Stands, validating: Stands, expected: LeaseWish) -> None:
    memory, now = silent(seconds)
    assert begin(memory, look(now, mutating, validating), RULES) is expected


# After a self-test


@pytest.mark.parametrize(
    ("seconds", "mutating", "validating", "test", "expected"),
    [
        pytest.param(120, SHUT, SHUT, DEAD, LeaseWish.OPEN_MUTATING, id="the mutating entry is the first"),
        pytest.param(120, STALE, STALE, DEAD, LeaseWish.OPEN_MUTATING, id="likewise after an upgrade"),
        pytest.param(130, OPEN, SHUT, DEAD, LeaseWish.CHECK_POLICY, id="the validating entry follows"),
        pytest.param(130, OPEN, STALE, DEAD, LeaseWish.CHECK_POLICY, id="likewise if somebody shut it"),
        pytest.param(130, OPEN, OPEN, DEAD, LeaseWish.CHECK_POLICY, id="all is open: is the policy still there"),
        pytest.param(130, OPEN, FOREIGN, DEAD, LeaseWish.NOTHING, id="an administrator opened the validating entry"),
        pytest.param(130, OPEN, ABSENT, DEAD, LeaseWish.NOTHING, id="there is no validating entry"),
        pytest.param(130, SHUT, OPEN, DEAD, LeaseWish.OPEN_MUTATING, id="somebody shut the mutating entry"),
    ],
)
def test_what_is_opened_when_a_self_test_is_not_answered(
    seconds: float, mutating: Stands, validating: Stands, test: Judged, expected: LeaseWish
) -> None:
    memory, now = silent(seconds, passed=2)
    after, wish, problem = conclude(memory, look(now, mutating, validating), RULES, test)
    assert (wish, problem, after.passed) == (expected, "", 0)


def test_nothing_is_opened_while_somebody_renews_although_the_self_test_fails() -> None:
    memory, now = silent(119, passed=2)
    after, wish, problem = conclude(memory, look(now, OPEN, SHUT), RULES, DEAD)
    assert (wish, after.passed) == (LeaseWish.CHECK_POLICY, 0)
    assert checked(after, look(now, OPEN, SHUT), RULES, YES) is LeaseWish.NOTHING
    since = "the health lease was renewed, or this process began to look, less than 120 s ago"
    assert problem == f"{since}, and the self-test fails: refused"


@pytest.mark.parametrize(
    ("seconds", "renewals", "validating", "held", "expected"),
    [
        pytest.param(130, 0, SHUT, YES, LeaseWish.OPEN_VALIDATING, id="the policy is in force"),
        pytest.param(130, 0, STALE, YES, LeaseWish.OPEN_VALIDATING, id="likewise if somebody shut the entry"),
        pytest.param(130, 0, OPEN, YES, LeaseWish.NOTHING, id="it still is"),
        pytest.param(119, 0, SHUT, YES, LeaseWish.NOTHING, id="it is, and silence is short"),
        pytest.param(120, 0, SHUT, YES, LeaseWish.OPEN_VALIDATING, id="it is, and silence is just long enough"),
        pytest.param(130, 0, OPEN, UNKNOWN, LeaseWish.NOTHING, id="something else refuses the Pod first"),
        pytest.param(130, 0, SHUT, UNKNOWN, LeaseWish.NOTHING, id="likewise before anything depends on it"),
        pytest.param(130, 0, SHUT, DEAD, LeaseWish.NOTHING, id="it is not there"),
        pytest.param(130, 0, OPEN, DEAD, LeaseWish.SHUT_VALIDATING, id="it was removed"),
        pytest.param(5, 3, OPEN, DEAD, LeaseWish.SHUT, id="it was removed, and replicas live"),
        pytest.param(5, 3, SHUT, DEAD, LeaseWish.SHUT, id="likewise, half open"),
        pytest.param(0, 0, OPEN, DEAD, LeaseWish.SHUT_VALIDATING, id="it was removed, and the keeper has just begun"),
        pytest.param(5, 2, SHUT, DEAD, LeaseWish.NOTHING, id="it was removed, and a replica may live"),
        pytest.param(5, 3, OPEN, YES, LeaseWish.NOTHING, id="replicas live, and the API server does not reach them"),
    ],
)
def test_the_validating_entry_is_open_only_while_the_policy_is_seen_in_force(
    seconds: float, renewals: int, validating: Stands, held: Judged, expected: LeaseWish
) -> None:
    memory, now = silent(seconds, renewals=renewals)
    assert checked(memory, look(now, OPEN, validating), RULES, held) is expected


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        pytest.param([(0, BEAT), (10, BEAT)], 0, id="an old Lease"),
        pytest.param([(0, BEAT), (10, NEXT), (20, BEAT)], 2, id="at each look"),
        pytest.param([(0, BEAT), (10, NEXT), (20, NEXT), (30, BEAT)], 2, id="a replica slips by one look"),
        pytest.param([(0, BEAT), (10, NEXT), (20, NEXT), (30, NEXT), (40, NEXT), (50, NEXT)], 0, id="it stops"),
        pytest.param([(0, BEAT), (10, NEXT), (50, BEAT)], 0, id="a gap"),
    ],
)
def test_renewals_are_counted_while_they_go_on(beats: list[tuple[float, tuple[str, str, str]]], expected: int) -> None:
    memory = LeaseMemory()
    for now, beat in beats:
        memory = notice(memory, look(now, OPEN, OPEN, beat), RULES)
    assert memory.renewals == expected


@pytest.mark.parametrize(
    ("stands", "renewals", "tests", "expected"),
    [
        pytest.param(OPEN, 3, (UNKNOWN,) * 3, LeaseWish.SHUT, id="replicas renew, and no test tells anything"),
        pytest.param(OPEN, 2, (UNKNOWN,) * 3, LeaseWish.NOTHING, id="a replica may live"),
        pytest.param(OPEN, 0, (UNKNOWN,) * 9, LeaseWish.NOTHING, id="nobody renews"),
        pytest.param(OPEN, 9, (UNKNOWN,) * 2, LeaseWish.NOTHING, id="the third test may tell something"),
        pytest.param(
            OPEN, 9, (UNKNOWN, UNKNOWN, DEAD, UNKNOWN), LeaseWish.NOTHING, id="one showed that nobody answers"
        ),
        pytest.param(OPEN, 9, (UNKNOWN, UNKNOWN, YES, UNKNOWN), LeaseWish.NOTHING, id="one passed, others may"),
        pytest.param(SHUT, 9, (UNKNOWN,) * 9, LeaseWish.NOTHING, id="nothing is open"),
    ],
)
def test_entries_do_not_wait_for_self_tests_that_something_else_refuses_once_replicas_renew(
    stands: Stands, renewals: int, tests: tuple[Judged, ...], expected: LeaseWish
) -> None:
    memory, now = silent(5, renewals=renewals)
    wishes = []
    for test in tests:
        memory, wish, problem = conclude(memory, look(now, stands, stands), RULES, test)
        wishes.append(wish)
    assert LeaseWish.SHUT not in wishes[:-1]
    assert wishes[-1] is expected
    assert problem == "the self-test says nothing: a quota"


@pytest.mark.parametrize(("stands", "expected"), [(OPEN, 2), (SHUT, 0)])
def test_self_tests_that_told_nothing_count_only_while_something_is_open(stands: Stands, expected: int) -> None:
    memory, now = silent(5)
    assert notice(replace(memory, untold=2), look(now, stands), RULES).untold == expected


def test_silence_begins_again_when_somebody_else_shuts_what_was_open() -> None:
    memory, now = silent(500)
    assert silence(notice(memory, look(now, STALE, STALE), RULES), now) == 0
    assert silence(notice(memory, look(now, STALE, OPEN), RULES), now) == 500


@pytest.mark.parametrize("stands", [SHUT, OPEN])
def test_a_self_test_that_something_else_stopped_changes_nothing_and_is_told(stands: Stands) -> None:
    memory, now = silent(500, passed=2)
    after, wish, problem = conclude(memory, look(now, stands, stands), RULES, UNKNOWN)
    assert (wish, after.passed) == (LeaseWish.NOTHING, 0)
    assert problem == "the self-test says nothing: a quota"


def test_nothing_is_opened_while_the_self_test_is_answered_and_that_nobody_renews_is_told() -> None:
    memory, now = silent(500)
    after, wish, problem = conclude(memory, look(now), RULES, YES)
    assert (after, wish) == (memory, LeaseWish.NOTHING)
    assert "nobody renews" in problem


def test_entries_are_shut_after_as_many_self_tests_in_a_row_as_are_demanded() -> None:
    memory, now = silent(5)
    wishes = []
    for test in (YES, YES, DEAD, YES, YES, UNKNOWN, YES, YES, YES, YES):
        memory, wish, _ = conclude(memory, look(now, OPEN, OPEN), RULES, test)
        wishes.append(wish)
    again = [LeaseWish.NOTHING] * 2
    assert wishes == [
        *again,
        LeaseWish.CHECK_POLICY,
        *again,
        LeaseWish.NOTHING,
        *again,
        LeaseWish.SHUT,
        LeaseWish.NOTHING,
    ]


def test_a_self_test_shuts_entries_even_if_nobody_can_renew_the_lease() -> None:
    memory, now = silent(5000, passed=2)
    _, wish, _ = conclude(memory, look(now, OPEN, OPEN), RULES, YES)
    assert wish is LeaseWish.SHUT


def test_a_replica_that_comes_and_goes_does_not_change_the_configuration_each_time() -> None:
    """It lives for twenty seconds of each forty: never for three self-tests, and never silent for two minutes."""
    stands, memory, changes = SHUT, LeaseMemory(), 0
    for tick in range(360):
        now, alive = tick * 10.0, tick % 4 < 2
        seen = look(now, stands, stands, ("a", str(tick), "") if alive else memory.beat)
        memory = notice(memory, seen, RULES)
        wish = begin(memory, seen, RULES)
        if wish is LeaseWish.TEST:
            memory, wish, _ = conclude(memory, seen, RULES, YES if alive else DEAD)
        if wish is not LeaseWish.NOTHING:
            changes += 1
            stands = OPEN if stands is SHUT else SHUT
    assert changes == 0
    assert replace(memory, passed=0) == memory
