"""What other products would have written on a Pod that koordgate binds, and what each of them cannot say."""

from dataclasses import replace

import pytest
from builders import GIB, gpu, holding, nic, part, share
from foreignpods import hami, init_ended, with_containers
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.adopted import Numbering, Product
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import ContainerNames
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from allocator.wire.mirror import Mirror, write_mirror

HAMI, VOLCANO, GPUSHARE = Product.HAMI, Product.VOLCANO, Product.GPUSHARE
CARDS = [gpu(minor) for minor in range(4)]
IDS = tuple(card.id for card in CARDS)
# Card 0 was the last one of NVML's list, and card 3 was not there yet.
PAST = (Numbering(1, 1, (*IDS[1:3], IDS[0])), Numbering(2, 2, IDS[::-1]))
NOW = 1_700_000_000
APPS = ContainerNames((), ("a", "b", "c"))


def written(
    peer: Product,
    *shares: Share,
    devices: list[Device] = CARDS,
    past: tuple[Numbering, ...] = PAST,
    unit: int = GIB,
    containers: ContainerNames = APPS,
) -> dict[str, str]:
    mirror = Mirror(frozenset({peer}), unit)
    return write_mirror(mirror, holding("uid", *shares), "n1", devices, past, NOW, containers)


def test_hami_states_node_times_and_cards() -> None:
    assert written(HAMI, part(CARDS[2], 25, "a"), containers=ContainerNames((), ("a",))) == {
        "hami.io/vgpu-devices-allocated": "GPU-2,NVIDIA,20480,25:;",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-time": "1700000000",
        "hami.io/bind-phase": "success",
    }


ENTRIES: dict[str, tuple[list[Share], str]] = {
    "a card of two containers at the first of them": (
        [part(CARDS[0], 50, "a", "b"), part(CARDS[1], 25, "b")],
        "GPU-0,NVIDIA,40960,50:;GPU-1,NVIDIA,20480,25:;;",
    ),
    "two cards of one container": (
        [part(CARDS[0], 50, "a"), part(CARDS[1], 25, "a")],
        "GPU-0,NVIDIA,40960,50:GPU-1,NVIDIA,20480,25:;;;",
    ),
    "nothing of containers in front of the one that asks": ([part(CARDS[0], 50, "c")], ";;GPU-0,NVIDIA,40960,50:;"),
    "in the order of the Pod's containers": (
        [part(CARDS[0], 50, "c"), part(CARDS[1], 25, "a")],
        "GPU-1,NVIDIA,20480,25:;;GPU-0,NVIDIA,40960,50:;",
    ),
    "a card that no container sees at the first container": (
        [part(CARDS[0], 50), part(CARDS[1], 25, "b"), part(CARDS[2], 25, "c")],
        "GPU-0,NVIDIA,40960,50:;GPU-1,NVIDIA,20480,25:;GPU-2,NVIDIA,20480,25:;",
    ),
    "no amounts": ([Share("gpu", "GPU-0", 0, {}, ("a",))], "GPU-0,NVIDIA,0,0:;;;"),
    "MiB, rounded up": ([share(CARDS[0], "a", memory=2**20 + 1, core=3)], "GPU-0,NVIDIA,2,3:;;;"),
    "exact MiB": ([share(CARDS[0], "a", memory=2**20, core=3)], "GPU-0,NVIDIA,1,3:;;;"),
    "no NIC": ([part(CARDS[0], 50, "a"), Share("rdma", "NIC-0", 0, {"rdma": 1}, ("a",))], "GPU-0,NVIDIA,40960,50:;;;"),
    "no FPGA": ([Share("fpga", "F", 0, {"fpga": 1}, ("a",)), part(CARDS[0], 50, "a")], "GPU-0,NVIDIA,40960,50:;;;"),
}


@pytest.mark.parametrize(("shares", "cards"), ENTRIES.values(), ids=ENTRIES)
def test_hami_states_a_card_once_and_an_entry_for_each_container(shares: list[Share], cards: str) -> None:
    told = written(HAMI, *shares)
    assert told["hami.io/vgpu-devices-allocated"] == cards
    assert told["hami.io/vgpu-devices-to-allocate"] == ";;;"


EARLY: dict[str, tuple[list[Share], str]] = {
    "init containers have empty entries": ([part(CARDS[0], 50, "b")], ";;;GPU-0,NVIDIA,40960,50:;"),
    "a card that an app uses too is stated at the app": (
        [part(CARDS[0], 50, "init", "sidecar", "b")],
        ";;;GPU-0,NVIDIA,40960,50:;",
    ),
    "a card of init containers alone is held as long as the Pod lives, by the first app": (
        [part(CARDS[0], 50, "init"), part(CARDS[1], 25, "sidecar"), part(CARDS[2], 25, "b")],
        ";;GPU-0,NVIDIA,40960,50:GPU-1,NVIDIA,20480,25:;GPU-2,NVIDIA,20480,25:;",
    ),
}


@pytest.mark.parametrize(("shares", "cards"), EARLY.values(), ids=EARLY)
def test_hami_forgets_nothing_once_init_containers_have_ended(shares: list[Share], cards: str) -> None:
    told = written(HAMI, *shares, containers=ContainerNames(("init", "sidecar"), ("a", "b")))
    assert told["hami.io/vgpu-devices-allocated"] == cards
    assert told["hami.io/vgpu-devices-to-allocate"] == ";;;;"


