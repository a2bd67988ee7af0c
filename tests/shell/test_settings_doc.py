"""docs/settings.md names every key with its default."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordgate.settings import CertificateFiles, OwnType, Pool, Settings, parse

TEXT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
ROWS = {
    cells[1].strip().strip("`"): cells[2].strip()
    for cells in (line.split("|") for line in TEXT.splitlines() if line.startswith("| `"))
}
EXAMPLES = [part.split("\n```")[0] for part in TEXT.split("```yaml\n")[1:]]


def keys(made: msgspec.Struct, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(made):
        value = getattr(made, field.name)
        here = f"{path}{field.encode_name}"
        found |= keys(value, f"{here}.") if isinstance(value, msgspec.Struct) else {here: value}
    return found


DEFAULTS = keys(Settings())
# Of structures that there are none of by default.
INNER = {
    f"{path}.{field.encode_name}": field
    for path, struct in (
        ("certificate.files", CertificateFiles),
        ("devices.types[]", OwnType),
        ("devices.types[].pools[]", Pool),
    )
    for field in msgspec.structs.fields(struct)
}


@pytest.mark.parametrize("key", DEFAULTS)
def test_each_key_stands_there_with_its_default(key: str) -> None:
    default = DEFAULTS[key]
    told = yaml.safe_load(ROWS[key].strip("`"))
    assert (tuple(told) if isinstance(told, list) else told) == default


def test_no_key_stands_there_that_does_not_exist() -> None:
    assert set(ROWS) == set(DEFAULTS) | set(INNER)


@pytest.mark.parametrize("key", INNER)
def test_each_inner_key_stands_there_with_its_default(key: str) -> None:
    field = INNER[key]
    if field.required:
        assert ROWS[key].startswith("must be given")
        return
    told = yaml.safe_load(ROWS[key].strip("`"))
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    assert (tuple(told) if isinstance(told, list) else told) == default


def test_the_whole_example_is_all_defaults() -> None:
    assert parse(EXAMPLES[0]) == Settings()
    told = {key for key in DEFAULTS if re.search(rf"^ *{key.rpartition('.')[2]}:", EXAMPLES[0], re.MULTILINE)}
    assert told == set(DEFAULTS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_right(example: str) -> None:
    parse(example)
