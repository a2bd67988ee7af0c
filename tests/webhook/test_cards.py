"""What each device is worth to the next Pod, and how it is drawn: state in, lines out."""

import io
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from builders import device_entry, device_object, gpu, holding, nic, part, share
from nodereports import report
from rich.console import Console
from rich.table import Table

from allocator.vocabulary.delivery import Keeping, LimitProvider, MemoryUse
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import CLASSES, CORDONED
from allocator.wire.nodeallocation import write_spec
from allocator.wire.noderuntime import write_uses
from console.devices.cards import document, summary
from console.devices.nodes import Known
from console.devices.topcommand import Look, ShownNode, counts, last_line, line, lines, look, wide_table
from console.devicewords import told_use, used_of_total
from webhook.view.nodereport import Availability, DeviceReport, NodeReport

Raw = dict[str, Any]
GIB = 2**30
A100: Raw = {"labels": {"node.koordinator.sh/gpu-model": "NVIDIA-A100-SXM4-80GB"}}
SICK: Raw = {"health": False, "conditions": [{"type": "Healthy", "status": "False", "reason": "XID", "message": "79"}]}


def state(
    *entries: Raw, holdings: Iterable[Holding] = (), spec: Raw | None = None, annotations: Raw | None = None
) -> NodeReport:
    obj = device_object(*entries, name="n1")
    obj["metadata"]["annotations"] = annotations or {}
    return report("n1", obj, write_spec(list(holdings)) if spec is None else spec)


def one(shown: NodeReport) -> DeviceReport:
    return shown.devices[0]


CASES = {
    "nobody holds anything": (state(device_entry(0)), Availability.FREE, "", (0, 100)),
    "a Pod holds a third": (
        state(device_entry(0), holdings=[holding("a", part(gpu(0), 30))]),
        Availability.PARTS,
        "",
        70,
    ),
    "two Pods hold all": (
        state(device_entry(0), holdings=[holding("a", part(gpu(0), 60)), holding("b", part(gpu(0), 40))]),
        Availability.HELD,
        "",
        0,
    ),
    "the memory is held, and the compute is not": (
        state(device_entry(0), holdings=[holding("a", share(gpu(0), core=10, memory=80 * GIB, ratio=100))]),
        Availability.HELD,
        "",
        90,
    ),
    "a Pod shares its card with nobody": (
        state(device_entry(0), holdings=[holding("a", part(gpu(0), 10)._replace(unshared=True))]),
        Availability.HELD,
        "",
        0,
    ),
    "a claim holds it": (
        state(device_entry(0), holdings=[replace(holding("a", part(gpu(0), 100)), fence=7)]),
        Availability.HELD,
        "",
        0,
    ),
    "it is unhealthy": (state(device_entry(0, **SICK)), Availability.OUT, "XID: 79", 0),
    "it is cordoned": (
        state(device_entry(0), annotations={CORDONED: "GPU-0"}),
        Availability.OUT,
        "cordoned by an administrator",
        0,
    ),
    "it is cordoned and held": (
        state(device_entry(0), annotations={CORDONED: "GPU-0"}, holdings=[holding("a", part(gpu(0), 30))]),
        Availability.OUT,
        "cordoned by an administrator",
        0,
    ),
    "who holds it cannot be read": (
        state(device_entry(0), spec={"allocations": [{}]}),
        Availability.HELD,
        "who holds it is unknown",
        0,
    ),
}


@pytest.mark.parametrize(("shown", "wanted", "why", "free"), CASES.values(), ids=CASES)
def test_a_device_is_free_in_parts_held_or_out_of_service(
    shown: NodeReport, wanted: Availability, why: str, free: Any
) -> None:
    card = one(shown)
    assert (card.state, card.why) == (wanted, why)
    assert card.free["gpu-core"] == (free if isinstance(free, int) else free[1])


