"""Groups of containers that share devices, and their quotas."""

import json
from fractions import Fraction

import pytest
from builders import GIB, container, gpu, nic, node, pod
from npus import TYPES as NPU_TYPES
from sharings import CARD, Raw, cards, fractions, groups, held, parts, quotas, read, serves, sharing, uses, wrong

from allocator.devices.words import named
from allocator.memorylimits import device_quotas
from allocator.place import Placement, place
from allocator.request.quotaamounts import charges
from allocator.vocabulary.asks import DeviceQuota, Quotas
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.names import DEVICE_QUOTAS, DEVICE_SHARING
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE
from allocator.wire.podallocated import read_quotas, write_quotas

HALF = Fraction(1, 2)


def charged(obj: Raw, memory: int | None = None) -> list[dict[str, int]]:
    reading = read(obj)
    made = charges(reading, reading.request, obj["spec"], memory)
    return [{name.removeprefix("quota.koordgate.io/"): amount for name, amount in one.amounts.items()} for one in made]


def test_whole_cards_are_seen_by_all_of_a_group() -> None:
    obj = sharing(uses("a", 100), uses("b", 200))
    assert [share.containers for share in held(obj, cards(4))] == [("a", "b")] * 3
    assert quotas(obj, "gpu-core", cards(4)) == {"a": [33] * 3, "b": [67] * 3}
    found = quotas(obj, "gpu-memory", cards(4))
    assert [one + two for one, two in zip(found["a"], found["b"], strict=True)] == [CARD] * 3  # type: ignore[operator]


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (8, "c00, c01, c02, c03, c04, c05, c06 and c07"),
        (9, "c00, c01, c02, c03, c04, c05, c06, c07 and 1 more"),
        (17, "c00, c01, c02, c03, c04, c05, c06, c07 and 9 more"),
    ],
)
def test_eight_containers_of_a_group_are_named_and_the_others_counted(count: int, told: str) -> None:
    (group,) = read(sharing(*(uses(f"c{at:02}", 5) for at in range(count)))).groups
    assert named(group) == told


def test_whole_cards_of_several_containers_keep_their_vendor() -> None:
    two = [container(name, limits={"nvidia.com/gpu": "1"}) for name in "ab"]
    (group,) = read(sharing(*two)).groups
    assert (group.ask.count, group.ask.vendor, group.ask.whole) == (2, "nvidia", True)


