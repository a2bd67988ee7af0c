"""YAML as Kubernetes reads it, scalar by scalar, and which documents PyYAML composes."""

import math

import pytest
import yaml

from console.simulator.documents import load_all

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
    for around, made in ((f"a: {text}\n", {"a": expected}), (f"- {text}\n", [expected]), (f"{text}\n", expected)):
        ((found, shared),) = load_all(around)
        assert (found, type(found), shared) == (made, type(made), False)
    (only,) = [found for found, _ in load_all(f"{text}: 1\n")]
    assert only == {expected: 1}


def test_a_plain_document_shares_nothing_and_from_the_first_unusual_one_on_all_may_share() -> None:
    assert list(load_all("a: 1\n---\n- b\n---\n---\nc\n")) == [
        ({"a": 1}, False),
        (["b"], False),
        (None, False),
        ("c", False),
    ]
    text = "a: 1\n---\nb: 2\n---\nc: &x [1]\nd: *x\n---\ne: 3\n"
    assert list(load_all(text)) == [
        ({"a": 1}, False),
        ({"b": 2}, False),
        ({"c": [1], "d": [1]}, True),
        ({"e": 3}, True),
    ]
    assert list(load_all("")) == list(load_all("# nothing\n")) == []


def test_scalars_beside_an_anchor_are_read_alike() -> None:
    plain = [text for text in SCALARS if text not in {".inf", "-"}]
    text = "".join(["a: &x 1\n", *(f"k{at}: {one}\n" for at, one in enumerate(plain))])
    ((found, shared),) = load_all(text)
    assert isinstance(found, dict)
    assert shared
    values = [found[f"k{at}"] for at in range(len(plain))]
    assert list(zip(values, map(type, values), strict=True)) == [(SCALARS[one], type(SCALARS[one])) for one in plain]


UNUSUAL: dict[str, tuple[str, object]] = {
    "an anchor of a list": ("a: &x [1]\n", {"a": [1]}),
    "an anchor of a mapping": ("&x {a: 1}\n", {"a": 1}),
    "an anchor of a scalar": ("a: &x 1\n", {"a": 1}),
    "an alias in a list": ("- &x {a: 1}\n- *x\n", [{"a": 1}, {"a": 1}]),
    "an alias as a value": ("a: &x 1\nb: *x\n", {"a": 1, "b": 1}),
    "a tag of a list": ("a: !!seq [1]\n", {"a": [1]}),
    "a tag of a mapping": ("!!map {a: 1}\n", {"a": 1}),
    "a tag of a scalar": ("a: !!str 1\n", {"a": "1"}),
    "a tag of a quoted text": ("a: !!int '1'\n", {"a": 1}),
    "a merge key": ("<<: {a: 1}\nb: 2\n", {"a": 1, "b": 2}),
}


@pytest.mark.parametrize(("text", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_what_only_pyyaml_composes_may_share(text: str, expected: object) -> None:
    assert list(load_all(text)) == [(expected, True)]
    assert list(load_all(f"{text}---\n{text}")) == [(expected, True)] * 2


@pytest.mark.parametrize("text", ["a: [1\n", "? {a: 1}\n: 2\n", "a: =\n", "a: *x\n"])
def test_what_is_no_object_of_kubernetes_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        list(load_all(text))


def test_documents_before_a_wrong_one_are_given_first() -> None:
    documents = load_all("a: 1\n---\nb: [\n")
    assert next(documents) == ({"a": 1}, False)
    with pytest.raises(yaml.YAMLError):
        next(documents)