def test_a_pod_that_has_its_pcie_root_to_itself_leaves_no_other_device_of_the_root() -> None:
    entries = [device_entry(minor, topology={"nodeID": 0, "pcieID": root}) for minor, root in enumerate("aab")]
    cards = state(*entries, holdings=[holding("x", part(gpu(0), 10)._replace(alone=True))]).devices
    assert [card.state for card in cards] == [Availability.HELD, Availability.HELD, Availability.FREE]
    assert [card.why for card in cards] == ["", "a Pod has its PCIe root to itself", ""]
    assert [card.free["gpu-core"] for card in cards] == [0, 0, 100]


def test_a_device_that_is_held_and_not_listed_is_gone_and_no_device() -> None:
    cards = state(device_entry(0), holdings=[holding("a", part(gpu(5), 50))]).devices
    assert [(card.name, card.state, card.device is None) for card in cards] == [
        ("gpu/0", Availability.FREE, False),
        ("gpu/5", Availability.GONE, True),
    ]
    assert counts(summary(cards)) == "1 device: 1 free; 1 held, not listed by the node"


def test_each_state_is_counted_once() -> None:
    cards = [one(shown) for shown, *_ in CASES.values()]
    found = summary(cards)
    assert counts(found) == "10 devices: 1 free, 1 in parts, 5 held, 3 out of service"
    assert counts(summary([])) == "no devices"


# Lines


def drawn(card: DeviceReport, width: int = 100) -> str:
    return line(card, Look(width, "#", ".")).plain.rstrip()


def test_a_line_has_the_name_the_model_both_bars_and_the_pods() -> None:
    shared = state(device_entry(0, **A100), holdings=[holding("a", part(gpu(0), 30)), holding("b", part(gpu(0), 45))])
    assert drawn(one(shared)) == (
        "  gpu/0    A100-SXM4-80GB     ########..  75% ########.. 60/80 GiB     default/pod-a, default/pod-b"
    )
    assert drawn(one(shared), 70) == "  gpu/0    ########..  75% ########.. 60/80 GiB     default/pod-a +1"


def test_a_long_name_is_cut_so_that_the_number_of_the_others_is_seen() -> None:
    held = [replace(holding(name, part(gpu(0), 10)), name=name * 70) for name in "abc"]
    told = drawn(one(state(device_entry(0), holdings=held)), 60)
    assert told.endswith("… +2")
    assert len(told) == 60
    exact = [replace(holding("a", part(gpu(0), 10)), namespace="n", name="x" * 11)]
    assert drawn(one(state(device_entry(0), holdings=exact)), 67).endswith(f" n/{'x' * 11}")


BARS = {
    "nothing is held": (0, ".........."),
    "one percent is seen": (1, "#........."),
    "a bar is full only if all is held": (99, "#########."),
    "all": (100, "##########"),
}


@pytest.mark.parametrize(("percent", "bar"), BARS.values(), ids=BARS)
def test_a_bar_is_rounded_up_and_full_only_where_nothing_is_free(percent: int, bar: str) -> None:
    held = [holding("a", part(gpu(0), percent))] if percent else []
    assert f" {bar} {percent:>3}% " in drawn(one(state(device_entry(0), holdings=held)))


def test_why_nothing_lands_on_a_device_comes_before_its_pods() -> None:
    held = [holding("a", part(gpu(0), 10))]
    assert drawn(one(state(device_entry(0, **SICK), holdings=held))).endswith(" XID: 79; default/pod-a")
    _, gone = state(device_entry(1), holdings=held).devices
    assert drawn(gone).split() == ["gpu/0", "not", "listed;", "default/pod-a"]


@pytest.mark.parametrize("width", [40, 60, 80, 91, 92, 100])
def test_no_line_is_wider_than_asked(width: int) -> None:
    many = [replace(holding(f"{at}", part(gpu(0), 3)), name="\u4e2d" * 70) for at in range(30)]
    entry = device_entry(0, labels={"node.koordinator.sh/gpu-model": "NVIDIA-" + "X" * 90})
    shown = state(entry, device_entry(1, **SICK), holdings=many)
    cards = shown.devices
    found = [ShownNode(shown, cards)]
    assert max(text.cell_len for text in lines(found, Look(width))) <= width


