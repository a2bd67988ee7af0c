"""One request among candidates: their order by what counts first, figures of each, and what the others lack."""

from collections.abc import Mapping

import pytest
from builders import GIB, app, ask, gpu, gpus, holding, nic, nics, part, request

from allocator.index.cluster import ClusterIndex
from allocator.index.rows import load_row, query_with_load, type_rows
from allocator.index.search import NodeFigures, NodeSearch
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.mix import TypicalRequest, mix_of
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class

PACKING, LEAST, BALANCED, FRAGMENTATION = (
    Preference.PACKING,
    Preference.LEAST_REQUESTED,
    Preference.MOST_BALANCED,
    Preference.FRAGMENTATION,
)
NOTHING = query_with_load(request(), [])
HALF = query_with_load(request(app("main", gpus(50))), [("cpu", 1000)])
PAIR = query_with_load(request(app("main", nics(50)), app("beside", ask(2, core=100, ratio=100))), [])


def put(index: ClusterIndex, name: str, *percents: int, size: int = 80, boards: int = 0) -> None:
    """A node of 8 CPUs with cards of so many GiB, of which such parts are held, and idle NICs."""
    cards = tuple(gpu(at, size * GIB, device_id=f"{name}-{at}") for at in range(len(percents)))
    held = {
        f"{name}-{at}": holding(f"{name}-{at}", part(card, percent))
        for at, (card, percent) in enumerate(zip(cards, percents, strict=True))
        if percent
    }
    devices = (*cards, *(nic(at, device_id=f"{name}-nic-{at}") for at in range(boards)))
    load = load_row({"cpu": 8000}, {"cpu": 2000 * len(held)})
    index.put(name, [*type_rows(NodeSnapshot(name, devices, held), makes_and_groups=True), load])


@pytest.fixture
def index() -> ClusterIndex:
    made = ClusterIndex({"gpu": fullness(GPU_TYPE)}, {"gpu": size_class(GPU_TYPE)})
    put(made, "idle", 0, 0)
    put(made, "used", 50, 0)
    put(made, "large", 0, 0, 0, 0)
    put(made, "small", 0, 0, size=40)
    put(made, "full", 60, 100)
    return made


ALL = ["full", "used", "unknown", "large", "small", "idle"]

# What counts; the candidates that may serve, those that are equally good together

ORDERS: dict[str, tuple[Preference, Mapping[str, int], int, bool, list[str]]] = {
    "packing: in steps of 10": (PACKING, {}, 1, False, ["used", "idle large small"]),
    "packing: the size that is opened counts first": (PACKING, {}, 1, True, ["used", "small", "idle large"]),
    "packing: Pods of the gang count before": (PACKING, {"large": 1}, 1, False, ["large", "used", "idle small"]),
    "packing: more Pods count more": (PACKING, {"large": 1, "idle": 2}, 1, False, ["idle", "large", "used", "small"]),
    "packing: room for the gang counts before": (PACKING, {}, 5, False, ["large", "idle small", "used"]),
    "packing: as far as the gang needs it": (PACKING, {}, 3, True, ["used", "small", "idle large"]),
    "packing: Pods of the gang before room": (PACKING, {"used": 1}, 8, False, ["used", "large", "idle small"]),
    "least requested": (LEAST, {}, 1, False, ["large", "idle small", "used"]),
    "least requested: the size only among equals": (LEAST, {}, 1, True, ["large", "small", "idle", "used"]),
    "least requested: room counts before": (LEAST, {}, 4, True, ["large", "small", "idle", "used"]),
    "least requested: Pods of the gang count before": (LEAST, {"used": 1}, 9, True, ["used", "large", "small", "idle"]),
    "fragmentation": (FRAGMENTATION, {}, 1, False, ["used", "idle small", "large"]),
    "fragmentation: the size that is opened": (FRAGMENTATION, {}, 1, True, ["used", "small", "idle", "large"]),
    "fragmentation: Pods of the gang count before": (
        FRAGMENTATION,
        {"large": 1},
        1,
        True,
        ["large", "used", "small", "idle"],
    ),
}


@pytest.mark.parametrize(("way", "lifts", "room_for", "smallest", "expected"), ORDERS.values(), ids=ORDERS)
def test_candidates_come_in_order(
    index: ClusterIndex,
    way: Preference,
    lifts: Mapping[str, int],
    room_for: int,
    expected: list[str],
    *,
    smallest: bool,
) -> None:
    index.typify(mix_of([TypicalRequest(0, 0, gpus(50))]))
    levels = [level.split() for level in expected]
    for names in (ALL, ALL[::-1]):
        search = NodeSearch(index, HALF, names)
        assert [*search.best_first(way, lifts, room_for, smallest=smallest)] == [one for of in levels for one in of]
        standing = search.standing(way, lifts, room_for, smallest=smallest)
        assert standing == {one: number for number, of in enumerate(levels) for one in of}
        assert sorted(search.away) == ["full", "unknown"]


