"""Files as people have them: which bytes are read as which objects, and what is said of the others."""

import gzip
import json
import math
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from console.simulator.documents import InputError, load_all, read_documents
from koordgate.cli import main

POD: Final = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}}
OTHER: Final = {**POD, "metadata": {"name": "b"}}
PLAIN: Final = yaml.safe_dump(POD, sort_keys=False)
BOTH: Final = f"{PLAIN}---\n{yaml.safe_dump(OTHER)}"

SAME: dict[str, tuple[bytes, list[object]]] = {
    "YAML": (BOTH.encode(), [POD, OTHER]),
    "a mark of UTF-8": (b"\xef\xbb\xbf" + BOTH.encode(), [POD, OTHER]),
    "UTF-16 as PowerShell writes it": (b"\xff\xfe" + BOTH.encode("utf-16-le"), [POD, OTHER]),
    "UTF-16 the other way": (b"\xfe\xff" + BOTH.encode("utf-16-be"), [POD, OTHER]),
    "Windows' line ends": (BOTH.replace("\n", "\r\n").encode(), [POD, OTHER]),
    "empty documents and comments": (f"---\n# Source: x\n---\n{PLAIN}---\n---\n".encode(), [None, POD, None, None]),
    "JSON": (json.dumps(POD, indent=2).encode(), [POD]),
    "JSON with a mark": (b"\xef\xbb\xbf" + json.dumps(POD).encode(), [POD]),
    "JSON lines": (f"{json.dumps(POD)}\n\n{json.dumps(OTHER)}\n".encode(), [POD, OTHER]),
    "JSON values one after the other": (
        f"{json.dumps(POD, indent=1)}\n{json.dumps(OTHER, indent=1)}".encode(),
        [POD, OTHER],
    ),
    "JSON documents in YAML": (f"{json.dumps(POD)}\n---\n{json.dumps(OTHER)}".encode(), [POD, OTHER]),
    "YAML in braces": (b"{kind: Pod, metadata: {name: a}}", [{"kind": "Pod", "metadata": {"name": "a"}}]),
    "anchors and merge keys": (
        b"x: &x {a: 1, b: [1, 2]}\ny: *x\nz: {<<: *x, a: 3}\n",
        [{"x": {"a": 1, "b": [1, 2]}, "y": {"a": 1, "b": [1, 2]}, "z": {"a": 3, "b": [1, 2]}}],
    ),
    "an anchor in the second document": (b"a: 1\n---\nb: &b [1]\nc: *b\n", [{"a": 1}, {"b": [1], "c": [1]}]),
    "a tag": (b"a: !!str 12\n", [{"a": "12"}]),
    "scalars": (
        b'a: 1\nb: 010\nc: 0x1F\nd: "1"\ne: 12:30\nf: 2024-01-01\ng: yes\nh: 1e3\ni: ~\nj: -.5\nk: |\n  12\n',
        [
            {
                "a": 1,
                "b": 8,
                "c": 31,
                "d": "1",
                "e": "12:30",
                "f": "2024-01-01",
                "g": True,
                "h": 1000.0,
                "i": None,
                "j": -0.5,
                "k": "12\n",
            }
        ],
    ),
    "keys that are numbers": (b"1: a\nfalse: b\n", [{"1": "a", "false": "b"}]),
}
WRONG: dict[str, tuple[bytes, str]] = {
    "a template": (
        b"spec:\n  replicas: {{ .Values.replicas }}\n",
        "it looks like a template: give what `helm template`",
    ),
    "tabs": (b"a:\n\tb: 1\n", "it has tabs, and YAML is indented by spaces"),
    "no text": (b"\x80\x81\x82", "is not UTF-8 text"),
    "half a gzip file": (b"", "is not a whole gzip file"),
    "a cut": (b"a: [1, 2\nb: 3\n", "document 1: not YAML; correct it"),
    "a wrong second document": (b"a: 1\n---\nb: [\n", "document 2: not YAML; correct it"),
    "too deep": (b"a: 1\n---\n" + b"[" * 5000, "document 2: cannot be written as JSON (more than 250 levels"),
    "a number of 5,000 digits": (b"a: " + b"9" * 5000, "cannot be written as JSON"),
    "aliases that multiply": (
        b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n".encode() for n in range(1, 9)),
        "its aliases make it too large",
    ),
}


def documents(path: Path) -> list[object]:
    return [document for _, document in read_documents(str(path))]


