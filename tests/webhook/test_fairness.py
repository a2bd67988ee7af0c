"""Long searches: others run meanwhile, one call ends in time, and no namespace uses more than its share."""

from collections.abc import Sequence
from typing import Any

import pytest
from breaks import others
from builders import device_entry, gpu, holding, part
from uneven import NODE_NAMES, hostile
from world import World, gpu_pod, rank

from allocator.budget import Steps
from koordgate.breaks import Breaks, at_once, with_breaks
from koordgate.kube.resource import DEVICES, NODES
from webhook.ledger.store import Record
from webhook.scheduling.extender import Extender
from webhook.scheduling.fairness import Checkpoints, Effort, SearchTime
from webhook.view.podinfo import PodInfo, read_pod_info

Raw = dict[str, Any]
LONG = Effort(steps=1001)


def pod_info(obj: dict[str, Any]) -> PodInfo:
    found = read_pod_info(obj)
    assert found is not None
    return found


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def steps(clock: Clock, lasting: Sequence[float], turns: list[bool]) -> Steps[int]:
    """A search of parts that last so many seconds; it returns how many parts it has done, and notes what it is told."""
    done = 0
    for seconds in lasting:
        clock.now += seconds
        done += 1
        turn = yield 0
        turns.append(bool(turn))
        if turn:
            break
    return done


async def run(lasting: Sequence[float], most: float) -> tuple[int, float, list[bool], int]:
    """What a search returned, for how long it was worked on, what it was told, and how often others could run."""
    clock, turns = Clock(), list[bool]()
    async with others() as ran:

        def pass_time() -> None:
            clock.now += 1.0  # work of others is not the search's

        ran.each = pass_time
        breaks = Breaks(clock)
        found = await with_breaks(steps(clock, lasting, turns), breaks, most)
        return found, breaks.worked, turns, ran.breaks


async def test_a_short_search_runs_without_a_pause() -> None:
    assert await run([0.0004] * 4, 10.0) == (4, pytest.approx(0.0016), [False] * 4, 0)  # type: ignore[comparison-overlap]


async def test_others_run_after_each_two_milliseconds_of_a_search() -> None:
    found, worked, _, breaks = await run([0.0011] * 30, 1000.0)
    assert (found, breaks) == (30, 15)
    assert worked == pytest.approx(0.033)


async def test_a_search_is_told_to_end_when_its_time_is_over_others_counted() -> None:
    found, _, turns, breaks = await run([0.006] * 30, 6.0)
    assert (found, breaks) == (3, 3)
    assert turns == [False, False, True]


def test_a_search_at_once_is_never_told_to_end() -> None:
    turns: list[bool] = []
    assert at_once(steps(Clock(), [1000.0] * 3, turns)) == 3
    assert turns == [False] * 3


async def test_a_search_without_a_pause_is_found_at_once() -> None:
    assert await run([], 1.0) == (0, 0.0, [], 0)


# The account


def test_searches_of_few_steps_are_free_however_long_they_take() -> None:
    account = SearchTime(Clock())
    for _ in range(1000):
        account.charge("a", Effort(steps=1000), 10.0)
    assert account.effort("a") == Effort(0.1)
    assert len(account) == 0


def test_a_namespace_that_used_up_its_time_gets_only_cheap_searches_and_others_are_not_concerned() -> None:
    account = SearchTime(Clock())
    account.charge("a", LONG, 0.4)
    assert account.effort("a") == Effort(0.1)
    account.charge("a", LONG, 0.2)
    effort = account.effort("a")
    assert (effort.seconds, effort.most_steps) == (0.02, 200)
    assert effort.why == "the time for long searches for Pods of namespace a is used up; there is more in 3 s"
    assert account.effort("b") == Effort(0.1)


def test_a_namespace_gets_a_twentieth_of_a_second_in_a_second() -> None:
    clock = Clock()
    account = SearchTime(clock)
    account.charge("a", LONG, 0.75)
    clock.now += 4.9
    assert account.effort("a").why
    clock.now += 0.2
    assert not account.effort("a").why


def test_debts_and_savings_are_bounded() -> None:
    clock = Clock()
    account = SearchTime(clock)
    account.charge("a", LONG, 3600.0)
    clock.now += 10.1
    assert not account.effort("a").why
    clock.now += 3600.0
    account.charge("a", LONG, 0.6)
    assert account.effort("a").why


def test_many_namespaces_together_get_three_twentieths() -> None:
    clock = Clock()
    account = SearchTime(clock)
    for number in range(4):
        account.charge(f"n{number}", LONG, 0.3)
    effort = account.effort("another")
    assert effort.why == "the time for long searches for Pods that are hard to place is used up; there is more in 2 s"
    clock.now += 1.4
    assert not account.effort("another").why
    assert not account.effort("n0").why