def test_no_control_character_reaches_the_terminal() -> None:
    entry = device_entry(0, labels={"node.koordinator.sh/gpu-model": "\x1b]0;t\x07"})
    held = [replace(holding("a", part(gpu(0), 10)), name="\x1b[2J")]
    assert "\x1b" not in drawn(one(state(entry, holdings=held)))


def test_other_devices_have_one_bar_and_amounts_of_their_own() -> None:
    entry = {"type": "rdma", "id": "NIC-0", "minor": 0, "health": True, "resources": {"koordinator.sh/rdma": "100"}}
    held = [holding("a", share_of_nic(25))]
    assert drawn(one(state(entry, holdings=held))).split() == ["rdma/0", "###.......", "25%", "default/pod-a"]


def share_of_nic(percent: int) -> Any:
    return share(gpu(0))._replace(type="rdma", id=nic(0).id, amounts={"rdma": percent})


def test_a_device_of_a_type_of_ones_own_is_drawn_by_its_units() -> None:
    known = Known(BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)]))
    node = {"metadata": {"name": "n1", "annotations": {CLASSES: '{"queue":{"fast":10}}'}}}
    (card,) = report("n1", None, None, node, known).devices
    assert drawn(card).split() == ["queue/0", "..........", "0%"]


def test_a_terminal_without_blocks_is_drawn_in_ascii() -> None:
    assert look(100, "utf-8") == Look(100, "█", "░")
    assert look(250, "ascii") == Look(100, "#", ".")
    assert look(10, "no-such-encoding") == Look(40, "#", ".")


def test_the_last_line_counts_what_is_shown_and_names_the_namespace() -> None:
    shown = state(device_entry(0), device_entry(1), holdings=[holding("a", part(gpu(0), 30))])
    cards = shown.devices
    mine = [card for card in cards if card.is_of("default")]
    assert [card.id for card in mine] == ["GPU-0"]
    assert last_line([ShownNode(shown, cards)], "") == "1 node, 2 devices: 1 free, 1 in parts"
    told = last_line([ShownNode(shown, mine)], "default")
    assert told == "1 node that Pods of namespace default use, 1 device: 1 in parts"
    assert last_line([], "team-a") == "no Pod of namespace team-a holds a device"


# Amounts

