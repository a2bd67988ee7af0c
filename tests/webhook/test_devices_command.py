"""`koordgate top`, `cordon`, `uncordon` and `drain` against a cluster: what is shown, and what becomes of a card."""

import asyncio
import json
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import device_entry, device_object, gpu, holding, part
from claims import claim, listed, resource_slice, result
from commands import Koordgate, Said
from fake_kube import FakeKube, answer, drop, hold
from foreignpods import install
from hypothesis import given
from kubeconfigs import write_kubeconfig
from nodereports import report
from strategies import json_near

from allocator.vocabulary.adopted import Product
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import CLASSES, CORDONED
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import write_spec
from console import reading
from console.devices.cards import document
from console.devices.nodes import Known, SeenNodes
from koordgate.cli import main
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import (
    CONFIG_MAPS,
    DEVICES,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from webhook.settings import WebhookSettings, adoption_of

Raw = dict[str, Any]


@pytest.fixture
def cli(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate` with these arguments, against the fake cluster."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    install(fake)
    return koordgate


def record(node: str, *holdings: Holding) -> Raw:
    return {"metadata": {"name": node}, "spec": write_spec(holdings)}


def nic(minor: int) -> Raw:
    return {
        "type": "rdma",
        "id": f"0000:0{minor}:00.0",
        "minor": minor,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"nodeID": 1, "pcieID": "pci0000:00"},
    }


SICK: Raw = {"health": False, "conditions": [{"type": "Healthy", "status": "False", "reason": "XID", "message": "79"}]}


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """n1: a card that two Pods share, an unhealthy one, and a NIC; n2: one idle card."""
    model: Raw = {"labels": {"node.koordinator.sh/gpu-model": "A100"}}
    entries = [device_entry(0, **model), device_entry(1, **SICK), nic(1)]
    fake.put(DEVICES.path(), device_object(*entries, name="n1"))
    fake.put(DEVICES.path(), device_object(device_entry(0, id="GPU-idle"), name="n2"))
    network = Share("rdma", "0000:01:00.0", 1, {"rdma": 25})
    holders = (holding("b", part(gpu(0), 20, "main")), holding("a", part(gpu(0), 30, "main"), network))
    fake.put(NODE_ALLOCATIONS.path(), record("n1", *holders))
    return fake


def cordoned(fake: FakeKube, node: str = "n1") -> str | None:
    text: str | None = fake.get(DEVICES.path(node))["metadata"].get("annotations", {}).get(CORDONED)
    return text


def writes(fake: FakeKube) -> int:
    return sum(one.verb not in {"get", "list"} for one in fake.requests)


# What is shown


def lines_of(said: Said) -> list[list[str]]:
    return [line.split() for line in said.out.splitlines()]


async def test_the_table_has_each_device_with_its_health_and_who_holds_it(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("top", "-o", "wide")
    assert (said.status, said.err) == (0, "")
    rows = [line for line in said.out.splitlines() if line.startswith(("n1", "n2"))]
    assert [row.split()[:3] for row in rows] == [
        ["n1", "gpu/0", "GPU-0"],
        ["n1", "gpu/1", "GPU-1"],
        ["n1", "rdma/1", "0000:01:00.0"],
        ["n2", "gpu/0", "GPU-idle"],
    ]
    assert "A100" in rows[0]
    assert "core 50 %, 40 of 80 GiB" in rows[0]
    assert "default/pod-a: core 30 %, memory 24 GiB (30 %)" in rows[0]
    assert "default/pod-b: core 20 %, memory 16 GiB (20 %)" in said.out
    assert "XID: 79" in rows[1]
    assert rows[2].split()[4:10] == ["1", "pci0000:00", "-", "in", "parts", "25"]
    assert "default/pod-a: rdma 25 %" in rows[2]


async def test_as_yaml_the_same_is_data(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("top", "n1", "--output", "yaml")
    (node,) = yaml.safe_load(said.out)["nodes"]
    assert (node["name"], [one["name"] for one in node["holders"]]) == ("n1", ["pod-a", "pod-b"])
    card, sick, network = node["devices"]
    assert card["amounts"] == [[100, 50, 50], [80 * 2**30, 40 * 2**30, 40 * 2**30]]
    assert card["shares"] == [
        {"holder": 0, "amounts": [30, 24 * 2**30], "containers": ["main"]},
        {"holder": 1, "amounts": [20, 16 * 2**30], "containers": ["main"]},
    ]
    assert (sick["health"], sick["why"], sick["state"]) == ("unhealthy", "XID: 79", "outOfService")
    assert (network["numa"], network["pcie"]) == (1, "pci0000:00")


async def test_as_json_it_is_the_same_document_as_in_yaml(cluster: FakeKube, cli: Koordgate) -> None:
    text = (await cli("top", "n1", "-o", "json", "--context", "here")).out
    assert json.loads(text) == yaml.safe_load((await cli("top", "n1", "-o", "yaml")).out)


async def test_a_context_that_the_kubeconfig_lacks_is_named(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("top", "--context", "elsewhere", "-o", "wide")
    assert (said.status, said.out) == (1, "")
    assert "elsewhere" in said.err


async def test_a_named_node_is_read_alone(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("top", "n2", "-o", "wide")
    assert "GPU-idle" in said.out
    assert "n1" not in said.out
    assert {(one.verb, one.path) for one in cluster.requests} == {
        *(("get", of.path("n2")) for of in (DEVICES, NODE_ALLOCATIONS, NODES)),
        ("get", CONFIG_MAPS.path("koordgate", "koordgate-system")),
        *(("list", of.path()) for of in (RESOURCE_CLAIMS, RESOURCE_SLICES)),
    }


async def test_what_resource_claims_hold_is_shown_beside_the_pods(cluster: FakeKube, cli: Koordgate) -> None:
    cluster.put(RESOURCE_SLICES.path(), resource_slice("n2", [listed("gpu-0", "GPU-idle")]))
    cluster.put(RESOURCE_CLAIMS.path(namespace="team"), claim("c", result("gpu-0", "n2"), namespace="team"))
    said = await cli("top", "n2", "-o", "wide")
    assert "resourceclaim team/c: core 100 %" in said.out
    assert said.err == ""
    (node,) = yaml.safe_load((await cli("top", "n2", "--output", "yaml")).out)["nodes"]
    (holder,) = node["holders"]
    assert (holder["kind"], holder["name"], holder["uid"]) == ("claim", "c", "uid-c")


@pytest.mark.parametrize(("status", "told"), [(403, "what ResourceClaims hold is not shown"), (404, "")])
async def test_without_the_right_to_claims_or_without_dra_the_rest_is_shown(
    cluster: FakeKube, cli: Koordgate, status: int, told: str
) -> None:
    cluster.faults.always("list", "resourceslices", answer(status))
    reserved = replace(holding("x", part(gpu(0), 10)), fence=7)
    cluster.put(NODE_ALLOCATIONS.path(), record("n2", reserved))
    said = await cli("top", "-o", "wide")
    assert "GPU-idle" in said.out
    assert "resourceclaim default/pod-x" in said.out
    assert told in said.err
    assert bool(said.err) is bool(told)


async def test_a_drain_evicts_no_claim(cluster: FakeKube, cli: Koordgate) -> None:
    cluster.put(
        NODE_ALLOCATIONS.path(), record("n2", replace(holding("x", part(gpu(0, device_id="GPU-idle"), 10)), fence=7))
    )
    said = await cli("drain", "n2/GPU-idle")
    assert said.status == 0
    assert "resourceclaim default/pod-x" in said.out
    assert not cluster.seen("create", "pods")


async def test_what_is_held_of_a_device_that_is_gone_is_shown(fake: FakeKube, cli: Koordgate) -> None:
    fake.put(NODE_ALLOCATIONS.path(), record("n3", holding("a", part(gpu(5), 50))))
    said = await cli("top", "-o", "wide")
    assert "GPU-5" in said.out
    assert "the node has no such device" in said.out
    assert "default/pod-a: core 50 %" in said.out


async def test_device_types_of_ones_own_are_known_by_the_settings(
    fake: FakeKube, cli: Koordgate, tmp_path: Path
) -> None:
    settings = tmp_path / "config.yaml"
    settings.write_text("devices: {types: [{name: npu, resource: example.com/npu}]}", encoding="utf-8")
    entry = {"type": "npu", "id": "NPU-1", "minor": 0, "health": True, "resources": {}}
    fake.put(DEVICES.path(), device_object(entry, name="n1"))
    assert "NPU-1" not in (await cli("top", "-o", "wide")).out
    assert "NPU-1" in (await cli("top", "-o", "wide", "--config", str(settings))).out


@pytest.mark.parametrize("nodes", [(), ("n1",), ("n1", "n2")], ids=["all", "one node", "two nodes"])
async def test_what_cannot_be_read_is_told_and_the_rest_shown(
    fake: FakeKube, cli: Koordgate, nodes: tuple[str, ...]
) -> None:
    fake.put(DEVICES.path(), device_object(device_entry(0, id="GPU-other"), name="n2"))
    fake.put(DEVICES.path(), device_object(device_entry(0), device_entry(1, id=""), name="n1"))
    broken = {"metadata": {"name": "n1"}, "spec": {"allocations": [{}]}}
    fake.put(NODE_ALLOCATIONS.path(), broken)
    said = await cli("top", *nodes, "-o", "wide")
    assert "GPU-0" in said.out
    assert ("GPU-other" in said.out) is (nodes != ("n1",))
    assert "koordgate top: Device n1: spec.devices[1]: no id" in said.err
    assert "its holdings are unknown" in said.err


async def test_no_control_character_of_an_object_reaches_the_terminal(fake: FakeKube, cli: Koordgate) -> None:
    evil = device_entry(0, id="GPU-\x1b[2J", labels={"node.koordinator.sh/gpu-model": "\x1b]0;title\x07"})
    fake.put(DEVICES.path(), device_object(evil, "\x1b[31m", name="n1"))
    said = await cli("top", "-o", "wide")
    assert "GPU-?[2J" in said.out
    assert "\x1b" not in said.out + said.err


async def test_what_an_object_says_is_printed_as_it_is_and_never_as_markup(fake: FakeKube, cli: Koordgate) -> None:
    entries = [device_entry(0, id=":warning:"), device_entry(1, id="[bold]GPU-1[/bold]")]
    fake.put(DEVICES.path(), device_object(*entries, name="n1"))
    said = await cli("top", "-o", "wide")
    assert [line[2] for line in lines_of(said)[1:] if line[:1] == ["n1"]] == [":warning:", "[bold]GPU-1[/bold]"]


@given(json_near(["metadata", "annotations", "spec", "allocations", "devices", "queue"], ["n1", "{}"]))
def test_whatever_stands_in_the_objects_a_node_can_be_read_and_reported(value: Any) -> None:
    spec = value if isinstance(value, dict) else {"allocations": value}
    known = Known(BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)]))
    node = {"metadata": {"name": "n1", "annotations": {CLASSES: value, CORDONED: value}}}
    shown = report("n1", {"metadata": {"name": "n1"}, "spec": spec}, spec, node, known)
    assert [one["name"] for one in document([shown], known.types)["nodes"]] == ["n1"]


# Cordons


async def test_a_cordoned_card_takes_nothing_new_and_its_pods_are_listed(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("cordon", "n1/GPU-0")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[0] == "n1: gpu 0 GPU-0 is cordoned; it takes no new Pods"
    assert "Pods that hold something of it: 2" in said.out
    assert lines_of(said)[3][:3] == ["default/pod-a", "core", "30"]
    assert lines_of(said)[4][:3] == ["default/pod-b", "core", "20"]
    card, *_ = read_device_object(cluster.get(DEVICES.path("n1"))).devices
    assert (card.healthy, card.why_not) == (False, "cordoned by an administrator")
    assert "cordoned by an administrator" in (await cli("top", "n1", "-o", "wide")).out

    said = await cli("uncordon", "n1/GPU-0")
    assert said.out.splitlines()[0] == "n1: gpu 0 GPU-0 is not cordoned; it takes new Pods"
    assert cordoned(cluster) is None
    assert read_device_object(cluster.get(DEVICES.path("n1"))).devices[0].healthy


@pytest.mark.parametrize(
    ("words", "stands", "told"),
    [
        (("cordon", "n1/GPU-0"), "GPU-0,GPU-1", "is cordoned already"),
        (("uncordon", "n1/GPU-0"), "GPU-1", "was not cordoned"),
        (("uncordon", "n1/GPU-0"), None, "was not cordoned"),
    ],
    ids=["cordon", "uncordon beside another", "uncordon where nothing is"],
)
async def test_done_twice_nothing_is_written(
    cluster: FakeKube, cli: Koordgate, words: tuple[str, ...], stands: str | None, told: str
) -> None:
    obj = cluster.get(DEVICES.path("n1"))
    obj["metadata"]["annotations"] = {} if stands is None else {CORDONED: stands}
    cluster.put(DEVICES.path(), obj)
    said = await cli(*words)
    assert said.status == 0
    assert told in said.out
    assert writes(cluster) == 0
    assert cordoned(cluster) == stands


async def test_others_cordons_and_annotations_stay(cluster: FakeKube, cli: Koordgate) -> None:
    obj = cluster.get(DEVICES.path("n1"))
    obj["metadata"]["annotations"] = {CORDONED: "GPU-gone, GPU-1", "other": "stays"}
    cluster.put(DEVICES.path(), obj)
    await cli("cordon", "n1/0000:01:00.0")
    assert cordoned(cluster) == "0000:01:00.0,GPU-1,GPU-gone"
    said = await cli("uncordon", "n1/GPU-gone")
    assert "GPU-gone (the node has no such device) is not cordoned" in said.out
    assert cordoned(cluster) == "0000:01:00.0,GPU-1"
    assert cluster.get(DEVICES.path("n1"))["metadata"]["annotations"]["other"] == "stays"


async def test_a_card_that_is_unhealthy_is_so_still_when_its_cordon_ends(cluster: FakeKube, cli: Koordgate) -> None:
    await cli("cordon", "n1/GPU-1")
    said = await cli("uncordon", "n1/GPU-1")
    assert "it still takes no new Pods: XID: 79" in said.out
    assert "no Pod holds anything of it" in said.out


async def test_a_dry_run_writes_nothing(cluster: FakeKube, cli: Koordgate) -> None:
    said = await cli("cordon", "n1/GPU-0", "--dry-run")
    assert said.status == 0
    assert "would be cordoned; it would take no new Pods (dry run: nothing is written)" in said.out
    assert "default/pod-a" in said.out
    assert cordoned(cluster) is None


async def test_two_who_cordon_at_once_both_succeed(cluster: FakeKube, cli: Koordgate) -> None:
    held = hold()
    cluster.faults.add("patch", "devices", held)
    running = asyncio.create_task(cli("cordon", "n1/GPU-0"))
    await held.reached.wait()
    obj = cluster.get(DEVICES.path("n1"))
    obj["metadata"]["annotations"] = {CORDONED: "GPU-1"}
    cluster.put(DEVICES.path(), obj)
    assert held.gate
    held.gate.set()
    assert (await running).status == 0
    assert cordoned(cluster) == "GPU-0,GPU-1"


async def test_an_object_that_others_write_again_and_again_is_given_up(cluster: FakeKube, cli: Koordgate) -> None:
    cluster.faults.always("patch", "devices", answer(409))
    said = await cli("cordon", "n1/GPU-0")
    assert said.status == 2
    assert "others changed the cordons of node n1 during each of 8 attempts; try again" in said.err


# Software classes


@pytest.fixture
def queues(cluster: FakeKube, tmp_path: Path) -> tuple[str, str]:
    """Besides n1 and n2: n4 has queues by the settings, n5 by annotation; on n5 a Pod holds three of `fast`."""
    settings = tmp_path / "queues.yaml"
    pool = "{nodeSelector: {pool: 'yes'}, devices: {slow: 40}}"
    own = f"{{name: queue, resource: example.com/queue, unit: units, pools: [{pool}]}}"
    settings.write_text(f"devices: {{types: [{own}]}}", encoding="utf-8")
    labels = {"pool": "yes"}
    cluster.put(NODES.path(), {"metadata": {"name": "n4", "labels": labels}})
    classes = {CLASSES: '{"queue":{"fast":10,"spare":5,"none":0}}', "other": "stays"}
    cluster.put(NODES.path(), {"metadata": {"name": "n5", "labels": labels, "annotations": classes}})
    cluster.put(NODES.path(), {"metadata": {"name": "n6"}})
    cluster.put(NODE_ALLOCATIONS.path(), record("n5", holding("a", Share("queue", "fast", 0, {"queue": 3}))))
    return "--config", str(settings)


async def test_software_classes_are_shown_as_devices_are(cli: Koordgate, queues: tuple[str, str]) -> None:
    said = await cli("top", *queues, "-o", "wide")
    assert "Node n5: annotation koordgate.io/classes: queue 'none': holds nothing" in said.err
    rows = [line for line in said.out.splitlines() if line.startswith(("n4", "n5", "n6"))]
    assert [row.split() for row in rows] == [
        ["n4", "queue/0", "slow", *"----", "free", "0", "of", "40", "-"],
        ["n5", "queue/0", "fast", *"----", "in", "parts", "3", "of", "10", "default/pod-a:", "queue", "3"],
        ["n5", "queue/2", "spare", *"----", "free", "0", "of", "5", "-"],
    ]
    assert any(row.startswith("n4") for row in (await cli("top", "n4", *queues, "-o", "wide")).out.splitlines())
    said = await cli("top", "n6", *queues, "-o", "wide")
    assert (said.status, "node n6 has no Device object" in said.err) == (2, True)


async def test_a_device_of_a_software_class_is_cordoned_on_its_node(
    fake: FakeKube, cli: Koordgate, queues: tuple[str, str]
) -> None:
    said = await cli("cordon", "n5/fast", *queues)
    assert said.out.splitlines()[0] == "n5: queue 0 fast is cordoned; it takes no new Pods"
    assert "default/pod-a" in said.out
    annotations = fake.get(NODES.path("n5"))["metadata"]["annotations"]
    assert (annotations[CORDONED], annotations["other"]) == ("fast", "stays")
    (node,) = yaml.safe_load((await cli("top", "n5", "--output", "yaml", *queues)).out)["nodes"]
    assert [(one["id"], one["health"]) for one in node["devices"]] == [("fast", "cordoned"), ("spare", "healthy")]

    assert "is not cordoned; it takes new Pods" in (await cli("uncordon", "n5/fast", *queues)).out
    assert CORDONED not in fake.get(NODES.path("n5"))["metadata"]["annotations"]


async def test_what_is_cordoned_of_a_class_can_be_put_back_though_the_class_is_gone(
    fake: FakeKube, cli: Koordgate, queues: tuple[str, str]
) -> None:
    obj = fake.get(NODES.path("n5"))
    obj["metadata"]["annotations"][CORDONED] = "gone,fast"
    fake.put(NODES.path(), obj)
    assert "gone (the node has no such device)" in (await cli("uncordon", "n5/gone", *queues)).out
    assert fake.get(NODES.path("n5"))["metadata"]["annotations"][CORDONED] == "fast"


# Errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cordon", "n1/GPU-9"), "node n1 has no device 'GPU-9'; there are: n1/gpu/0 GPU-0, n1/gpu/1 GPU-1"),
        (("uncordon", "n1/GPU-9"), "node n1 has no device 'GPU-9'"),
        (("cordon", "n9/GPU-0"), "node n9 has no Device object; there are: n1, n2"),
        (("top", "n9"), "node n9 has no Device object; there are: n1, n2"),
        (("top", "a/b"), "no node can have that name"),
        (("drain", "n1/GPU-9"), "node n1 has no device 'GPU-9'"),
        (("drain", "n1/GPU-"), "'n1/GPU-' names several devices; there are: n1/gpu/0 GPU-0, n1/gpu/1 GPU-1"),
        (("drain", "n1/gpu/7"), "node n1 has no device 'gpu/7'"),
        (("top", "--config", "/absent/file"), "/absent/file"),
    ],
)
async def test_a_mistake_is_a_2_that_says_what_there_is(
    cluster: FakeKube, cli: Koordgate, words: tuple[str, ...], told: str
) -> None:
    said = await cli(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"koordgate {words[0]}: ")
    assert told in said.err
    assert writes(cluster) == 0


@pytest.mark.parametrize("seconds", ["-1", "86401", "nan", "soon"])
def test_a_timeout_is_a_number_of_seconds_up_to_a_day(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["drain", "n1/GPU-0", "--timeout", seconds])
    assert f"argument --timeout: {seconds!r}: state seconds from 0 to 86400" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("top",), ("cordon", "n1/GPU-0"), ("top", "n1")])
async def test_without_the_crd_the_message_says_what_to_install(
    fake: FakeKube, cli: Koordgate, words: tuple[str, ...]
) -> None:
    fake.absent |= {"devices", "nodeallocations"}
    said = await cli(*words)
    assert said.status == 2
    assert "the cluster has no devices.scheduling.koordinator.sh: install koordgate's chart" in said.err


@pytest.mark.parametrize(
    "words",
    [("top",), ("top", "--output", "yaml"), ("cordon", "n1/GPU-0"), ("drain", "n1/GPU-0")],
)
async def test_without_the_crd_of_the_ledger_nobody_is_said_to_hold_nothing(
    cluster: FakeKube, cli: Koordgate, words: tuple[str, ...]
) -> None:
    cluster.absent |= {"nodeallocations"}
    for record in cluster.objects(NODE_ALLOCATIONS.path()):
        cluster.remove(NODE_ALLOCATIONS.path(record["metadata"]["name"]))
    said = await cli(*words)
    assert said.status == 2
    assert "the cluster has no nodeallocations: install koordgate's chart" in said.err


@pytest.mark.parametrize(
    ("words", "verb"),
    [(("top",), "list"), (("top", "n1"), "get"), (("cordon", "n1/GPU-0"), "patch")],
    ids=["list", "get", "patch"],
)
async def test_a_right_that_is_missing_is_named(
    cluster: FakeKube, cli: Koordgate, words: tuple[str, ...], verb: str
) -> None:
    refused = (
        f'devices.scheduling.koordinator.sh is forbidden: User "eve" cannot {verb} resource "devices" in API group '
        '"scheduling.koordinator.sh" at the cluster scope'
    )
    cluster.faults.always(verb, "devices", answer(403, refused))
    said = await cli(*words)
    assert said.status == 1
    assert f"eve lacks the right to {verb} devices.scheduling.koordinator.sh at the cluster scope" in said.err


async def test_an_api_server_that_does_not_answer_is_said_so(cluster: FakeKube, cli: Koordgate) -> None:
    cluster.faults.always("get", "devices", drop())
    said = await cli("top", "n1", "-o", "wide")
    assert said.status == 1
    assert "the API server of the kubeconfig does not answer" in said.err


# Names of devices, and draining


@pytest.fixture
def pods(cluster: FakeKube) -> FakeKube:
    """The Pods a and b on GPU-0 of n1, and another that holds nothing there."""
    for name in ("pod-a", "pod-b", "other"):
        metadata = {"name": name, "namespace": "default", "uid": name.removeprefix("pod-")}
        cluster.put(PODS.path(namespace="default"), {"metadata": metadata, "spec": {"nodeName": "n1"}})
    return cluster


def left(fake: FakeKube) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in fake.objects(PODS.path()))


@pytest.mark.parametrize("word", ["GPU-0", "gpu/0"])
async def test_draining_a_card_evicts_those_that_hold_some_of_it_and_no_others(
    pods: FakeKube, cli: Koordgate, word: str
) -> None:
    said = await cli("drain", f"n1/{word}")
    assert said.status == 0
    assert left(pods) == ["other"]
    assert cordoned(pods) == "GPU-0"
    assert "Pod default/pod-a: gone" in said.out
    assert "no Pod holds GPU-0 any more; it stays cordoned" in said.out
    assert (await cli("drain", f"n1/{word}", "--timeout", "86400")).status == 0


@pytest.mark.parametrize("listed", [(), ("GPU-5", "GPU-6")], ids=["no Device object", "another card is listed"])
@pytest.mark.parametrize("word", ["GPU-0", "gpu/0"])
async def test_a_card_that_the_node_does_not_list_is_drained_by_the_ledger(
    pods: FakeKube, cli: Koordgate, word: str, listed: tuple[str, ...]
) -> None:
    pods.remove(DEVICES.path("n1"))
    if listed:
        entries = [device_entry(minor, id=identity) for minor, identity in enumerate(listed, start=5)]
        pods.put(DEVICES.path(), device_object(*entries, name="n1"))
    before = await cli("cordon", f"n1/{word}")
    assert (before.status, left(pods)) == (2, ["other", "pod-a", "pod-b"])
    if not listed:
        assert "node n1 has no Device object, so no cordon can be written; `koordgate drain`" in before.err
        assert "there are: gpu 0 GPU-0, rdma 1 0000:01:00.0" in before.err
    assert (await cli("drain", "n1/gpu/3")).status == 2

    dry = await cli("drain", f"n1/{word}", "--dry-run=client")
    assert (dry.status, left(pods)) == (0, ["other", "pod-a", "pod-b"])
    said = await cli("drain", f"n1/{word}")
    assert (said.status, left(pods)) == (0, ["other"])
    assert "cannot be cordoned; the node does not list it" in said.out
    assert "no Pod holds GPU-0 any more; its node does not list it" in said.out


@pytest.mark.parametrize("how", ["client", "server"])
async def test_a_dry_run_of_a_drain_writes_nothing(pods: FakeKube, cli: Koordgate, how: str) -> None:
    said = await cli("drain", "n1/GPU-0", f"--dry-run={how}")
    assert said.status == 0
    assert left(pods) == ["other", "pod-a", "pod-b"]
    assert cordoned(pods) is None
    assert "Pod default/pod-a: would be evicted" in said.out
    assert (writes(pods) > 0) is (how == "server")


async def test_a_pod_whose_budget_allows_no_eviction_stays_and_the_status_says_so(
    pods: FakeKube, cli: Koordgate
) -> None:
    pods.faults.always("create", "pods/eviction", answer(429, "would violate the disruption budget"))
    said = await cli("drain", "n1/GPU-0", "--timeout", "0")
    assert said.status == 3
    assert left(pods) == ["other", "pod-a", "pod-b"]
    assert "may not be evicted now: would violate the disruption budget" in said.out
    assert said.err == (
        "koordgate drain: Pods that still hold the device after 0 s: 2 of 2; it stays cordoned, run the command again\n"
    )
    assert cordoned(pods) == "GPU-0"
    dry = await cli("drain", "n1/GPU-0", "--dry-run")
    assert (dry.status, dry.err) == (3, "")


async def test_of_two_pods_the_one_that_does_not_end_is_counted(pods: FakeKube, cli: Koordgate) -> None:
    made = pods.get(PODS.path("pod-a", "default"))
    made["metadata"]["finalizers"] = ["example.com/backup"]
    pods.put(PODS.path(namespace="default"), made)
    said = await cli("drain", "n1/GPU-0", "--timeout", "0")
    assert said.status == 3
    assert left(pods) == ["other", "pod-a"]
    assert said.out.splitlines()[-1] in {"Pod default/pod-a: still there", "Pod default/pod-b: gone"}
    assert said.err == (
        "koordgate drain: Pods that still hold the device after 0 s: 1 of 2; it stays cordoned, run the command again\n"
    )


@pytest.mark.parametrize("nodes", [(), ("n1", "n2")])
async def test_what_is_not_known_of_all_nodes_is_told_once_with_the_first(
    cluster: FakeKube, cli: Koordgate, nodes: tuple[str, ...]
) -> None:
    cluster.faults.always("list", "resourceclaims", answer(403, "no claims for you"))
    said = await cli("top", *nodes, "-o", "json")
    told = [one["problems"] for one in json.loads(said.out)["nodes"]]
    assert [len(one) for one in told] == [1, 0]
    assert told[0][0].startswith("what ResourceClaims hold is not shown, except for what koordgate reserved: ")
    assert said.err == f"koordgate top: {told[0][0]}\n"


async def test_another_pod_of_the_name_is_not_evicted(pods: FakeKube, cli: Koordgate) -> None:
    pods.remove(PODS.path("pod-a", "default"))
    metadata = {"name": "pod-a", "namespace": "default", "uid": "another"}
    pods.put(PODS.path(namespace="default"), {"metadata": metadata, "spec": {}})
    assert (await cli("drain", "n1/GPU-0")).status == 0
    assert left(pods) == ["other", "pod-a"]


async def test_a_drain_that_may_not_evict_says_which_right_is_lacking(pods: FakeKube, cli: Koordgate) -> None:
    pods.faults.always("create", "pods/eviction", answer(403, "pods is forbidden"))
    said = await cli("drain", "n1/GPU-0")
    assert said.status == 1
    assert "forbidden" in said.err


# Step by step


BOTH = """\
Pods that hold something of it: 2
POD            HOLDS
default/pod-a  core 30 %, memory 24 GiB (30 %)
default/pod-b  core 20 %, memory 16 GiB (20 %)
"""
NOBODY = "no Pod holds anything of it\n"
DRY = " (dry run: nothing is written)"
WOULD_BE = f"would be cordoned; it would take no new Pods{DRY}"
WOULD = "Pod default/pod-a: would be evicted\nPod default/pod-b: would be evicted\n"
GONE = """\
Pod default/pod-a: evicted, ending
Pod default/pod-b: evicted, ending
Pod default/pod-a: gone
Pod default/pod-b: gone
n1: no Pod holds GPU-0 any more; it stays cordoned
"""
FREED = "n2: no Pod holds GPU-idle any more; it stays cordoned\n"


def by_pod(text: str) -> list[str]:
    """The lines, where those about Pods stand Pod by Pod: Pods are evicted side by side."""
    parts = groupby(text.splitlines(), key=lambda line: line.startswith("Pod default/"))
    ordered = (sorted(part, key=lambda line: line.partition(": ")[0]) if of_pods else part for of_pods, part in parts)
    return list(chain.from_iterable(ordered))


async def test_what_becomes_of_a_device_is_told_step_by_step(pods: FakeKube, cli: Koordgate) -> None:
    """Each command finds what the ones before it left."""
    steps = [
        ("cordon n1/GPU-0", f"n1: gpu 0 GPU-0 is cordoned; it takes no new Pods\n{BOTH}"),
        ("cordon n1/GPU-0", f"n1: gpu 0 GPU-0 is cordoned already; it takes no new Pods\n{BOTH}"),
        ("cordon n1/GPU-0 --dry-run", f"n1: gpu 0 GPU-0 is cordoned already; it takes no new Pods\n{BOTH}"),
        ("cordon n1/GPU-1 --dry-run=client", f"n1: gpu 1 GPU-1 {WOULD_BE}\n{NOBODY}"),
        ("cordon n1/GPU-1 --dry-run", f"n1: gpu 1 GPU-1 {WOULD_BE}\n{NOBODY}"),
        (
            "uncordon n1/GPU-1",
            f"n1: gpu 1 GPU-1 was not cordoned; it still takes no new Pods: XID: 79\n{NOBODY}",
        ),
        ("uncordon n1/GPU-0 --dry-run", f"n1: gpu 0 GPU-0 would be uncordoned; it would take new Pods{DRY}\n{BOTH}"),
        ("uncordon n1/GPU-0", f"n1: gpu 0 GPU-0 is not cordoned; it takes new Pods\n{BOTH}"),
        ("uncordon n1/GPU-0", f"n1: gpu 0 GPU-0 was not cordoned; it takes new Pods\n{BOTH}"),
        ("cordon n2/GPU-idle", f"n2: gpu 0 GPU-idle is cordoned; it takes no new Pods\n{NOBODY}"),
        ("drain n1/GPU-0 --dry-run=client", f"n1: gpu 0 GPU-0 {WOULD_BE}\n{BOTH}{WOULD}"),
        ("drain n1/GPU-0 --dry-run", f"n1: gpu 0 GPU-0 {WOULD_BE}\n{BOTH}{WOULD}"),
        ("drain n1/GPU-0", f"n1: gpu 0 GPU-0 is cordoned; it takes no new Pods\n{BOTH}{GONE}"),
        (
            "drain n2/GPU-idle",
            f"n2: gpu 0 GPU-idle is cordoned already; it takes no new Pods\n{NOBODY}{FREED}",
        ),
    ]
    for words, out in steps:
        said = await cli(*words.split())
        assert (words, said.status, said.err) == (words, 0, "")
        assert by_pod(said.out) == by_pod(out)


@pytest.mark.parametrize(("nodes", "told"), [(16, ""), (17, " and 1 more"), (33, " and 17 more")])
async def test_sixteen_nodes_that_have_devices_are_named(fake: FakeKube, cli: Koordgate, nodes: int, told: str) -> None:
    for at in reversed(range(nodes)):
        fake.put(DEVICES.path(), device_object(device_entry(0, id=f"GPU-{at}"), name=f"n{at:02}"))
    said = await cli("top", "x", "-o", "wide")
    named = ", ".join(f"n{at:02}" for at in range(16))
    assert said.err == f"koordgate top: node x has no Device object; there are: {named}{told}\n"


async def test_where_no_node_has_devices_that_is_told(fake: FakeKube, cli: Koordgate) -> None:
    said = await cli("top", "x", "-o", "wide")
    assert said.err == "koordgate top: node x has no Device object; there are none at all\n"


# Bounds


async def test_a_list_that_ends_at_its_bound_shows_no_device_as_free(
    cluster: FakeKube, cli: Koordgate, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_OBJECTS", 2)
    said = await cli("top", "-o", "wide")
    assert (said.status, said.out) == (2, "")
    assert said.err == (
        "koordgate top: devices: there are more than 2; the others are left out; name the nodes to be read\n"
    )
    for name in ("a", "b"):
        bound = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": "n1"}}
        cluster.put(PODS.path(namespace="default"), bound)
    adoption = replace(adoption_of(WebhookSettings()), peers=frozenset({Product.HAMI}))
    seen = SeenNodes(Known(adoption=adoption))
    await seen.list_pods(kube)
    assert seen.no_pods.startswith(
        "what Pods of other products hold is not known, so every GPU counts as held: pods: there are more than 2"
    )


@pytest.mark.parametrize(("nodes", "asked"), [(1, 1), (8, 8), (9, 1)])
async def test_pods_of_up_to_eight_nodes_are_listed_node_by_node(
    fake: FakeKube, kube: KubeClient, nodes: int, asked: int
) -> None:
    adoption = replace(adoption_of(WebhookSettings()), peers=frozenset({Product.HAMI}))
    names = [f"n{at}" for at in range(nodes)]
    seen = SeenNodes(Known(adoption=adoption))
    await seen.list_pods(kube, [*names, *names])
    queries = [one.query for one in fake.seen("list", "pods")]
    assert (len(queries), {one["limit"] for one in queries}) == (asked, {"250"})
    bound = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    selected = [f"spec.nodeName={name}" for name in names] if nodes < 9 else [bound]
    assert [one["fieldSelector"] for one in queries] == selected
    await seen.list_pods(kube)
    assert fake.seen("list", "pods")[-1].query["fieldSelector"] == bound