async def test_a_search_gets_what_its_namespace_has_and_is_charged_for_what_it_takes() -> None:
    clock = Clock()
    account = SearchTime(clock)
    given = []

    def search(effort: Effort) -> Steps[str]:
        given.append(effort.most_steps)
        effort.steps += 1001
        clock.now += 0.0
        if (yield 0):
            return "ended"
        return "found"

    assert await account.within("a", search) == "found"
    account.charge("a", LONG, 0.6)
    await account.within("a", search)
    assert given == [4000, 200]
    assert len(account) == 1


def test_decisions_that_must_be_made_are_charged_without_the_time_of_others() -> None:
    clock = Clock()
    account = SearchTime(clock)

    def decisions() -> Steps[str]:
        for _ in range(3):
            clock.now += 0.2
            yield 400
        return "bound"

    deciding = account.charging("a", decisions())
    for _ in range(3):
        next(deciding)
        clock.now += 0.001  # of others
        assert not account.effort("a").why, "nothing is charged before the end"
    with pytest.raises(StopIteration) as done:
        next(deciding)
    assert done.value.value == "bound"
    assert account.effort("a").why.endswith("there is more in 3 s")


def test_short_decisions_are_free() -> None:
    account = SearchTime(Clock())

    def decisions() -> Steps[str]:
        yield 1000
        return "bound"

    assert at_once(account.charging("a", decisions())) == "bound"
    assert len(account) == 0


def test_time_that_is_used_up_to_the_end_is_used_up() -> None:
    account = SearchTime(Clock())
    account.charge("a", LONG, 0.5)
    assert account.effort("a").why.endswith("namespace a is used up; there is more in 1 s")
    account.charge("b", LONG, 0.5)
    assert account.effort("c").why.endswith("that are hard to place is used up; there is more in 1 s")


def test_the_last_1024_namespaces_are_remembered() -> None:
    account = SearchTime(Clock())
    account.charge("first", LONG, 0.6)
    for number in range(1023):
        account.charge(f"n{number}", LONG, 0.0)
    assert (len(account), bool(account.effort("first").why)) == (1024, True)
    account.charge("first", LONG, 0.0)
    account.charge("another", LONG, 0.0)
    assert (len(account), bool(account.effort("first").why)) == (1024, True)
    for number in range(1023):
        account.charge(f"m{number}", LONG, 0.0)
    assert (len(account), bool(account.effort("first").why)) == (1024, False)


def test_a_search_may_be_interrupted_after_each_400_steps() -> None:
    effort = Effort(steps=50)
    checkpoints = Checkpoints(effort)
    due = []
    for taken in (399, 1, 0, 399, 2, 398, 1):
        effort.steps += taken
        due.append(checkpoints.due())
    assert due == [False, True, False, False, True, False, False]


# The extender


def args(obj: Raw, names: Sequence[str] = NODE_NAMES) -> Raw:
    return {"Pod": obj, "NodeNames": list(names)}


class Impatient(SearchTime):
    """An account that gives each search no time, a little, or all."""

    def __init__(self, effort: Effort) -> None:
        super().__init__()
        self._effort = effort
        self.charged: list[str] = []

    def effort(self, namespace: str) -> Effort:  # noqa: ARG002 whoever asks
        return Effort(self._effort.seconds, self._effort.most_steps, self._effort.why)

    def charge(self, namespace: str, effort: Effort, seconds: float) -> None:  # noqa: ARG002 noted alone
        self.charged.append(namespace)


def extender(world: World, effort: Effort, ended: list[str] | None = None) -> tuple[Extender, Impatient]:
    account = Impatient(effort)
    noted = ended if ended is not None else []
    parts = world.parts
    made = Extender(parts.cluster, parts.ranking, parts.types, 16, search_time=account, interrupted=noted.append)
    return made, account


async def test_of_many_nodes_that_a_search_did_not_judge_only_a_few_are_in_the_answer(uneven: World) -> None:
    """kube-scheduler evicts nobody from a node that is not in the answer."""
    of, _ = extender(uneven, Effort(0.0))
    many = [*NODE_NAMES, *(f"unknown{number}" for number in range(100))]
    for name in many[6:]:
        uneven.add_node(name, *(device_entry(at, id=f"GPU-{name}-{at}") for at in range(8)))
    uneven.see(NODES, DEVICES)
    answer = await of.filter_patiently(args(hostile("p"), many))
    assert len(answer["FailedNodes"]) == 1 + 16
    after = "the search ended after 1 of 106 nodes, before this one: one search lasts 0.1 s at most"
    assert sum(why.startswith(after) for why in answer["FailedNodes"].values()) == 16