def test_devices_of_1023_units_and_more_count_as_equally_large(index: ClusterIndex) -> None:
    for name, size in (("a", 1023), ("b", 2000), ("c", 1022)):
        put(index, name, 0, 0, 0, 0, size=size)
    search = NodeSearch(index, HALF, ["a", "b", "c", "idle", "used"])
    assert search.standing(LEAST, {}, smallest=True) == {"c": 0, "a": 1, "b": 1, "idle": 2, "used": 3}
    assert search.standing(PACKING, {}, smallest=True) == {"used": 0, "idle": 1, "c": 2, "a": 3, "b": 3}
    assert search.standing(PACKING, {"b": 1}, smallest=True) == {"b": 0, "used": 1, "idle": 2, "c": 3, "a": 4}
    assert [*search.best_first(LEAST, {}, smallest=True)] == ["c", "a", "b", "idle", "used"]


@pytest.mark.parametrize(
    ("way", "order"), [(PACKING, ["last", "used", "idle"]), (FRAGMENTATION, ["used", "last", "idle"])]
)
def test_of_a_pod_without_a_gang_no_more_room_is_asked_than_for_itself(
    index: ClusterIndex, way: Preference, order: list[str]
) -> None:
    put(index, "last", 50)
    search = NodeSearch(index, HALF, ["idle", "used", "last"])
    assert [*search.best_first(way, {})] == order
    assert search.standing(way, {}) == {name: number for number, name in enumerate(order)}
    assert [of.room for of in search.parts(way, {}).values()] == [1, 1, 1]


def test_the_figures_of_each_candidate_are_those_by_which_it_is_compared(index: ClusterIndex) -> None:
    index.typify(mix_of([TypicalRequest(0, 0, gpus(100))]))
    search = NodeSearch(index, HALF, ALL)
    assert search.parts(PACKING, {"large": 2}, 5) == {
        "used": NodeFigures(0, 3, None, None, None, None, None, 85),
        "large": NodeFigures(2, 5, None, None, None, None, None, 3),
        "small": NodeFigures(0, 4, None, None, None, None, None, 7),
        "idle": NodeFigures(0, 4, None, None, None, None, None, 7),
    }
    opened = {name: of.opened for name, of in search.parts(LEAST, {}, smallest=True).items()}
    assert opened == {"used": 0, "large": 80, "small": 40, "idle": 80}
    assert {name: of.score for name, of in search.parts(LEAST, {}).items()} == {
        "large": 0,
        "small": 1,
        "idle": 1,
        "used": 2,
    }
    # On a card that is half used nothing is left that a whole card could use; it has lost 100 points before.
    assert search.parts(FRAGMENTATION, {}, smallest=True) == {
        "used": NodeFigures(0, 1, -2, 0, 0, 0, 0, 1),
        "large": NodeFigures(0, 1, 1, 1, 7168, 80, 4, 0),
        "small": NodeFigures(0, 1, 1, 1, 7168, 40, 2, 1),
        "idle": NodeFigures(0, 1, 1, 1, 7168, 80, 2, 1),
    }
    assert [of.opened for of in search.parts(FRAGMENTATION, {}).values()] == [None] * 4


@pytest.mark.parametrize("way", list(Preference))
def test_what_no_candidate_can_serve_has_no_order(index: ClusterIndex, way: Preference) -> None:
    search = NodeSearch(index, HALF, ["unknown", "full"])
    assert [*search.best_first(way, {}, smallest=True)] == []
    assert search.standing(way, {}) == search.parts(way, {}) == {}  # type: ignore[comparison-overlap]
    assert search.away == ["unknown", "full"]


def test_who_cannot_serve_lacks_the_first_of_what_is_asked_for_of_which_too_few_devices_fit(
    index: ClusterIndex,
) -> None:
    put(index, "nic alone", boards=2)
    put(index, "card and nic", 0, 50, boards=1)
    put(index, "both", 0, 0, boards=1)
    names = ["both", "idle", "nic alone", "unknown", "card and nic"]
    assert [*NodeSearch(index, PAIR, names).shortfalls()] == [
        ("idle", 0, 0),
        ("nic alone", 1, 0),
        ("unknown", 0, 0),
        ("card and nic", 1, 1),
    ]


def test_a_candidate_that_is_open_may_serve_whatever_the_index_says(index: ClusterIndex) -> None:
    search = NodeSearch(index, HALF, ["idle", "full", "unknown", "used"], {"unknown", "full", "other"})
    assert [*search.best_first(PACKING, {})] == ["used", "unknown", "full", "idle"]
    assert search.away == []


@pytest.mark.parametrize("way", list(Preference))
def test_where_nothing_is_asked_for_every_candidate_may_serve(index: ClusterIndex, way: Preference) -> None:
    search = NodeSearch(index, NOTHING, ALL)
    assert sorted(search.best_first(way, {})) == sorted(ALL)
    assert search.away == []
