"""Every input of the kept corpus, then changes of each, the same in every run; `bench/fuzz.py` tries a million."""

from random import Random
from typing import Any

import pytest
from fuzzing.cases import load, save
from fuzzing.engine import Plan, Run
from fuzzing.mutate import Pool, mutate
from fuzzing.targets import SHARES, TARGETS, left
from fuzzing.trial import Failure, Tally, WrongError, attempt, count, demand, shrink

KEPT = [(target, name) for target in TARGETS for name in load(target)]
SEED = 20_261_122
INPUTS = 2500  # in all, by the shares of the targets


@pytest.mark.parametrize(("target", "name"), KEPT, ids=[f"{target}-{name}" for target, name in KEPT])
def test_an_input_of_the_corpus_passes(target: str, name: str) -> None:
    outcome = attempt(TARGETS[target], load(target)[name])
    assert isinstance(outcome, str), f"{outcome.kind}: {outcome.message}\n{outcome.trace}"


@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs_pass_and_leave_nothing_behind(target: str) -> None:
    run = Run(Plan(target, INPUTS * SHARES[target] // sum(SHARES.values()), SEED, 600), TARGETS[target], load(target))
    run.blind()
    assert [f"{one.kind}: {one.message}\n{one.case}" for one in run.tally.failures.values()] == []
    assert left() == {}


def test_every_target_has_inputs_that_are_accepted() -> None:
    told = {target: {str(attempt(TARGETS[target], case)) for case in load(target).values()} for target in TARGETS}
    good = {"translated", "bound", "bound full", "room", "read", "held", "named", "whole"}
    assert [target for target, words in told.items() if not any(set(word.split()) & good for word in words)] == []


# The machinery itself


def fails_on_three(case: Any) -> str:
    values = case.get("list", []) if isinstance(case, dict) else []
    demand(3 not in values, f"three: in {len(values)}")
    return "good"


def test_a_failure_is_told_once_by_what_was_wrong() -> None:
    tally = Tally()
    found = [count(tally, fails_on_three, case) for case in ({}, {"list": [3]}, {"list": [1, 3]})]
    assert [one is not None for one in found] == [False, True, False]
    assert (tally.inputs, tally.failed, tally.outcomes) == (3, 2, {"good": 1, "FAILED": 2})
    assert list(tally.failures) == ["wrong three"]


def test_what_failed_is_shrunk_to_what_is_needed_for_it() -> None:
    found = attempt(fails_on_three, {"a": "b", "list": [1, 2, 3, {"deep": ["x"]}], "c": [None] * 9})
    assert isinstance(found, Failure)
    assert shrink(fails_on_three, found).case == {"list": [3]}


def test_an_input_that_takes_too_long_fails() -> None:
    def loops(_case: Any) -> str:
        while True:
            pass

    found = attempt(loops, {}, seconds=0.05)
    assert isinstance(found, Failure)
    assert found.kind.startswith("HangError")


def test_changes_follow_from_the_seed_and_reach_json_inside_texts() -> None:
    case = {"annotation": '{"gpu":[{"minor":0}]}', "number": 5}
    pool = Pool.of([case])

    def changes(seed: int) -> list[Any]:
        random = Random(seed)
        return [mutate(case, pool, random) for _ in range(300)]

    assert changes(1) == changes(1)
    assert changes(1) != changes(2)
    assert case == {"annotation": '{"gpu":[{"minor":0}]}', "number": 5}
    inside = [one["annotation"] for one in changes(1) if isinstance(one, dict) and "annotation" in one]
    assert any(isinstance(text, str) and text.startswith('{"gpu":[{"minor":') and text[17] != "0" for text in inside)


def test_an_input_is_kept_under_a_name_that_is_a_file_name(tmp_path: Any) -> None:
    path = save("pods", "found TypeError in ../x: <y>", {"a": [1]}, tmp_path)
    assert path == tmp_path / "pods" / "found-typeerror-in-x-y.json"
    assert load("pods", tmp_path) == {"found-typeerror-in-x-y": {"a": [1]}}


def test_a_demand_that_does_not_hold_is_wrong() -> None:
    with pytest.raises(WrongError, match="so"):
        demand([], "so")
