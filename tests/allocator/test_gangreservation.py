"""Holding room for several Pods on a node, as pure changes: all or none, and nothing that somebody else has changed."""

from dataclasses import replace

from builders import app, gpu, gpus, holding, part, request

from allocator.bind import GANG_WAITS, PodToBind, bind
from allocator.gangreservation import Planned, close, give_back, hold, hold_again, limit, prolong
from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest, Wishes
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import at_once

NOW, UNTIL = 1_000, 1_300
NODE = NodeSnapshot("n", tuple(gpu(minor) for minor in range(4)))


def wanting(cards: int) -> PodRequest:
    return replace(request(app("main", gpus(100 * cards))), wishes=Wishes(gang="default/g", all_or_nothing=True))


def claim(name: str, cards: int = 2) -> PodToBind:
    return PodToBind(f"uid-{name}", "default", name, wanting(cards), all_or_nothing=True)


def planned(name: str, *minors: int) -> Planned:
    shares = tuple(part(NODE.devices[minor], 100, "main") for minor in minors)
    return Planned(claim(name, len(minors)), holding(f"uid-{name}", *shares))


def minors(held: Holding) -> list[int]:
    return [share.minor for share in held.shares]


def test_what_was_planned_is_held_until_its_time() -> None:
    held, refusal = at_once(hold([planned("a", 3, 1), planned("b", 0, 2)], NODE.holding_all, NOW, UNTIL)({}))
    assert refusal is None
    assert held is not None
    assert {uid: minors(one) for uid, one in held.items()} == {"uid-a": [1, 3], "uid-b": [0, 2]}
    assert {(one.since, one.until, one.gang) for one in held.values()} == {(NOW, UNTIL, "default/g")}


def test_where_one_pod_has_no_room_any_more_none_gets_any() -> None:
    there = {"x": holding("x", part(NODE.devices[2], 10))}
    held, refusal = at_once(hold([planned("a", 3, 1), planned("b", 0, 2)], NODE.holding_all, NOW, UNTIL)(there))
    assert held is None
    assert isinstance(refusal, Refusal)
    held, refusal = at_once(hold([planned("a", 3, 1), planned("b", 3, 2)], NODE.holding_all, NOW, UNTIL)({}))
    assert held is None
    assert isinstance(refusal, Refusal)


def test_a_pod_that_holds_something_already_stops_the_plan() -> None:
    there = {"uid-b": holding("uid-b", part(NODE.devices[0], 100))}
    held, refusal = at_once(hold([planned("a", 3), planned("b", 1)], NODE.holding_all, NOW, UNTIL)(there))
    assert held is None
    assert refusal is not None
    assert refusal.message == "n: another replica holds room for b"


def kept(*ends: int) -> dict[str, Holding]:
    """Holdings a, b, ... that end at these moments."""
    return {name: holding(name, part(NODE.devices[at], 100), since=NOW) for at, name in enumerate("abcd")} | {
        name: replace(holding(name, part(NODE.devices[at], 100), since=NOW), until=until)
        for at, (name, until) in enumerate(zip("abcd", ends, strict=False))
    }


def ends(held: dict[str, Holding] | None) -> dict[str, int]:
    return {name: one.until for name, one in (held or {}).items()}


def test_only_holds_that_end_earlier_are_prolonged() -> None:
    there = kept(UNTIL, UNTIL + 5, WITHOUT_LIMIT)
    held, changed = prolong(["a", "b", "c", "d", "x"], UNTIL + 5)(there)
    assert changed
    assert ends(dict(held or {})) == {"a": UNTIL + 5, "b": UNTIL + 5, "c": WITHOUT_LIMIT, "d": 0}
    assert prolong(["b", "c", "d"], UNTIL + 5)(there) == (None, False)


def test_a_mark_is_taken_away_from_a_hold_that_is_prolonged_and_from_nothing_else() -> None:
    marked = {name: replace(one, ending="m") for name, one in kept(1, UNTIL + 5).items()}
    held, changed = prolong(["a", "b", "d"], UNTIL + 5)(marked)
    assert changed
    assert {name: (one.until, one.ending) for name, one in (held or {}).items()} == {
        **dict.fromkeys("ab", (UNTIL + 5, "")),
        **dict.fromkeys("cd", (0, "m")),
    }
    assert prolong(["d"], UNTIL + 5)(marked) == (None, False)


def test_only_holds_are_marked_and_each_once() -> None:
    there = kept(UNTIL, UNTIL, WITHOUT_LIMIT)
    there["b"] = replace(there["b"], ending="n")
    held, changed = close(["x", "a", "b", "c", "d"], "m")(there)
    assert changed
    assert {name: one.ending for name, one in (held or {}).items()} == {"a": "m", "b": "n", "c": "m", "d": ""}
    assert close(["x", "b", "d"], "m")(there) == (None, False)


