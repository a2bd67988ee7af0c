"""Reading objects, and every way in which input cannot be used: exit status 2, the place, and what to do."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import device, gpus, listed, machine, node, saved

from console.simulator.documents import InputError
from console.simulator.objects import read
from koordgate.cli import main

UNUSABLE = {
    "no YAML": ("kind: [", "input.yaml, document 1: not YAML; correct it: "),
    "no YAML in the second document": ("kind: Node\nmetadata: {name: a}\n---\nkind: [", "document 2: not YAML"),
    "no object": ("- 1\n- 2\n", "document 1: list where a Kubernetes object must be"),
    "no kind": ("metadata: {name: a}", "document 1: the object has no kind; add it"),
    "no name": ("kind: Pod\nmetadata: {}\n", "document 1: the Pod has no metadata.name; give it one"),
    "no metadata": ("kind: Pod\n", "document 1: the Pod has no metadata.name; give it one"),
    "twice": ("kind: Node\nmetadata: {name: a}\n---\nkind: Node\nmetadata: {name: a}\n", "Node a is already in "),
    "no name in a list": ("kind: List\nitems: [{kind: Pod}]", "document 1, item 1: the Pod has no metadata.name"),
    "items no list": ("kind: List\nitems: 1", "items of the List is not a list"),
    "not of the shape": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: {name: a}}",
        "document 1: Pod a: spec.containers: an object where a list must be; the API server would refuse it",
    ),
    "no Kubernetes name": ("kind: Node\nmetadata: {name: A_b}", "Node A_b: metadata.name: 'A_b' is no name"),
    "an amount of a node": (
        (
            "kind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: many}}\n---\n"
            "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: c}]}}"
        ),
        "Node a: status.allocatable[cpu]: 'many' is not a Kubernetes quantity",
    ),
    "an amount of a Pod that runs": (
        "{kind: Pod, metadata: {name: a}, spec: {nodeName: b, containers: [{name: c, resources: {limits: {cpu: x}}}]}}",
        "spec.containers[0].resources.requests[cpu]: 'x' is not a Kubernetes quantity",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_input_is_named_with_its_place(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, told = UNUSABLE[name]
    path = tmp_path / "input.yaml"
    path.write_text(text)
    assert main(["simulate", "-f", str(path)]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("koordgate simulate: ")
    assert told in written.err
    assert written.err.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read (No such file or directory); give a file" in capsys.readouterr().err


def test_an_unknown_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", saved(tmp_path, machine()), "--node", "node-9"]) == 2
    assert "--node node-9: no such Node in the input; there are node-1" in capsys.readouterr().err


def test_settings_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", saved(tmp_path, []), "--config", str(tmp_path / "none")]) == 2
    assert "none: cannot be read" in capsys.readouterr().err


def test_a_folder_is_read_by_name_and_standard_input_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, [gpus("second", 50)], "b.json")
    saved(tmp_path, [gpus("first", 50)], "a.json")
    (tmp_path / "notes.txt").write_text("kind: [")
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps({"kind": "List", "items": machine()}).encode()))
    )
    pods = listed(capsys, "-f", str(tmp_path), "-")
    assert list(pods) == ["first", "second"]
    assert pods["first"]["spec"]["nodeName"] == "node-1"


def test_a_typed_list_names_no_kinds(tmp_path: Path) -> None:
    item = {key: value for key, value in node().items() if key not in {"kind", "apiVersion"}}
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": [item]}))
    assert [(obj["kind"], obj["apiVersion"]) for obj in read([str(path)]).nodes] == [("Node", "v1")]


def test_other_kinds_are_left_out_and_reported_but_for_the_ledger(tmp_path: Path) -> None:
    topology = {"kind": "NodeResourceTopology", "metadata": {"name": "node-1"}}
    ledger = {"kind": "NodeAllocation", "metadata": {"name": "node-1"}}
    other = {"kind": "ConfigMap", "metadata": {"name": "a"}}
    objects = read([saved(tmp_path, [topology, ledger, other, device()])])
    assert [obj["apiVersion"] for obj in objects.topologies] == ["topology.node.k8s.io/v1alpha1"]
    assert [obj["kind"] for obj in objects.cluster] == ["Device", "NodeResourceTopology"]
    assert [note.rpartition(": ")[2] for note in objects.notes] == ["ConfigMap a is not used"]


def test_files_of_programs_need_no_name_and_are_left_out(tmp_path: Path) -> None:
    of_kustomize = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["a.yaml"]}
    of_scheduler = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    told = [note.partition("item ")[2] for note in read([saved(tmp_path, [of_kustomize, of_scheduler])]).notes]
    assert told == [
        "1: Kustomization is not used; for what it changes, give the output of `kubectl kustomize`",
        "2: KubeSchedulerConfiguration is not used",
    ]
    for wrong in (
        {"kind": "Podd", "apiVersion": "v1"},
        {"kind": "Pod"},
        {"kind": "Deployment", "apiVersion": "apps/v1"},
    ):
        with pytest.raises(InputError, match=r"did you mean|no metadata\.name|no Pod spec"):
            read([saved(tmp_path, [wrong])])


def test_yaml_is_read_as_kubernetes_reads_it(tmp_path: Path) -> None:
    """An unquoted time is text, 12:30 is no number in base 60, an alias is a copy, an empty document is nothing."""
    path = tmp_path / "pod.yaml"
    path.write_text(
        "---\n---\nkind: Pod\nmetadata:\n  name: a\n  creationTimestamp: 2026-01-01T00:00:00Z\n"
        "  annotations: &shared {at: 12:30}\n  labels: *shared\n"
        "spec:\n  containers:\n  - name: a\n    resources: {requests: {cpu: 1, memory: 1e3, other: 0.5}}\n"
    )
    pod = read([str(path)]).pods[0]
    assert pod["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert pod["metadata"]["labels"] == {"at": "12:30"}
    assert pod["metadata"]["labels"] is not pod["metadata"]["annotations"]
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": 1, "memory": 1000.0, "other": 0.5}


def test_the_same_name_in_two_namespaces_is_two_pods(tmp_path: Path) -> None:
    pods = [gpus("a", 50), gpus("a", 50, namespace="other")]
    assert len(read([saved(tmp_path, pods)]).pods) == 2
    with pytest.raises(InputError, match=r"Pod default/a is already in .*objects.json, document 1, item 1"):
        read([saved(tmp_path, [pods[0], pods[0]])])


def test_an_alias_of_what_contains_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text("&a {kind: Node, metadata: {name: a}, itself: *a}")
    with pytest.raises(InputError, match="the alias 'a' names nothing before it"):
        read([str(path)])


def test_many_objects_of_a_kind_that_is_not_used_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps = [{"kind": "ConfigMap", "metadata": {"name": f"map-{at}"}} for at in range(9)]
    assert main(["simulate", "-f", saved(tmp_path, [*maps, *machine(), gpus("p", 50)])]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == [
        "ConfigMap map-0 is not used",
        "ConfigMap map-1 is not used",
        "ConfigMap map-2 is not used",
        "6 more objects of kind ConfigMap are not used",
    ]


def of_kind(kind: str, name: str = "a", version: str = "v1", **fields: object) -> dict[str, object]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def noted(folder: Path, *objects: object) -> list[str]:
    """The notes about these objects, without the file."""
    path = saved(folder, [json.loads(json.dumps(one)) for one in objects])
    return [note.removeprefix(f"{path}, document 1, ") for note in read([path]).notes]


def test_what_koordgate_and_its_snapshots_write_is_left_out_without_a_note(tmp_path: Path) -> None:
    silent = [of_kind(kind) for kind in ("NodeAllocation", "Event", "MutatingWebhookConfiguration")]
    silent += [of_kind("ConfigMap", name) for name in ("koordgate", "koordgate-snapshot")]
    others = [of_kind(*one) for one in (("ConfigMap", "x"), ("Binding", "koordgate"), ("Service", "koordgate"))]
    assert noted(tmp_path, *silent, *others) == [
        "item 6: ConfigMap x is not used",
        "item 7: Binding koordgate is not used",
        "item 8: Service koordgate is not used",
    ]


def test_groups_of_other_schedulers_are_left_out_with_their_version(tmp_path: Path) -> None:
    read_ = ["scheduling.sigs.k8s.io/v1alpha1", "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1alpha2"]
    groups = [of_kind("PodGroup", f"g{at}", version) for at, version in enumerate(read_)]
    other = of_kind("PodGroup", "v", "scheduling.volcano.sh/v1beta1")
    path = saved(tmp_path, [*groups, of_kind("ResourceQuota", version="v1"), other])
    found = read([path])
    assert [one["metadata"]["name"] for one in found.groups] == ["g0", "g1", "g2"]
    assert found.notes == [
        f"{path}, document 1, item 5: PodGroup v of scheduling.volcano.sh/v1beta1 is not used",
    ]


POD_SPEC: dict[str, Any] = {
    "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
}


def test_pods_and_what_creates_them_are_the_sources(tmp_path: Path) -> None:
    quota = of_kind("ResourceQuota", "q")
    deployment = of_kind("Deployment", "d", "apps/v1", spec={"selector": {"matchLabels": {"app": "a"}}, **POD_SPEC})
    revision = of_kind("ControllerRevision", "r", "apps/v1", data={"spec": POD_SPEC})
    rays = [of_kind("RayCluster", "x", f"ray.io/{version}", spec=POD_SPEC) for version in ("v1", "v1alpha1")]
    path = saved(tmp_path, [node(), deployment, quota, gpus("p", 50), revision, *rays, of_kind("Secret", "s")])
    found = read([path])
    assert [(one.kind, one.object["metadata"]["name"]) for one in found.sources] == [
        ("Deployment", "d"),
        ("Pod", "p"),
        ("RayCluster", "x"),
        ("RayCluster", "x"),
    ]
    assert found.sources[1].where == f"{path}, document 1, item 4"
    assert found.sources[1].object is found.pods[0]
    assert [note.rpartition(": ")[2] for note in found.notes] == [
        "ControllerRevision r is not used",
        "Secret s is not used",
    ]


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (
            {**of_kind("Node"), "metadata": {"name": "a", "namespace": "x"}},
            {**of_kind("Node"), "metadata": {"name": "a", "namespace": "y"}},
            "Node a",
        ),
        (
            of_kind("LimitRange"),
            {**of_kind("LimitRange"), "metadata": {"name": "a", "namespace": "default"}},
            "LimitRange default/a",
        ),
        (
            of_kind("PodTemplate", **POD_SPEC),
            {**of_kind("PodTemplate", version="v1", **POD_SPEC), "metadata": {"name": "a", "namespace": "default"}},
            "PodTemplate default/a",
        ),
    ],
)
def test_an_object_that_is_there_twice_is_refused(
    first: dict[str, object], second: dict[str, object], named: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, [first, second])
    with pytest.raises(InputError) as raised:
        read([path])
    where = f"{path}, document 1, item"
    assert str(raised.value) == f"{where} 2: {named} is already in {where} 1; remove or rename one of them"
