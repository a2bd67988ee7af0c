"""The history of cards' numbers that the reporter keeps: boots, cards that vanish, and what it did not see."""

from typing import Any

import pytest

from allocator.vocabulary.adopted import Numbering
from allocator.wire.deviceobject import DEVICE_NUMBERS, write_numberings
from reporter.gpu.facts import DriverFacts, GpuFacts, LostCard, NodeReading, Outage
from reporter.gpu.health import HealthPolicy
from reporter.inventory import PciDevice
from reporter.publish.device import numberings
from reporter.round.messages import Moment
from reporter.round.state import CardsState


def card(minor: int, uuid: str = "") -> GpuFacts:
    return GpuFacts(uuid=uuid or f"GPU-{minor}", minor=minor, model="NVIDIA H200", memory=2**30)


A, B, C = (card(minor) for minor in range(3))
ALL = (A.uuid, B.uuid, C.uuid)
MINORS = tuple(enumerate(ALL))
FIRST = Numbering(100, 100, ALL, MINORS)


def read(state: CardsState, at: float, *gpus: Any, lost: tuple[int, ...] = (), booted: float = 100.0) -> CardsState:
    away = tuple(LostCard(index, None, reset=False, message="gone") for index in lost)
    reading = NodeReading(DriverFacts("580", "13.0"), gpus, away, "boot", booted)
    return state.read(reading, (), Moment(at, at), HealthPolicy())


def live(*known: Numbering) -> dict[str, Any]:
    return {"metadata": {"annotations": {DEVICE_NUMBERS: write_numberings(known)}}}


def test_numbers_without_a_gap_hold_since_the_boot() -> None:
    assert numberings(None, read(CardsState(), 900.5, A, B, C).view, 901) == (FIRST,)


@pytest.mark.parametrize(("gpus", "booted"), [((A, C), 100.0), ((A, B, C), 0.0), ((B, A, C), 100.0)])
def test_numbers_with_a_gap_or_another_order_or_an_unknown_boot_hold_from_now_on(gpus, booted) -> None:
    (found,) = numberings(None, read(CardsState(), 900.5, *gpus, booted=booted).view, 901.5)
    assert (found.since, found.after) == (902, 902)


def test_the_same_numbers_make_no_new_entry_and_neither_does_an_outage() -> None:
    assert numberings(live(FIRST), read(CardsState(), 900, A, B, C).view, 901) == (FIRST,)
    assert numberings(live(FIRST), CardsState().view, 901) == (FIRST,)


def test_a_card_that_vanishes_closes_the_list_up_between_two_readings() -> None:
    state = read(read(CardsState(), 900, A, B, C), 910, A, C)
    _, found = numberings(live(FIRST), state.view, 911)
    assert found == Numbering(912, 900, (A.uuid, C.uuid), ((0, A.uuid), (2, C.uuid)))
    again = read(state, 920, A, C)
    assert numberings(live(FIRST, found), again.view, 921) == (FIRST, found)


def test_what_changed_while_no_reporter_ran_may_have_changed_at_any_time_since_the_last_entry() -> None:
    _, found = numberings(live(FIRST), read(CardsState(), 910, A, C).view, 911)
    assert (found.since, found.after) == (912, 100)


def test_a_boot_makes_new_numbers_at_one_moment() -> None:
    anew = card(1, uuid=C.uuid)
    _, found = numberings(live(FIRST), read(CardsState(), 2000, A, anew, booted=1500.0).view, 2001)
    assert (found.since, found.after, found.indexes) == (1500, 1500, (A.uuid, C.uuid))


def nics(*buses: str) -> list[PciDevice]:
    return [PciDevice("rdma", bus, minor) for minor, bus in enumerate(buses)]


def test_other_devices_have_their_minors_there_until_another_takes_them() -> None:
    first = numberings(None, CardsState().view, 901, nics("0000:1a:00.0", "0000:1b:00.0"))
    told = (("rdma", 0, "0000:1a:00.0"), ("rdma", 1, "0000:1b:00.0"))
    assert first == (Numbering(902, 902, others=told),)
    assert numberings(live(*first), CardsState().view, 910, nics("0000:1a:00.0")) == first
    _, moved = numberings(live(*first), CardsState().view, 920.9, nics("0000:1b:00.0"))
    assert moved == Numbering(921, 921, others=(("rdma", 0, "0000:1b:00.0"), ("rdma", 1, "0000:1b:00.0")))


def test_other_devices_that_change_leave_the_numbers_of_cards_as_they_are() -> None:
    view = read(CardsState(), 900, A, B, C).view
    _, found = numberings(live(FIRST), view, 905, nics("0000:1a:00.0"))
    assert found == Numbering(906, 906, ALL, MINORS, (("rdma", 0, "0000:1a:00.0"),))
    away = read(CardsState(), 900, A, B, C).away(Outage("NvmlNotFound", "gone", 900.0))
    assert numberings(live(FIRST), away.view, 905, nics("0000:1a:00.0")) == (FIRST, found)


def test_the_first_entry_waits_for_the_cards_so_that_it_may_reach_back_to_the_boot() -> None:
    away = CardsState().away(Outage("NvmlNotFound", "gone", 900.0))
    assert numberings(None, away.view, 905, nics("0000:1a:00.0")) == ()


def test_from_a_card_on_that_does_not_answer_indexes_are_not_known() -> None:
    state = read(read(CardsState(), 900, A, B, C), 910, A, C, lost=(1,))
    _, found = numberings(live(FIRST), state.view, 911)
    assert (found.indexes, found.after) == ((A.uuid, "", ""), 900)
