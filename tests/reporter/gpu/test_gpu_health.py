"""A card's health over time: what takes it out of service, what brings it back, and what never does."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.gpu.facts import (
    DriverFacts,
    Fabric,
    FabricState,
    GpuFacts,
    LostCard,
    NodeReading,
    RecoveryAction,
    Wear,
    XidEvent,
)
from reporter.gpu.faults import KINDS, STANDING, Fault, Remedy, Xids, kind_of, notes, standing
from reporter.gpu.health import (
    NOTHING_KNOWN,
    CardState,
    GpuHealth,
    HealthPolicy,
    NodeRecord,
    SeenCard,
    advance,
    hear,
    step,
    waits,
)

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"
POLICY = HealthPolicy(quiet=300.0, proving=600.0, longest=10_000.0, forget=100_000.0)
CLEAN = Wear(
    corrected=0,
    uncorrected=0,
    retired_pages=0,
    retirement_pending=False,
    remapped_rows=0,
    remap_pending=False,
    remap_failed=False,
    sram_worn=False,
    repair_pending=False,
)
CARD = GpuFacts(
    uuid="GPU-a",
    minor=0,
    memory=1,
    bus="0000:3b:00.0",
    wear=CLEAN,
    fabric=Fabric(FabricState.COMPLETED, 0, "ab" * 16, 1),
    recovery=RecoveryAction.NONE,
    xid_events=True,
)
QUIET_CARD = GpuFacts(uuid="GPU-a", minor=0)  # one that reports nothing about itself
DRIVER = DriverFacts("580.159.04", "13.0")


def cause_of(health: GpuHealth) -> Fault:
    assert health.cause is not None
    return health.cause


def worn(**wear: Any) -> GpuFacts:
    return replace(CARD, wear=replace(CLEAN, **wear))


def seen(gpu: GpuFacts | None = CARD, *xids: int, **more: Any) -> SeenCard:
    return SeenCard(gpu, xids=tuple(XidEvent("GPU-a", xid, 0.0) for xid in xids), **more)


def lost(*, reset: bool = False) -> SeenCard:
    return SeenCard(None, LostCard(0, "GPU-a", reset, "GPU is lost"))


def live(health: GpuHealth | None, *steps: tuple[float, SeenCard]) -> GpuHealth:
    """Go through steps (seconds since the last one, what is seen); the first is at 1000."""
    now = 1000.0 if health is None else health.since
    for after, what in steps:
        now += after
        health = step(health, what, now, POLICY)
    assert health is not None
    return health


def at(health: GpuHealth | None, now: float, what: SeenCard) -> GpuHealth:
    return step(health, what, now, POLICY)


NEW = at(None, 0.0, seen())


def test_a_relapse_counts_for_a_week_and_doubles_the_times_up_to_a_day() -> None:
    policy = HealthPolicy()
    often = replace(NEW, falls=1000)
    assert [waits(replace(often, state=state), policy) for state in (CardState.SUSPECT, CardState.RECOVERING)] == [
        86400
    ] * 2
    assert policy.forget == 7 * 86400


# Xid errors by class


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120, 140, 143])
def test_the_fatal_errors_condemn_a_card_until_something_is_done(xid) -> None:
    health = at(NEW, 1.0, seen(CARD, xid))

    assert kind_of(xid).says is Xids.FATAL
    assert (health.state, health.owed >= Remedy.RESET, cause_of(health).xid) == (CardState.UNHEALTHY, True, xid)


STATED: dict[str, tuple[Xids, Remedy]] = {
    "nothing: errors of applications": (Xids.APPLICATION, Remedy.TIME),
    "nothing: notices": (Xids.NOTICE, Remedy.TIME),
    "suspect": (Xids.SUSPECT, Remedy.TIME),
    "unhealthy until it is reset": (Xids.FATAL, Remedy.RESET),
    "unhealthy until the node is restarted": (Xids.FATAL, Remedy.REBOOT),
}


def test_the_document_states_what_follows_from_each_error() -> None:
    rows = re.findall(r"^\| ([\d, -]+)[^|]*\| ([^|]+) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    stated = {number: STATED[what] for numbers, what in rows for number in each_of(numbers)}
    assert stated == {number: (kind_of(number).says, kind_of(number).remedy) for number in KINDS}


def each_of(numbers: str) -> Iterator[int]:
    """The numbers of a list such as "3, 5-7"."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
        yield from range(int(first), int(last or first) + 1)


