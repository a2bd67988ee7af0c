"""The round's state machine, event by event: what must be known before a write, and what starts a round."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from fake_kube import own_labels
from round_driver import CARDS, Driven, cluster_node, host, node_pod, reading

from reporter.cgroup.cpusets import Failure, Findings
from reporter.files import FileReading
from reporter.gpu.facts import Outage, XidEvent
from reporter.gpu.health import NOTHING_KNOWN
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import MANAGER
from reporter.proof.agree import CardUse
from reporter.round.messages import (
    Apply,
    AskKubelet,
    CardsAway,
    CardsRead,
    CountWrite,
    CpusWritten,
    Due,
    EventsSent,
    HealthSaved,
    HearXids,
    HostRead,
    KubeletAnswered,
    Lane,
    LaneFailed,
    Listed,
    Note,
    ObjectGone,
    ObjectStands,
    PodsChanged,
    Prove,
    Proved,
    ReadCards,
    ReadHost,
    Restored,
    RoundEvent,
    SaveHealth,
    SendEvents,
    ShowRound,
    Warn,
    WatchedKind,
    WriteCpus,
    WriteRefused,
    Written,
    XidsHeard,
)
from reporter.round.state import DEVICE, STATUS, TOPOLOGY, unhealthy
from reporter.round.step import wakes_at

AWAY = Outage("NvmlHangs", "it hangs", 1000.0)
ANSWER = FileReading(KubeletConfiguration(), None)
NODE = ObjectStands(WatchedKind.NODE, cluster_node())


def started(*events: RoundEvent, **over: Any) -> Driven:
    driven = Driven.of(**over)
    driven.feed(*events, Restored(NOTHING_KNOWN))
    return driven


def listed() -> tuple[RoundEvent, ...]:
    return (NODE, *map(Listed, WatchedKind))


def proved(*uses: CardUse, **containers: Any) -> Proved:
    return Proved(containers, uses, {})


def a_round(driven: Driven, wrote: CpusWritten | None = None) -> None:
    """Let a round run from beginning to end."""
    if Lane.ROUND not in driven.waiting:
        driven.pass_time(max(driven.state.lanes[Lane.ROUND].due - driven.now.steady, 0.0))
    driven.feed(HostRead(host()))
    if Lane.ROUND in driven.waiting:
        driven.feed(wrote or CpusWritten())


def known() -> Driven:
    """A machine that knows everything and is about to publish."""
    driven = started(*listed())
    driven.feed(CardsRead(reading()), HealthSaved())
    a_round(driven)
    driven.feed(EventsSent())
    if Lane.PUBLISH in driven.waiting:
        write_all(driven)
    driven.feed(proved())
    a_round(driven)
    return driven


def write_all(driven: Driven) -> list[str]:
    """Let the API server accept all writes; returns their targets."""
    found = []
    while (effect := driven.waiting.get(Lane.PUBLISH)) is not None:
        if not isinstance(effect, Apply):
            driven.feed(EventsSent())
            continue
        found.append(str(effect.target))
        obj = {**effect.body, "metadata": {**effect.body["metadata"], "uid": "u", "resourceVersion": "5"}}
        if effect.target == STATUS:
            obj["metadata"]["uid"] = "node-uid"
            own_labels(obj, obj, MANAGER, obj["metadata"]["labels"])
        driven.feed(Written(effect.target, obj))
    return found


# The start


def test_at_the_start_cards_and_files_are_read_and_nothing_is_published() -> None:
    driven = started()

    assert {lane: type(effect) for lane, effect in driven.waiting.items()} == {
        Lane.CARDS: ReadCards,
        Lane.ROUND: ReadHost,
    }


@pytest.mark.parametrize("missing", WatchedKind)
def test_nothing_is_published_before_everything_in_the_cluster_is_known(missing: WatchedKind) -> None:
    driven = started(NODE, *(Listed(what) for what in WatchedKind if what is not missing))
    driven.feed(CardsRead(reading()), HealthSaved())
    for _ in range(3):
        a_round(driven)
        driven.pass_time(100.0)
        if Lane.PROOF in driven.waiting:
            driven.feed(proved())
    assert not driven.asked(SendEvents)
    assert driven.state.telling is None

    driven.feed(Listed(missing))
    while Lane.PUBLISH not in driven.waiting:
        a_round(driven)

    assert driven.asked(SendEvents)


def test_cpusets_wait_for_the_pods_only() -> None:
    driven = started(PodsChanged((node_pod(1), node_pod(2))))
    driven.feed(HostRead(host()))
    assert not driven.asked(WriteCpus)

    driven.feed(Listed(WatchedKind.PODS))
    driven.pass_time(0.1)
    driven.feed(HostRead(host()))

    effect = driven.effect(Lane.ROUND, WriteCpus)
    assert [pod.name for pod in effect.decided.pods] == ["ns/pod-1", "ns/pod-2"]


def test_nothing_is_written_before_the_kubelet_said_how_it_is_configured() -> None:
    driven = started(*listed(), configz=True)
    driven.feed(CardsRead(reading()), HealthSaved())
    a_round(driven)
    assert not driven.asked(WriteCpus)
    assert driven.state.telling is None
    assert driven.effect(Lane.CONFIGZ, AskKubelet).before is None

    own = KubeletConfiguration(cgroup_root="/own")
    driven.feed(KubeletAnswered(FileReading(own, None)))
    a_round(driven)
    assert driven.state.decided is not None
    assert driven.state.decided.cgroup_root == "/own"
    assert driven.state.telling is not None

    driven.pass_time(60.0)  # type: ignore[unreachable]
    assert driven.effect(Lane.CONFIGZ, AskKubelet).before == own


# Cards


def test_xid_errors_are_awaited_from_the_first_reading_on_and_again_after_each() -> None:
    driven = started()
    assert Lane.XIDS not in driven.waiting
    driven.feed(CardsRead(reading()))
    driven.effect(Lane.XIDS, HearXids)

    for _ in range(2):
        driven.feed(XidsHeard((XidEvent(CARDS[1], 79, 0.0),)))
        driven.effect(Lane.XIDS, HearXids)
    driven.pass_time(10.0)
    driven.feed(CardsRead(reading()))

    assert len(driven.asked(HearXids)) == 3
    assert not driven.state.cards.view.node.cards[CARDS[1]].health.usable


@pytest.mark.parametrize(
    "event",
    [
        CardsRead(reading(2)),
        CardsAway(AWAY, 0.0),
        CardsRead(reading(), (XidEvent(CARDS[2], 79, 0.0),)),
        XidsHeard((XidEvent(None, 31, 0.0), XidEvent(CARDS[2], 79, 0.0))),
        PodsChanged((node_pod(1), node_pod(2))),
        ObjectStands(WatchedKind.DEVICE, cluster_node(revision=7)),
        ObjectGone(WatchedKind.NODE),
        KubeletAnswered(FileReading(KubeletConfiguration(cgroup_root="/other"), None)),
    ],
    ids=[
        "a card away",
        "an outage alone",
        "an error at a reading",
        "errors",
        "Pods",
        "an object",
        "a Node gone",
        "configz",
    ],
)
def test_a_change_alone_prompts_a_round_soon(event: RoundEvent) -> None:
    driven = started(*listed(), configz=True)
    driven.feed(KubeletAnswered(ANSWER), CardsRead(reading()), HealthSaved())
    for _ in range(2):
        a_round(driven)
    if Lane.ROUND not in driven.waiting:
        driven.pass_time(0.0)
    if event.lane in {Lane.CARDS, Lane.CONFIGZ} and event.lane not in driven.waiting:
        driven.feed(Due(event.lane))
    before = driven.state.lanes[Lane.ROUND].due
    assert before - driven.now.steady > 1.0, "at rest"

    driven.feed(event)

    assert driven.state.lanes[Lane.ROUND].due == driven.now.steady + 0.1


@pytest.mark.parametrize(
    "event",
    [CardsRead(reading()), KubeletAnswered(ANSWER), NODE, ObjectGone(WatchedKind.DEVICE)],
    ids=["the same cards", "the same answer", "the same Node", "an object that never was"],
)
def test_what_changes_nothing_prompts_no_round(event: RoundEvent) -> None:
    driven = started(*listed(), configz=True)
    driven.feed(KubeletAnswered(ANSWER), CardsRead(reading()), HealthSaved())
    for _ in range(2):
        a_round(driven)
    if event.lane is not None and event.lane not in driven.waiting:
        driven.feed(Due(event.lane))
    before = driven.state.lanes[Lane.ROUND].due

    driven.feed(event)

    assert driven.state.lanes[Lane.ROUND].due == before


def test_nvml_is_asked_again_when_that_makes_sense_and_no_sooner_than_it_is_read() -> None:
    driven = started()
    for retry, wait in ((0.5, 10.0), (40.0, 40.0), (0.5, 10.0)):
        driven.feed(CardsAway(AWAY, retry))
        assert driven.state.lanes[Lane.CARDS].due == driven.now.steady + wait
        driven.pass_time(wait)
    driven.feed(CardsRead(reading()))

    assert driven.state.lanes[Lane.CARDS].due == driven.now.steady + 10.0
    assert [one.message for one in driven.asked(Warn)] == ["NVML cannot be read: it hangs"]
    for _ in range(2):
        driven.pass_time(10.0)
        driven.feed(CardsAway(AWAY, 0.5))
    assert [one.message for one in driven.asked(Warn)] == ["NVML cannot be read: it hangs"] * 2, "once for each outage"


def test_the_record_is_saved_when_it_changes_and_at_times_and_one_save_follows_another() -> None:
    driven = started()
    driven.feed(CardsRead(reading()))
    driven.effect(Lane.HEALTH, SaveHealth)
    driven.feed(XidsHeard((XidEvent(CARDS[0], 79, 0.0), XidEvent(CARDS[2], 79, 0.0))))
    assert len(driven.asked(SaveHealth)) == 1, "the first is still being written"

    driven.feed(HealthSaved("read-only"))
    second = driven.effect(Lane.HEALTH, SaveHealth)
    assert [card.health.usable for card in second.node.cards.values()] == [False, True, False]
    assert driven.state.cards.unsaved == "read-only"
    driven.feed(HealthSaved())
    assert driven.state.cards.unsaved == ""
    driven.pass_time(10.0)
    driven.feed(CardsRead(reading()))
    assert Lane.HEALTH not in driven.waiting, "only times changed"
    driven.pass_time(300.0)
    driven.feed(CardsRead(reading()))

    driven.effect(Lane.HEALTH, SaveHealth)


def test_without_gpus_nothing_of_nvml_is_asked_and_the_rest_is_published() -> None:
    driven = started(*listed(), gpus=False)
    a_round(driven)
    driven.feed(proved())
    a_round(driven)
    for lane in (Lane.CARDS, Lane.XIDS, Lane.HEALTH, Lane.CONFIGZ):
        driven.feed(Due(lane))

    assert write_all(driven) == ["devices", "noderesourcetopologies", "nodes/status"]
    assert not driven.asked(ReadCards)


# Proofs


def test_a_proof_waits_for_the_cards_the_pods_and_a_decision_and_the_cards_wait_for_it() -> None:
    driven = started(*listed())
    a_round(driven)
    assert Lane.PROOF not in driven.waiting, "the cards are not known"
    driven.feed(EventsSent())
    assert driven.effect(Lane.PUBLISH, Apply).target == TOPOLOGY
    assert write_all(driven) == ["noderesourcetopologies"]

    driven.feed(CardsRead(reading()), HealthSaved())
    assert driven.effect(Lane.PROOF, Prove).ask == CARDS
    a_round(driven)
    assert not write_all(driven), "nobody knows who has the cards"
    driven.feed(proved())
    a_round(driven)

    assert write_all(driven) == ["devices", "nodes/status"]


def test_a_machine_without_nvidia_cards_does_not_wait_for_nvml() -> None:
    driven = started(*listed())
    driven.feed(HostRead(host(nvidia=False)), CpusWritten())

    driven.effect(Lane.PROOF, Prove)


def test_a_proof_that_cannot_be_made_is_not_begun() -> None:
    undecided, switched_off = started(), started(*listed(), proof=False)
    switched_off.feed(CardsRead(reading()), HostRead(host()), CpusWritten())
    for driven in (undecided, switched_off):
        driven.feed(Due(Lane.PROOF))
        assert Lane.PROOF not in driven.waiting


def test_proofs_follow_new_containers_and_cards_but_not_too_often_and_come_in_time() -> None:
    driven = known()
    first = len(driven.asked(Prove))
    driven.feed(PodsChanged((node_pod(1), node_pod(2))))
    assert len(driven.asked(Prove)) == first
    driven.pass_time(5.0)
    assert len(driven.asked(Prove)) == first + 1
    driven.feed(proved())
    driven.feed(PodsChanged((node_pod(1), node_pod(2, deleted=True))))
    driven.pass_time(5.0)
    assert len(driven.asked(Prove)) == first + 1, "the same containers"

    driven.pass_time(55.0)
    assert len(driven.asked(Prove)) == first + 2


@pytest.mark.parametrize("fails", [False, True], ids=["the same evidence", "a bug"])
def test_the_first_proof_is_followed_by_a_round_even_if_it_saw_nothing(fails: object) -> None:
    driven = started(*listed())
    driven.feed(CardsRead(reading()), HealthSaved())
    a_round(driven)
    a_round(driven)

    if fails:
        del driven.waiting[Lane.PROOF]
        driven.feed(LaneFailed(Lane.PROOF))
    else:
        driven.feed(proved())

    assert driven.state.proof.done
    assert driven.state.lanes[Lane.ROUND].due == driven.now.steady + 0.1


# Publishing


def test_each_object_is_written_once_and_then_left_alone() -> None:
    driven = known()
    assert write_all(driven) == ["devices", "nodes/status"]
    for _ in range(5):
        a_round(driven)
        assert write_all(driven) == []

    counted = [(str(one.target), one.taken_back) for one in driven.asked(CountWrite)]
    assert counted == [("noderesourcetopologies", False), ("devices", False), ("nodes/status", False)]


def test_what_somebody_else_changed_or_deleted_is_written_again() -> None:
    driven = known()
    write_all(driven)
    device = dict(driven.state.cluster.objects[WatchedKind.DEVICE])
    device["metadata"] = {**device["metadata"], "labels": {}, "resourceVersion": "8"}
    driven.feed(ObjectStands(WatchedKind.DEVICE, device), ObjectGone(WatchedKind.TOPOLOGY))
    a_round(driven)

    assert write_all(driven) == ["devices", "noderesourcetopologies"]
    assert [one.taken_back for one in driven.asked(CountWrite)][-2:] == [True, False]


@pytest.mark.parametrize(
    "event",
    [ObjectGone(WatchedKind.NODE), ObjectStands(WatchedKind.NODE, cluster_node("another"))],
    ids=["gone", "made anew"],
)
def test_nothing_is_written_about_a_node_that_the_round_did_not_know(event: RoundEvent) -> None:
    driven = known()

    driven.feed(event)

    assert write_all(driven) == []


def test_a_write_that_fails_holds_up_no_other_and_is_tried_ever_more_rarely() -> None:
    driven = known()
    driven.feed(EventsSent())
    waits = []
    for attempt in range(4):
        refused = driven.effect(Lane.PUBLISH, Apply)
        assert refused.target == DEVICE
        driven.feed(WriteRefused(DEVICE, "devices: forbidden"))
        assert write_all(driven) == (["nodes/status"] if not attempt else [])
        waits.append(driven.state.kept[DEVICE].retry_at - driven.now.steady)
        driven.pass_time(max(waits[-1], 10.0))
        driven.feed(HostRead(host()), CpusWritten(), EventsSent())

    assert waits == [1.0, 2.0, 4.0, 8.0]
    told = [one.message for one in driven.asked(Warn)]
    assert told.count("not written, next attempt in 1 s: devices: forbidden") == 1
    assert told.count("devices: forbidden") == 1, "a problem of the round, once"
    assert driven.state.problems == ("devices: forbidden",)
    write_all(driven)
    a_round(driven)
    assert driven.state.problems == ()  # type: ignore[comparison-overlap]


def test_a_bug_while_publishing_ends_this_publication_only() -> None:
    driven = known()
    driven.feed(EventsSent())
    driven.effect(Lane.PUBLISH, Apply)
    del driven.waiting[Lane.PUBLISH]
    driven.feed(LaneFailed(Lane.PUBLISH))
    driven.pass_time(9.5)
    assert Lane.PUBLISH not in driven.waiting
    driven.pass_time(0.5)

    assert write_all(driven) == ["devices", "nodes/status"]


# Rounds


def test_what_is_wrong_is_shown_and_logged_once() -> None:
    driven = started(*listed())
    failures = tuple(Failure(f"pod-{n}", "", 0, f"pod-{n}: refused") for n in range(2))
    findings = Findings(2, ("a", "b", "c"), (("ns/x", "note x"), ("ns/y", "note y")), (), failures)
    for _ in range(2):
        a_round(driven, CpusWritten(findings, "no cgroups"))

    shown = driven.asked(ShowRound)
    wrong = ("no cgroups", "pod-0: refused", "pod-1: refused", "note x", "note y")
    assert [one.problems for one in shown] == [wrong, wrong]
    assert shown[0].findings == findings
    assert tuple(one.message for one in driven.asked(Warn)) == wrong


@pytest.mark.parametrize("unknown", ["the Node", "the kubelet's configuration"])
def test_events_wait_until_their_node_and_its_configuration_are_known(unknown: str) -> None:
    events = [*map(Listed, WatchedKind)] if unknown == "the Node" else listed()
    driven = started(*events, configz=unknown != "the Node")
    driven.feed(CardsRead(reading()), HealthSaved())
    a_round(driven)
    driven.feed(XidsHeard((XidEvent(CARDS[0], 79, 0.0),)))
    a_round(driven)
    assert driven.asked(Note) == []

    driven.feed(NODE if unknown == "the Node" else KubeletAnswered(ANSWER))
    a_round(driven)

    (note,) = driven.asked(Note)
    assert [one.reason for one in note.occurrences] == ["Xid79"]


def test_a_bug_in_a_round_is_followed_by_another_round_later() -> None:
    driven = started()
    del driven.waiting[Lane.ROUND]
    driven.feed(LaneFailed(Lane.ROUND))
    assert wakes_at(driven.state, driven.now) == 10.0

    driven.pass_time(10.0)

    driven.effect(Lane.ROUND, ReadHost)


@pytest.mark.parametrize(
    ("lane", "seconds", "effect"),
    [
        pytest.param(Lane.CARDS, 10.0, ReadCards, id="cards"),
        pytest.param(Lane.CONFIGZ, 60.0, AskKubelet, id="the kubelet's configuration"),
        pytest.param(Lane.ROUND, 10.0, ReadHost, id="files"),
    ],
)
def test_a_bug_in_a_lane_is_followed_by_another_attempt_and_not_at_once(
    lane: Lane, seconds: float, effect: type[Any]
) -> None:
    driven = started(configz=True)
    driven.pass_time(7.0)
    del driven.waiting[lane]
    driven.feed(LaneFailed(lane))
    driven.pass_time(seconds - 0.5)
    assert lane not in driven.waiting
    driven.pass_time(0.5)
    driven.effect(lane, effect)


def test_after_a_bug_in_a_save_the_next_reading_saves_again() -> None:
    driven = started()
    driven.feed(CardsRead(reading()))
    del driven.waiting[Lane.HEALTH]
    driven.feed(LaneFailed(Lane.HEALTH))
    driven.pass_time(10.0)
    driven.feed(CardsRead(reading()))

    driven.effect(Lane.HEALTH, SaveHealth)


def test_a_round_that_does_not_end_is_a_reason_to_restart() -> None:
    driven = started()
    driven.pass_time(300.0)
    assert unhealthy(driven.state, driven.now) == []
    driven.pass_time(1.0)
    assert unhealthy(driven.state, driven.now) == [
        "a round has taken more than 300 s: a file of this node does not answer"
    ]

    driven.feed(HostRead(host()))

    assert unhealthy(driven.state, driven.now) == []


def test_nothing_is_due_while_every_lane_is_busy() -> None:
    state = started().state
    assert wakes_at(replace(state, lanes=dict.fromkeys(Lane, state.lanes[Lane.CARDS])), Driven.of().now) == inf
