"""The state of the cards: before NVML answers, cards that return, errors that name no card, and metrics."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from nvml_standin import Played

from reporter.gpu.facts import DriverFacts, GpuFacts, GpuProcess, LostCard, NodeReading, Outage, XidEvent
from reporter.gpu.guarded import Patience
from reporter.gpu.health import NOTHING_KNOWN, CardState, HealthPolicy, NodeRecord
from reporter.host import Host
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.perform import Performer
from reporter.round.messages import Moment, Prove, Proved
from reporter.round.state import CardsState, log_line
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


# Before NVML answers


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
    assert log_line(xid, known=known) == said


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
