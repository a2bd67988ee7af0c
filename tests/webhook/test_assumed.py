"""Assumed placements of Pods whose bind is outstanding: who learns when one is dropped, and how the bind uses it."""

import pytest
from builders import GIB, device_entry, device_object, gpu, held, holding, node, part, share
from world import gpu_pod

from allocator.bind import PodToBind, bind
from allocator.vocabulary.asks import DeviceOrder
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import at_once
from webhook.scheduling.assumed import Assumed
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed
from webhook.view.nodes import NodeFacts
from webhook.view.podinfo import read_pod_info

CARDS = tuple(gpu(minor) for minor in range(3))


@pytest.fixture
def freed() -> list[str]:
    return []


@pytest.fixture
def assumed(freed: list[str]) -> Assumed:
    made = Assumed(lambda: 0.0, 5.0, freed.append)
    made.put("n1", holding("a", part(CARDS[0], 50)))
    return made


@pytest.mark.parametrize(
    ("bound", "told"),
    [("n1", []), ("n0", ["n1"]), ("n2", ["n1"]), ("", ["n1"])],
    ids=["bound where it was sent", "bound elsewhere", "bound elsewhere, later by name", "not bound"],
)
def test_others_may_fit_where_a_pod_was_sent_unless_it_came(
    assumed: Assumed, freed: list[str], bound: str, told: list[str]
) -> None:
    assert assumed.drop("a", bound) == "n1"
    assert freed == told
    assert assumed.drop("a", bound) == ""
    assert freed == told, "reported once"


def test_what_a_pod_was_sent_for_is_known_of_that_node_alone(assumed: Assumed) -> None:
    sent = assumed.of("a", "n1")
    assert sent is not None
    assert [one.id for one in sent.shares] == ["GPU-0"]
    assert assumed.of("a", "n2") is assumed.of("b", "n1") is None


def bound_on(snapshot: NodeSnapshot, sent: Holding | None) -> list[str]:
    """The cards that a Pod with half a card gets in its bind."""
    pod = read_pod_info(gpu_pod("p", 50))
    assert pod
    claim = PodToBind(pod.uid, pod.namespace, pod.name, pod.request)
    decided = at_once(bind(claim, snapshot.holding_all, 0, "mark", sent)(snapshot.holdings))[1].outcome
    assert isinstance(decided, Holding)
    decided_on = snapshot.with_holding(decided)
    decided_on.check_invariants()
    return [one.id for one in decided.shares]


@pytest.mark.parametrize(
    ("order", "card"),
    [(DeviceOrder.MOST_USED, "GPU-2"), (DeviceOrder.MINOR, "GPU-2"), (DeviceOrder.LEAST_USED, "GPU-0")],
)
def test_a_bind_gives_what_the_pod_was_sent_for_unless_devices_are_used_alike(order: DeviceOrder, card: str) -> None:
    sent = holding("uid-p", part(CARDS[2], 50))
    assert bound_on(node(*CARDS, order=order), None) == ["GPU-0"]
    assert bound_on(node(*CARDS, order=order), sent) == [card]


@pytest.mark.parametrize(
    "snapshot",
    [
        node(*CARDS, holdings=held(part(CARDS[2], 60))),
        node(*CARDS, holdings=held(share(CARDS[2], core=10, ratio=10, memory=41 * GIB))),
        node(*CARDS[:2], gpu(2, healthy=False)),
        node(*CARDS[:2]),
        node(*CARDS, kubelet=["GPU-2"]),
    ],
    ids=["too much is held", "of memory alone", "unhealthy", "gone", "the kubelet's"],
)
def test_a_bind_gives_something_else_where_what_the_pod_was_sent_for_is_not_to_be_had(snapshot: NodeSnapshot) -> None:
    assert bound_on(snapshot, holding("uid-p", part(CARDS[2], 50))) == ["GPU-0"]


def test_a_node_that_changes_is_reported_and_one_that_is_written_again_is_not() -> None:
    changed: list[str] = []
    view = ClusterView(SeenObjects(lambda: 0, refitted=changed.append))
    feed = DeviceFeed(view, BUILT_IN, lambda _node, _problems: None)
    view.nodes.put("node-1", NodeFacts({}))
    for healthy, told in ((True, 1), (True, 1), (False, 2), (True, 3)):
        feed.put(device_object(device_entry(0, health=healthy)))
        assert changed == ["node-1"] * told
    view.nodes.put("node-1", NodeFacts({}))
    assert len(changed) == 3
    view.nodes.put("node-1", NodeFacts({"new": "label"}))
    assert len(changed) == 4