def test_an_error_that_is_not_known_makes_a_card_suspect() -> None:
    assert at(NEW, 1.0, seen(CARD, 9999)).state is CardState.SUSPECT


@pytest.mark.parametrize("xid", sorted(n for n, kind in KINDS.items() if kind.says < Xids.SUSPECT))
@pytest.mark.parametrize("before", [(), (94,), (79,)], ids=["healthy", "suspect", "unhealthy"])
def test_an_applications_error_changes_nothing(before, xid) -> None:
    health = at(NEW, 1.0, seen(CARD, *before))

    assert at(health, 2.0, seen(CARD, xid)) == at(health, 2.0, seen(CARD))


# What a card reports about itself

STANDS: dict[str, tuple[GpuFacts, CardState, str]] = {
    "a row could not be replaced": (worn(remap_failed=True), CardState.UNHEALTHY, "RowRemapFailed"),
    "on-chip memory is worn": (worn(sram_worn=True), CardState.UNHEALTHY, "SramWorn"),
    "many pages are retired": (worn(retired_pages=60), CardState.UNHEALTHY, "ManyPagesRetired"),
    "pages wait to be retired": (worn(retirement_pending=True), CardState.SUSPECT, "PageRetirementPending"),
    "one page more is retired": (worn(retired_pages=65), CardState.UNHEALTHY, "ManyPagesRetired"),
    "the driver wants a reset": (replace(CARD, recovery=RecoveryAction.RESET), CardState.UNHEALTHY, "RecoveryReset"),
    "the driver wants a restart": (
        replace(CARD, recovery=RecoveryAction.REBOOT),
        CardState.UNHEALTHY,
        "RecoveryReboot",
    ),
    "the driver wants work taken off": (
        replace(CARD, recovery=RecoveryAction.OTHER),
        CardState.UNHEALTHY,
        "RecoveryDue",
    ),
    "the fabric is being joined": (
        replace(CARD, fabric=Fabric(FabricState.IN_PROGRESS, 0, "ab" * 16, 0)),
        CardState.SUSPECT,
        "FabricNotReady",
    ),
    "the fabric was not joined": (
        replace(CARD, fabric=Fabric(FabricState.COMPLETED, 999, "ab" * 16, 0)),
        CardState.UNHEALTHY,
        "FabricFailed",
    ),
}


@pytest.mark.parametrize(("gpu", "state", "reason"), STANDS.values(), ids=STANDS)
def test_a_fault_stands_as_long_as_the_card_shows_it_and_no_longer(gpu, state, reason) -> None:
    health = NEW
    for before in (None, NEW):
        health = live(before, (0, seen(gpu)), (1e6, seen(gpu)), (1e6, seen(gpu)))
        assert (health.state, cause_of(health).reason, health.count) == (state, reason, 1)

    assert standing(gpu) == {reason}
    mended = live(health, (1e6, seen()))
    if state is CardState.SUSPECT:
        assert mended.state is CardState.SUSPECT  # its quiet time starts only now
        mended = live(replace(mended, since=mended.last_error), (POLICY.quiet, seen()))
    assert mended.state is CardState.RECOVERING
    assert live(mended, (POLICY.proving, seen())).state is CardState.HEALTHY


