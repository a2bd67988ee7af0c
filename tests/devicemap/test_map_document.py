"""What the device map says of a node: amounts, health, holders, links and CPUs, by the node's own snapshot."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from builders import GIB, gpu, holding, nic, node, part, share

from allocator.cpu.resolve import CpuDefaults, resolve
from allocator.devices.delivery import DeliveryRules, delivery_of
from allocator.vocabulary.adopted import ForeignHolding, Product
from allocator.vocabulary.cpunode import CpuShare, NumaShare
from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.delivery import Keeping, MemoryUse, NodeRuntime
from allocator.vocabulary.device import Device, Place, Wiring, link
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes, Unit, own_type
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodetopology import CpuManagerPolicy, KubeletCpus, NodeTopology, PodCpuAlloc
from webhook.devicemap.document import node_entry, types_entry
from webhook.view.nodereport import node_report

CARDS = (gpu(0, numa_node=0, pcie="pci0"), gpu(1, numa_node=1, model="A100"))


def entry(snapshot: NodeSnapshot, types: DeviceTypes = BUILT_IN, **more: Any) -> dict[str, Any]:
    made = node_entry(node_report(snapshot, types, **more))
    assert orjson.loads(orjson.dumps(made)) == made
    return made


def test_a_card_has_core_and_memory_apart_with_what_it_has_what_is_held_and_what_is_free() -> None:
    held = holding("a", share(CARDS[0], "main", core=10, memory=60 * GIB, ratio=75))
    (first, second) = entry(node(*CARDS, holdings=[held]))["devices"]
    assert first["amounts"] == [[100, 10, 90], [80 * GIB, 60 * GIB, 20 * GIB]]
    assert second["amounts"] == [[100, 0, 100], [80 * GIB, 0, 80 * GIB]]
    assert first["shares"] == [{"holder": 0, "amounts": [10, 60 * GIB], "containers": ["main"]}]
    assert (first["numa"], first["pcie"], second["model"]) == (0, "pci0", "A100")


def test_types_name_the_resources_in_the_order_of_the_amounts() -> None:
    types = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])
    told = types_entry(types)
    assert told["gpu"] == {
        "noun": "card",
        "resources": [
            {"name": "gpu-core", "word": "core", "unit": "percent"},
            {"name": "gpu-memory", "word": "memory", "unit": "bytes"},
        ],
    }
    assert told["queue"]["resources"] == [{"name": "queue", "word": "device", "unit": "units"}]


@pytest.mark.parametrize(
    ("device", "kubelet", "health", "why"),
    [
        pytest.param(gpu(0), (), "healthy", "", id="healthy"),
        pytest.param(gpu(0, healthy=False, why_not="XID79"), (), "unhealthy", "XID79", id="broken"),
        pytest.param(gpu(0, healthy=False), (), "unhealthy", "unhealthy", id="broken without a reason"),
        pytest.param(
            gpu(0, healthy=False, cordoned=True), (), "cordoned", "cordoned by an administrator", id="cordoned"
        ),
        pytest.param(gpu(0), ("GPU-0",), "kubelet", "allocated by the kubelet's device plugin", id="the kubelet's"),
    ],
)
def test_health_is_one_word_and_nothing_of_what_cannot_be_used_is_free(
    device: Device, kubelet: tuple[str, ...], health: str, why: str
) -> None:
    (told,) = entry(node(device, kubelet=kubelet))["devices"]
    assert (told["health"], told["why"]) == (health, why)
    assert told["amounts"][0] == [100, 0, 100 if health == "healthy" else 0]
    assert told["state"] == {"healthy": "free", "kubelet": "held"}.get(health, "outOfService")


def test_a_disputed_card_is_not_known_to_be_free_and_says_where_the_pod_is_named() -> None:
    there = replace(node(gpu(0), gpu(1)), disputed=frozenset(["GPU-0"]))
    told = entry(there)["devices"]
    assert [(one["health"], one["amounts"][0][2]) for one in told] == [("unread", 0), ("healthy", 100)]
    assert "AllocationDisputed" in told[0]["why"]


def test_a_node_whose_holdings_are_unknown_is_all_held() -> None:
    told = entry(NodeSnapshot("node-1", CARDS), blocked="its record cannot be read: remove it")
    assert told["blocked"] == "its record cannot be read: remove it"
    assert {one["health"] for one in told["devices"]} == {"unread"}
    assert [one["amounts"] for one in told["devices"]] == [[[100, 100, 0], [80 * GIB, 80 * GIB, 0]]] * 2


def test_where_pods_of_other_products_are_not_known_gpus_are_held_and_other_devices_are_not() -> None:
    told = entry(node(gpu(0), nic(0)), unseen=True)
    assert told["unseen"] is True
    assert [(one["type"], one["health"], one["state"]) for one in told["devices"]] == [
        ("gpu", "unread", "held"),
        ("rdma", "healthy", "free"),
    ]


def test_a_node_that_cannot_show_cards_says_why_and_one_that_can_says_nothing() -> None:
    bare = NodeRuntime(handlers=("runc",), default_shows=False, nri=False)
    delivery = delivery_of(bare, "", DeliveryRules(runtime_class="nvidia", handler="nvidia"))
    assert entry(node(*CARDS))["undelivered"] == ""
    shown = replace(bare, default_shows=True)
    assert entry(replace(node(*CARDS), delivery=delivery_of(shown, "", DeliveryRules())))["undelivered"] == ""
    told = entry(replace(node(*CARDS), delivery=delivery))["undelivered"]
    assert told.startswith("Pods get no cards here: the node has a default runtime that shows containers no cards")
    assert entry(replace(node(), delivery=delivery))["undelivered"] == ""


def test_a_device_that_is_held_and_gone_is_told() -> None:
    told = entry(node(CARDS[0], holdings=[holding("a", part(CARDS[1], 30))]))["devices"]
    assert [(one["minor"], one["health"]) for one in told] == [(0, "healthy"), (1, "gone")]
    assert told[1]["amounts"][0] == [0, 30, 0]


def test_every_holder_is_told_once_with_its_kind_and_what_is_particular() -> None:
    card = CARDS[0]
    waiting = Holding("g", "team", "member", 0, (part(card, 5),), gang="team/g", until=1)
    claim = Holding("c", "team", "claim", 0, (part(card, 10),), fence=7)
    foreign = ForeignHolding("f", "team", "hami", Product.HAMI, "hami.io/x", (part(card, 20),))
    snapshot = NodeSnapshot(
        "n",
        CARDS,
        {one.uid: one for one in (holding("a", part(card, 30), part(CARDS[1], 40)), waiting)},
        claims={"c": claim},
        foreign={"f": foreign},
    )
    told = entry(snapshot)
    names = [(one["kind"], one["namespace"], one["name"]) for one in told["holders"]]
    assert names == [
        ("pod", "default", "pod-a"),
        ("claim", "team", "claim"),
        ("pod", "team", "member"),
        ("foreign", "team", "hami"),
    ]
    assert [one["note"] for one in told["holders"]] == [
        "",
        "ResourceClaim (DRA)",
        "room held for the gang team/g",
        "by hami, hami.io/x",
    ]
    assert [one["holder"] for one in told["devices"][0]["shares"]] == [0, 1, 2, 3]
    assert [one["holder"] for one in told["devices"][1]["shares"]] == [0]


def test_nvlink_is_told_in_lanes_by_the_places_of_the_devices() -> None:
    cards = tuple(gpu(minor) for minor in range(3))
    links = link([Place(one.id, numa=0) for one in cards], {("GPU-0", "GPU-2"): 12})
    told = entry(node(*cards, nic(0), wiring=Wiring(links)))
    assert told["links"] == [[0, 2, 12]]


def test_cpus_are_told_by_numa_node_with_their_owners_before_all_pools() -> None:
    cpus = CpuTopology.of([Cpu(number, number % 4, 0, number % 4 // 2) for number in range(8)])
    by_kubelet = PodCpuAlloc("default", "static", "k", 0b1000_1000, managed_by_kubelet=True)
    reported = NodeTopology(
        "node-1",
        cpus,
        kubelet=KubeletCpus(policy=CpuManagerPolicy.STATIC, reserved=0b0000_0001),
        pod_cpu_allocs=(by_kubelet,),
    )
    own = holding("a", cpus=CpuShare("LSR", 0b0010_0010))
    told = entry(node(holdings=[own], cpu=resolve(reported, {}, CpuDefaults())), topology=reported)["cpus"]
    assert told["zones"] == [
        {"numa": 0, "socket": 0, "cores": ["0,4", "1,5"]},
        {"numa": 1, "socket": 0, "cores": ["2,6", "3,7"]},
    ]
    assert told["own"] == [
        {"holder": 0, "cpus": "1,5", "pool": "lsr"},
        {"holder": 1, "cpus": "3,7", "pool": "kubelet"},
    ]
    assert (told["reserved"], told["shared"], told["bestEffort"]) == ("0", "2,4,6", "0-2,4-6")


def test_whatever_objects_say_is_short_text_that_json_can_carry() -> None:
    hostile = "<script>\ud800" * 1000
    told = entry(node(gpu(0, device_id=hostile, model=hostile, healthy=False, why_not=hostile)))
    (one,) = told["devices"]
    assert len(one["model"]) == len(one["id"]) == 256
    assert len(one["why"]) == 1024
    assert one["model"].startswith("<script>?<script>")


def test_sums_beyond_what_json_readers_take_are_cut() -> None:
    huge = [holding(str(uid), share(CARDS[0], memory=2**62)) for uid in range(4)]
    (one, _) = entry(node(*CARDS, holdings=huge))["devices"]
    assert one["amounts"][1] == [80 * GIB, 2**63 - 1, 0]


def test_nothing_less_than_nothing_is_free() -> None:
    held = [holding(uid, part(CARDS[0], 70)) for uid in "ab"]
    (one, _) = entry(node(*CARDS, holdings=held))["devices"]
    assert one["amounts"] == [[100, 140, 0], [80 * GIB, 112 * GIB, 0]]


def test_devices_come_by_type_then_those_that_are_gone_by_type_and_id_with_all_that_is_held_of_them() -> None:
    gone = [part(gpu(5, device_id="GPU-b"), 10), part(gpu(4, device_id="GPU-a"), 20)]
    network = Share("rdma", "NIC-9", 9, {"rdma": 25})
    strange = Share("strange", "S", 0, {"strange": 1})
    held = [holding("b", *gone, network, strange), holding("a", gone[0], part(CARDS[1], 30))]
    told = entry(node(nic(0), *CARDS, nic(1), holdings=held))["devices"]
    assert [(one["type"], one["minor"], one["id"], one["health"]) for one in told] == [
        ("gpu", 0, "GPU-0", "healthy"),
        ("gpu", 1, "GPU-1", "healthy"),
        ("rdma", 0, "NIC-0", "healthy"),
        ("rdma", 1, "NIC-1", "healthy"),
        ("gpu", 4, "GPU-a", "gone"),
        ("gpu", 5, "GPU-b", "gone"),
        ("rdma", 9, "NIC-9", "gone"),
    ]
    assert [one["amounts"] for one in told[4:]] == [
        [[0, 20, 0], [0, 16 * GIB, 0]],
        [[0, 20, 0], [0, 16 * GIB, 0]],
        [[0, 25, 0]],
    ]
    assert [one["holder"] for one in told[5]["shares"]] == [0, 1]
    assert (told[4]["numa"], told[4]["model"], told[4]["why"]) == (None, "", "the node has no such device")


def test_each_pair_of_devices_with_lanes_is_told_once_wherever_other_devices_stand() -> None:
    cards = tuple(gpu(minor) for minor in range(4))
    lanes = {("GPU-0", "GPU-3"): 12, ("GPU-1", "GPU-2"): 4, ("GPU-0", "GPU-1"): 1}
    links = link([Place(one.id, numa=0) for one in cards], lanes)
    told = entry(node(gpu(0), gpu(1), gpu(9), gpu(2), gpu(3), wiring=Wiring(links)))
    assert [one["minor"] for one in told["devices"]] == [0, 1, 2, 3, 9]
    assert told["links"] == [[0, 1, 1], [0, 3, 12], [1, 2, 4]]
    assert entry(node(gpu(0), gpu(1)))["links"] == []


def test_what_is_particular_about_a_holding_is_noted() -> None:
    card = CARDS[0]
    of = {
        "unread": Holding("1", "team", "unread", 0, (part(card, 5),), until=1, ending="1", unread=("a", "b")),
        "ending": Holding("2", "team", "ending", 0, (part(card, 5),), until=1, ending="1"),
        "numa": Holding(
            "3", "team", "numa", 0, (), CpuShare("LSR", 0b11, numa=(NumaShare(1, 10, 0), NumaShare(0, 5, 0)))
        ),
    }
    doubt = ForeignHolding("4", "team", "kai", Product.KAI, "a label", (part(card, 20),), doubt=None, why="it shares")
    snapshot = NodeSnapshot("n", CARDS, {one.uid: one for one in of.values()}, foreign={"4": doubt})
    told = {one["name"]: (one["note"], one["numa"]) for one in entry(snapshot)["holders"]}
    assert told == {
        "unread": ("its annotations cannot be read (a, b), so all that they may mean is held", []),
        "ending": ("not bound in time: it is being given back", []),
        "numa": ("", [1, 0]),
        "kai": ("by kai, a label: it shares", []),
    }


def test_a_pod_and_a_claim_of_one_uid_are_two_holders() -> None:
    pod, claim = holding("x", part(CARDS[0], 10)), Holding("x", "team", "claim", 0, (part(CARDS[0], 20),), fence=7)
    told = entry(NodeSnapshot("n", CARDS, {"x": pod}, claims={"x": claim}))
    assert [one["kind"] for one in told["holders"]] == ["pod", "claim"]
    assert [one["holder"] for one in told["devices"][0]["shares"]] == [0, 1]


def test_cpus_of_several_pods_are_told_by_name_with_their_pools() -> None:
    cpus = CpuTopology.of([Cpu(number, number % 4, 0, 0) for number in range(8)])
    by_kubelet = [
        PodCpuAlloc("default", "pod-b", "b", 0b0000_0100, managed_by_kubelet=True),
        PodCpuAlloc("default", "static", "", 0b0100_0001, managed_by_kubelet=True),
        PodCpuAlloc("default", "none", "", 0, managed_by_kubelet=True),
    ]
    reported = NodeTopology(
        "node-1",
        cpus,
        kubelet=KubeletCpus(policy=CpuManagerPolicy.STATIC, reserved=0b0001_0001),
        pod_cpu_allocs=tuple(by_kubelet),
    )
    held = [holding("b", cpus=CpuShare("LSE", 0b0010_0000)), holding("a", cpus=CpuShare("LSR", 0b1_0000_0010))]
    held += [holding("c", part(CARDS[0], 5)), holding("d", cpus=CpuShare("LSR", 0, numa=(NumaShare(0, 10, 0),)))]
    told = entry(node(*CARDS, holdings=held, cpu=resolve(reported, {}, CpuDefaults())), topology=reported)
    assert told["cpus"]["own"] == [
        {"holder": 0, "cpus": "1", "pool": "lsr"},
        {"holder": 1, "cpus": "5", "pool": "lse"},
        {"holder": 1, "cpus": "2", "pool": "kubelet"},
        {"holder": 4, "cpus": "0,6", "pool": "kubelet"},
    ]
    assert [one["name"] for one in told["holders"]][:2] == ["pod-a", "pod-b"]
    assert told["cpus"]["reserved"] == "4"
    assert told["cpus"]["unknown"] is False


def test_cpus_that_are_not_known_are_not_told() -> None:
    cpus = CpuTopology.of([Cpu(number, number, 0, 0) for number in range(4)])
    reported = NodeTopology("node-1", cpus)
    assert entry(node(), topology=reported)["cpus"] is None
    assert entry(node(cpu=resolve(reported, {}, CpuDefaults())))["cpus"] is None
    assert entry(node(cpu=resolve(reported, {}, CpuDefaults())), topology=reported)["cpus"] is not None


def test_what_a_device_does_not_have_is_nothing() -> None:
    bare = replace(CARDS[0], capacity={"gpu-core": 100})
    some = Share("gpu", "GPU-0", 0, {"gpu-core": 30}, ("main",))
    gone = Share("gpu", "GPU-9", 9, {"gpu-core": 5})
    first, second = entry(node(bare, holdings=[holding("a", some), holding("b", gone)]))["devices"]
    assert (first["amounts"], second["amounts"]) == ([[100, 30, 70], [0, 0, 0]], [[0, 5, 0], [0, 0, 0]])
    assert [one["shares"] for one in (first, second)] == [
        [{"holder": 0, "amounts": [30, 0], "containers": ["main"]}],
        [{"holder": 1, "amounts": [5, 0], "containers": []}],
    ]
    (blocked,) = entry(NodeSnapshot("n", (bare,)), blocked="why")["devices"]
    assert blocked["amounts"] == [[100, 100, 0], [0, 0, 0]]


def test_a_card_tells_what_containers_have_of_its_memory_and_other_devices_nothing() -> None:
    enforced = MemoryUse(CARDS[1].id, "team", "p", "main", Keeping.ENFORCED, 1, GIB, GIB, GIB)
    missing = MemoryUse(CARDS[1].id, "team", "q", "x" * 300, Keeping.MISSING, None, None, GIB, GIB)
    stray = replace(enforced, card="GPU-none")
    held = holding("a", share(gpu(5), "main", core=10))
    told = entry(node(*CARDS, holdings=[held]), uses=(enforced, missing, stray))["devices"]
    facts = {
        "pod": "team/p",
        "container": "main",
        "state": "enforced",
        "used": 1,
        "limit": GIB,
        "wanted": GIB,
        "held": GIB,
    }
    other = {"pod": "team/q", "container": f"{'x' * 255}…", "state": "missing", "used": None, "limit": None}
    assert [one["uses"] for one in told] == [[], [facts, other | {"wanted": GIB, "held": GIB}], []]