async def test_a_search_that_ends_refuses_the_nodes_that_it_did_not_judge_with_that_reason(uneven: World) -> None:
    ended: list[str] = []
    of, account = extender(uneven, Effort(0.0), ended)
    answer = await of.filter_patiently(args(hostile("p")))
    assert answer["NodeNames"] == []
    reasons = answer["FailedNodes"]
    assert set(reasons) == set(NODE_NAMES)
    end = "one search lasts 0.1 s at most, and the next one goes on from here"
    unjudged = [why for why in reasons.values() if "before this one" in why]
    assert unjudged == [f"the search ended after 1 of 6 nodes, before this one: {end}"] * 5
    assert sum("the search for devices was ended" in why for why in reasons.values()) == 1
    assert (ended, account.charged) == (["time"], ["default"])


async def test_the_next_search_for_the_pod_goes_on_where_the_last_one_ended(uneven: World) -> None:
    of, _ = extender(uneven, Effort(0.0))
    left = []
    for number in range(7):  # of another UID each time, because a Pod that comes again is looked at twice
        answer = await of.filter_patiently(args(hostile(f"p{number}")))
        left.append(sum("before this one" in why for why in answer["FailedNodes"].values()))
    assert left == [5, 4, 3, 2, 1, 0, 0]


async def test_a_namespace_without_time_is_told_so_and_its_ordinary_pods_are_placed(uneven: World) -> None:
    ended: list[str] = []
    of, _ = extender(uneven, Effort(10.0, 200, "the time is used up"), ended)
    answer = await of.filter_patiently(args(hostile("p")))
    assert answer["NodeNames"] == []
    judged = [f"{name}: the time is used up" for name in NODE_NAMES]
    assert len([why for why in answer["FailedNodes"].values() if why in judged]) == 1
    after = "the search ended after 1 of 6 nodes, before this one: the time is used up"
    assert [why for why in answer["FailedNodes"].values() if why == after] == [after] * 5
    assert ended == ["namespace"]
    assert len((await of.filter_patiently(args(gpu_pod("ordinary", 50))))["NodeNames"]) == 1
    assert ended == ["namespace"]


async def test_what_was_judged_without_time_is_judged_in_full_later(uneven: World) -> None:
    cheap, _ = extender(uneven, Effort(10.0, 200, "the time is used up"))
    await cheap.filter_patiently(args(hostile("p")))
    full, _ = extender(uneven, Effort(10.0))
    answer = await full.filter_patiently(args(hostile("p")))
    assert all("the search for devices was ended" in why for why in answer["FailedNodes"].values())


async def test_that_few_steps_do_not_suffice_is_found_out_once_until_the_node_changes(uneven: World) -> None:
    ranking, request = uneven.parts.ranking, pod_info(hostile("p")).request

    def steps() -> int:
        effort = Effort(10.0, 200, "the time is used up")
        assert getattr(ranking.verdict("m0", request, "uid-p", effort), "short", "") == "the time is used up"
        return effort.steps

    assert [steps(), steps()] == [200, 0]
    uneven.parts.cluster.changes.touch("m0")
    assert [steps(), steps()] == [200, 0]


async def test_what_fewer_steps_than_few_did_not_suffice_for_is_looked_at_again(uneven: World) -> None:
    ranking, request = uneven.parts.ranking, pod_info(hostile("p")).request
    for most in (100, 200, 150):
        effort = Effort(10.0, most, "the time is used up")
        ranking.verdict("m0", request, "uid-p", effort)
        assert effort.steps == (most if most != 150 else 0)


async def test_without_a_limit_of_time_every_node_is_judged(uneven: World) -> None:
    answer = uneven.parts.extender.filter(args(hostile("p")))
    assert all("the search for devices was ended" in why for why in answer["FailedNodes"].values())


async def test_a_node_that_fits_is_named_although_the_search_would_have_ended(uneven: World) -> None:
    uneven.add_node("large", *(device_entry(at, id=f"GPU-large-{at}") for at in range(9)))
    uneven.see(NODES, DEVICES)
    names = [*NODE_NAMES, "large"]
    of, _ = extender(uneven, Effort(0.0))
    answers = [(await of.filter_patiently(args(hostile("p"), names)))["NodeNames"] for _ in range(8)]
    assert ["large"] in answers
    assert uneven.parts.ranking.assumed.node_of("uid-p") == "large"


async def test_nodes_that_could_not_be_compared_in_time_have_no_score(uneven: World) -> None:
    of, _ = extender(uneven, Effort(0.0))
    scores = await of.prioritize_patiently(args(hostile("p")))
    assert scores == [{"Host": name, "Score": 0} for name in NODE_NAMES]
    assert {one["Score"] for one in await of.prioritize_patiently(args(gpu_pod("q", 50)))} == {10}


