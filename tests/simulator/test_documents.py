"""Files as people have them: which bytes are read as which objects, and what is said of the others."""

import gzip
import io
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from console.simulator import documents as documents_module
from console.simulator.documents import InputError, _Loader, load_all, read_documents
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
    "too deep": (b"[" * 5000 + b"]" * 5000, "cannot be written as JSON"),
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


def test_as_many_values_as_characters_are_read_where_aliases_share_them_and_no_more(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(documents_module, "_MAX_VALUES", 0)
    text = f"a: &a [1, [2], 3]\nb: [{', '.join(['*a'] * 40)}]\n"  # 1 + 5 + (1 + 40 * 5) values
    path = tmp_path / "file.yaml"
    path.write_text(text + "#" * (207 - len(text)))
    assert documents(path) == [{"a": [1, [2], 3], "b": [[1, [2], 3]] * 40}]
    path.write_text(text + "#" * (206 - len(text)))
    with pytest.raises(InputError, match="its aliases make it too large"):
        documents(path)


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
        pytest.param(b'{"a": 1,\n "b": [1,]}\n', ": not JSON; correct it, or name", id="a comma in a list"),
        pytest.param(b'{"a": 1,\n "b": 2,}\n', "line 2, column 9: Expecting property name", id="a comma"),
        pytest.param(b'{"a": 1}\n---\n{"b": x}\n', "line 3, column 7: Expecting value", id="in the second value"),
        pytest.param(b"a: 1\n", "name a file of YAML .yaml: line 1, column 1: Expecting value", id="YAML"),
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


def test_a_file_beyond_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.simulator.documents._MAX_BYTES", 100)
    path = tmp_path / "file.yaml"
    path.write_bytes(b"#: 1\n" * 20)
    assert documents(path) == []
    path.write_bytes(b"#: 1\n" * 21)
    with pytest.raises(InputError, match="has more than 100 bytes; give fewer objects, or several files"):
        documents(path)


class Recorded(io.BytesIO):
    """Standard input that notes how many bytes are asked for."""

    asked: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked = size
        return super().read(size)


def test_one_byte_more_than_a_gibibyte_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = Recorded(b"a: 1\n---\nb: 2\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given_))
    assert list(read_documents("-")) == [
        ("standard input, document 1", {"a": 1}),
        ("standard input, document 2", {"b": 2}),
    ]
    assert given_.asked == 1_073_741_825


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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("a: 1\n", ": cannot be read (Not a gzipped file (b'a:')); give a file of Kubernetes objects"),
        (
            gzip.compress(b"a: 1\n" * 1000)[:-4],
            (
                ": is not a whole gzip file (Compressed file ended before the end-of-stream marker was reached); write "
                "or copy it again"
            ),
        ),
        (
            gzip.compress(b"a: 1\n" * 1000)[:30] + b"x" * 90,
            ": is not a whole gzip file (Error -3 while decompressing data: ",
        ),
    ],
    ids=["no gzip", "a part", "another part"],
)
def test_a_gzip_file_that_cannot_be_unpacked_is_told(body: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(body.encode() if isinstance(body, str) else body)
    assert refused(path).startswith(said)


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


def test_each_value_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ('{"a": 1}\n{"a": 2}', '{"a":\n1}  {"a": 2}\n \n'):
        path.write_text(text)
        assert list(read_documents(str(path))) == [
            (f"{path}, document 1", {"a": 1}),
            (f"{path}, document 2", {"a": 2}),
        ]


DEEP = f"&x {'[' * 900}1{']' * 900}"
ODD: dict[str, tuple[str, str]] = {
    "no YAML": ("a: [\n", ", document 1: not YAML; correct it: while parsing a flow node did not find expected node"),
    "no YAML in the third": ("a: 1\n---\n---\na: [\n", ", document 3: not YAML; correct it: while parsing a flow node"),
    "a number": (
        f"a: 1\n---\na: {'9' * 5000}",
        ", document 2: cannot be written as JSON (Exceeds the limit (4300 digits) for integer string conversion: ",
    ),
    "a set": ("a: 1\n---\n!!set {a}", ", document 2: cannot be written as JSON (Type is not JSON serializable: set)"),
    "a nest": (f"a: 1\n---\n{'[' * 5000}", ", document 2: cannot be written as JSON (maximum recursion depth exceeded"),
    "a nest with an anchor": (f"a: 1\n---\n{DEEP}", ", document 2: cannot be written as JSON (maximum recursion depth"),
    "a nest of keys": (
        "{" * 100_000,
        ", document 1: cannot be written as JSON (more than 1000 levels of nesting); correct",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_the_document_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    text, said = ODD[name]
    path = tmp_path / "file.yaml"
    path.write_text(text)
    assert refused(path)[: len(said)] == said


@pytest.mark.parametrize(("levels", "fits"), [(1000, True), (1001, False)])
def test_a_thousand_levels_are_the_most_that_are_composed(levels: int, *, fits: bool) -> None:
    text = f"a: 1\n---\n&x {'[' * levels}{']' * levels}\n---\n&x {'[' * 9}{']' * 9}"
    if fits:
        assert [shares for _, shares in load_all(text)] == [False, True, True]
        return
    with pytest.raises(RecursionError, match="more than 1000 levels of nesting"):
        list(load_all(text))


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), st.text(max_size=12), st.floats(allow_nan=False)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(200))
@given(VALUES, st.booleans())
def test_events_and_pyyaml_give_the_same_objects(value: Any, flow: bool) -> None:  # noqa: FBT001 hypothesis' argument
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    assert [made for made, _ in load_all(text)] == list(yaml.load_all(text, _Loader))


@settings(max_examples=examples(300))
@given(st.text(alphabet="0123456789+-.eExX_:~yntruefalsoNULL<=", max_size=8))
def test_a_plain_scalar_is_what_pyyaml_makes_of_it(text: str) -> None:
    try:
        expected = list(yaml.load_all(f"a: {text}\n", _Loader))
    except (yaml.YAMLError, ValueError):
        return
    assert [made for made, _ in load_all(f"a: {text}\n")] == expected


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