HARMLESS = {
    "a new card": (CARD, ()),
    "corrected errors": (worn(corrected=10**9), ()),
    "a few retired pages": (worn(retired_pages=59), ()),
    "replaced rows": (worn(remapped_rows=512), ()),
    "rows that wait for a reset": (worn(remap_pending=True), ("broken memory rows are replaced",)),
    "a repair that waits for a reset": (worn(repair_pending=True), ("a repair is made",)),
    "errors before it was first seen": (worn(uncorrected=7), ()),
    "no fabric": (replace(CARD, fabric=None), ()),
    "a card that reports nothing": (QUIET_CARD, ("it does not report Xid errors", "it does not report its amount of")),
}


@pytest.mark.parametrize(("gpu", "said"), HARMLESS.values(), ids=HARMLESS)
def test_what_does_no_harm_leaves_a_card_in_service(gpu, said) -> None:
    assert at(None, 0.0, seen(gpu)).state is CardState.HEALTHY
    assert len(notes(gpu)) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes(gpu), said, strict=True))


def test_a_card_that_stops_telling_has_not_got_well_by_that() -> None:
    health = at(NEW, 1.0, seen(worn(remap_failed=True)))

    assert at(health, 1e6, seen(QUIET_CARD)).state is CardState.UNHEALTHY
    assert at(at(health, 1e6, seen(QUIET_CARD)), 2e6, seen()).state is CardState.RECOVERING


def test_new_uncorrected_errors_make_a_card_suspect_though_no_xid_was_heard() -> None:
    health = at(NEW, 1.0, seen(worn(uncorrected=1)))

    assert (health.state, cause_of(health).reason, health.count) == (CardState.SUSPECT, "UncorrectedErrors", 1)
    assert at(health, 2.0, seen(worn(uncorrected=1))).count == 1


# Coming back


def test_a_suspect_card_comes_back_by_being_without_errors() -> None:
    suspect = at(NEW, 1000.0, seen(CARD, 94))
    assert at(suspect, 1299.0, seen()).state is CardState.SUSPECT

    recovering = at(suspect, 1300.0, seen())
    assert recovering.state is CardState.RECOVERING
    assert at(recovering, 1899.0, seen()).state is CardState.RECOVERING

    healthy = at(recovering, 1900.0, seen())
    assert (healthy.state, healthy.count, healthy.usable) == (CardState.HEALTHY, 0, True)


def test_after_long_service_a_fall_is_the_first_again() -> None:
    healthy = live(NEW, (1000, seen(CARD, 94)), (300, seen()), (600, seen()))
    assert healthy.state is CardState.HEALTHY

    assert live(healthy, (POLICY.forget, seen(CARD, 94))).falls == 2
    assert live(healthy, (POLICY.forget + 1, seen(CARD, 94))).falls == 1


BACK: dict[str, tuple[list[SeenCard], SeenCard, bool]] = {
    "48: time": ([seen(CARD, 48)], seen(), False),
    "48: the node was restarted": ([seen(CARD, 48)], seen(rebooted=True), True),
    "48: error counts begin anew": ([seen(worn(uncorrected=3), 48)], seen(), True),
    "48: error counts go on": ([seen(worn(uncorrected=3), 48)], seen(worn(uncorrected=3)), False),
    "48: the driver wanted a reset and wants none any more": (
        [seen(CARD, 48), seen(replace(CARD, recovery=RecoveryAction.RESET))],
        seen(),
        True,
    ),
    "48: the driver wanted a reset and no longer reports": (
        [seen(CARD, 48), seen(replace(CARD, recovery=RecoveryAction.RESET))],
        seen(QUIET_CARD),
        False,
    ),
    "48: the driver wants more than before": (
        [seen(CARD, 48), seen(replace(CARD, recovery=RecoveryAction.RESET))],
        seen(replace(CARD, recovery=RecoveryAction.REBOOT)),
        False,
    ),
    "48: it was refused until a reset": ([seen(CARD, 48), lost(reset=True)], seen(), True),
    "79: it was off the bus and is back": ([seen(CARD, 79), lost()], seen(), True),
    "79: time": ([seen(CARD, 79)], seen(), False),
    "79: a reset is not enough": ([seen(worn(uncorrected=3), 79)], seen(), False),
    "79: it was refused until a reset": ([seen(CARD, 79), lost(reset=True)], seen(), False),
    "79: the node was restarted": ([seen(CARD, 79)], seen(rebooted=True), True),
    "both 48 and 79: a reset is not enough": ([seen(CARD, 79), seen(worn(uncorrected=3), 48)], seen(), False),
    "off the bus without a word": ([lost()], seen(), True),
    "off the bus, the node restarted, still off": ([lost()], replace(lost(), rebooted=True), False),
    "a failed remap stays failed over restarts": (
        [seen(worn(remap_failed=True))],
        seen(worn(remap_failed=True), rebooted=True),
        False,
    ),
}


