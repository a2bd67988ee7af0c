"""`koordgate top`, `pod`, `cordon`, `uncordon` and `drain` against a cluster."""

import asyncio
import json
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import container, device_entry, device_object, gpu, holding, part, pod
from commands import Koordgate, Said
from fake_kube import FakeKube, answer, drop
from foreignpods import hami, install, kai, put_pod, reservation
from kubeconfigs import write_kubeconfig
from nodereports import devices_in, report

from allocator.vocabulary.cpunode import CpuShare, NumaShare
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import CORDONED
from allocator.wire.nodeallocation import write_spec
from console import terminal
from console.devices.podcommand import OnNode, holders, pods_table
from koordgate.cli import main
from koordgate.kube.resource import CONFIG_MAPS, DEVICES, NODE_ALLOCATIONS, NODES, PODS
from webhook.view.nodereport import NodeReport

Raw = dict[str, Any]


@pytest.fixture
def koordgate(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate` against the fake cluster; the context's namespace is `team`."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url, namespace="team")))
    install(fake)
    return koordgate


def team(uid: str, *shares: Any, **fields: Any) -> Holding:
    made = holding(uid, *shares, **fields)
    return Holding(made.uid, "team", made.name, made.since, made.shares, made.cpus)


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """n1: a card that Pods of two namespaces share, and an idle one; n2: an idle card."""
    for name, cards in (("n1", ("GPU-aaaa1111", "GPU-aaaa2222")), ("n2", ("GPU-bbbb1111",))):
        entries = [device_entry(minor, id=identity) for minor, identity in enumerate(cards)]
        fake.put(DEVICES.path(), device_object(*entries, name=name))
        fake.put(NODES.path(), {"metadata": {"name": name}})
    card = gpu(0, device_id="GPU-aaaa1111")
    own = CpuShare("LSR", 0b1100, numa=(NumaShare(1, 2000, 0),))
    held = [holding("a", part(card, 20, "main")), team("b", part(card, 30, "main", "side"), cpus=own)]
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": write_spec(held)})
    for one in held:
        metadata = {"name": one.name, "namespace": one.namespace, "uid": one.uid}
        spec, status = {"nodeName": "n1"}, {"phase": "Running"}
        fake.put(PODS.path(namespace=one.namespace), {"metadata": metadata, "spec": spec, "status": status})
    return fake


def cordoned(fake: FakeKube, node: str) -> str | None:
    text: str | None = fake.get(DEVICES.path(node))["metadata"].get("annotations", {}).get(CORDONED)
    return text


# top


async def test_top_has_a_line_for_each_device_and_counts_them_at_the_end(
    cluster: FakeKube, koordgate: Koordgate
) -> None:
    said = await koordgate("top")
    assert (said.status, said.err) == (0, "")
    rows = said.out.splitlines()
    assert [row.split()[0] for row in rows if row] == ["n1", "gpu/0", "gpu/1", "n2", "gpu/0", "2"]
    assert rows[1].endswith("40/80 GiB     default/pod-a, team/pod-b")
    assert rows[-1] == "2 nodes, 3 devices: 2 free, 1 in parts"
    assert max(map(len, rows)) <= 100


async def test_top_of_a_namespace_shows_the_devices_that_its_pods_hold(cluster: FakeKube, koordgate: Koordgate) -> None:
    rows = (await koordgate("top", "-n", "team")).out.splitlines()
    assert [row.split()[0] for row in rows if row] == ["n1", "gpu/0", "1"]
    assert (await koordgate("top", "-n", "nobody")).out.strip() == "no Pod of namespace nobody holds a device"
    assert len((await koordgate("top", "-A")).out.splitlines()) == 7


async def test_top_as_data_is_the_document_of_devices(cluster: FakeKube, koordgate: Koordgate) -> None:
    document = json.loads((await koordgate("top", "-o", "json", "n1")).out)
    assert document == yaml.safe_load((await koordgate("top", "-o", "yaml", "n1")).out)
    assert (document["version"], document["summary"]) == (
        1,
        {"devices": 2, "free": 1, "inParts": 1, "held": 0, "outOfService": 0, "gone": 0},
    )
    (node,) = document["nodes"]
    assert (node["blocked"], node["unseen"]) == ("", False)
    assert [(one["id"], one["state"], one["free"]["gpu-core"]) for one in devices_in(document).values()] == [
        ("GPU-aaaa1111", "inParts", 50),
        ("GPU-aaaa2222", "free", 100),
    ]


async def test_top_wide_names_ids_and_all_pods(cluster: FakeKube, koordgate: Koordgate) -> None:
    rows = (await koordgate("top", "-o", "wide")).out.splitlines()
    assert rows[0].split()[:3] == ["NODE", "DEVICE", "ID"]
    assert rows[1].split()[:3] == ["n1", "gpu/0", "GPU-aaaa1111"]
    assert "default/pod-a: core" in rows[1]
    assert "team/pod-b: core" in rows[2]


async def test_what_top_cannot_read_counts_as_held_and_is_told(cluster: FakeKube, koordgate: Koordgate) -> None:
    cluster.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n2"}, "spec": {"allocations": [{}]}})
    said = await koordgate("top", "n2")
    assert said.out.splitlines()[-1] == "1 node, 1 device: 1 held"
    assert "koordgate top: Node n2: its holdings are unknown" in said.err
    (node,) = json.loads((await koordgate("top", "n2", "-o", "json")).out)["nodes"]
    assert "an administrator must correct or delete it" in node["blocked"]
    assert node["devices"][0]["amounts"][0] == [100, 100, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("top", "--watch"), "--watch needs a terminal"),
        (("top", "--watch", "-o", "json"), "cannot be used with --output"),
        (("top", "n9"), "node n9 has no Device object; there are: n1, n2"),
        (("pod", "nobody"), "there is no Pod team/nobody; name its namespace with -n"),
        (("pod", "pod-b", "-A"), "-A lists Pods"),
        (("pod", "a/b/c"), "no Pod can have that name"),
        (("pod", "team/pod-b", "-n", "default"), "state one of them"),
        (("cordon", "GPU-aaaa"), "names several devices; there are: n1/gpu/0 GPU-aaaa1111, n1/gpu/1 GPU-aaaa2222"),
        (("drain", "n9/0"), "node n9 has no Device object; there are: n1, n2"),
        (("uncordon", "../n1"), "no node can have that name"),
    ],
)
async def test_a_mistake_is_a_2_that_says_what_there_is(
    cluster: FakeKube, koordgate: Koordgate, words: tuple[str, ...], told: str
) -> None:
    said = await koordgate(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"koordgate {words[0]}: ")
    assert told in said.err
    assert not [one for one in cluster.requests if one.verb not in {"get", "list"}]


# pod


async def test_a_pod_is_shown_with_its_devices_containers_and_cpus(cluster: FakeKube, koordgate: Koordgate) -> None:
    said = await koordgate("pod", "pod-b")
    assert said.status == 0
    rows = said.out.splitlines()
    assert rows[0] == "Pod team/pod-b is on n1 (Running)"
    assert rows[2].split() == [
        *("gpu/0", "GPU-aaaa1111", "core", "30", "%,", "memory", "24", "GiB", "(30", "%)", "main,", "side"),
    ]
    assert rows[3] == "CPUs: 2-3 (NUMA 1)"
    assert (await koordgate("pod", "default/pod-a")).out.startswith("Pod default/pod-a is on n1")


async def test_pods_are_those_of_the_contexts_namespace_unless_another_is_named(
    cluster: FakeKube, koordgate: Koordgate
) -> None:
    def listed(said: Said) -> list[list[str]]:
        return [row.split()[:5] for row in said.out.splitlines()[1:]]

    mine = ["team", "pod-b", "n1", "gpu/0", "30%"]
    others = ["default", "pod-a", "n1", "gpu/0", "20%"]
    assert listed(await koordgate("pod")) == [mine]
    assert listed(await koordgate("pod", "-n", "default")) == [others]
    assert listed(await koordgate("pod", "-A")) == [others, mine]
    assert (await koordgate("pod", "-A", "-o", "wide")).out.splitlines()[1].endswith("GPU-aaaa1111")
    assert (await koordgate("pod", "-n", "nobody")).out == "no Pod of namespace nobody holds anything\n"


async def test_what_pods_hold_is_data_too(cluster: FakeKube, koordgate: Koordgate) -> None:
    document = json.loads((await koordgate("pod", "pod-b", "-o", "json")).out)
    (pod,) = document["pods"]
    assert (document["version"], pod["namespace"], pod["name"], pod["node"]) == (1, "team", "pod-b", "n1")
    assert (pod["cpus"], pod["numa"]) == ("2-3", [1])
    assert pod["devices"][0]["amounts"] == {"gpu-core": 30, "gpu-memory": 24 * 2**30, "gpu-memory-ratio": 30}
    assert document == yaml.safe_load((await koordgate("pod", "-o", "yaml")).out)


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (
            {"spec": {}, "status": {"phase": "Pending"}},
            "is on no node (Pending); `koordgate explain p -n team` says why",
        ),
        ({"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}}, "is on n2 (Running); koordgate gave it nothing"),
        ({"spec": {"nodeName": "cpu-1"}}, "is on cpu-1 (Pending); koordgate gave it nothing"),
    ],
    ids=["it waits", "it holds nothing", "its node has no devices"],
)
async def test_a_pod_that_holds_nothing_is_told_so(
    cluster: FakeKube, koordgate: Koordgate, pod: Raw, told: str
) -> None:
    cluster.put(PODS.path(namespace="team"), {"metadata": {"name": "p", "namespace": "team", "uid": "p"}, **pod})
    said = await koordgate("pod", "p")
    assert (said.status, said.out) == (0, f"Pod team/p {told}\n")


async def test_what_a_pod_that_is_gone_held_is_shown_until_it_is_released(
    cluster: FakeKube, koordgate: Koordgate
) -> None:
    cluster.remove(PODS.path("pod-b", "team"))
    said = await koordgate("pod", "pod-b")
    assert said.out.startswith("Pod team/pod-b is gone; what it held on n1 is being released\n")
    metadata = {"name": "pod-b", "namespace": "team", "uid": "another"}
    cluster.put(PODS.path(namespace="team"), {"metadata": metadata, "spec": {"nodeName": "n1"}})
    assert "koordgate gave it nothing" in (await koordgate("pod", "pod-b")).out


async def test_what_a_pod_that_is_gone_held_on_two_nodes_is_told_of_the_first(
    cluster: FakeKube, koordgate: Koordgate
) -> None:
    held = [team("b", part(gpu(0, device_id="GPU-bbbb1111"), 30, "main"))]
    cluster.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n2"}, "spec": write_spec(held)})
    cluster.remove(PODS.path("pod-b", "team"))
    said = await koordgate("pod", "pod-b")
    assert said.out.startswith("Pod team/pod-b is gone; what it held on n1 is being released\n")
    assert ("GPU-aaaa1111" in said.out, "GPU-bbbb1111" in said.out) == (True, True)


# cordon, uncordon, drain


@pytest.mark.parametrize("word", ["GPU-bbbb", "bbbb1111", "n2/0", "n2/gpu/0", "n2/GPU-bbbb1111"])
async def test_a_device_is_cordoned_and_put_back_by_each_of_its_names(
    cluster: FakeKube, koordgate: Koordgate, word: str
) -> None:
    said = await koordgate("cordon", word)
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[0] == "n2: gpu 0 GPU-bbbb1111 is cordoned; it takes no new Pods"
    assert (cordoned(cluster, "n1"), cordoned(cluster, "n2")) == (None, "GPU-bbbb1111")
    assert (await koordgate("uncordon", word)).status == 0
    assert cordoned(cluster, "n2") is None


# docs/operate/operations.md and docs/reference/formats.md

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "operate" / "operations.md").read_text(encoding="utf-8")
FORMATS = (DOCS / "reference" / "formats.md").read_text(encoding="utf-8")
DATA = FORMATS.partition("\n## What top, pod and the map write\n")[2].partition("\n## ")[0]


@pytest.fixture
def documented(fake: FakeKube) -> FakeKube:
    """The cluster of the page."""
    model = {"node.koordinator.sh/gpu-model": "NVIDIA-A100-SXM4-80GB"}
    uuids = [f"GPU-{start}-d184-a047-2620-339f0c8ca1dc" for start in ("8a56a4bc", "1f0c77d2", "c3d9e011", "5b6e4f20")]
    entries = [
        device_entry(minor, id=uuid, labels=model, topology={"nodeID": 0, "pcieID": "p", "busID": f"0000:{bus}:00.0"})
        for minor, (uuid, bus) in enumerate(zip(uuids, ("3b", "5e", "86", "af"), strict=True))
    ]
    resources = {"koordinator.sh/rdma": "100"}
    entries.append({"type": "rdma", "id": "0000:3c:00.0", "minor": 0, "health": True, "resources": resources})
    obj = device_object(*entries, name="gpu-node-1")
    obj["metadata"]["annotations"] = {CORDONED: uuids[3]}
    fake.put(DEVICES.path(), obj)
    fake.put(NODES.path(), {"metadata": {"name": "gpu-node-1"}})
    cards = [gpu(minor, device_id=uuid) for minor, uuid in enumerate(uuids)]
    nic = Share("rdma", "0000:3c:00.0", 0, {"rdma": 25}, ("train",))
    held = [
        replace(team("1", part(cards[0], 30, "notebook")), name="notebook-1"),
        replace(team("2", part(cards[0], 45, "notebook")), name="notebook-2"),
        replace(team("7", part(cards[1], 100, "train"), nic, cpus=CpuShare("LSR", 0b1111)), name="train-7"),
    ]
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "gpu-node-1"}, "spec": write_spec(held)})
    for one in held:
        about = {"name": one.name, "namespace": "team", "uid": one.uid}
        spec, status = {"nodeName": "gpu-node-1"}, {"phase": "Running"}
        fake.put(PODS.path(namespace="team"), {"metadata": about, "spec": spec, "status": status})
    return fake


def typed() -> list[tuple[list[str], str]]:
    """What the page types, and what it shows below: up to the next command or the end of the block."""
    found = []
    for block in re.findall(r"```\n(\$ kubectl koordgate .*?)```", PAGE, re.DOTALL):
        for part_of in re.split(r"^\$ kubectl koordgate ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part_of.partition("\n")
            found.append((shlex.split(command), shown.strip("\n")))
    return found


@pytest.mark.parametrize(("words", "shown"), typed(), ids=[" ".join(words) for words, _ in typed()])
async def test_each_command_of_the_page_prints_what_the_page_shows(
    documented: FakeKube, koordgate: Koordgate, monkeypatch: pytest.MonkeyPatch, words: list[str], shown: str
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl-koordgate"])
    said = await koordgate(*words)
    assert (said.out + said.err).strip("\n") == shown


async def test_the_page_names_each_field_of_the_documents(documented: FakeKube, koordgate: Koordgate) -> None:
    (node,) = (top := json.loads((await koordgate("top", "-o", "json")).out))["nodes"]
    (pod, *_) = json.loads((await koordgate("pod", "-o", "json")).out)["pods"]
    assert sorted(name for name in {*pod, *pod["devices"][0]} if f"`{name}`" not in DATA) == []
    fields = {*top, *top["summary"], *node, *node["devices"][0], *node["devices"][0]["shares"][0], *node["holders"][0]}
    assert sorted(name for name in fields if f"{name}`" not in DATA) == []


# Pods of other products

PEERS = "adopt:\n  peers: [hami, kai]\n"
PART = "GPU-aaaa2222,NVIDIA,40960,30:;"


@pytest.fixture
def shared(cluster: FakeKube, koordgate: Koordgate) -> FakeKube:
    """HAMi's Pod `lab/theirs` has half of the memory of n1's second card, and the settings count it."""
    install(cluster, PEERS)
    put_pod(cluster, hami(PART, name="theirs", namespace="lab"))
    return cluster


async def cards(koordgate: Koordgate, *words: str) -> dict[str, Raw]:
    return devices_in(json.loads((await koordgate("top", "-o", "json", *words)).out))


async def test_what_another_product_gave_counts_and_is_marked_with_it(shared: FakeKube, koordgate: Koordgate) -> None:
    said = await koordgate("top", "n1")
    (row,) = [line for line in said.out.splitlines() if "gpu/1" in line]
    assert (said.status, said.err) == (0, "")
    assert " 30% " in row
    assert "40/80 GiB" in row
    assert row.endswith("lab/theirs (hami)")
    assert "lab/theirs (hami): core 30 %" in (await koordgate("top", "n1", "-o", "wide")).out
    card = (await cards(koordgate))["GPU-aaaa2222"]
    assert (card["state"], card["free"]["gpu-core"], card["free"]["gpu-memory"]) == ("inParts", 70, 40 * 2**30)
    (pod,) = card["pods"]
    assert (pod["product"], pod["evidence"], pod["doubt"]) == ("hami", "hami.io/vgpu-devices-allocated", "")
    assert list(await cards(koordgate, "-n", "lab")) == ["GPU-aaaa2222"]


async def test_a_product_that_the_settings_do_not_name_does_not_count(shared: FakeKube, koordgate: Koordgate) -> None:
    install(shared)
    assert (await cards(koordgate))["GPU-aaaa2222"]["state"] == "free"
    assert not any("/pods" in one.path for one in shared.requests)


async def test_the_settings_may_be_given_or_be_in_another_namespace(
    shared: FakeKube, koordgate: Koordgate, tmp_path: Path
) -> None:
    obj = {"metadata": {"name": "koordgate"}, "data": {"config.yaml": ""}}
    shared.put(CONFIG_MAPS.path(namespace="elsewhere"), obj)
    assert (await cards(koordgate, "--installed-in", "elsewhere"))["GPU-aaaa2222"]["state"] == "free"
    file = tmp_path / "settings.yaml"
    file.write_text(PEERS, encoding="utf-8")
    assert (await cards(koordgate, "--installed-in", "elsewhere", "--config", str(file)))["GPU-aaaa2222"]["pods"]


@pytest.mark.parametrize("why", ["absent", "forbidden"])
async def test_where_the_settings_are_not_known_all_products_count(
    shared: FakeKube, koordgate: Koordgate, why: str
) -> None:
    if why == "absent":
        shared.remove(CONFIG_MAPS.path("koordgate", "koordgate-system"))
    else:
        shared.faults.always("get", "configmaps", answer(403))
    said = await koordgate("top")
    assert said.status == 0
    assert "lab/theirs (hami)" in said.out
    assert "settings cannot be read from ConfigMap koordgate-system/koordgate" in said.err
    assert "--installed-in" in said.err


async def test_where_pods_may_not_be_listed_no_gpu_counts_as_free(shared: FakeKube, koordgate: Koordgate) -> None:
    shared.faults.always("list", "pods", answer(403, "no pods for you"))
    said = await koordgate("top")
    assert said.status == 0
    assert "every GPU counts as held: " in said.err
    assert "no pods for you" in said.err
    assert said.out.splitlines()[-1] == "2 nodes, 3 devices: 3 held"
    assert "Pods of other products may hold it" in (await koordgate("top", "-o", "wide")).out
    node, _ = json.loads((await koordgate("top", "-o", "json")).out)["nodes"]
    assert node["unseen"] is True
    assert {free for card in node["devices"] for _, _, free in card["amounts"]} == {0}


async def test_a_statement_that_cannot_be_read_holds_all_cards_in_doubt(shared: FakeKube, koordgate: Koordgate) -> None:
    put_pod(shared, hami("nonsense", name="theirs", namespace="lab"))
    found = await cards(koordgate, "n1")
    assert [card["state"] for card in found.values()] == ["held", "held"]
    assert "nonsense" in found["GPU-aaaa2222"]["pods"][0]["doubt"]
    assert "lab/theirs (hami, in doubt)" in (await koordgate("top", "n1", "-o", "wide")).out


async def test_a_card_that_others_share_counts_once_and_names_all(shared: FakeKube, koordgate: Koordgate) -> None:
    put_pod(shared, reservation("g", "GPU-bbbb1111", node="n2"))
    put_pod(shared, kai("g", name="sharer", namespace="lab", node="n2"))
    card = (await cards(koordgate, "n2"))["GPU-bbbb1111"]
    assert card["amounts"][0] == [100, 100, 0]
    assert [(pod["name"], pod["within"]) for pod in card["pods"]] == [("reserve", ""), ("sharer", "uid-reserve")]


async def test_a_pod_of_another_product_is_listed_and_shown(shared: FakeKube, koordgate: Koordgate) -> None:
    listed = [line.split() for line in (await koordgate("pod", "-n", "lab")).out.splitlines()[1:]]
    assert listed == [["lab", "theirs", "(hami)", "n1", "gpu/1", "30%", "40", "GiB", "-"]]
    said = await koordgate("pod", "lab/theirs")
    assert "Pod lab/theirs is on n1 (Running)" in said.out
    assert "hami placed it, by hami.io/vgpu-devices-allocated" in said.out
    assert "GPU-aaaa2222" in said.out
    (pod,) = json.loads((await koordgate("pod", "lab/theirs", "-o", "json")).out)["pods"]
    assert (pod["product"], pod["cpus"], pod["heldForGang"]) == ("hami", None, False)


async def test_a_pod_that_does_not_count_is_in_no_list_and_told_why(shared: FakeKube, koordgate: Koordgate) -> None:
    put_pod(shared, hami(PART, name="stranger", namespace="lab", scheduler="default-scheduler"))
    assert "stranger" not in (await koordgate("pod", "-n", "lab")).out
    assert "add the name to adopt.schedulers" in " ".join((await koordgate("pod", "lab/stranger")).out.split())


@pytest.mark.parametrize("dry", [[], ["--dry-run"], ["--dry-run=client"]])
async def test_a_drain_leaves_pods_of_other_products_and_says_so(
    shared: FakeKube, koordgate: Koordgate, dry: list[str]
) -> None:
    put_pod(shared, hami("GPU-aaaa1111,NVIDIA,1024,5:;", name="theirs", namespace="lab"))
    said = await koordgate("drain", "GPU-aaaa1111", *dry, "--timeout", "30")
    assert said.status == 3
    assert "Pod lab/theirs (hami): not evicted, another product placed it" in said.out
    assert "drain does not evict them: 1; it stays cordoned" in said.err
    asked = {one.path.split("/")[-2] for one in shared.requests if one.path.endswith("/eviction")}
    assert asked == (set() if dry == ["--dry-run=client"] else {"pod-a", "pod-b"})


async def test_a_drain_that_cannot_see_them_does_not_say_that_the_device_is_free(
    shared: FakeKube, koordgate: Koordgate
) -> None:
    shared.faults.always("list", "pods", answer(403))
    said = await koordgate("drain", "GPU-bbbb1111")
    assert said.status == 3
    assert "no Pod of koordgate holds anything of it" in said.out
    assert "no Pod holds" not in said.out
    assert "Pods of other products may hold the device" in said.err


async def test_a_node_named_like_a_selector_selects_nothing(shared: FakeKube, koordgate: Koordgate) -> None:
    said = await koordgate("top", "n1,metadata.name=nobody")
    assert (said.status, said.out) == (2, "")


async def test_the_page_names_each_field_of_a_pod_of_another_product(shared: FakeKube, koordgate: Koordgate) -> None:
    (pod,) = (await cards(koordgate))["GPU-aaaa2222"]["pods"]
    assert [field for field in pod if f"`{field}`" not in DATA] == []


# What Pods hold, as lines


def many_cards(count: int) -> list[OnNode]:
    card = [part(gpu(at, device_id=f"GPU-{at}"), 10) for at in range(count)]
    return [OnNode("n1", team("a", *card))]


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (8, "gpu/0, gpu/1, gpu/2, gpu/3, gpu/4, gpu/5, gpu/6, gpu/7"),
        (9, "gpu/0, gpu/1, gpu/2, gpu/3, gpu/4, gpu/5, gpu/6, gpu/7 +1"),
        (17, "gpu/0, gpu/1, gpu/2, gpu/3, gpu/4, gpu/5, gpu/6, gpu/7 +9"),
    ],
)
def test_eight_devices_of_a_pod_are_named_and_the_others_counted(
    count: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show(pods_table(many_cards(count), wide=False))
    _, row = capsys.readouterr().out.splitlines()
    assert f" {told}  {count * 10}% " in row
    terminal.show(pods_table(many_cards(count), wide=True))
    _, row = capsys.readouterr().out.splitlines()
    assert row.endswith(f" {', '.join(f'GPU-{at}' for at in range(count))}")
    assert ", ".join(f"gpu/{at}" for at in range(count)) in row


@pytest.mark.parametrize(
    ("cpus", "told"),
    [
        (CpuShare("LSR", 0b1100, numa=(NumaShare(1, 2000, 0), NumaShare(0, 10, 0))), "2-3 (NUMA 1, 0)"),
        (CpuShare("LSR", 0b1100), "2-3"),
        (CpuShare("LS", 0, numa=(NumaShare(0, 2000, 0),)), "NUMA 0"),
        (CpuShare("LS", 0), "-"),
        (None, "-"),
    ],
)
def test_the_cpus_of_a_pod_are_told_by_set_and_numa_node(
    cpus: CpuShare | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show(pods_table([OnNode("n1", team("a", cpus=cpus))], wide=False))
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-1].strip() == told


def test_holders_come_by_namespace_name_and_node() -> None:
    def of(node: str, *held: Holding) -> NodeReport:
        return report(node, None, write_spec(held))

    card = gpu(0, device_id="GPU-0")
    made = [of("n2", team("a", part(card, 1)), holding("z", part(card, 1))), of("n1", team("a", part(card, 1)))]
    made.append(of("n0", team("b", part(card, 1)), replace(holding("c", part(card, 1)), namespace="zoo")))
    found = [(one.holding.namespace, one.holding.name, one.node) for one in holders(made)]
    assert found == [
        ("default", "pod-z", "n2"),
        ("team", "pod-a", "n1"),
        ("team", "pod-a", "n2"),
        ("team", "pod-b", "n0"),
        ("zoo", "pod-c", "n0"),
    ]
    assert [one.holding.name for one in holders(made, "team")] == ["pod-a", "pod-a", "pod-b"]


async def test_a_pod_is_found_among_others_of_names_beside_its_own(cluster: FakeKube, koordgate: Koordgate) -> None:
    card = gpu(0, device_id="GPU-bbbb1111")
    beside = [replace(team(name, part(card, 10)), name=f"pod-{name}") for name in ("a", "c")]
    cluster.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n2"}, "spec": write_spec(beside)})
    document = json.loads((await koordgate("pod", "pod-b", "-o", "json")).out)
    assert [one["name"] for one in document["pods"]] == ["pod-b"]
    cluster.remove(PODS.path("pod-b", "team"))
    document = json.loads((await koordgate("pod", "pod-b", "-o", "json")).out)
    assert [(one["name"], one["node"]) for one in document["pods"]] == [("pod-b", "n1")]


# Output that nobody reads


@pytest.mark.parametrize(
    "words",
    [
        "top",
        "top -o json",
        "pod -A",
        "doctor",
        "cleanup",
        "snapshot",
        "adopt check -f FILE",
        "explain p -n team -f FILE",
        "packing -f FILE",
    ],
)
async def test_a_command_whose_output_nobody_reads_ends_as_a_unix_tool_does(
    cluster: FakeKube,
    koordgate: Koordgate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
) -> None:
    file = tmp_path / "cluster.json"
    limits = {"nvidia.com/gpu": "1"}
    made = {**pod(container(limits=limits, requests=limits), name="p", namespace="team"), "kind": "Pod"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [made, node]}))
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        status = await asyncio.to_thread(main, words.replace("FILE", str(file)).split())
    assert status == 141
    assert "Traceback" not in capsys.readouterr().err


