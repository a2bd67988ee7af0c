"""What a Pod holds over its life if its init containers reuse the devices of its other containers."""

import pytest

from allocator.request.quotaamounts import Take, least_held
from allocator.vocabulary.devicetype import GPU_TYPE, RDMA_TYPE, DeviceType, Unit
from allocator.vocabulary.phase import Phase


def app(percent: int, devices: int = 1) -> Take:
    return Take(Phase.APP, devices, (percent,), (percent,))


def init(percent: int, devices: int = 1) -> Take:
    return app(percent, devices)._replace(phase=Phase.INIT)


def sidecar(percent: int, devices: int = 1) -> Take:
    return app(percent, devices)._replace(phase=Phase.SIDECAR)


# What containers take, in the Pod's order, and what the Pod holds in sum
HELD: dict[str, tuple[list[Take], int | None]] = {
    "one container": ([app(40, 2)], 80),
    "apps that fit on one device": ([app(60), app(30)], 90),
    "an init container on the device of an app": ([init(80), app(60)], 80),
    "an init container where two apps are together": ([init(80), app(50), app(50)], 100),
    "one where two apps cannot be together": ([init(80), app(51), app(50)], 130),
    "apps apart, so that each makes room for an init container": ([init(80, 2), app(50), app(50)], 160),
    "an init container where the peak grows least": ([init(80), app(20), app(90)], 110),
    "one where it grows least, though less is taken elsewhere": ([init(80), app(20, 2), app(30)], 100),
    "one on all devices and on more": ([init(80, 3), app(60)], 240),
    "two init containers, one after the other": ([init(80), init(70), app(60)], 80),
    "an init container before a sidecar": ([init(70), sidecar(30), app(60)], 90),
    "one beside a sidecar": ([sidecar(30), init(70), app(60)], 100),
    "one that does not fit beside a sidecar": ([sidecar(60), init(50), app(30)], 110),
    "one beside two sidecars": ([sidecar(30), sidecar(20), init(45), app(10)], 95),
    "as many devices as a node may have": ([app(100, 64), app(100, 64)], 12800),
    "one more": ([app(100, 64), app(100, 65)], None),
    "as many, of which an init container takes some alone": ([sidecar(60, 2), init(50, 126)], 6420),
    "one more than that": ([sidecar(60, 2), init(50, 127)], None),
}


@pytest.mark.parametrize(("parts", "held"), HELD.values(), ids=HELD)
def test_a_pod_holds_the_sum_of_the_peaks_on_its_devices(parts: list[Take], held: int | None) -> None:
    assert least_held(RDMA_TYPE, parts) == (None if held is None else (held,))


def cards(phase: Phase, core: int, ratio: int) -> Take:
    return Take(phase, 1, (core, 0, ratio), (core, ratio))


# What two apps and then an init container take of a card: the compute and memory that the Pod holds in all
OF_TWO: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "the greatest share grows least": ((50, 50), (60, 10), (80, 80), (130, 130)),
    "of equal ones, the sum of shares grows least": ((90, 10), (90, 80), (80, 70), (180, 90)),
    "the sum grows by a third less": ((60, 0), (60, 20), (60, 60), (120, 60)),
    "the sum grows by one less": ((60, 12), (60, 13), (60, 60), (120, 72)),
    "of equal growth, the first one": ((60, 20), (60, 20), (60, 30), (120, 50)),
}


@pytest.mark.parametrize(("one", "other", "first", "held"), OF_TWO.values(), ids=OF_TWO)
def test_an_init_container_takes_the_card_on_which_the_pod_grows_least(
    one: tuple[int, int], other: tuple[int, int], first: tuple[int, int], held: tuple[int, int]
) -> None:
    parts = [cards(Phase.INIT, *first), cards(Phase.APP, *one), cards(Phase.APP, *other)]
    found = least_held(GPU_TYPE, parts)
    assert found is not None
    assert found[1:] == (held[0], 0, held[1])


def test_an_init_container_takes_the_card_on_which_an_earlier_one_was() -> None:
    inits = [cards(Phase.INIT, 80, 60), cards(Phase.INIT, 75, 5)]
    apps = [cards(Phase.APP, 60, 10), cards(Phase.APP, 50, 60)]
    assert least_held(GPU_TYPE, [*inits, *apps]) == (140, 140, 0, 70)


def test_what_a_card_gives_is_counted_by_its_amounts_and_who_may_share_it_by_its_percentages() -> None:
    """Bytes of which the percentage is not known may be all of the card."""
    parts = [Take(phase, 1, (10, 2**30, 0), (10, 100)) for phase in (Phase.SIDECAR, Phase.INIT, Phase.APP)]
    assert least_held(GPU_TYPE, parts) == (20, 20, 2**31, 0)


def test_a_device_of_units_alone_is_counted_as_a_whole_one() -> None:
    of_units = DeviceType("x", tails=("a", "b"), unit=Unit.DEVICES, units=(Unit.UNITS, Unit.UNITS), plain="x")
    parts = [Take(Phase.INIT, 1, (1, 3), ()), Take(Phase.APP, 1, (2, 1), ())]
    assert least_held(of_units, parts) == (100, 2, 3)