@pytest.mark.parametrize(("fall", "then", "back"), BACK.values(), ids=BACK)
def test_an_unhealthy_card_comes_back_when_its_remedy_was_seen_and_not_before(fall, then, back) -> None:
    health = live(NEW, *((1.0, what) for what in fall))
    assert health.state is CardState.UNHEALTHY

    after = live(health, (1e7, then))

    assert after.state is (CardState.RECOVERING if back else CardState.UNHEALTHY)


def test_what_took_a_card_out_is_named_until_something_worse_comes() -> None:
    health = at(NEW, 1.0, seen(CARD, 94))
    assert cause_of(health).reason == "Xid94"
    health = at(health, 2.0, seen(CARD, 79))
    assert cause_of(health).reason == "Xid79"
    health = at(health, 3.0, lost())
    assert cause_of(health).reason == "Xid79"
    health = at(health, 4.0, seen(worn(remap_failed=True), rebooted=True))
    assert (cause_of(health).reason, cause_of(health).message) == (
        "RowRemapFailed",
        "a broken memory row could not be replaced; replace the card",
    )


@pytest.mark.parametrize(
    ("standing", "xids", "reason"),
    [
        ({}, (92, 79, 48), "Xid79"),
        ({}, (92, 48, 79), "Xid79"),
        ({"remap_failed": True}, (48, 79), "RowRemapFailed"),
        ({"retirement_pending": True}, (48, 92), "Xid48"),
        ({"retirement_pending": True, "sram_worn": True}, (92,), "SramWorn"),
    ],
    ids=["errors", "errors the other way round", "a fault", "an error", "the heavier of two faults"],
)
@pytest.mark.parametrize("before", [NEW, at(NEW, 1.0, seen(CARD, 94))], ids=["in service", "suspect"])
def test_of_several_new_faults_the_heaviest_is_named(before, standing, xids, reason) -> None:
    assert cause_of(at(before, 2.0, seen(worn(**standing), *xids))).reason == reason


def test_a_clock_that_was_set_back_proves_nothing_and_blocks_nothing() -> None:
    health = at(NEW, 1e9, seen(CARD, 94))

    assert at(health, 1000.0, seen()).state is CardState.SUSPECT
    assert at(at(health, 1000.0, seen()), 1300.0, seen()).state is CardState.RECOVERING


# A node's cards


def reading(*gpus: GpuFacts, lost: tuple[LostCard, ...] = (), boot: str = "one") -> NodeReading:
    return NodeReading(DRIVER, gpus, lost, boot)


def card(name: str, bus: str | None = None) -> GpuFacts:
    return replace(CARD, uuid=f"GPU-{name}", bus=bus or f"0000:{ord(name):02x}:00.0")


def node(*names: str) -> NodeRecord:
    return advance(NOTHING_KNOWN, reading(*map(card, names)), (), 1000.0, POLICY)


def states(record: NodeRecord) -> dict[str, CardState]:
    return {uuid: card.health.state for uuid, card in record.cards.items()}


def test_an_error_is_the_fault_of_its_card_alone() -> None:
    after = advance(node("a", "b"), reading(card("a"), card("b")), [XidEvent("GPU-b", 79, 1.0)], 1001.0, POLICY)

    assert states(after) == {"GPU-a": CardState.HEALTHY, "GPU-b": CardState.UNHEALTHY}


