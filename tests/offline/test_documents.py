"""Files as people have them: which bytes are read as which objects, and what is said of the others."""

import gzip
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from koordgate.cli import main
from webhook.offline import documents as documents_module
from webhook.offline.documents import InputError, read_documents
from webhook.offline.yamltext import _Loader, load_all

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
    monkeypatch.setattr(documents_module, "_MOST_VALUES", 0)
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
    monkeypatch.setattr("webhook.offline.documents._MOST_BYTES", 100)
    path = tmp_path / "file.yaml"
    path.write_bytes(b"#: 1\n" * 20)
    assert documents(path) == []
    path.write_bytes(b"#: 1\n" * 21)
    with pytest.raises(InputError, match="has more than 100 bytes; give fewer objects, or several files"):
        documents(path)


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