async def test_nobody_is_evicted_for_a_pod_whose_search_is_ended(uneven: World) -> None:
    of, _ = extender(uneven, Effort(10.0))
    proposed = {name: {"Pods": [], "NumPDBViolations": 0} for name in NODE_NAMES}
    answer = await of.preempt_patiently({"Pod": hostile("p"), "NodeNameToMetaVictims": proposed})
    assert answer == {"NodeNameToMetaVictims": {}}


async def test_a_node_that_fills_up_during_a_pause_is_not_named(uneven: World) -> None:
    """The Pod fits only on the last node that is judged; another Pod takes it while others run."""
    uneven.add_node("large", *(device_entry(at, id=f"GPU-large-{at}") for at in range(9)))
    uneven.see(NODES, DEVICES)
    ranking = uneven.parts.ranking
    search = ranking.search(pod_info(hostile("p")), [*NODE_NAMES, "large"], 1, frozenset(), Effort())
    taken = {"u": holding("u", *(part(gpu(at, device_id=f"GPU-large-{at}"), 100) for at in range(9)))}
    next(search)
    uneven.parts.ledger.observe(Record("large", 2, taken))
    found = at_once(search)
    assert found.named == ()
    assert set(found.refused) == {*NODE_NAMES, "large"}


async def test_a_long_refusal_is_searched_once_for_all_nodes_that_are_alike(world: World) -> None:
    for name in NODE_NAMES:
        ids = [f"GPU-{name}-{at}" for at in range(8)]
        world.add_node(name, *(device_entry(at, id=one) for at, one in enumerate(ids)))
        held = {
            f"u{name}{at}": holding(f"u{name}{at}", part(gpu(at, device_id=one), 1 + at)) for at, one in enumerate(ids)
        }
        world.parts.ledger.observe(Record(name, 1, held))
    world.see(NODES, DEVICES)
    ranking, effort = world.parts.ranking, Effort()
    found = at_once(ranking.search(pod_info(hostile("p")), NODE_NAMES, 1, frozenset(), effort))
    one = 4000  # steps of a decision
    assert one <= effort.steps < one + 100
    assert [found.refused[name].message.split(":")[0] for name in NODE_NAMES] == NODE_NAMES
    assert len({found.refused[name].message.partition(":")[2] for name in NODE_NAMES}) == 1


async def test_others_run_while_all_nodes_are_taken_in_at_the_start(uneven: World, breaking: None) -> None:
    ranking = uneven.parts.ranking
    async with others() as ran:
        await ranking.catch_up_slowly()
    assert ran.breaks == 7, "after each of the six nodes, and of n1"
    assert list(ranking.take_in()) == [], "nothing is left to take in"
    assert len(rank(ranking, pod_info(gpu_pod("p", 50)), NODE_NAMES, None).named) == 6


async def test_what_changes_while_nodes_are_taken_in_is_taken_in_too(uneven: World) -> None:
    """Another Pod is sent to a node that was taken in already, and a node of which nothing is left changes."""
    ranking = uneven.parts.ranking
    taking = ranking.take_in()
    for _ in [*NODE_NAMES, "n1"]:
        next(taking)
    everything = holding("other", *(part(gpu(at, device_id=f"GPU-m0-{at}"), 100) for at in range(8)))
    ranking.assumed.put("m0", everything)
    uneven.parts.ledger.observe(Record("m1", 2, {}))
    assert len(list(taking)) == 2
    whole = rank(ranking, pod_info(gpu_pod("p", 800)), NODE_NAMES, None)
    assert (whole.named, set(whole.refused)) == (("m1",), set())


async def test_preemption_without_time_looks_at_as_few_steps_as_a_search(world: World) -> None:
    """On each node one Pod holds every card: that it must go is found out within 200 steps, not within one."""
    for name in NODE_NAMES[:2]:
        world.add_node(name, device_entry(0, id=f"GPU-{name}"))
        held = {f"u{name}": holding(f"u{name}", part(gpu(0, device_id=f"GPU-{name}"), 100))}
        world.parts.ledger.observe(Record(name, 1, held))
    world.see(NODES, DEVICES)
    proposed = {name: {"Pods": [{"UID": f"u{name}"}], "NumPDBViolations": 0} for name in NODE_NAMES[:2]}
    asked = {"Pod": gpu_pod("p", 100), "NodeNameToMetaVictims": proposed}
    for steps, chosen in ((200, set(NODE_NAMES[:2])), (1, set())):
        of, _ = extender(world, Effort(10.0, steps, "the time is used up"))
        answer = await of.preempt_patiently(asked)
        assert set(answer["NodeNameToMetaVictims"]) == chosen
