"""What the store's watch reports, taken into the ledger and the view."""

from collections.abc import Callable

import pytest
from builders import gpu, holding, part

from webhook.ledger.ledger import Ledger
from webhook.ledger.store import MemoryStore, Record, UnreadableError
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import RecordFeed


class Fed:
    """A ledger, a view, and the feed between them."""

    def __init__(self) -> None:
        seen = SeenObjects(lambda: 0)
        self.ledger = Ledger(MemoryStore(), watched=seen.changes.touch)
        self.view = ClusterView(seen, self.ledger)
        self.complaints: dict[str, tuple[str, ...]] = {}
        self.feed = RecordFeed(self.view, self.ledger, self.complaints.__setitem__)

    def put(self, node: str, revision: int, *uids: str) -> None:
        self.feed.put(node, revision, lambda: record(node, revision, *uids))

    def spoil(self, node: str, revision: int) -> None:
        def read() -> Record:
            raise UnreadableError(f"{node} is spoilt", node)

        self.feed.put(node, revision, read)

    def listed(self, *puts: Callable[[], None]) -> None:
        self.feed.begin_list()
        for put in puts:
            put()
        self.feed.end_list()

    def held(self) -> dict[str, list[str]]:
        return {one.node: sorted(one.holdings) for one in self.ledger.records()}


def record(node: str, revision: int, *uids: str) -> Record:
    return Record(node, revision, {uid: holding(uid, part(gpu(0), 1)) for uid in uids})


@pytest.fixture
def fed() -> Fed:
    return Fed()


def test_an_unreadable_record_drops_the_remembered_one_and_blocks_its_node_alone(fed: Fed) -> None:
    fed.listed(lambda: fed.put("n1", 5, "a"), lambda: fed.put("n2", 6, "b"))
    fed.spoil("n1", 7)
    assert fed.held() == {"n2": ["b"]}
    assert (fed.ledger.nodes_of("a"), fed.ledger.nodes_of("b")) == ([], ["n2"])
    assert (fed.view.nodes.blocked("n1"), fed.view.nodes.blocked("n2")) == ("n1 is spoilt", "")
    assert fed.complaints == {"n1": ("n1 is spoilt",), "n2": ()}


@pytest.mark.parametrize("how", ["mended", "deleted", "vanished", "read by a bind"])
def test_a_node_is_open_again_once_its_record_can_be_read_or_is_gone(fed: Fed, how: str) -> None:
    fed.listed(lambda: fed.spoil("n1", 5))
    assert fed.view.nodes.blocked("n1")
    if how == "mended":
        fed.put("n1", 6, "a")
    elif how == "deleted":
        fed.feed.drop("n1", 6)
    elif how == "vanished":
        fed.listed()
    else:
        fed.ledger.observe(record("n1", 6, "a"))
        fed.put("n1", 6, "a")
    assert fed.view.nodes.blocked("n1") == ""
    assert fed.complaints["n1"] == ()
    assert fed.held() == ({"n1": ["a"]} if how in {"mended", "read by a bind"} else {})


def test_what_a_list_does_not_name_is_forgotten_even_if_it_was_never_watched(fed: Fed) -> None:
    fed.put("n1", 5, "a")
    fed.ledger.observe(record("n2", 6, "b"))  # written here, while no watch was open
    fed.listed(lambda: fed.put("n3", 7, "c"))
    assert fed.held() == {"n3": ["c"]}


def test_what_was_written_since_the_list_began_stays(fed: Fed) -> None:
    fed.put("n1", 5, "a")
    fed.feed.begin_list()
    fed.ledger.observe(record("n1", 8, "a", "b"))
    fed.ledger.observe(record("n2", 9, "c"))
    fed.feed.end_list()
    assert fed.held() == {"n1": ["a", "b"], "n2": ["c"]}


def test_a_list_that_fails_half_way_makes_nothing_forgotten(fed: Fed) -> None:
    fed.listed(lambda: fed.put("n1", 5, "a"), lambda: fed.put("n2", 6, "b"))
    fed.feed.begin_list()
    fed.put("n2", 6, "b")
    fed.listed(lambda: fed.put("n1", 5, "a"), lambda: fed.put("n2", 6, "b"))
    assert fed.held() == {"n1": ["a"], "n2": ["b"]}


def test_an_older_deletion_does_not_drop_a_record_created_again(fed: Fed) -> None:
    fed.put("n1", 5, "a")
    fed.ledger.observe(record("n1", 9, "b"))  # created again here, before the watch reported the deletion
    fed.feed.drop("n1", 8)
    assert fed.held() == {"n1": ["b"]}


def test_a_record_that_is_known_is_not_read_again(fed: Fed) -> None:
    fed.ledger.observe(record("n1", 5, "a"))
    fed.feed.put("n1", 5, lambda: pytest.fail("it was read"))
    assert fed.held() == {"n1": ["a"]}