# Failures that all commands tell alike


ASKING = ("top", "adopt check", "explain p -n team", "packing", "snapshot")
HINTS = {
    "adopt check": "; or give objects with -f",
    "explain p -n team": "; or give a snapshot or manifests with -f",
    "packing": "; or give a snapshot or manifests with -f",
}


@pytest.mark.parametrize("words", ASKING)
async def test_an_api_server_that_does_not_answer_is_told_by_each_command(
    cluster: FakeKube, koordgate: Koordgate, words: str
) -> None:
    cluster.faults.always("list", "nodes", drop())
    said = await koordgate(*words.split())
    assert (said.status, said.out) == (1, "")
    begins = f"koordgate {words.split(maxsplit=1)[0]}: the API server of the kubeconfig does not answer: "
    assert said.err.startswith(begins)


@pytest.mark.parametrize("words", ASKING)
@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_refusal_is_told_by_each_command_without_a_hint_at_files(
    cluster: FakeKube, koordgate: Koordgate, words: str, status: int
) -> None:
    cluster.faults.always("list", "nodes", answer(status, "no nodes for you"))
    said = await koordgate(*words.split())
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"koordgate {words.split(maxsplit=1)[0]}: ")
    assert "no nodes for you" in said.err
    assert "with -f" not in said.err


@pytest.mark.parametrize("words", ASKING)
async def test_without_a_kubeconfig_each_command_says_what_else_it_takes(
    koordgate: Koordgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    said = await koordgate(*words.split())
    assert (said.status, said.out) == (1, "")
    assert said.err.endswith(f"write the kubeconfig there, or name it in $KUBECONFIG{HINTS.get(words, '')}\n")


@pytest.mark.parametrize("words", ASKING)
async def test_settings_that_cannot_be_used_are_a_2_of_each_command(
    cluster: FakeKube, koordgate: Koordgate, tmp_path: Path, words: str
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("mode: 7\n")
    for file in (wrong, tmp_path / "none.yaml"):
        said = await koordgate(*words.split(), "--config", str(file))
        assert (said.status, said.out) == (2, "")
        assert said.err.startswith(f"koordgate {words.split(maxsplit=1)[0]}: ")
        assert file.name in said.err
