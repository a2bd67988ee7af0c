"""`koordgate snapshot` as a user calls it, its bounds, and how names and fields are written."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import container, pod
from commands import Koordgate
from fake_kube import FakeKube, Fault, answer, drop
from foreignpods import install
from kubeconfigs import write_kubeconfig

from allocator.vocabulary.devicetype import BUILT_IN
from console import reading, terminal
from console.snapshot import command, keep
from console.snapshot.fields import shapes
from console.snapshot.keep import object_of
from console.snapshot.names import OPEN, Namer, rename_json
from console.snapshot.read import SnapshotWanted, Taken, take
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import EVENTS, MUTATING_WEBHOOKS, NAMESPACES, NODES, PODS

Raw = dict[str, Any]
SHAPES = shapes(BUILT_IN)
HIDING = Namer(b"key")


@pytest.fixture
def snapshot(koordgate: Koordgate, cluster: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate snapshot` against the fake cluster, in an empty folder."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, cluster.url)))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return partial(koordgate, "snapshot")


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    """An installation, two nodes, two namespaces, a Pod in each, an Event of koordgate's and one of another's."""
    install(fake, "mode: shadow\n")
    fake.discovery["/version"] = {"gitVersion": "v1.36.3"}
    fake.put(NAMESPACES.path(), {"metadata": {"name": "kube-system", "uid": "of-the-cluster"}})
    fake.put(MUTATING_WEBHOOKS.path(), {"metadata": {"name": "koordgate"}, "webhooks": []})
    for name in ("n2", "n1"):
        fake.put(NODES.path(), {"metadata": {"name": name}})
    for space in ("team-b", "team-a"):
        fake.put(PODS.path(namespace=space), pod(name="p", namespace=space, uid=f"uid-{space}"))
    event = {"metadata": {"name": "e"}, "reason": "DevicesAllocated", "message": "on n1"}
    fake.put(EVENTS.path(namespace="team-a"), {**event, "reportingComponent": "koordgate"})
    return fake


async def taken(kube: KubeClient, **wanted: Any) -> Taken:
    return await take(kube, SnapshotWanted("koordgate-system", **wanted), "now")


def about(found: Taken) -> Raw:
    data: Raw = found.items[0]["data"]
    return data


async def test_a_file_is_written_and_what_it_has_is_told(snapshot: Koordgate, tmp_path: Path) -> None:
    said = await snapshot("cluster.json")
    path = tmp_path / "here" / "cluster.json"
    assert (said.status, said.out) == (0, "")
    assert said.err == (
        "koordgate snapshot: cluster.json has namespaces: 1, nodes: 2, pods: 2, events: 1 "
        f"({path.stat().st_size} bytes)\n"
    )
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ('{"apiVersion":"v1","kind":"List","items":[', "]}")
    items = json.loads(path.read_text())["items"]
    assert len(lines) == len(items) + 2
    assert [one["kind"] for one in items] == (
        ["ConfigMap", "ConfigMap", "MutatingWebhookConfiguration", "Namespace"] + ["Node"] * 2 + ["Pod"] * 2 + ["Event"]
    )


async def test_without_a_file_it_is_written_to_standard_output_alone(snapshot: Koordgate) -> None:
    said = await snapshot()
    assert (said.status, said.err) == (0, "")
    assert json.loads(said.out)["items"][0]["data"]["kubernetes"] == "v1.36.3"


async def test_notes_are_told(snapshot: Koordgate, cluster: FakeKube) -> None:
    cluster.faults.always("list", "events", answer(403, "not for you"))
    said = await snapshot("--namespace", "team-a", "-n", "team-b", "-n", "team-a")
    assert said.status == 0
    assert said.err.startswith("koordgate snapshot: events are left out: ")
    assert len(said.err.splitlines()) == 2
    assert json.loads(said.out)["items"][0]["data"]["namespaces"] == "team-a, team-b, team-a"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("none/file",), 2, "koordgate snapshot: none/file cannot be written (No such file or directory): name"),
        (("--config", "none.yaml"), 2, "none.yaml"),
    ],
)
async def test_what_cannot_be_written_or_read_is_a_2(
    snapshot: Koordgate, words: tuple[str, ...], status: int, says: str
) -> None:
    said = await snapshot(*words)
    assert (said.status, said.out) == (status, "")
    assert says in said.err


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (answer(403, "no nodes for you"), "no nodes for you"),
        (drop(), "the API server of the kubeconfig does not answer"),
    ],
)
async def test_without_nodes_it_is_a_1(snapshot: Koordgate, cluster: FakeKube, fault: Fault, says: str) -> None:
    cluster.faults.always("list", "nodes", fault)
    said = await snapshot("x.json")
    assert (said.status, said.out) == (1, "")
    assert says in said.err


async def test_objects_of_one_resource_have_a_bound_and_the_next_are_read(
    cluster: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_OBJECTS", 3)
    monkeypatch.setattr(reading, "PAGE", 1)
    for at in range(4):
        cluster.put(NODES.path(), {"metadata": {"name": f"m{at}"}})
    cluster.faults.add("list", "namespaces", Fault(), answer(410, "too old"))
    cluster.put(NAMESPACES.path(), {"metadata": {"name": "later"}})
    told: list[str] = []
    monkeypatch.setattr(terminal, "doing", told.append)
    found = await taken(kube)
    assert found.notes == [
        "namespaces: they changed faster than they could be listed; some are left out",
        "nodes: there are more than 3; the others are left out",
    ]
    assert (found.counts["namespaces"], found.counts["nodes"], found.counts["pods"]) == (1, 3, 2)
    assert about(found)["leftOut"] == "\n".join(found.notes)
    assert [one for one in told if one.startswith(("reading nodes", "reading pods"))] == [
        *("reading nodes", "reading nodes: 1", "reading nodes: 2", "reading nodes: 3"),
        *("reading pods", "reading pods: 1", "reading pods: 2"),
    ]


async def test_a_page_has_250_objects(cluster: FakeKube, kube: KubeClient) -> None:
    for at in range(249):
        cluster.put(NODES.path(), {"metadata": {"name": f"m{at}"}})
    found = await taken(kube)
    assert found.counts["nodes"] == 251
    assert [one.query["limit"] for one in cluster.seen("list", "nodes")] == ["250", "250"]


async def test_events_of_koordgate_alone_are_read_and_none_where_names_are_hidden(
    cluster: FakeKube, kube: KubeClient
) -> None:
    await taken(kube)
    (asked,) = cluster.seen("list", "events")
    assert asked.query["fieldSelector"] == "reportingComponent=koordgate"
    hidden = await taken(kube, anonymize=True)
    assert len(cluster.seen("list", "events")) == 1
    assert "events" not in hidden.counts
    assert "n1" not in json.dumps(hidden.items).replace('"', " ").split()
    cluster.faults.always("list", "resourcequotas", answer(403))
    assert about(await taken(kube, anonymize=True))["leftOut"] == "1 things"


async def test_without_the_namespace_of_the_cluster_names_are_hidden_otherwise_each_time(
    cluster: FakeKube, kube: KubeClient
) -> None:
    first, second = [await taken(kube, anonymize=True) for _ in range(2)]
    assert first.items == second.items
    cluster.remove(NAMESPACES.path("kube-system"))
    first, second = [await taken(kube, anonymize=True) for _ in range(2)]
    assert first.items != second.items
    assert first.notes == [
        "names are replaced by others than in the next snapshot: Namespace kube-system cannot be read"
    ]


async def test_what_the_api_server_does_not_tell_is_empty(cluster: FakeKube, kube: KubeClient) -> None:
    cluster.discovery.clear()
    cluster.remove(MUTATING_WEBHOOKS.path("koordgate"))
    found = await taken(kube)
    assert about(found)["kubernetes"] == ""
    assert "MutatingWebhookConfiguration" not in {one["kind"] for one in found.items}
    cluster.faults.always("get", "mutatingwebhookconfigurations", answer(403, "no"))
    assert (await taken(kube)).notes[0].startswith("whether koordgate's webhooks are installed is not known: ")


def test_what_is_written_is_a_list_with_an_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"kind": "Node"}, {"kind": "Pod"}]
    text = '{"apiVersion":"v1","kind":"List","items":[\n{"kind":"Node"},\n{"kind":"Pod"}\n]}\n'
    assert command.write("-", items) == len(text)
    assert capsys.readouterr().out == text
    path = tmp_path / "x.json.gz"
    (tmp_path / "x.json.gz.part").write_text("left by a run that was killed")
    first = (command.write(str(path), items), path.read_bytes())
    assert (command.write(str(path), items), path.read_bytes()) == first
    assert [one.name for one in tmp_path.iterdir()] == ["x.json.gz"]
    assert path.read_bytes()[4:8] == bytes(4), "the time at which it was written"


async def test_a_namespace_that_is_gone_hides_no_other(cluster: FakeKube, kube: KubeClient) -> None:
    cluster.faults.add("list", "pods", answer(404, "gone"))
    found = await taken(kube, namespaces=("team-a", "team-b"))
    assert [one["metadata"]["namespace"] for one in found.items if one["kind"] == "Pod"] == ["team-b"]
    cluster.faults.add("list", "resourcequotas", answer(403, "not for you"))
    assert len((await taken(kube, namespaces=("team-a", "team-b"))).notes) == 1


async def test_pages_of_several_namespaces_are_counted_together(
    cluster: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_OBJECTS", 2)
    for space in ("team-a", "team-b", "team-c"):
        cluster.put(PODS.path(namespace=space), pod(name="q", namespace=space, uid=f"q-{space}"))
    found = await taken(kube, namespaces=("team-c", "team-a", "team-b"))
    assert [one["metadata"]["namespace"] for one in found.items if one["kind"] == "Pod"] == ["team-a"] * 2 + ["team-c"]
    assert found.notes[-1] == "pods: there are more than 2; the others are left out"


# Names


def test_a_replacement_has_twelve_digits() -> None:
    assert len(HIDING.name("gpu-7")) == 13
    assert HIDING.name("gpu-7")[0] == "x"
    assert set(HIDING.name("gpu-7")[1:]) <= set("0123456789abcdef")
    assert len({HIDING.name(f"n{at}") for at in range(100)}) == 100
    assert HIDING.name("\udc80") != HIDING.name("?")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", True),
        ("default", True),
        ("kube-public", True),
        ("kube-node-lease", True),
        ("koordgate-reporter-x", True),
        ("koord-scheduler", True),
        ("koordlet", True),
        ("system-node-critical", True),
        ("kube-systems", False),
        ("my-koordgate", False),
    ],
)
def test_names_that_kubernetes_or_koordgate_gave_stay(text: str, kept: bool) -> None:  # noqa: FBT001
    assert (HIDING.name(text) == text) is kept
    assert OPEN.name(text) == OPEN.key(text) == OPEN.value("k", text) == text


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("kubernetes.io/hostname", True),
        ("node.kubernetes.io/x", True),
        ("nvidia.com/gpu", True),
        ("runai-gpu-group", True),
        ("metadata.name", True),
        ("acme.example/nvidia.com", False),
        ("notnvidia.com/x", False),
        ("team", False),
    ],
)
def test_keys_of_domains_that_many_use_stay(key: str, kept: bool) -> None:  # noqa: FBT001
    assert (HIDING.key(key) == key) is kept


@pytest.mark.parametrize(
    ("key", "text", "kept"),
    [
        ("team", "true", True),
        ("team", "false", True),
        ("team", "", True),
        ("team", "-12", True),
        ("team", "9" * 12, True),
        ("team", "9" * 13, False),
        ("team", "1.5", False),
        ("kubernetes.io/os", "linux", True),
        ("beta.kubernetes.io/arch", "amd64", True),
        ("kubernetes.io/hostname", "host", False),
        ("node-role.kubernetes.io/worker", "acme", True),
        ("koordinator.sh/qosClass", "LS", True),
        ("koordinator.sh/team", "acme", False),
    ],
)
def test_values_of_hardware_and_numbers_stay(key: str, text: str, kept: bool) -> None:  # noqa: FBT001
    assert (HIDING.value(key, text) == text) is kept


def test_names_in_json_are_replaced_however_deep() -> None:
    fields = frozenset({"name"})
    text = '[{"name":"a","uid":"a","in":[{"name":"b"},{"name":7}]},"name",3]'
    a, b = HIDING.name("a"), HIDING.name("b")
    assert (
        rename_json(text, HIDING, fields)
        == f'[{{"name":"{a}","uid":"a","in":[{{"name":"{b}"}},{{"name":7}}]}},"name",3]'
    )
    assert rename_json("{", HIDING, fields) is None
    assert rename_json("[" * 100_000, HIDING, fields) is None


# Fields


def test_a_taint_or_a_part_of_a_selector_is_kept_by_its_key_and_values() -> None:
    whole = {"key": "a", "operator": "In", "effect": "NoSchedule", "value": "v", "values": ["x", 1, "y"], "other": "z"}
    assert keep.label(whole, OPEN) == {
        "key": "a",
        "operator": "In",
        "effect": "NoSchedule",
        "value": "v",
        "values": ["x", "y"],
    }
    assert keep.label({"operator": "Exists", "key": 7, "value": 7, "values": "x", "effect": None}, OPEN) == {
        "operator": "Exists"
    }
    assert keep.label([], OPEN) is keep.DROPPED
    hidden = keep.label({"key": "a", "value": "v", "values": ["w"]}, HIDING)
    assert hidden == {"key": HIDING.name("a"), "value": HIDING.name("v"), "values": [HIDING.name("w")]}


def test_shapes_keep_what_they_name_and_drop_what_is_of_another_kind() -> None:
    assert [keep.plain(one, OPEN) for one in ("a", 1, 1.5, True)] == ["a", 1, 1.5, True]
    odd: list[Any] = [None, [], {}]
    assert [keep.plain(one, OPEN) for one in odd] == [keep.DROPPED] * 3
    assert keep.each(keep.plain)([1, None, "a"], OPEN) == [1, "a"]
    assert keep.each(keep.plain)("a", OPEN) is keep.DROPPED
    assert keep.keyed(keep.plain)({"a": 1, 3: 4, "c": None}, OPEN) == {"a": 1}
    assert keep.keyed(keep.plain)(7, OPEN) is keep.DROPPED
    assert keep.fields("a b", "n")({"a": 1, "b": None, "n": 7, "c": 3}, OPEN) == {"a": 1}
    assert keep.labels({"a": "b", "c": 1}, OPEN) == {"a": "b"}
    assert keep.path("team/gang", HIDING) == f"{HIDING.name('team')}/{HIDING.name('gang')}"
    assert (keep.message("text", OPEN), keep.message("text", HIDING)) == ("text", keep.DROPPED)
    assert [of(7, OPEN) for of in (keep.name, keep.label_key, keep.path, keep.message, keep.labels)] == [
        keep.DROPPED
    ] * 5


VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ({"value": "GPU-1,GPU-2"}, {"value": "GPU-1,GPU-2"}),
        ({"value": "x" * 4096}, {"value": "x" * 4096}),
        ({"value": "x" * 4097}, {}),
        ({"value": "not devices"}, {}),
        (
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
            {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}},
        ),
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {}),
        ({"valueFrom": {"fieldRef": 7}}, {}),
        ({"valueFrom": 7}, {}),
    ],
)
def test_of_a_variable_that_names_devices_is_kept_which(entry: Raw, kept: Raw) -> None:
    made = pod(container(env=[{"name": "OTHER", "value": "1"}, {"name": VISIBLE, **entry}, 7]))
    (found,) = object_of(SHAPES["Pod"], made, OPEN)["spec"]["containers"]
    assert found["env"] == [{"name": VISIBLE, **kept}]


def test_only_the_schedulers_condition_tells_a_message() -> None:
    conditions = [{"type": kind, "status": "False", "message": kind} for kind in ("Ready", "PodScheduled")]
    made = pod() | {"status": {"conditions": [*conditions, 7]}}
    assert object_of(SHAPES["Pod"], made, OPEN)["status"]["conditions"] == [
        {"type": "Ready", "status": "False"},
        {"type": "PodScheduled", "status": "False", "message": "PodScheduled"},
    ]


def test_pods_that_a_topology_names_are_hidden_in_its_annotation() -> None:
    allocs = "node.koordinator.sh/pod-cpu-allocs"
    text = '[{"namespace":"team","name":"p","cpuset":"0-3"}]'
    obj = {"metadata": {"name": "n1", "annotations": {"a": "x", "odd": 7, allocs: text, "other": "x"}}}
    shape = SHAPES["NodeResourceTopology"]
    assert object_of(shape, obj, OPEN)["metadata"]["annotations"] == {allocs: text}
    hidden = json.loads(object_of(shape, obj, HIDING)["metadata"]["annotations"][allocs])
    assert hidden == [{"namespace": HIDING.name("team"), "name": HIDING.name("p"), "cpuset": "0-3"}]
    obj["metadata"]["annotations"][allocs] = "{"  # type: ignore[index]
    assert object_of(shape, obj, HIDING)["metadata"]["annotations"] == {}
