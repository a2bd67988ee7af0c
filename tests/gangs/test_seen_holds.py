"""Since when a replica has seen the holds of a gang: the figures, by a clock that only the test moves."""

from builders import app, gpus, request

from allocator.vocabulary.holdings import Holding
from webhook.gangs.controller import SeenHolds
from webhook.gangs.step import GangMember, GangTimes
from webhook.view.podinfo import PodInfo

HELD_FOR = 50.0


class Seen:
    """What a replica sees of one gang."""

    def __init__(self) -> None:
        self.now = 100.0
        self.holds = SeenHolds(lambda: self.now, HELD_FOR)

    def see(self, now: float, *held: Holding) -> GangTimes:
        self.now = now
        return self.holds.see("default/g", [member(one) for one in held])


def member(held: Holding) -> GangMember:
    pod = PodInfo(held.uid, "default", held.name, "", False, False, "s", True, request(app("main", gpus(100))))
    return GangMember(pod, (("n", held),))


def hold(name: str, until: int = 1600, ending: str = "") -> Holding:
    return Holding(name, "default", name, 1000, (), None, "default/g", until, ending)


def test_a_hold_may_belong_to_an_unfinished_plan_for_a_minute() -> None:
    seen = Seen()
    seen.see(100, hold("a"))
    assert seen.see(130, hold("a"), hold("b")).fresh == {("n", "a", 1000), ("n", "b", 1000)}
    assert seen.see(160, hold("a"), hold("b")).fresh == {("n", "a", 1000), ("n", "b", 1000)}
    later = seen.see(161, hold("a"), hold("b"))
    assert (later.fresh, later.since) == ({("n", "b", 1000)}, 100)


def test_the_time_is_over_when_no_hold_got_a_later_end_for_so_long() -> None:
    seen = Seen()
    over = [
        seen.see(at, hold("a", until), hold("b", 1600)).over
        for at, until in ((100, 1600), (149, 1600), (150, 1600), (151, 1700), (200, 1700), (201, 1700), (202, 1650))
    ]
    assert over == [False, False, True, False, False, True, False]


def test_holds_are_closed_half_a_minute_after_all_were_marked() -> None:
    seen = Seen()
    closed = [
        seen.see(at, hold("a", ending="m"), hold("b", ending=mark)).closed
        for at, mark in ((100, ""), (140, "m"), (170, "m"), (171, "m"), (172, ""), (173, "m"), (203, "m"), (204, "m"))
    ]
    assert closed == [False, False, False, True, False, False, False, True]


def test_what_is_no_longer_held_is_forgotten() -> None:
    seen = Seen()
    seen.see(100, hold("a"))
    assert seen.see(110, hold("a", until=0)) == GangTimes()
    assert seen.see(120, hold("a")).since == 120
    seen.holds.keep({"default/g"})
    assert seen.see(130, hold("a")).since == 120
    seen.holds.keep({"default/other"})
    assert seen.see(140, hold("a")).since == 140