@pytest.mark.parametrize("name", SAME)
def test_what_people_have_is_read(name: str, tmp_path: Path) -> None:
    body, expected = SAME[name]
    path = tmp_path / "file.yaml"
    path.write_bytes(body)
    assert documents(path) == expected


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_gets_an_answer(name: str, tmp_path: Path) -> None:
    body, said = WRONG[name]
    path = tmp_path / ("file.gz" if "gzip" in name else "file.yaml")
    path.write_bytes(gzip.compress(b"a: 1\n" * 100)[:-6] if "gzip" in name else body)
    with pytest.raises(InputError) as caught:
        documents(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"a": [1, {"b": "---"}]}\n', [{"a": [1, {"b": "---"}]}], id="one"),
        pytest.param(b'{"a": 1}\n{"b":\n2}\n', [{"a": 1}, {"b": 2}], id="several, as jq prints them"),
        pytest.param(b'{"a": 1}\n---\n{"b":\n2}\n--- \n', [{"a": 1}, {"b": 2}], id="with lines between them"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_a_file_named_json_may_have_several_values(body: bytes, expected: list[object], tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(body)
    assert documents(path) == expected


@pytest.mark.parametrize("name", ["file.json", "file.json.gz"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"a": 1,\n "b": [1,]}\n', ": not JSON (line 2, column 10: ", id="a comma in a list"),
        pytest.param(b'{"a": 1,\n "b": 2,}\n', "line 2, column 9: Expecting property name", id="a comma"),
        pytest.param(b'{"a": 1}\n---\n{"b": x}\n', "line 3, column 7: Expecting value", id="in the second value"),
        pytest.param(
            b"a: 1\n",
            "not JSON (line 1, column 1: Expecting value); correct it; if it is YAML, name it .yaml",
            id="YAML",
        ),
        pytest.param(b'{"a": NaN}', "not JSON; correct it: NaN is no number in JSON", id="no number"),
        pytest.param(b"[" * 100000, "not JSON; correct it", id="too deep"),
    ],
)
def test_a_file_named_json_must_be_json(name: str, body: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(body) if name.endswith("gz") else body)
    with pytest.raises(InputError) as caught:
        documents(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        documents(path)
    return str(caught.value).removeprefix(str(path))


def test_what_a_gzip_file_unpacks_to_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.simulator.documents._MAX_BYTES", 100)
    path = tmp_path / "file.yaml.gz"
    path.write_bytes(gzip.compress(b"#: 1\n" * 21))
    assert refused(path) == ": has more than 100 bytes when it is unpacked; give fewer objects, or several files"
    plain = tmp_path / "file.yaml"
    plain.write_bytes(b"#: 1\n" * 21)
    assert refused(plain) == ": has more than 100 bytes; give fewer objects, or several files"


def test_a_million_values_are_read_where_aliases_share_them_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    shared = f"a: &a [{', '.join('1' * 3936)}]\nb: [{', '.join(['*a'] * 253)}]\n"  # 1 + 3937 + (1 + 253 * 3937) values
    path.write_text(shared)
    (found,) = documents(path)
    assert isinstance(found, dict)
    assert (len(found["a"]), len(found["b"])) == (3936, 253)
    path.write_text(f"{shared}c: 1\n")
    assert refused(path) == ", document 1: its aliases make it too large; write less with aliases"


@pytest.mark.parametrize("name", ["+a", "objects", "-a.yaml", "a.GZ"])
def test_a_file_of_any_other_name_is_read_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(PLAIN)
    assert list(read_documents(name)) == [(f"{name}, document 1", POD)]


def test_the_files_of_a_folder_are_read_by_name_and_others_left(tmp_path: Path) -> None:
    for name in ("b.yml", "a.json", "c.yaml"):
        (tmp_path / name).write_text(json.dumps({"name": name}))
    (tmp_path / "d.txt").write_text("[")
    (tmp_path / "e.yaml").mkdir()
    assert documents(tmp_path) == [{"name": name} for name in ("a.json", "b.yml", "c.yaml")]
    assert refused(tmp_path / "e.yaml") == (
        ": no .yaml, .yml, .json file in this folder; give one with Kubernetes objects"
    )


SCALARS: dict[str, object] = {
    "0": 0,
    "-0": 0,
    "+0": 0,
    "00": 0,
    "7": 7,
    "-7": -7,
    "+7": 7,
    "010": 8,
    "-010": -8,
    "08": "08",
    "0x1f": 31,
    "-0x1F": -31,
    "0X1f": "0X1f",
    "10": 10,
    "1_0": "1_0",
    "1.5": 1.5,
    "-.5": -0.5,
    "+1.": 1.0,
    "1e3": 1000.0,
    "1E-3": 0.001,
    "1.5e+3": 1500.0,
    ".": ".",
    "-": "-",
    "e3": "e3",
    "1e": "1e",
    ".inf": math.inf,
    "12:30": "12:30",
    "2024-01-01": "2024-01-01",
    "~": None,
    "null": None,
    "NULL": None,
    "nULL": "nULL",
    "yes": True,
    "Off": False,
    "ON": True,
    "oN": "oN",
    "y": "y",
    "a": "a",
    "'7'": "7",
    '"~"': "~",
    "'<<'": "<<",
}


@pytest.mark.parametrize("text", [text for text in SCALARS if text not in {".inf", "-"}])
def test_a_scalar_is_read_as_kubernetes_reads_it(text: str) -> None:
    expected = SCALARS[text]
    for around, made in ((f"a: {text}\n", {"a": expected}), (f"- &x {text}\n", [expected]), (f"{text}\n", expected)):
        (found,) = load_all(around)
        assert (found, type(found)) == (made, type(made))
    assert list(load_all(f"{text}: 1\n")) == [{expected: 1}]


UNUSUAL: dict[str, tuple[str, object]] = {
    "nothing": ("a:\n", {"a": None}),
    "an anchor of a scalar": ("a: &x 1\nb: *x\n", {"a": 1, "b": 1}),
    "an alias in a list": ("- &x {a: 1}\n- *x\n", [{"a": 1}, {"a": 1}]),
    "an alias as a key": ("&x a: 1\nb: {*x : 2}\n", {"a": 1, "b": {"a": 2}}),
    "an anchor that is set again": ("[&x 1, *x, &x 2, *x]", [1, 1, 2, 2]),
    "tags of JSON": ("!!map {a: !!seq [!!str 1, ! 2, !!int '3', !!bool 'no']}\n", {"a": ["1", "2", 3, False]}),
    "a merge key": ("b: 2\n<<: {a: 1, b: 3}\n", {"a": 1, "b": 2}),
    "merge keys": ("<<: [{a: 1}, {a: 2, b: 3}]\n", {"a": 1, "b": 3}),
}


@pytest.mark.parametrize(("text", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_anchors_tags_and_merge_keys_are_read(text: str, expected: object) -> None:
    assert next(load_all(text)) == expected


@pytest.mark.parametrize(
    "text", ["a: [1\n", "? {a: 1}\n: 2\n", "a: *x\n", "&a [*a]", "!!set {a}", "a: !Ref b", "<<: 1", "{a: 1, a: 2}"]
)
def test_what_is_no_object_of_kubernetes_is_an_error_of_yaml_after_what_is_before_it(text: str) -> None:
    documents = load_all(f"a: 1\n---\n{text}")
    assert next(documents) == {"a": 1}
    with pytest.raises(yaml.YAMLError):
        next(documents)


@pytest.mark.parametrize(("levels", "fits"), [(250, True), (251, False)])
def test_250_levels_are_the_most_that_are_read(levels: int, *, fits: bool) -> None:
    for text in (f"{'[' * levels}{']' * levels}", "- " * levels + "a", "{a: " * levels + "}" * levels):
        if fits:
            assert len(list(load_all(text))) == 1
        else:
            with pytest.raises(RecursionError, match="more than 250 levels of nesting"):
                list(load_all(text))


TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12)  # PyYAML writes no other line ends
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), TEXTS, st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(200))
@given(VALUES, st.booleans())
def test_what_pyyaml_writes_is_read_as_it_was(value: Any, flow: bool) -> None:  # noqa: FBT001 hypothesis' argument
    # Plain, PyYAML writes texts that Kubernetes reads as numbers.
    text = yaml.safe_dump(value, default_flow_style=flow, default_style='"', allow_unicode=True)
    if "inf" not in text:  # JSON has no such number
        assert list(load_all(text)) == [value]


def test_output_of_kubectl_with_managed_fields_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {'k:{"name":"c"}': {".": {}}}}}]
    metadata = {"name": "a", "managedFields": fields, "creationTimestamp": "2026-01-01T00:00:00Z", "selfLink": ""}
    pod = {**POD, "metadata": metadata, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    made = {"apiVersion": "v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x.example.org"}, "spec": {}}
    path = tmp_path / "all.yaml"
    listed = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [pod, made]}
    path.write_text(yaml.safe_dump(listed))
    assert main(["simulate", "-f", str(path)]) == 0
    captured = capsys.readouterr()
    assert "CustomResourceDefinition x.example.org is not used" in captured.err
    assert "there is no Node" in captured.out
