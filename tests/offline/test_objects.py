"""Reading objects, and every way in which input cannot be used: exit status 2, the place, and what to do."""

import io
import json
from pathlib import Path

import pytest
from offline.clusters import device, gpus, listed, machine, node, saved

from koordgate.cli import main
from webhook.offline.documents import InputError
from webhook.offline.objects import read

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
        "document 1: Pod a: Expected array, got object - at spec.containers; the API server would refuse it",
    ),
    "no Kubernetes name": ("kind: Node\nmetadata: {name: A_b}", "Node A_b: Expected str matching regex"),
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


def test_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["simulate", "-f", str(path)]) == 2
    assert "binary.yaml: is not UTF-8 text" in capsys.readouterr().err


def test_a_folder_without_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", str(tmp_path)]) == 2
    assert "no .yaml, .yml, .json file in this folder" in capsys.readouterr().err


def test_an_unknown_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", saved(tmp_path, machine()), "--node", "node-9"]) == 2
    assert "--node node-9: no such Node in the input; there are node-1" in capsys.readouterr().err


def test_settings_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", saved(tmp_path, []), "--config", str(tmp_path / "none")]) == 2
    assert "none: cannot be read" in capsys.readouterr().err


def test_no_file_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate"]) == 2
    assert "give the cluster and the Pods with -f, or a trace with --trace" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("simulate", "demo"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert f"examples:\n  koordgate {command}" in capsys.readouterr().out


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


def test_several_json_documents_are_yaml(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(f"{json.dumps(node('a'))}\n---\n{json.dumps(node('b'))}\n")
    assert len(read([str(path)]).nodes) == 2


def test_the_same_name_in_two_namespaces_is_two_pods(tmp_path: Path) -> None:
    pods = [gpus("a", 50), gpus("a", 50, namespace="other")]
    assert len(read([saved(tmp_path, pods)]).pods) == 2
    with pytest.raises(InputError, match=r"Pod default/a is already in .*objects.json, document 1, item 1"):
        read([saved(tmp_path, [pods[0], pods[0]])])


def multiplied(levels: int) -> str:
    """A document whose last list has 10 to the power of `levels` values, by aliases."""
    lines = ["kind: Node", "metadata: {name: a}", "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(lines)


def test_aliases_that_multiply_are_refused_before_they_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text(multiplied(3))
    assert len(read([str(path)]).nodes) == 1
    path.write_text(f"kind: Node\nmetadata: {{name: b}}\n---\n{multiplied(30)}")
    with pytest.raises(InputError, match="document 2: its aliases make it too large; write less with aliases"):
        read([str(path)])


def test_an_alias_of_what_contains_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text("&a {kind: Node, metadata: {name: a}, itself: *a}")
    with pytest.raises(InputError, match=r"document 1: cannot be written as JSON .*; correct it"):
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