AMOUNTS = {
    "whole": (40 * GIB, 80 * GIB, "40/80 GiB"),
    "both are rounded down, and all of it is all of it": (81251 * 2**20, 81251 * 2**20, "79.3/79.3 GiB"),
    "more is held than there is": (82 * GIB, 80 * GIB, "82/80 GiB"),
    "nothing": (0, GIB // 2, "0/0.5 GiB"),
    "little is in another unit": (2**20, 80 * GIB, "1 MiB/80 GiB"),
}


@pytest.mark.parametrize(("used", "total", "told"), AMOUNTS.values(), ids=AMOUNTS)
def test_memory_is_told_in_gib_with_one_decimal(used: int, total: int, told: str) -> None:
    assert used_of_total(used, total, "/") == told


def test_amounts_of_large_cards_keep_their_column() -> None:
    cards = [device_entry(0, "143771Mi"), device_entry(1)]
    shown = state(*cards, holdings=[holding("a", part(gpu(0), 100)), holding("b", part(gpu(1), 10))])
    told = [text.plain for text in lines([ShownNode(shown, shown.devices)], Look(80, "#", "."))][1:]
    assert len({text.index("default/") for text in told}) == 1


def test_names_of_devices_are_never_cut_because_people_cordon_by_them() -> None:
    known = Known(BUILT_IN.with_types([own_type("encoder", "example.com/encoder", Unit.UNITS)]))
    node = {"metadata": {"name": "n1", "annotations": {CLASSES: '{"encoder":{"fast":10}}'}}}
    shown = report("n1", None, None, node, known)
    told = [text.plain for text in lines([ShownNode(shown, shown.devices)], Look(80, "#", "."))]
    assert told[1].startswith("  encoder/0 ..........   0% ")


BEGUN = "  gpu/0    ###.......  30% ###....... 24/80 GiB     "
MODELLED = "  gpu/0    A100-SXM4-80GB     ###.......  30% ###....... 24/80 GiB     "
FIT = {
    55: f"{BEGUN}… …",
    56: f"{BEGUN}… +2",
    57: f"{BEGUN}n… +2",
    62: f"{BEGUN}n/aaaa… +2",
    63: f"{BEGUN}n/aaaaaa +2",
    72: f"{BEGUN}n/aaaaaa +2",
    73: f"{BEGUN}n/aaaaaa, n/bbbbbb +1",
    79: f"{BEGUN}n/aaaaaa, n/bbbbbb +1",
    80: f"{BEGUN}n/aaaaaa, n/bbbbbb, n/cccccc",
    91: f"{BEGUN}n/aaaaaa, n/bbbbbb, n/cccccc",
    92: f"{MODELLED}n/aaaaaa, n/bbbbbb +1",
    98: f"{MODELLED}n/aaaaaa, n/bbbbbb +1",
    99: f"{MODELLED}n/aaaaaa, n/bbbbbb, n/cccccc",
}


@pytest.mark.parametrize("width", FIT)
def test_as_many_pods_are_named_as_have_room(width: int) -> None:
    held = [replace(holding(name, part(gpu(0), 10)), namespace="n", name=name * 6) for name in "abc"]
    assert drawn(one(state(device_entry(0, **A100), holdings=held)), width) == FIT[width]


@pytest.mark.parametrize(
    ("width", "told"),
    [(70, "XID: 79; n/aaa… +2"), (80, "XID: 79; n/aaaaaa +2"), (82, "XID: 79; n/aaaaaa, n/bbbbbb +1")],
)
def test_why_nothing_lands_on_a_device_takes_room_from_its_pods(width: int, told: str) -> None:
    held = [replace(holding(name, part(gpu(0), 10)), namespace="n", name=name * 6) for name in "abc"]
    assert drawn(one(state(device_entry(0, **SICK), holdings=held)), width) == f"{BEGUN}{told}"


def test_more_than_a_card_has_is_drawn_as_full() -> None:
    card = one(state(device_entry(0), holdings=[holding(f"{at:02}", part(gpu(0), 100)) for at in range(12)]))
    empty = " " * 19
    assert drawn(card) == f"  gpu/0    {empty}########## 999% ########## 960/80 GiB    default/pod-00 +11"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("NVIDIA-T4", "T4"),
        ("NVIDIA T4", "T4"),
        ("NVIDIAT4", "NVIDIAT4"),
        ("AMD-NVIDIA-1", "AMD-NVIDIA-1"),
        ("", ""),
        ("X" * 18, "X" * 18),
        ("X" * 19, "X" * 17 + "…"),
    ],
)
def test_a_model_has_18_columns_without_its_vendor(model: str, told: str) -> None:
    entry = device_entry(0, labels={"node.koordinator.sh/gpu-model": model})
    assert drawn(one(state(entry))) == f"  gpu/0    {told:<18} ..........   0% .......... 0/80 GiB"


@pytest.mark.parametrize(("width", "wide"), [(39, 40), (40, 40), (41, 41), (99, 99), (100, 100), (101, 100), (-5, 40)])
def test_a_terminal_is_drawn_between_40_and_100_columns_wide(width: int, wide: int) -> None:
    assert look(width, "utf-8").width == wide


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((0, 0, 0, 0, 0), "no devices"),
        ((0, 0, 0, 0, 2), "no devices; 2 held, not listed by the node"),
        ((0, 0, 1, 0, 0), "1 device: 1 held"),
        ((0, 1, 0, 1, 0), "2 devices: 1 in parts, 1 out of service"),
    ],
)
def test_devices_are_counted_in_words(found: tuple[int, ...], told: str) -> None:
    assert counts(dict(zip(Availability, found, strict=True))) == told