_NAMES = ("init-0", "init-1", "app-0", "app-1")
_SHARES = st.lists(
    st.builds(
        lambda users, mib, core: (users, mib, core),
        st.sets(st.sampled_from(_NAMES)),
        st.integers(1, 80 * 1024),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(100))
@given(_SHARES, st.booleans(), st.booleans())
def test_what_hami_is_told_is_read_back_as_what_is_held(asked: list[tuple[set[str], int, int]], sidecar, ended) -> None:
    shares = [
        share(card, *sorted(users), memory=mib * 2**20, core=core)
        for card, (users, mib, core) in zip(CARDS, asked, strict=False)
    ]
    told = written(HAMI, *shares, containers=ContainerNames(_NAMES[:2], _NAMES[2:]))
    pod = with_containers(hami(told["hami.io/vgpu-devices-allocated"]), [{}, {"sidecar": sidecar}], [{}, {}])
    found = read_foreign_pod(init_ended(pod) if ended else pod, Adoption(frozenset({HAMI})))
    assert found is not None
    held = {one.id: (one.amounts["gpu-memory"], one.amounts["gpu-core"]) for one in shares}
    assert {one.id: (one.memory, one.core) for one in found.parts} == held


INDEXES: dict[str, tuple[list[int], tuple[Numbering, ...], str | None]] = {
    "the place in NVML's latest list": ([0], PAST, "3"),
    "places in order": ([0, 2, 3], PAST, "0,1,3"),
    "not where the latest list lacks one of the cards": ([0, 3], PAST[:1], None),
    "not where no list is known": ([0], (), None),
}


@pytest.mark.parametrize(("minors", "past", "told"), INDEXES.values(), ids=INDEXES)
def test_volcano_states_indexes(minors: list[int], past: tuple[Numbering, ...], told: str | None) -> None:
    stated = {"volcano.sh/gpu-index": told, "volcano.sh/predicate-time": "1700000000000000000"}
    found = written(VOLCANO, *(part(CARDS[minor], 25) for minor in minors), past=past)
    assert found == (stated if told else {})


UNITS: dict[str, tuple[int, int, int, tuple[str, str] | None]] = {
    "units that are held, and those of the card": (20 * GIB, 80 * GIB, GIB, ("20", "80")),
    "units of an installation": (20 * GIB, 80 * GIB, GIB // 2, ("40", "160")),
    "held, rounded up, and the card, rounded down": (20 * GIB + 1, 80 * GIB - 1, GIB, ("21", "79")),
    "never more than the card": (80 * GIB - 1, 80 * GIB - 1, GIB, ("79", "79")),
    "nothing of nothing": (0, 80 * GIB, GIB, None),
    "nothing of a card below one unit": (1, GIB - 1, GIB, None),
}


@pytest.mark.parametrize(("held", "has", "unit", "told"), UNITS.values(), ids=UNITS)
def test_gpushare_states_a_minor_and_units_of_memory(
    held: int, has: int, unit: int, told: tuple[str, str] | None
) -> None:
    card = gpu(5, has)
    found = written(GPUSHARE, share(card, memory=held), devices=[*CARDS, card], unit=unit)
    stated = {"ALIYUN_COM_GPU_MEM_IDX": "5", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    stated |= {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000"}
    amounts = dict(zip(("ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_DEV"), told or (), strict=False))
    assert found == (stated | amounts if told else {})


def test_gpushare_states_nothing_of_a_card_or_a_share_without_memory() -> None:
    card = replace(CARDS[0], capacity={})
    assert written(GPUSHARE, share(CARDS[0], memory=5), devices=[card], unit=1) == {}
    assert written(GPUSHARE, Share("gpu", "GPU-0", 0, {}), unit=1) == {}


def test_gpushare_cannot_state_two_cards() -> None:
    assert written(GPUSHARE, part(CARDS[0], 25), part(CARDS[1], 25)) == {}


def test_a_unit_of_gpushare_is_a_gib() -> None:
    assert Mirror().gpushare_unit == 1_073_741_824


NOTHING: dict[str, tuple[list[Share], list[Device]]] = {
    "no card": ([Share("rdma", "NIC-0", 0, {"rdma": 1})], [*CARDS, nic(0)]),
    "a card that the node does not list": ([part(CARDS[0], 25), part(CARDS[1], 25)], CARDS[1:]),
    "a card of another vendor": ([part(CARDS[0], 25)], [replace(CARDS[0], vendor="amd"), *CARDS[1:]]),
    "a card of a vendor behind NVIDIA": ([part(CARDS[0], 25)], [replace(CARDS[0], vendor="vastai"), *CARDS[1:]]),
    "an FPGA with that id": ([part(CARDS[0], 25)], [replace(CARDS[0], type="fpga")]),
    "a NIC with that id": ([part(CARDS[0], 25)], [replace(CARDS[0], type="rdma")]),
}


@pytest.mark.parametrize("peer", [HAMI, VOLCANO, GPUSHARE])
@pytest.mark.parametrize(("shares", "devices"), NOTHING.values(), ids=NOTHING)
def test_nothing_is_mirrored_but_nvidias_cards_that_the_node_lists(
    peer: Product, shares: list[Share], devices: list[Device]
) -> None:
    assert written(peer, *shares, devices=devices) == {}