@pytest.mark.parametrize("uuid", [None, "GPU-x"], ids=["no card named", "a card that is not there"])
def test_an_error_of_no_known_card_condemns_none(uuid) -> None:
    events = [XidEvent(uuid, 79, 1.0)]

    assert set(states(advance(node("a"), reading(card("a")), events, 1001.0, POLICY)).values()) == {CardState.HEALTHY}
    assert hear(node("a"), events, 1001.0, POLICY) == node("a")


def test_only_a_node_that_was_read_is_known_to_have_no_other_cards() -> None:
    assert not NOTHING_KNOWN.known
    assert advance(NOTHING_KNOWN, reading(boot=""), (), 1.0, POLICY).known
    assert NodeRecord("", node("a").cards).known


def test_an_error_counts_at_once_and_once() -> None:
    heard = hear(node("a", "b"), [XidEvent("GPU-a", 94, 1.0, count=3)], 1001.0, POLICY)
    after = advance(heard, reading(card("a"), card("b")), (), 1002.0, POLICY)

    assert states(heard) == states(after) == {"GPU-a": CardState.SUSPECT, "GPU-b": CardState.HEALTHY}
    assert after.cards["GPU-a"].health.count == 3


def test_a_card_that_is_not_listed_any_more_is_kept_as_lost() -> None:
    away = advance(node("a", "b"), reading(card("b")), (), 1001.0, POLICY)

    assert states(away) == {"GPU-a": CardState.UNHEALTHY, "GPU-b": CardState.HEALTHY}
    assert cause_of(away.cards["GPU-a"].health).reason == "GpuLost"
    assert away.cards["GPU-a"].facts == card("a")

    told = hear(away, [XidEvent("GPU-a", 79, 1.0)], 1002.0, POLICY)
    assert not told.cards["GPU-a"].health.present


GONE: dict[str, tuple[NodeReading, float]] = {
    "another card has its place": (reading(card("b"), card("c", bus=card("a").bus)), 1001.0),
    "it was away for long": (reading(card("b")), 1000.0 + POLICY.forget + 1),
}


@pytest.mark.parametrize(("then", "now"), GONE.values(), ids=GONE)
def test_a_card_that_was_taken_out_is_forgotten(then, now) -> None:
    assert "GPU-a" not in advance(node("a", "b"), then, (), now, POLICY).cards


@pytest.mark.parametrize(
    ("boot", "state"), [("one", CardState.UNHEALTHY), ("two", CardState.RECOVERING), ("", CardState.UNHEALTHY)]
)
def test_a_restart_of_the_node_is_seen_by_the_name_of_its_run(boot, state) -> None:
    condemned = hear(node("a"), [XidEvent("GPU-a", 79, 1.0)], 1001.0, POLICY)

    after = advance(condemned, reading(card("a"), boot=boot), (), 1002.0, POLICY)

    assert states(after) == {"GPU-a": state}
    assert after.boot == (boot or "one")


# Properties, over any life


@st.composite
def sights(draw: st.DrawFn) -> SeenCard:
    if draw(st.integers(0, 6)) == 0:
        return replace(lost(reset=draw(st.booleans())), rebooted=draw(st.booleans()))
    flag = st.sampled_from([None, False, False, False, True])
    gpu = replace(
        CARD,
        wear=Wear(
            uncorrected=draw(st.sampled_from([None, 0, 0, 0, 1, 2])),
            retirement_pending=draw(flag),
            remap_failed=draw(flag),
            remap_pending=draw(flag),
        ),
        recovery=draw(st.sampled_from([None, *[RecoveryAction.NONE] * 5, *RecoveryAction])),
    )
    xids = draw(st.lists(st.sampled_from([13, 31, 63, 94, 48, 79, 9999]), max_size=2))
    return seen(gpu, *xids, rebooted=draw(st.integers(0, 5)) == 0)


