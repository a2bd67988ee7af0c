"""Devices that are assumed for Nodes without a Device object: number, memory, ids, and what is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.clusters import ALLOCATED, asking, device, gpus, held, listed, node, saved
from trials import examples

from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, Unit, own_type
from allocator.wire.deviceobject import DEVICE_NUMBERS
from console.simulator.arrivals import read_cluster
from console.simulator.assumed import ASSUMED, assume_devices, assumed_entries
from koordgate.cli import main
from webhook.settings import parse, types_of

Raw = dict[str, Any]
GIB = 2**30
MIB = 2**20
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
REGISTERED = (
    "GPU-b,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,true:GPU-a,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,false:"
)
LISTED = [
    {"id": "GPU-x", "index": 0, "count": 10, "devmem": 24564, "devcore": 100, "type": "NVIDIA A10", "health": True},
    {"id": "GPU-y", "index": 1, "count": 10, "devmem": 24564, "devcore": 100, "type": "NVIDIA A10", "numa": 1},
]


def machine(
    stated: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    usable: Mapping[str, str] | None = None,
) -> Raw:
    made = node("n1", labels=labels, annotations=annotations)
    made["status"]["capacity"] = {**made["status"]["allocatable"], **stated}
    made["status"]["allocatable"] |= stated if usable is None else usable
    return made


def entries(one: Raw, *pods: Raw, memory: Mapping[str, int] | None = None) -> list[Raw]:
    found = assume_devices([one], [], pods, memory).devices
    return list(found[0]["spec"]["devices"]) if found else []


def test_the_table_of_dialects_says_which_resources_count_cards() -> None:
    found = {
        vendor: [one["resources"]["koordinator.sh/gpu-memory"] for one in entries(machine({name: "2"}, labels))]
        for vendor, name, labels in (
            ("nvidia", "nvidia.com/gpu", A100),
            ("amd", "amd.com/gpu", {"amd.com/gpu.vram": "64G"}),
            ("older amd", "amd.com/gpu", {"beta.amd.com/gpu.vram": "64Gi"}),
        )
    }
    assert found == {"nvidia": [str(80 * GIB)] * 2, "amd": [str(64 * GIB)] * 2, "older amd": [str(64 * GIB)] * 2}


@pytest.mark.parametrize(
    ("stated", "labels", "usable", "cards"),
    [
        pytest.param({"nvidia.com/gpu": "8"}, {}, None, [True] * 8, id="as many as the plugin states"),
        pytest.param({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.replicas": "4"}, None, [True] * 2, id="by time slices"),
        pytest.param(
            {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.count": "2"}, None, [True] * 2, id="as discovery counts"
        ),
        pytest.param(
            {"nvidia.com/gpu": "4"}, {}, {"nvidia.com/gpu": "3"}, [True] * 3 + [False], id="one is not healthy"
        ),
        pytest.param({"nvidia.com/gpu": "0"}, {}, None, [], id="the plugin has none"),
        pytest.param({}, {"nvidia.com/gpu.count": "3"}, None, [True] * 3, id="no plugin, but discovery"),
        pytest.param(
            {"nvidia.com/gpu": "6", "nvidia.com/mig-1g.10gb": "14"},
            {"nvidia.com/gpu.count": "8"},
            None,
            [True] * 6,
            id="two of eight cards are in slices",
        ),
        pytest.param({}, {}, None, [], id="a node without cards"),
    ],
)
def test_the_number_of_cards(
    stated: Mapping[str, str], labels: Mapping[str, str], usable: Mapping[str, str] | None, cards: list[bool]
) -> None:
    assert [one["health"] for one in entries(machine(stated, {**A100, **labels}, usable=usable))] == cards


@pytest.mark.parametrize(
    ("labels", "memory", "bytes_each"),
    [
        pytest.param({"nvidia.com/gpu.product": "Tesla-T4"}, {}, 15109 * MIB, id="a known model"),
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, {}, 80 * GIB, id="a model that states it"),
        pytest.param({"node.koordinator.sh/gpu-model": "A10"}, {}, 22731 * MIB, id="Koordinator's label"),
        pytest.param({"nvidia.com/gpu.product": "Odd"}, {"Odd": GIB, "": 2 * GIB}, GIB, id="the user, for the model"),
        pytest.param({"nvidia.com/gpu.product": "Odd"}, {"": 2 * GIB}, 2 * GIB, id="the user, for all"),
        pytest.param(A100, {"NVIDIA-A100-SXM4-80GB": GIB}, GIB, id="the user before the label"),
    ],
)
def test_the_memory_of_a_card(labels: Mapping[str, str], memory: Mapping[str, int], bytes_each: int) -> None:
    one = entries(machine({"nvidia.com/gpu": "1"}, labels), memory=memory)[0]
    assert one["resources"]["koordinator.sh/gpu-memory"] == str(bytes_each)


def left_out(one: Raw, memory: Mapping[str, int] | None = None) -> str:
    """What is said of a node of which no cards are assumed."""
    found = assume_devices([one], [], [], memory)
    assert not found.devices
    (told,) = found.notes
    return told


def test_a_node_whose_memory_is_unknown_is_left_out_with_what_to_write() -> None:
    assert left_out(machine({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu.product": "Odd-9"})) == (
        "GPUs left out on n1: they are of model Odd-9, and nothing says how much memory they have: write the label "
        "nvidia.com/gpu.memory on the Node, give its Device object, or state --gpu-memory Odd-9=24Gi to koordgate "
        "simulate"
    )


def test_a_node_that_cannot_be_read_hinders_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = named("odd", {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu.product": "Odd-9"})
    many = named("many", {"nvidia.com/gpu": "many"}, A100)
    good = named("good", {"nvidia.com/gpu": "1"}, A100)
    path = saved(tmp_path, [odd, good, gpus("half", 50)])
    found = read_cluster([path], {"Odd-9": GIB})
    assert [one["metadata"]["name"] for one in found.devices] == ["odd", "good"]
    for command in (["simulate"], ["explain", "half"], ["packing"], ["adopt", "check"]):
        status = main([*command, "-f", path])
        written = capsys.readouterr()
        assert status != 2, command
        assert "GPUs left out on odd: they are of model Odd-9" in " ".join((written.err + written.out).split()), command
    assert left_out(many).startswith("GPUs left out on many: nvidia.com/gpu: 'many' is not a Kubernetes quantity")


@pytest.mark.parametrize(
    ("key", "text", "cards"),
    [
        pytest.param(
            "hami.io/node-nvidia-register",
            REGISTERED,
            [("GPU-b", 32768, 1, True), ("GPU-a", 32768, 0, False)],
            id="HAMi's text",
        ),
        pytest.param(
            "hami.io/node-nvidia-register",
            json.dumps(LISTED),
            [("GPU-x", 24564, 0, True), ("GPU-y", 24564, 1, True)],
            id="HAMi's JSON",
        ),
    ],
)
def test_what_a_product_registers_counts_first(key: str, text: str, cards: list[tuple[str, int, int, bool]]) -> None:
    found = entries(machine({"nvidia.com/gpu": "20"}, A100, {key: text}))
    assert cards == [
        (
            one["id"],
            int(one["resources"]["koordinator.sh/gpu-memory"]) // MIB,
            one["topology"]["nodeID"],
            one["health"],
        )
        for one in found
    ]


UNITS = {
    "Volcano share": (
        "volcano-share",
        machine({"volcano.sh/gpu-number": "2", "volcano.sh/gpu-memory": "48"}),
        [24 * GIB] * 2,
    ),
    "gpushare": ("gpushare", machine({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "48"}), [24 * GIB] * 2),
    "Volcano vGPU": (
        "volcano",
        machine({}, A100, {"volcano.sh/node-vgpu-register": "GPU-b,10,24,NVIDIA-A10,true,hami-core:"}),
        [24 * GIB],
    ),
}


@pytest.mark.parametrize("on", ["", "enabled: true, "])
@pytest.mark.parametrize(("dialect", "one", "sizes"), UNITS.values(), ids=UNITS)
def test_what_a_node_states_is_read_in_the_unit_of_its_products_installation(
    on: str, dialect: str, one: Raw, sizes: list[int]
) -> None:
    types = types_of(parse(f"{{dialects: {{{dialect}: {{{on}memoryUnit: 1Gi}}}}}}"))
    (found,) = assume_devices([one], [], [], types=types).devices
    assert [int(card["resources"]["koordinator.sh/gpu-memory"]) for card in found["spec"]["devices"]] == sizes


@pytest.mark.parametrize("text", ["GPU-a,10", "[1]", "GPU-a,10,x,100,T,0,true:", "[{}]", "[" * 9999, "a" * 70_000])
def test_a_registration_that_cannot_be_read_is_told_and_left(text: str) -> None:
    found = assume_devices([machine({"nvidia.com/gpu": "2"}, A100, {"hami.io/node-nvidia-register": text})], [], [])
    assert found.notes[0].startswith("Node n1: annotation hami.io/node-nvidia-register: ")
    assert len(found.devices[0]["spec"]["devices"]) == 2


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-INVALID"),
        ("nvidia.com/gpu.slices.gi", "1"),
        ("cloud.google.com/gke-gpu-partition-size", "1g.5gb"),
    ],
)
def test_a_label_that_says_parts_of_cards_leaves_the_node_out(label: str, value: str) -> None:
    assert f"({label}={value})" in left_out(machine({"nvidia.com/gpu": "7"}, {**A100, label: value}))


@pytest.mark.parametrize(("partition", "cards"), [("spx_nps1", 8), ("", 8), ("cpx_nps4", 0)])
def test_amds_cards_count_unless_they_are_partitioned(partition: str, cards: int) -> None:
    labels = {"amd.com/gpu.vram": "192G", "amd.com/gpu.compute-memory-partition": partition}
    assert len(entries(machine({"amd.com/gpu": "8"}, labels))) == cards


def test_mig_devices_beside_whole_cards_are_told() -> None:
    one = machine({"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7", "nvidia.com/mig-2g.10gb": "0"}, A100)
    found = assume_devices([one], [], [])
    assert len(found.devices[0]["spec"]["devices"]) == 1
    assert found.notes[0] == (
        "GPUs left out on n1: nvidia.com/mig-1g.5gb counts parts of cards (MIG), which are not given"
    )


def test_a_node_where_no_reporter_runs_is_left_out() -> None:
    one = machine({"nvidia.com/gpu": "1"}, {**A100, "kubernetes.io/os": "windows"})
    assert left_out(one) == "GPUs left out on n1: kubernetes.io/os=windows: koordgate's reporter does not run there"
    assert assume_devices([machine({}, {"kubernetes.io/os": "windows"})], [], []).notes == []


# What clouds label

GKE, TYPE = "cloud.google.com/gke-accelerator", "node.kubernetes.io/instance-type"
EKS = "k8s.amazonaws.com/accelerator"
AKS = "kubernetes.azure.com/accelerator"


@pytest.mark.parametrize(
    ("labels", "memory", "model"),
    [
        ({GKE: "nvidia-l4"}, 23_034 * MIB, "L4"),
        ({GKE: "nvidia-tesla-t4"}, 15_109 * MIB, "TESLA-T4"),
        ({GKE: "nvidia-tesla-a100"}, 40_960 * MIB, "TESLA-A100"),
        ({GKE: "nvidia-h100-80gb"}, 80 * GIB, "H100-80GB"),
        ({GKE: "nvidia-l4", **A100}, 80 * GIB, "NVIDIA-A100-SXM4-80GB"),
        ({EKS: "nvidia-tesla-v100"}, 16_160 * MIB, "TESLA-V100"),
        ({EKS: "nvidia-tesla-v100", TYPE: "p3dn.24xlarge"}, 32 * GIB, "Tesla-V100-SXM2-32GB"),
        (
            {"karpenter.k8s.aws/instance-gpu-name": "a10g", "karpenter.k8s.aws/instance-gpu-memory": "24576"},
            24 * GIB,
            "A10G",
        ),
        (
            {"eks.amazonaws.com/instance-gpu-name": "l40s", "eks.amazonaws.com/instance-gpu-memory": "45776"},
            45_776 * MIB,
            "L40S",
        ),
        ({"karpenter.azure.com/sku-gpu-name": "T4"}, 15_109 * MIB, "T4"),
        ({AKS: "nvidia", TYPE: "Standard_NC24ads_A100_v4"}, 80 * GIB, "A100-80GB-PCIe"),
        ({"karpenter.azure.com/sku-gpu-name": "A100", TYPE: "Standard_ND96asr_v4"}, 40 * GIB, "A100-SXM4-40GB"),
        ({TYPE: "g5.12xlarge"}, 22_731 * MIB, "A10G"),
        ({TYPE: "g6e.xlarge"}, 46_068 * MIB, "L40S"),
        ({TYPE: "a3-megagpu-8g"}, 80 * GIB, "H100-80GB-HBM3"),
    ],
)
def test_a_card_is_what_the_clouds_labels_say(labels: Mapping[str, str], memory: int, model: str) -> None:
    (found,) = assume_devices([machine({"nvidia.com/gpu": "1"}, labels)], [], []).devices
    assert found["spec"]["devices"][0]["resources"]["koordinator.sh/gpu-memory"] == str(memory)
    assert found["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == model


@pytest.mark.parametrize("kind", ["g6f.large", "gr6f.4xlarge", "Standard_NV6ads_A10_v5", "xg5.large", "m5.large"])
def test_a_machine_with_a_part_of_a_card_or_of_an_unknown_type_is_left_out(kind: str) -> None:
    assert "unknown model" in left_out(machine({"nvidia.com/gpu": "1"}, {TYPE: kind}))


@pytest.mark.parametrize(
    ("labels", "cards"),
    [
        ({"cloud.google.com/gke-max-shared-clients-per-gpu": "4"}, 4),
        ({"cloud.google.com/gke-accelerator-count": "2"}, 2),
        ({"karpenter.k8s.aws/instance-gpu-count": "8"}, 8),
        ({"karpenter.azure.com/sku-gpu-count": "1"}, 1),
    ],
)
def test_a_clouds_label_says_how_many_cards_there_are(labels: Mapping[str, str], cards: int) -> None:
    found = entries(machine({"nvidia.com/gpu": "16"}, {GKE: "nvidia-l4", **labels}))
    assert [one["health"] for one in found] == [True] * cards


def test_a_clouds_number_of_cards_alone_makes_none() -> None:
    assert entries(machine({}, {GKE: "nvidia-l4", "cloud.google.com/gke-accelerator-count": "2"})) == []


# Cards that are shared by time

SHARED = "nvidia.com/gpu.shared"


@settings(max_examples=examples(200))
@given(
    cards=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=16),
    times=st.integers(2, 9),
    renamed=st.booleans(),
)
def test_however_a_plugin_shares_cards_each_is_counted_once_and_no_sick_one_is_healthy(
    cards: list[tuple[bool, bool]], times: int, *, renamed: bool
) -> None:
    def stated(counted: list[bool]) -> dict[str, str]:
        plain, shared = counted.count(False), counted.count(True) * times
        if renamed:
            return {"nvidia.com/gpu": str(plain), SHARED: str(shared)}
        return {"nvidia.com/gpu": str(plain + shared)}

    labels = {
        "nvidia.com/gpu.product": f"NVIDIA-L4{'' if renamed else '-SHARED'}",
        "nvidia.com/gpu.count": str(len(cards)),
        "nvidia.com/gpu.replicas": str(times),
    }
    capacity, allocatable = stated([one for one, _ in cards]), stated([one for one, healthy in cards if healthy])
    found = [one["health"] for one in entries(machine(capacity, labels, usable=allocatable))]
    healthy = sum(healthy for _, healthy in cards)
    alike = renamed or len({shared for shared, _ in cards}) == 1
    assert len(found) == len(cards)
    assert found.count(True) == healthy if alike or healthy == len(cards) else found.count(True) <= healthy


@pytest.mark.parametrize(
    ("stated", "labels", "cards"),
    [
        pytest.param({"nvidia.com/gpu": "0", SHARED: "16"}, {"nvidia.com/gpu.replicas": "4"}, 4, id="renamed"),
        pytest.param({SHARED: "16"}, {"nvidia.com/gpu.count": "4"}, 4, id="renamed, and no label of replicas"),
        pytest.param({"nvidia.com/gpu": "2", SHARED: "8"}, {"nvidia.com/gpu.count": "4"}, 4, id="some of them"),
    ],
)
def test_renamed_replicas_are_cards(stated: Mapping[str, str], labels: Mapping[str, str], cards: int) -> None:
    assert [one["health"] for one in entries(machine(stated, {**A100, **labels}))] == [True] * cards


@pytest.mark.parametrize(
    ("name", "product"), [("nvidia.com/gpu", "NVIDIA-L4-SHARED"), (SHARED, "NVIDIA-L4")], ids=["suffix", "renamed"]
)
def test_replicas_of_unknown_number_are_left_out(name: str, product: str) -> None:
    told = left_out(machine({name: "8"}, {"nvidia.com/gpu.product": product}))
    assert told.endswith(
        f"{name} counts each card several times, and nothing says how often: write the label nvidia.com/gpu.replicas "
        "on the Node, or give its Device object"
    )


def test_a_running_pod_with_a_renamed_replica_holds_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = machine({"nvidia.com/gpu": "0", SHARED: "8"}, {**A100, "nvidia.com/gpu.replicas": "4"})
    theirs = asking("theirs", {SHARED: "1"}, nodeName="n1", schedulerName="default-scheduler")
    ended = asking("ended", {SHARED: "1"}, nodeName="n1", schedulerName="default-scheduler")
    running = [{**theirs, "status": {"phase": "Running"}}, {**ended, "status": {"phase": "Succeeded"}}]
    pods = listed(capsys, "-f", saved(tmp_path, [one, *running, gpus("whole", 100), gpus("other", 100)]))
    assert ["status" in pods[name] for name in ("whole", "other")] == [False, True]


def test_a_node_with_a_device_object_is_as_that_says() -> None:
    assert not assume_devices([machine({"nvidia.com/gpu": "8"}, A100)], [device("n1", 2)], []).devices


def test_new_pods_get_what_running_ones_leave_and_every_output_says_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = asking("plugin", {"nvidia.com/gpu": "1"}, nodeName="n1", schedulerName="default-scheduler")
    hami = asking("hami", {"nvidia.com/gpu": "1"}, nodeName="n1", schedulerName="hami-scheduler")
    hami["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": "GPU-hami,NVIDIA,61440,30:;"}
    running = [{**one, "status": {"phase": "Running"}} for one in (plugin, hami)]
    objects = [machine({"nvidia.com/gpu": "2"}, A100), *running, gpus("half", 50), gpus("quarter", 25)]
    file = saved(tmp_path, objects)
    pods = listed(capsys, "-f", file)
    assert "status" in pods["half"]
    share = json.loads(pods["quarter"]["metadata"]["annotations"][ALLOCATED])["gpu"][0]
    assert share["id"] == "GPU-hami"
    assert pods["quarter"]["metadata"]["annotations"][ASSUMED] == "1"
    assert main(["simulate", "-f", file]) == 0
    written = capsys.readouterr()
    assert "n1: 2 GPUs (assumed from nvidia.com/gpu and the label nvidia.com/gpu.memory)" in written.out
    assert "koordgate simulate: assumed GPUs: 2 on n1, from nvidia.com/gpu and the label" in written.err


def test_gpushare_names_cards_by_number_and_these_are_the_assumed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = machine({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "30"})
    shared = asking("shared", {"aliyun.com/gpu-mem": "10"}, nodeName="n1", schedulerName="default-scheduler")
    shared["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "10"}}
    shared["metadata"]["annotations"] = {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "10",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    }
    shared["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    pods = listed(capsys, "-f", saved(tmp_path, [one, shared, gpus("whole", 100), gpus("other", 100)]))
    share = json.loads(pods["whole"]["metadata"]["annotations"][ALLOCATED])["gpu"][0]
    assert share["minor"] == 0
    assert "status" in pods["other"]


# Several nodes, and bounds


def named(name: str, stated: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Raw:
    made = machine(stated, labels)
    return {**made, "metadata": {**made["metadata"], "name": name}}


@pytest.mark.parametrize(("cards", "fits"), [(64, True), (65, False)])
def test_a_node_has_a_bounded_number_of_cards(cards: int, *, fits: bool) -> None:
    if fits:
        assert len(entries(machine({"nvidia.com/gpu": str(cards)}, A100))) == cards
        return
    told = left_out(machine({"nvidia.com/gpu": str(cards)}, A100))
    assert told.endswith(f"says {cards} cards, more than 64: give the Node's Device object")
    assert entries(machine({"aliyun.com/gpu-count": str(cards), "aliyun.com/gpu-mem": str(cards)})) == []


@pytest.mark.parametrize(
    ("stated", "each"),
    [
        ({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "31"}, [15 * GIB] * 2),
        ({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "2"}, [GIB] * 2),
        ({"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "1"}, []),
        ({"aliyun.com/gpu-count": "0", "aliyun.com/gpu-mem": "30"}, []),
        ({"aliyun.com/gpu-mem": "30"}, []),
        ({"aliyun.com/gpu-count": "0", "volcano.sh/gpu-number": "1", "volcano.sh/gpu-memory": "7"}, [7 * MIB]),
    ],
)
def test_memory_in_sum_is_divided_among_the_cards(stated: Mapping[str, str], each: list[int]) -> None:
    found = entries(machine(stated))
    assert [one["resources"]["koordinator.sh/gpu-memory"] for one in found] == list(map(str, each))


@pytest.mark.parametrize(
    ("vram", "gib"), [("64G", 64), ("64Gi", 64), ("64", 64), ("1.5", 1)], ids=["G", "Gi", "bare", "rounded down"]
)
def test_the_memory_of_amds_cards_is_in_gib(vram: str, gib: int) -> None:
    one, _ = entries(machine({"amd.com/gpu": "2"}, {"amd.com/gpu.vram": vram}))
    assert one["resources"]["koordinator.sh/gpu-memory"] == str(gib * GIB)


@pytest.mark.parametrize(
    ("resource", "label"),
    [
        ("nvidia.com/gpu", "write the label nvidia.com/gpu.memory on the Node, give"),
        ("amd.com/gpu", "write the label amd.com/gpu.vram on the Node, give"),
        ("dcu.com/gpu", "they have: give"),
    ],
)
def test_the_label_of_its_vendor_is_what_to_write(resource: str, label: str) -> None:
    told = left_out(machine({resource: "1"}))
    assert f"{label} its Device object, or state --gpu-memory 24Gi to koordgate simulate" in told


def test_ids_that_pods_name_are_given_by_minor_and_then_in_their_order() -> None:
    pods = [held("first", "n1", (2, 50)), held("beyond", "n1", (9, 50))]
    for at, identity in enumerate(("GPU-z", "GPU-a", "GPU-n1-2")):
        theirs = asking(f"theirs-{at}", {"nvidia.com/gpu": "1"}, nodeName="n1", schedulerName="hami-scheduler")
        theirs["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": f"{identity},NVIDIA,4096,30:;"}
        pods.append(theirs)
    found = entries(machine({"nvidia.com/gpu": "4"}, A100), *pods)
    assert [(one["minor"], one["id"]) for one in found] == [
        (0, "GPU-a"),
        (1, "GPU-z"),
        (2, "GPU-n1-2"),
        (3, "assumed-3-n1"),
    ]


def test_of_two_vendors_the_one_that_has_cards_counts() -> None:
    stated = {"nvidia.com/gpu": "0", "amd.com/gpu": "3"}
    labels = {"amd.com/gpu.vram": "64", "nvidia.com/gpu.replicas": "2"}
    assert len(entries(machine(stated, labels))) == 3
    assert len(entries(machine({"dcu.com/gpu": "4"}, labels), memory={"": GIB})) == 4


@pytest.mark.parametrize(
    ("labels", "cards"),
    [
        ({"nvidia.com/gpu.count": "many"}, 8),
        ({"nvidia.com/gpu.count": "0"}, 8),
        ({"nvidia.com/gpu.count": "-4"}, 8),
        ({"nvidia.com/gpu.count": "2.5"}, 2),
        ({"nvidia.com/gpu.replicas": "-4"}, 8),
        ({"nvidia.com/gpu.replicas": "1"}, 8),
        ({"nvidia.com/gpu.replicas": "2"}, 4),
        ({"nvidia.com/gpu.replicas": "9"}, 1),
    ],
)
def test_a_number_of_a_label_counts_where_it_is_more_than_0(labels: Raw, cards: int) -> None:
    assert len(entries(machine({"nvidia.com/gpu": "8"}, {**A100, **labels}))) == cards


@pytest.mark.parametrize(
    ("status", "healthy"),
    [
        ({"capacity": {"nvidia.com/gpu": "2"}}, [True, True]),
        ({"allocatable": {"nvidia.com/gpu": "2"}}, [True, True]),
        ({"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"cpu": "1"}}, [False, False]),
        ({"capacity": {"cpu": "1"}, "allocatable": {"nvidia.com/gpu": "2"}}, []),
        (None, []),
    ],
)
def test_capacity_says_how_many_cards_there_are_and_allocatable_which_are_given(
    status: Raw | None, healthy: list[bool]
) -> None:
    made = {**node("n1", labels=A100), "status": status}
    assert [one["health"] for one in entries(made)] == healthy


# Devices of the administrator's own types

TYPES = BUILT_IN.with_types(
    [
        own_type("seat", "example.com/seat", Unit.PERCENT),
        own_type("npu", "example.com/npu", Unit.DEVICES),
        own_type("queue", "example.com/queue", Unit.UNITS),
    ]
)


def of_types(name: str, capacity: Mapping[str, str], allocatable: Mapping[str, str] | None = None) -> Raw:
    status = {"capacity": dict(capacity), "allocatable": dict(capacity if allocatable is None else allocatable)}
    return {"metadata": {"name": name, "labels": A100}, "status": status}


def test_devices_of_own_types_are_added_to_the_cards_of_their_node() -> None:
    nodes = [
        of_types("a", {"nvidia.com/gpu": "1"}),
        of_types("b", {"nvidia.com/gpu": "1", "example.com/seat": "200"}, {"example.com/seat": "100"}),
        of_types("c", {"example.com/npu": "1", "example.com/seat": "100"}),
        of_types("d", {"example.com/npu": "2"}),
    ]
    found = assume_devices(nodes, [], [], types=TYPES)
    assert [[one["id"] for one in device["spec"]["devices"]] for device in found.devices] == [
        ["assumed-0-a"],
        ["assumed-0-b", "assumed-seat-0-b", "assumed-seat-1-b"],
        ["assumed-seat-0-c", "assumed-npu-0-c"],
        ["assumed-npu-0-d", "assumed-npu-1-d"],
    ]
    assert found.devices[1]["spec"]["devices"][1:] == [
        {"type": "seat", "id": f"assumed-seat-{at}-b", "minor": at, "health": at == 0, "resources": {}} for at in (0, 1)
    ]
    cards = "nvidia.com/gpu and the label nvidia.com/gpu.memory"
    assert [device["metadata"]["annotations"][ASSUMED] for device in found.devices] == [
        cards,
        f"{cards} and example.com/seat",
        "example.com/seat and example.com/npu",
        "example.com/npu",
    ]
    assert DEVICE_NUMBERS not in found.devices[2]["metadata"]["annotations"]
    assert found.notes == [
        "assumed devices: 2 on b, from example.com/seat: no Device object lists them",
        "assumed devices: 2 on c, from example.com/seat, example.com/npu: no Device object lists them",
        "assumed devices: 2 on d, from example.com/npu: no Device object lists them",
        (
            f"assumed GPUs: 1 on a, 1 on b, from {cards}: no Device object lists them. What nothing states, such as "
            "PCIe roots, is unknown"
        ),
    ]


@pytest.mark.parametrize(
    ("amount", "devices", "told"),
    [
        ({"example.com/npu": "0"}, 0, ""),
        ({"example.com/npu": "64"}, 64, ""),
        ({"example.com/npu": "65"}, 0, "example.com/npu: 65 devices are more than 64"),
        ({"example.com/npu": "x"}, 0, "example.com/npu: 'x' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
        ({"example.com/seat": "100"}, 1, ""),
        ({"example.com/seat": "6400"}, 64, ""),
        ({"example.com/seat": "6500"}, 0, "example.com/seat: 65 devices are more than 64"),
        ({"example.com/seat": "101"}, 0, "example.com/seat: 101 percent are no whole devices"),
        ({"example.com/seat": "99"}, 0, "example.com/seat: 99 percent are no whole devices"),
        ({"example.com/queue": "3"}, 0, "example.com/queue: how many devices 3 units are is unknown"),
    ],
)
def test_the_number_of_devices_of_an_own_type(amount: Raw, devices: int, told: str) -> None:
    notes: list[str] = []
    found, by = assumed_entries(of_types("a", {"cpu": "1", **amount, "example.com/other": "1"}), TYPES, notes)
    assert len(found) == devices
    assert by == list(amount) * bool(devices)
    kind = "" if not told else f"{told.partition('/')[2].partition(':')[0]} devices"
    assert notes == ([f"Node a: {told}; no {kind} are assumed, give the Node's Device object"] if told else [])


MANY = DeviceType(
    "tile",
    tails=("core", "memory", "tile", "slots"),
    unit=Unit.DEVICES,
    units=(Unit.PERCENT, Unit.BYTES, Unit.PERCENT, Unit.UNITS),
    plain="tile",
    names={tail: f"example.com/{tail}" for tail in ("core", "memory", "tile", "slots")},
)


def test_what_is_not_counted_in_percent_is_shared_out_evenly() -> None:
    notes: list[str] = []
    types = BUILT_IN.with_types([MANY])
    stated = {"example.com/tile": "3", "example.com/memory": "31", "example.com/slots": "6"}
    found, by = assumed_entries(of_types("a", stated), types, notes)
    each = {"example.com/memory": "10", "example.com/slots": "2"}
    assert ([one["resources"] for one in found], by, notes) == ([each] * 3, ["example.com/tile"], [])
    assert assumed_entries(of_types("a", {**stated, "example.com/tile": "0"}), types, notes) == ([], [])
    assert assumed_entries(of_types("a", {"example.com/tile": "0"}), types, notes) == ([], [])
    assert notes == []
    del stated["example.com/memory"]
    assert assumed_entries(of_types("a", stated), types, notes) == ([], [])
    assert notes == [
        (
            "Node a: example.com/tile: how much memory each has is unknown, because the Node states no "
            "example.com/memory; no tile devices are assumed, give the Node's Device object"
        )
    ]
