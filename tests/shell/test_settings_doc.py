"""docs/reference/settings.md names every key of both commands with its default."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordgate import settings
from reporter import settings as reporter
from webhook import settings as webhook
from webhook.settings import DialectSettings

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
WEBHOOK, REPORTER = TEXT.split("\n## The node reporter's settings\n")


def keys(made: msgspec.Struct, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(made):
        value = getattr(made, field.name)
        here = f"{path}{field.encode_name}"
        found |= keys(value, f"{here}.") if isinstance(value, msgspec.Struct) else {here: value}
    return found


@dataclass(frozen=True)
class Document:
    """A part of the page and the settings that it describes; `inner` are structures that are absent by default."""

    name: str
    text: str
    defaults: msgspec.Struct
    parse: Callable[[str], msgspec.Struct]
    inner: Mapping[str, type[msgspec.Struct]]

    @property
    def rows(self) -> dict[str, str]:
        """Key to the cell of its default, from tables of settings."""
        found: dict[str, str] = {}
        inside = False
        for line in self.text.splitlines():
            inside = line.startswith("|") and (inside or line.startswith("| key |"))
            if inside and line.startswith("| `"):
                cells = line.split("|")
                found[cells[1].strip().strip("`")] = cells[2].strip()
        return found

    @property
    def inner_keys(self) -> dict[str, msgspec.structs.FieldInfo]:
        fields = ((path, field) for path, struct in self.inner.items() for field in msgspec.structs.fields(struct))
        return {f"{path}.{field.encode_name}": field for path, field in fields}

    @property
    def examples(self) -> list[str]:
        return [part.split("\n```")[0] for part in self.text.split("```yaml\n")[1:]]


DOCUMENTS = (
    Document(
        "webhook",
        WEBHOOK,
        webhook.WebhookSettings(),
        webhook.parse,
        {
            "certificate.files": webhook.CertificateFiles,
            "devices.types[]": settings.OwnType,
            "devices.types[].pools[]": settings.DevicePool,
            "devices.types[].amounts[]": settings.OwnAmount,
            "devices.types[].templates[]": settings.OwnTemplate,
            "devices.types[].boards[]": settings.OwnBoard,
            "dialects.NAME": DialectSettings,
        },
    ),
    Document("reporter", REPORTER, reporter.ReporterSettings(), reporter.parse, {"devices.pci[]": reporter.PciType}),
)
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.name)


def of_each(what: Callable[[Document], Any]) -> Any:
    cases = [(document, one) for document in DOCUMENTS for one in what(document)]
    ids = [f"{document.name} {str(one)[:40]!r}" for document, one in cases]
    return pytest.mark.parametrize(("document", "one"), cases, ids=ids)


def told(cell: str) -> Any:
    value = yaml.safe_load(cell.strip("`"))
    return tuple(value) if isinstance(value, list) else value


@of_each(lambda document: keys(document.defaults))
def test_each_key_stands_there_with_its_default(document: Document, one: str) -> None:
    assert told(document.rows[one]) == keys(document.defaults)[one]


@EACH
def test_no_key_stands_there_that_does_not_exist(document: Document) -> None:
    assert set(document.rows) == {*keys(document.defaults), *document.inner_keys}


@of_each(lambda document: document.inner_keys)
def test_each_inner_key_stands_there_with_its_default(document: Document, one: str) -> None:
    field, cell = document.inner_keys[one], document.rows[one]
    if field.required:
        assert cell.startswith("must be given")
        return
    assert told(cell) == (field.default_factory() if field.default is msgspec.NODEFAULT else field.default)


@of_each(lambda document: document.examples)
def test_each_example_is_right(document: Document, one: str) -> None:
    document.parse(one)