def lives() -> st.SearchStrategy[list[tuple[float, SeenCard]]]:
    spans = st.sampled_from([0.0, 1.0, 299.0, 300.0, 600.0, 5000.0, 1e6, -1000.0])
    return st.lists(st.tuples(spans, sights() | st.just(seen())), max_size=24)


@given(lives())
def test_no_life_makes_a_card_healthy_while_something_is_wrong_with_it(life) -> None:
    health: GpuHealth | None = None
    now = last_error = 1e6
    owed = Remedy.TIME
    for after, what in life:
        before, now = health, now + after
        health = step(health, what, now, POLICY)
        counts = [kind for event in what.xids if (kind := kind_of(event.xid)).says >= Xids.SUSPECT]
        fatal = [kind.remedy for kind in counts if kind.says is Xids.FATAL]
        wrong = [STANDING[reason] for reason in (standing(what.gpu) if what.gpu else {"GpuLost"})]
        last_error = now if counts or wrong else min(last_error, now)

        # A present fault decides.
        if fatal or any(fault.says is Xids.FATAL for fault in wrong):
            assert health.state is CardState.UNHEALTHY
        if counts or wrong:
            assert not health.usable
        # A remedy is owed until something shows that it was applied.
        evidence = what.rebooted or (before is not None and before.standing != health.standing)
        evidence |= before is not None and (before.uncorrected or 0) > (health.uncorrected or 0)
        owed = max([Remedy.TIME if evidence else owed, *fatal])
        if owed is not Remedy.TIME:
            assert health.state is CardState.UNHEALTHY
        # No card returns without a proving period.
        if before is not None and health.usable and not before.usable:
            assert before.state is CardState.RECOVERING
            assert now - last_error >= POLICY.proving
        if before is not None and before.state is CardState.UNHEALTHY:
            assert health.state is not CardState.HEALTHY
        assert health.since <= now
        assert health.usable == (health.state is CardState.HEALTHY)
        assert (health.count == 0) or not health.usable


@given(lives())
def test_a_life_that_turns_quiet_after_a_restart_always_ends_in_service(life) -> None:
    health: GpuHealth | None = None
    now = 1e6
    for after, what in life:
        now += after
        health = step(health, what, now, POLICY)
    for _ in range(4):
        now += POLICY.longest
        health = step(health, seen(rebooted=True), now, POLICY)

    assert health is not None
    assert health.state is CardState.HEALTHY


def keeps(reserved: int | None, memory: int = 1, driver: str = "580.159.04") -> NodeReading:
    return replace(reading(replace(card("a"), memory=memory, reserved=reserved)), driver=DriverFacts(driver, "13.0"))


@pytest.mark.parametrize(
    ("readings", "kept"),
    [
        pytest.param([keeps(5), keeps(7), keeps(3)], 5, id="it varies"),
        pytest.param([keeps(None), keeps(7), keeps(3)], 7, id="it was not told at first"),
        pytest.param([keeps(5), keeps(None), keeps(7)], 5, id="it was not told for a while"),
        pytest.param([keeps(5), keeps(7, driver="615.1")], 7, id="another driver"),
        pytest.param([keeps(5), keeps(7, memory=2)], 7, id="the card has more memory, such as without ECC"),
    ],
)
def test_what_the_driver_keeps_is_as_first_read_until_the_driver_or_the_memory_is_another(
    readings: list[NodeReading], kept: int
) -> None:
    record = NOTHING_KNOWN
    for one in readings:
        record = advance(record, one, (), 1000.0, POLICY)
    assert record.cards["GPU-a"].facts.reserved == kept


def test_a_card_that_is_gone_for_a_while_comes_back_with_what_its_driver_kept() -> None:
    record = advance(NOTHING_KNOWN, keeps(5), (), 1000.0, POLICY)
    record = advance(record, reading(), (), 1001.0, POLICY)
    assert advance(record, keeps(7), (), 1002.0, POLICY).cards["GPU-a"].facts.reserved == 5