def test_groups_that_use_one_card_one_after_another_have_what_each_asks_for() -> None:
    obj = sharing(uses("a", 20), uses("b", 30), init=[uses("first", 70)])
    assert quotas(obj, "gpu-memory") == {"first": [CARD * 70 // 100], "a": [CARD * 20 // 100], "b": [CARD * 30 // 100]}


def test_quotas_of_a_card_that_the_node_has_lost_are_left_out_only_where_its_memory_would_matter() -> None:
    one, two = sharing(uses("a", 20)), sharing(uses("a", 20), init=[uses("first", 70)])
    assert device_quotas(read(one).request, held(one), ()) != {}
    assert device_quotas(read(two).request, held(two), ()) == {}


@pytest.mark.parametrize("init", [[], [uses("first", 70)]], ids=["one group", "one after another"])
def test_of_what_the_pod_does_not_hold_of_its_card_no_container_may_use_any(init: list[Raw]) -> None:
    obj = sharing(uses("a", 20), init=init)
    (share,) = held(obj)
    memory = share._replace(amounts={"gpu-memory": GIB, "gpu-memory-ratio": 2})
    for quota in device_quotas(read(obj).request, [memory], cards().devices).values():
        assert [one.amounts for one in quota] == [{"gpu-core": 0, "gpu-memory": GIB, "gpu-memory-ratio": 2}]


def test_devices_of_another_type_come_beside_those_of_all_members() -> None:
    """Joint allocation: the NIC of a group that shares one is on a PCIe root of the group's card."""
    joint = {DEVICE_JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'}
    both: dict[str, Raw] = {"gpu": {}, "rdma": {}}
    obj = sharing(uses("a", 40, rdma=20), uses("b", 20, rdma=30), annotations=joint, types=both)
    on = node(gpu(0, pcie="p0"), gpu(1, pcie="p1"), nic(0, pcie="p2"), nic(1, pcie="p1"))
    placed = place(read(obj).request, on)
    assert isinstance(placed, Placement)
    assert {share.id: share.containers for share in placed.shares} == {"GPU-1": ("a", "b"), "NIC-1": ("a", "b")}
    assert quotas(obj, "rdma", on) == {"a": [20], "b": [30]}


def test_a_group_of_nics_has_one_beside_the_cards_of_each_member_as_a_container_has() -> None:
    joint = {DEVICE_JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'}
    obj = sharing(uses("a", 60, rdma=20), uses("b", 60, rdma=30), annotations=joint, types={"rdma": {}})
    on = node(gpu(0, pcie="p0"), gpu(1, pcie="p1"), gpu(2, pcie="p1"), nic(0, pcie="p0"), nic(1, pcie="p1"))
    placed = place(read(obj).request, on)
    assert isinstance(placed, Placement)
    assert {share.id: share.containers for share in placed.shares} == {
        "GPU-0": ("a",),
        "GPU-1": ("b",),
        "NIC-0": ("a", "b"),
        "NIC-1": ("a", "b"),
    }
    assert quotas(obj, "rdma", on) == {"a": [20, 20], "b": [30, 30]}


def test_templates_are_for_the_sum_and_the_quota_is_the_part_of_the_template() -> None:
    def npus(name: str, cores: int) -> Raw:
        return container(name, limits={"huawei.com/npu-core": str(cores)})

    obj = sharing(npus("a", 1), npus("b", 1), types={"npu": {}})
    (group,) = read(obj, types=NPU_TYPES).groups
    assert group.ask.template == "vir02"
    assert parts([group], "core") == {"a": HALF, "b": HALF}
    (told,) = wrong(sharing(npus("a", 4), npus("b", 4), types={"npu": {}}), NPU_TYPES)
    assert told == (
        f"metadata.annotations[{DEVICE_SHARING}].npu: containers a and b share one holding: no template of a npu has "
        "as much as is asked of each (vir01, vir02, vir04_3c, vir04); ask less, or whole devices in all; or write "
        "regions: GroupEach, so that each has its own"
    )


def test_whole_devices_and_parts_do_not_share_one_holding() -> None:
    obj = sharing(
        container("a", limits={"huawei.com/npu": "1"}),
        container("b", limits={"huawei.com/npu-vir01": "1"}),
        types={"npu": {}},
    )
    (told,) = wrong(obj, NPU_TYPES)
    assert "share one holding: one asks for all core of a device, and others for a part" in told
    both = [container(name, limits={"huawei.com/npu": "1"}) for name in "ab"]
    (group,) = read(sharing(*both, types={"npu": {}}), types=NPU_TYPES).groups
    assert (group.ask.count, group.ask.whole) == (2, True)


def test_users_are_only_of_types_that_are_given_in_percent() -> None:
    (told,) = wrong(sharing(uses("a"), types={"npu": {"users": ["a"], "slot": 50}}), NPU_TYPES)
    assert "devices of type npu are not given in any percent; state an amount in containers" in told
    (group,) = read(sharing(uses("a"), types={"dcu": {"users": ["a"], "slot": 50}}), types=NPU_TYPES).groups
    assert group.ask.amounts == (50, None, 50)


def test_a_pod_of_devices_that_koordgate_does_not_count_is_left_alone() -> None:
    obj = sharing(uses("a"), container("b", limits={"huawei.com/npu-core": "1"}), users=["a"], slot=50)
    assert not read(obj).request


@pytest.mark.parametrize(("count", "told"), [(64, ""), (65, "65 containers ask for devices, and 64 of a Pod may")])
def test_users_count_among_the_containers_that_may_ask(count: int, told: str) -> None:
    names = [f"c{at}" for at in range(count)]
    obj = sharing(*map(uses, names), groups={"g": names[:1]}, users=names[:64], slot=50)
    obj["spec"]["containers"][64:] = [uses(name, rdma=10) for name in names[64:]]
    assert told in "".join(wrong(obj))


def test_a_hint_that_spreads_an_amount_over_devices_contradicts_sharing() -> None:
    hint = {
        DEVICE_ALLOCATE_HINT: '{"rdma":{"allocateStrategy":"ApplyForAll"},"fpga":{"allocateStrategy":"ApplyForAll"}}'
    }
    obj = sharing(uses("a", rdma=10, fpga=10), annotations=hint, types={"rdma": {}})
    (told,) = wrong(obj)
    assert told == (
        f"metadata.annotations[{DEVICE_ALLOCATE_HINT}].rdma.allocateStrategy: spreads a container's amount over "
        f"devices, and {DEVICE_SHARING} has containers share them; keep one"
    )


def test_an_exclusive_group_is_counted_once() -> None:
    hint = {DEVICE_ALLOCATE_HINT: '{"gpu":{"exclusivePolicy":"DeviceLevel"}}'}
    obj = sharing(uses("a", ratio=10), uses("b", ratio=30), annotations=hint)
    assert charged(obj) == [
        {"gpu-core": 25, "gpu-memory-ratio": 25, "gpu": 25},
        {"gpu-core": 75, "gpu-memory-ratio": 75, "gpu": 75},
    ]


def test_a_group_over_several_regions_counts_for_each_later_init_container_and_the_first_app() -> None:
    named = {"g": ["first", "app"]}
    obj = sharing(uses("app", 40), uses("other", 10), init=[uses("first", 30), uses("later", 20)], groups=named)
    assert groups(obj) == {("first", "app"): 70, ("later",): 20, ("other",): 10}
    assert [one["gpu-core"] for one in charged(obj)] == [70, 90, 70, 10]


def test_a_group_with_a_sidecar_beside_which_another_group_begins_counts_in_full_there() -> None:
    """While `later` runs, the sidecar's group holds what the app will use, and `later` has its own beside it."""
    init = [serves("side", 10), uses("later", 70)]
    made = charged(sharing(uses("app", 50), init=init, groups={"g": ["later"]}))
    assert [one.get("gpu-core") for one in made] == [None, 130, 60]


def test_a_group_of_a_sidecar_and_what_runs_beside_it_is_divided_among_its_members() -> None:
    init = [uses("before", 90), serves("side", 10), uses("beside", 70)]
    made = charged(sharing(uses("app", 60), uses("other", rdma=20), init=init, types={"gpu": {}, "rdma": {}}))
    assert [one.get("gpu-core") for one in made] == [90, 10, 70, 60, None]


@pytest.mark.parametrize(("core", "ratio", "counted"), [(50, 10, [10, 50]), (10, 50, [20, 50])])
def test_what_a_group_takes_of_a_card_is_divided_as_the_greatest_share_of_it_is(
    core: int, ratio: int, counted: list[int]
) -> None:
    made = charged(sharing(uses("a", core=10, ratio=20), uses("b", core=core, ratio=ratio)))
    assert [one["gpu"] for one in made] == counted
    assert [(one["gpu-core"], one["gpu-memory-ratio"]) for one in made] == [(10, 20), (core, ratio)]


def test_a_group_over_several_regions_counts_for_no_init_container_before_it() -> None:
    named = {"g": ["first", "app"]}
    init = [uses("before", 5), uses("first", 30), serves("side"), uses("later", 20)]
    obj = sharing(uses("app", 40), uses("other", 10), init=init, groups=named)
    assert [one.get("gpu-core") for one in charged(obj)] == [5, 70, None, 90, 70, 10]


def test_users_that_the_author_puts_into_one_group_divide_its_slot_though_they_run_one_after_another() -> None:
    named = {"g": ["a", "first"]}
    obj = sharing(uses("a"), uses("b"), init=[uses("first")], users=["first", "a", "b"], groups=named, slot=60)
    assert fractions(obj) == {"first": HALF, "a": HALF, "b": 1}
    assert [[ask.amounts for ask in one.requests] for one in read(obj).containers] == [
        [(30, None, 30)],
        [(30, None, 30)],
        [(60, None, 60)],
    ]


def test_quotas_never_exceed_the_holding_even_if_the_card_now_reports_more_memory() -> None:
    obj = sharing(uses("a", 20), init=[uses("first", 70)])
    (share,) = held(obj, cards(1))
    found = device_quotas(read(obj).request, (share,), cards(1, 2 * CARD).devices)
    assert found["first"][0].amounts["gpu-memory"] == share.amounts["gpu-memory"]


def test_bounds_of_what_is_not_known_are_rounded_up_for_each_container() -> None:
    obj = sharing(uses("a", memory=1), uses("b", memory=2))
    assert [one["gpu-memory-ratio"] for one in charged(obj)] == [34, 67]
    assert [one["gpu-memory-ratio"] for one in charged(obj, CARD)] == [0, 1]


def test_a_type_that_the_annotation_does_not_name_is_told_too() -> None:
    obj = pod(uses("a", 50, rdma=20), uses("b", 60), annotations={DEVICE_SHARING: "{}"})
    on = node(gpu(0), gpu(1), nic(0))
    assert quotas(obj, "gpu-core", on) == {"a": [50], "b": [60]}
    assert quotas(obj, "rdma", on) == {"a": [20], "b": []}
    assert json.loads(obj["metadata"]["annotations"][DEVICE_SHARING]) == {}


QUOTAS: Quotas = {
    "b": [
        DeviceQuota(GPU_TYPE, "GPU-1", {"gpu-core": 0, "gpu-memory": 1, "gpu-memory-ratio": 1}),
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": None, "gpu-memory": None, "gpu-memory-ratio": None}),
        DeviceQuota(RDMA_TYPE, "NIC-0", {"rdma": 1}),
    ],
    "a": [DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": 100, "gpu-memory": 16 * GIB, "gpu-memory-ratio": 20})],
}
WRITTEN = {
    "a": {
        "gpu": [{"id": "GPU-0", "resources": {"k/gpu-core": "100", "k/gpu-memory": "16Gi", "k/gpu-memory-ratio": "20"}}]
    },
    "b": {
        "gpu": [
            {"id": "GPU-1", "resources": {"k/gpu-core": "none", "k/gpu-memory": "1", "k/gpu-memory-ratio": "1"}},
            {
                "id": "GPU-0",
                "resources": dict.fromkeys(("k/gpu-core", "k/gpu-memory", "k/gpu-memory-ratio"), "unlimited"),
            },
        ],
        "rdma": [{"id": "NIC-0", "resources": {"k/rdma": "1"}}],
    },
}


def test_quotas_are_written_as_json_and_as_plain_numbers() -> None:
    assert write_quotas(QUOTAS, "k") == {
        DEVICE_QUOTAS: json.dumps(WRITTEN, separators=(",", ":")),
        "gpu-core.device-quotas.koordgate.io/a": "100",
        "gpu-memory.device-quotas.koordgate.io/a": "17179869184",
        "gpu-core.device-quotas.koordgate.io/b": "none,unlimited",
        "gpu-memory.device-quotas.koordgate.io/b": "1,unlimited",
    }
    assert write_quotas({}, "k") == {}


def test_quotas_are_read_as_they_were_written() -> None:
    read = read_quotas(write_quotas(QUOTAS, "koordinator.sh"), BUILT_IN)
    assert read == QUOTAS
    assert list(read) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        '{"a":[]}',
        '{"a":{"gpu":[7]}}',
        '{"a":{"gpu":[{"id":"x"}]}}',
        '{"a":{"tpu":[{"id":"x","resources":{}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"k/gpu":"1"}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"koordinator.sh/gpu-core":"much"}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"koordinator.sh/gpu-core":"vast"}}]}}',
    ],
)
def test_quotas_that_cannot_be_read_are_none(text: str) -> None:
    assert read_quotas({DEVICE_QUOTAS: text}, BUILT_IN) == {}
    assert read_quotas({}, BUILT_IN) == {}
