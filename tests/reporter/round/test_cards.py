"""The state of the cards: before NVML answers, cards that return, errors that name no card, and metrics."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from nvml_standin import Played

from reporter.gpu.facts import DriverFacts, GpuFacts, GpuProcess, LostCard, NodeReading, Outage, Wear, XidEvent
from reporter.gpu.guarded import Patience
from reporter.gpu.health import NOTHING_KNOWN, CardRecord, CardState, GpuHealth, HealthPolicy, NodeRecord
from reporter.host import Host
from reporter.kubelet.podresources import PodResourcesSocket
from reporter.metrics import ReporterMetrics
from reporter.perform import Performer
from reporter.round.messages import Moment, Prove, Proved
from reporter.round.state import CardsState, words
from reporter.settings import parse

A100 = "GPU-a1000000-0000-4000-8000-00000000000{}"
DRIVER = DriverFacts("580", "13.0")
PATIENT = Patience(answer=30.0, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0, renewal=0.0)
POLICY = HealthPolicy()
AWAY = Outage("NvmlHangs", "it hangs", 100.0)


def at(seconds: float) -> Moment:
    return Moment(wall=seconds, steady=seconds)


def reading(count: int, *, lost: Iterable[LostCard] = ()) -> NodeReading:
    gpus = tuple(GpuFacts(uuid=A100.format(n), minor=n, bus=f"0000:0{n}:00.0") for n in range(count))
    return NodeReading(DRIVER, gpus, tuple(lost), "boot")


def metric(metrics: ReporterMetrics, name: str, **labels: str) -> float | None:
    found: float | None = metrics._registry.get_sample_value(f"koordgate_reporter_{name}", labels)
    return found


async def test_a_card_that_is_not_listed_any_more_and_comes_back_is_seen(played: Played) -> None:
    played.play("a100x8")
    nvml = played.nvml(PATIENT)
    cards = CardsState()

    async def present() -> tuple[int, int]:
        nonlocal cards
        cards = cards.read(await nvml.read(cards.view.node.cards), (), at(0.0), POLICY)
        return sum(card.health.present for card in cards.view.node.cards.values()), len(cards.view.node.cards)

    assert await present() == (8, 8)
    played.change({"count": "7", "gpu.7.lost": "1"})
    for _ in range(3):
        assert await present() == (7, 8)

    played.change({"count": "8", "gpu.7.lost": None})
    assert await present() == (8, 8)


# Before NVML answers


def test_what_is_restored_has_the_driver_and_need_not_be_saved() -> None:
    cards = CardsState().restored(NodeRecord("boot", {}, DRIVER), at(5.0))

    assert cards.view.driver == DRIVER
    assert not cards.save_due(at(6.0), 300.0)
    assert cards.save_due(at(306.0), 300.0)


@pytest.mark.parametrize(
    ("cards", "settled"),
    [
        (CardsState(), False),
        (CardsState().restored(NOTHING_KNOWN, at(0.0)), False),
        (CardsState().restored(NodeRecord("boot", {}), at(0.0)), True),
        (CardsState().read(reading(0), (), at(0.0), POLICY), True),
        (CardsState().away(replace(AWAY, since=40.0)), True),
        (CardsState().away(replace(AWAY, since=41.0)), False),
    ],
    ids=["the start", "nothing restored", "restored", "a reading", "an outage that lasted", "an outage that did not"],
)
def test_the_cards_are_settled_by_what_is_known(cards: CardsState, settled: object) -> None:
    assert cards.settled(at(100.0), 60.0) is settled


# What follows from a change


def sick(cards: CardsState) -> CardsState:
    return cards.heard([XidEvent(A100.format(1), 79, 0.0)], at(1.0), POLICY)


@pytest.mark.parametrize(
    ("change", "same", "save"),
    [
        (lambda cards: cards.read(reading(2), (), at(50.0), POLICY), True, False),
        (lambda cards: cards.read(reading(3), (), at(1.0), POLICY), False, True),
        (lambda cards: cards.read(reading(1), (), at(1.0), POLICY), False, True),
        (lambda cards: cards.away(AWAY), False, False),
        (sick, False, True),
    ],
    ids=["times only", "another card", "a card away", "an outage alone", "an error"],
)
def test_a_change_of_more_than_times_is_seen_and_one_of_the_record_is_saved(change, same, save) -> None:
    before = CardsState().read(reading(2), (), at(0.0), POLICY).saving(at(0.0))

    after = change(before)

    assert after.same(before) is same
    assert after.save_due(at(60.0), 300.0) is save


def test_the_end_of_an_outage_is_a_change() -> None:
    before = CardsState().read(reading(2), (), at(0.0), POLICY).away(AWAY)

    after = before.read(reading(2), (), at(1.0), POLICY)

    assert not after.same(before)
    assert after.view.outage is None


def test_an_outage_keeps_the_cards_as_they_were_last_known() -> None:
    before = sick(CardsState().read(reading(3), (), at(0.0), POLICY))

    after = before.away(AWAY)

    assert after.view == replace(before.view, outage=AWAY)
    assert after.to_ask == ()


def test_processes_are_asked_of_cards_that_answer_and_remembered_of_all_that_are_known() -> None:
    cards = CardsState().read(reading(3), (), at(0.0), POLICY)
    cards = replace(cards, processes={A100.format(n): () for n in (1, 2, 7)})

    cards = cards.read(reading(2), (), at(1.0), POLICY)

    assert cards.to_ask == (A100.format(0), A100.format(1))
    assert set(cards.remembered) == {A100.format(1), A100.format(2)}


@pytest.mark.parametrize(("lost", "unnamed"), [(0, 0), (1, 0), (2, 2)])
def test_a_card_without_a_name_is_reported_unless_it_can_be_one_that_is_missing(lost: int, unnamed: int) -> None:
    cards = CardsState().read(reading(3), (), at(0.0), POLICY)
    nameless = (LostCard(2 + n, None, reset=n == 1, message="Unknown Error") for n in range(lost))

    cards = cards.read(reading(2, lost=nameless), (), at(1.0), POLICY)

    problems = cards.view.problems
    assert len(problems) == len(cards.view.unnamed) == unnamed
    if unnamed:
        assert problems[0].startswith("the card at index 2 of NVML's list has not answered")
        assert "reset" in problems[1]


# Xid errors that name no card


@pytest.mark.parametrize("at_a_reading", [True, False], ids=["with a reading", "between readings"])
def test_a_grave_error_of_no_card_is_a_problem_for_a_while_and_takes_no_card_out(at_a_reading) -> None:
    xids = [
        XidEvent(None, 79, 0.0, 2),
        XidEvent(None, 31, 0.0),
        XidEvent("GPU-of-another-node", 48, 0.0),
        XidEvent(None, 79, 0.0),
        XidEvent(A100.format(2), 13, 0.0),
    ]
    cards = CardsState().read(reading(3), (), at(0.0), POLICY)

    now = at(10.0)
    cards = cards.read(reading(3), xids, now, POLICY) if at_a_reading else cards.heard(xids, now, POLICY)

    first, second = cards.problem(at(11.0), POLICY.quiet).split("; Xid ")
    assert first.startswith("Xid 48 (uncorrectable (double bit) memory error), 1 times, names no known card")
    assert second.startswith("79 (GPU has fallen off the bus), 3 times, names no known card")
    assert {card.health.state for card in cards.view.node.cards.values()} == {CardState.HEALTHY}
    assert cards.problem(at(10.0 + POLICY.quiet), POLICY.quiet) == ""
    later = cards.heard([XidEvent(None, 79, 0.0)], at(10.0 + POLICY.quiet), POLICY)
    assert ", 1 times," in later.problem(at(11.0 + POLICY.quiet), POLICY.quiet), "counted anew after a quiet while"
    again = later.heard([XidEvent(None, 79, 0.0, 4)], at(9.0 + 2 * POLICY.quiet), POLICY)
    assert ", 5 times," in again.problem(at(9.0 + 2 * POLICY.quiet), POLICY.quiet), "added up within it"


def test_a_record_that_cannot_be_saved_is_a_problem_beside_errors() -> None:
    cards = replace(CardsState(), unsaved="read-only").heard([XidEvent(None, 79, 0.0)], at(1.0), POLICY)

    assert cards.problem(at(2.0), POLICY.quiet).startswith("read-only; Xid 79 ")


@pytest.mark.parametrize(
    ("xid", "known", "said"),
    [
        (XidEvent("GPU-0", 13, 0.0), True, "Xid 13 on card GPU-0"),
        (XidEvent("GPU-0", 79, 0.0), True, "Xid 79 on card GPU-0"),
        (XidEvent(None, 79, 0.0), False, "Xid 79 (GPU has fallen off the bus) on no known card (NVML names none)"),
        (XidEvent("GPU-9", 79, 0.0), False, "Xid 79 (GPU has fallen off the bus) on no known card (GPU-9)"),
        (XidEvent(None, 31, 0.0), False, ""),
    ],
    ids=["of a program", "of a card", "of no card", "of an unknown card", "of a program, nowhere"],
)
def test_the_log_names_errors_of_cards_and_grave_ones(xid: XidEvent, known, said: str) -> None:
    assert words(xid, known=known) == said


async def test_errors_are_heard_as_the_library_reports_them(played: Played) -> None:
    played.play("a100x8")
    nvml = played.nvml(PATIENT)
    cards = CardsState().read(await nvml.read(), (), at(0.0), POLICY)

    played.happen(-1, 79, times=2)
    played.happen(2, 94)
    async with asyncio.timeout(30.0):
        while cards.view.node.cards[A100.format(2)].health.usable:
            cards = cards.heard(await nvml.xids(), at(1.0), POLICY)

    assert sum(not card.health.usable for card in cards.view.node.cards.values()) == 1


async def test_a_card_that_refuses_keeps_the_processes_last_listed_and_those_after_it_are_asked(
    played: Played, tmp_path: Path
) -> None:
    played.play("a100x8")
    played.change({f"gpu.{number}.processes": f"{70 + number}:5" for number in range(8)})
    played.change({"gpu.2.error.nvmlDeviceGetComputeRunningProcesses_v3": "3"})
    nvml = played.nvml(PATIENT)
    host = Host(parse(f"roots: {{cgroup: {tmp_path}, proc: {tmp_path}}}"))
    performer = Performer(host, PodResourcesSocket(""), nvml, None, "n1")
    known = {A100.format(2): (GpuProcess(1, None),), A100.format(3): (GpuProcess(2, None),)}

    seen = await performer.perform(Prove((), "/", tuple(map(A100.format, range(8))), known))
    again = await performer.perform(Prove((), "/", (), known))
    performer.close()

    assert isinstance(seen, Proved)
    assert isinstance(again, Proved)
    pids = {uuid: [process.pid for process in listed] for uuid, listed in seen.processes.items()}
    assert pids == {A100.format(number): [1 if number == 2 else 70 + number] for number in range(8)}
    assert again.processes == known


# ReporterMetrics


def test_what_a_card_reports_about_its_memory_is_shown_and_goes_with_it() -> None:
    metrics = ReporterMetrics()
    told = GpuFacts(uuid="GPU-a", minor=0, wear=Wear(corrected=5, uncorrected=0, retired_pages=2, remapped_rows=3))
    silent = GpuFacts(uuid="GPU-b", minor=1)
    worn = CardRecord(told, GpuHealth(CardState.SUSPECT, 5.0, last_error=1234.0), 7.0)
    metrics.show_cards(
        NodeRecord("", {"GPU-a": worn, "GPU-b": CardRecord(silent, GpuHealth(CardState.HEALTHY, 5.0), 7.0)})
    )

    assert metric(metrics, "gpu_ecc_errors", uuid="GPU-a", kind="corrected") == 5
    assert metric(metrics, "gpu_ecc_errors", uuid="GPU-a", kind="uncorrected") == 0
    assert metric(metrics, "gpu_remapped_rows", uuid="GPU-a") == 3
    assert metric(metrics, "gpu_retired_pages", uuid="GPU-a") == 2
    assert metric(metrics, "gpu_last_error_timestamp_seconds", uuid="GPU-a") == 1234
    assert b"GPU-b" not in metrics.exposition()

    metrics.show_cards(NOTHING_KNOWN)
    assert b"GPU-a" not in metrics.exposition()