def test_only_holds_without_an_end_are_given_one() -> None:
    there = kept(UNTIL, WITHOUT_LIMIT, WITHOUT_LIMIT)
    held, changed = limit(["a", "b", "d", "x"], UNTIL + 5)(there)
    assert changed
    assert ends(dict(held or {})) == {"a": UNTIL, "b": UNTIL + 5, "c": WITHOUT_LIMIT, "d": 0}
    assert limit(["a", "d", "x"], UNTIL + 5)(there) == (None, False)


def test_only_holds_that_end_as_they_were_seen_to_are_given_back() -> None:
    there = {name: replace(one, ending="m") for name, one in kept(UNTIL, UNTIL, UNTIL + 1).items()}
    seen = (UNTIL, "m")
    held, changed = give_back({"a": seen, "b": (UNTIL, "n"), "c": seen, "d": (0, "m"), "x": seen})(there)
    assert changed
    assert set(held or {}) == {"b", "c", "d"}
    assert give_back({"b": (UNTIL, "n"), "c": seen, "d": (0, "m")})(there) == (None, False)


# Binding to what is held


def bound(pod: PodToBind, there: dict[str, Holding], now: int) -> tuple[dict[str, Holding] | None, Holding | Refusal]:
    changed, decision = at_once(bind(pod, NODE.holding_all, now, "mark")(there))
    return (dict(changed) if changed is not None else None), decision.outcome


def test_a_bind_takes_exactly_what_is_held() -> None:
    there, _ = at_once(hold([planned("a", 3, 1)], NODE.holding_all, NOW, UNTIL)({}))
    assert there is not None
    free = place(claim("a").request, NODE)
    assert isinstance(free, Placement)
    assert [share.minor for share in free.shares] != [1, 3]  # without the hold, others would be chosen
    assert at_once(bind(claim("a"), NODE.holding_all, NOW, "mark")(there))[1].repeated
    changed, outcome = bound(claim("a"), dict(there), UNTIL - 1)
    assert isinstance(outcome, Holding)
    assert (minors(outcome), outcome.until, outcome.since) == ([1, 3], 0, UNTIL - 1)
    assert changed == {"uid-a": outcome}
    assert bound(claim("a"), {"uid-a": outcome}, UNTIL) == (None, outcome)  # repeated


def test_nothing_is_bound_without_a_hold_or_to_one_that_is_being_given_back() -> None:
    there, _ = at_once(hold([planned("a", 3, 1)], NODE.holding_all, NOW, UNTIL)({}))
    assert there is not None
    marked = {"uid-a": replace(there["uid-a"], ending="mark")}
    assert bound(claim("a"), marked, NOW) == (None, GANG_WAITS)
    assert bound(claim("a"), {}, NOW) == (None, GANG_WAITS)
    _, outcome = bound(claim("a"), dict(there), UNTIL + 3600)
    assert isinstance(outcome, Holding), "the clock of the replica that binds does not count"
    _, outcome = bound(replace(claim("a"), all_or_nothing=False), dict(there), UNTIL)
    assert isinstance(outcome, Holding)  # its author has changed his mind


def test_what_is_held_with_a_mark_is_taken_by_no_bind_until_the_mark_is_removed() -> None:
    held, _ = at_once(hold([planned("a", 3, 1)], NODE.holding_all, NOW, UNTIL, "x")({}))
    assert held is not None
    assert held["uid-a"].ending == "x"
    assert at_once(bind(claim("a"), NODE.holding_all, NOW, "y")(held))[1].outcome == GANG_WAITS
    free, _ = prolong(["uid-a"], UNTIL)(held)
    assert free is not None
    assert isinstance(at_once(bind(claim("a"), NODE.holding_all, NOW, "y")(free))[1].outcome, Holding)


def test_what_a_bind_was_answered_with_becomes_a_hold_again_only_with_the_mark_that_was_seen() -> None:
    given = replace(holding("uid-a", part(NODE.devices[0], 100)), ending="x")
    other = holding("uid-b", part(NODE.devices[1], 100))
    there = {"uid-a": given, "uid-b": other}
    assert hold_again("uid-a", "x", UNTIL)(there) == (
        {"uid-a": replace(given, until=UNTIL, ending=""), "uid-b": other},
        True,
    )
    for stays in (replace(given, ending="y"), replace(given, ending=""), replace(given, until=7)):
        assert hold_again("uid-a", "x", UNTIL)({"uid-a": stays}) == (None, False)
    assert hold_again("uid-a", "x", UNTIL)({}) == (None, False)