def test_of_a_device_that_is_held_in_part_each_resource_is_told() -> None:
    held = [holding("a", gpu_share(core=10)), holding("b", gpu_share(memory=GIB))]
    card = one(state(device_entry(0), holdings=held))
    assert (card.total, card.used, card.free) == (
        {"gpu-core": 100, "gpu-memory": 80 * GIB, "gpu-memory-ratio": 100},
        {"gpu-core": 10, "gpu-memory": GIB, "gpu-memory-ratio": 0},
        {"gpu-core": 90, "gpu-memory": 79 * GIB, "gpu-memory-ratio": 100},
    )
    assert card.state is Availability.PARTS


def gpu_share(core: int = 0, memory: int = 0) -> Any:
    amounts = {"gpu-core": core} | ({"gpu-memory": memory} if memory else {})
    return part(gpu(0), 1)._replace(amounts=amounts)


# What containers have of a card's memory


USES = [
    MemoryUse("GPU-0", "default", "pod-a", "main", Keeping.ENFORCED, 3 * GIB, 40 * GIB, 40 * GIB, 40 * GIB),
    MemoryUse("GPU-0", "default", "pod-a", "side", Keeping.MISSING, 45 * GIB, None, 40 * GIB, 40 * GIB),
    MemoryUse("GPU-0", "default", "pod-b", "main", Keeping.MISSING, 0, 41 * GIB, 40 * GIB, 40 * GIB),
    MemoryUse("GPU-0", "default", "pod-b", "side", Keeping.ACCOUNTING, 512 * 2**20, None, None, 40 * GIB),
]


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (USES[0], "main uses 3 GiB of at most 40 GiB (enforced)"),
        (USES[1], "side uses 45 GiB, not kept to 40 GiB (missing, more than it holds)"),
        (USES[2], "main uses 0 GiB of at most 41 GiB, not kept to 40 GiB (missing)"),
        (USES[3], "side uses 0.5 GiB (accounting)"),
        (replace(USES[3], used=2**20 + 1), "side uses 1 MiB (accounting)"),
        (replace(USES[0], used=None), "main of at most 40 GiB (enforced)"),
        (
            replace(USES[0], keeping=Keeping.INJECTED, provider=LimitProvider.HAMI_CORE),
            "main uses 3 GiB of at most 40 GiB (injected by HAMi-core)",
        ),
        (
            replace(USES[0], keeping=Keeping.INJECTED, provider=LimitProvider.MPS, limit=None),
            "main uses 3 GiB, not kept to 40 GiB (injected by mps)",
        ),
    ],
)
def test_a_containers_memory_is_told_in_words(use: MemoryUse, told: str) -> None:
    assert told_use(use) == told


def test_each_pod_is_shown_with_what_its_containers_have_of_the_card() -> None:
    held = [holding("a", part(gpu(0), 50), part(gpu(1), 50)), holding("b", part(gpu(0), 50))]
    told = {"koordgate.io/memory-limits": write_uses(USES)}
    shown = state(device_entry(0), device_entry(1), holdings=held, annotations=told)
    first, second = shown.devices
    assert [one.container for one in first.uses_of(held[0])] == ["side", "main"]
    assert second.uses == ()
    said = tabled(wide_table([ShownNode(shown, [first, second])]))
    for words in ("main uses 3 GiB of at most 40 GiB (enforced)", "side uses 0.5 GiB (accounting)"):
        assert said.count(words) == 1
    listed = document([shown], BUILT_IN)["nodes"][0]["devices"]
    assert [len(one["uses"]) for one in listed] == [4, 0]
    assert listed[0]["uses"][0] == {
        "pod": "default/pod-a",
        "container": "side",
        "state": "missing",
        "used": 45 * GIB,
        "limit": None,
        "wanted": 40 * GIB,
        "held": 40 * GIB,
    }


def tabled(table: Table) -> str:
    """A table as text, on one line."""
    target = io.StringIO()
    Console(file=target, width=400).print(table)
    return " ".join(target.getvalue().split())


def test_what_cannot_be_read_of_memory_is_a_problem_and_every_card_is_shown() -> None:
    shown = state(device_entry(0), annotations={"koordgate.io/memory-limits": "[]"})
    assert [one.uses for one in shown.devices] == [()]
    (problem,) = shown.problems
    assert problem.startswith("Device n1: annotation koordgate.io/memory-limits: a list where an object must be")
