"""docs/reference/dialects.md names every dialect, its names and units, and its examples are right."""

import re
from pathlib import Path

import pytest

from allocator.quantity import format_bytes
from allocator.request.selection import echo
from allocator.request.unread import FOREIGN
from allocator.vocabulary.dialects import PEERS, Term
from webhook.settings import parse, types_of

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "dialects.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.split("## All names")[1].split("\n## ")[0].splitlines()
    if line.startswith("| `")
]


def unit(term: Term) -> str:
    """How the page words what one unit of a name is, for memory."""
    if term.quantity:
        return "bytes, as `4Gi`"
    if not term.sized:
        return f"`{format_bytes(term.factor)}`"
    return f"`{format_bytes(term.factor)}`, or `memoryUnit`" if term.factor else "`memoryUnit`, which must be set"


@pytest.mark.parametrize("dialect", PEERS, ids=lambda one: one.name)
def test_each_name_of_a_dialect_stands_there_with_its_unit(dialect: object) -> None:
    assert dialect in PEERS
    of = next(one for one in PEERS if one is dialect)
    told = {name: row for row in ROWS if row[0] == f"`{of.name}`" for name in re.findall(r"`([^`]+)`", row[1])}
    assert told.keys() == of.by_name.keys()
    for name, row in told.items():
        term = of.by_name[name]
        assert row[1].startswith("annotation ") is (term not in of.terms)
        if term.states == "gpu-memory":
            assert row[2] == unit(term), name
        assert (row[3].startswith("nothing")) is (not (term.states or term.limits))
        assert row[3].startswith("the limit of memory") is bool(term.limits)
        assert row[3].endswith(" of each") is (term.each or bool(term.limits)), name


@pytest.mark.parametrize("dialect", PEERS, ids=lambda one: one.name)
def test_each_annotation_of_a_dialect_stands_there(dialect: object) -> None:
    of = next(one for one in PEERS if one is dialect)
    for key in (*of.selects.keys, *filter(None, [of.container])):
        assert f"`{key}" in TEXT, key
    for form in of.forms:
        assert form.beginning in TEXT, form
        assert form.end in TEXT, form


def test_each_kind_of_devices_that_only_a_plugin_gives_stands_there() -> None:
    assert [one.name for one in FOREIGN if f"`{one.name}" not in TEXT and not one.name.startswith("huawei.com/A")] == []


def test_the_settings_and_the_annotation_of_the_page_are_right() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    types = types_of(parse(text))
    hami = next(one for one in types.dialects if one.name == "hami")
    assert f"koordgate.io/dialect: {echo([hami])}\n" in TEXT
    assert types.within("training").resources["aliyun.com/gpu-mem"].term.factor == 2**20
