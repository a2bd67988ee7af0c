"""The site: its navigation has every page, and pages are changed for it as they must be; the build is `make docs`."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


pages = module("sitepages")
refusals = module("refusals")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the objects that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, suffix, _node: suffix)


def configuration() -> dict[str, object]:
    read: dict[str, object] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    return read


def navigation() -> list[str]:
    sections = configuration()["nav"]
    assert isinstance(sections, list)
    return [
        page for section in sections for entries in section.values() for entry in entries for page in entry.values()
    ]


def test_each_page_is_in_the_navigation_once() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} | set(
        pages.ELSEWHERE.values()
    )
    assert len(navigation()) == len(set(navigation()))
    assert set(navigation()) == written


def test_it_is_built_strictly_and_loads_nothing_from_elsewhere() -> None:
    settings = configuration()
    assert settings["strict"] is True
    theme = settings["theme"]
    assert isinstance(theme, dict)
    assert theme["font"] is False
    assert not {"extra_css", "extra_javascript"} & set(settings)
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("source", "written", "made"),
    [
        ("docs/use/a.md", "[b](b.md#x)", "[b](b.md#x)"),
        ("docs/use/a.md", "[b](../reference/limits.md#x)", "[b](../reference/limits.md#x)"),
        ("docs/use/a.md", "[b](../../CHANGELOG.md)", "[b](../changelog.md)"),
        ("docs/use/a.md", "[b](../../charts/koordgate/README.md#values)", "[b](../reference/chart.md#values)"),
        ("docs/reference/a.md", "[b](../../charts/koordgate/README.md)", "[b](chart.md)"),
        ("charts/koordgate/README.md", "[b](../../docs/operate/metrics.md)", "[b](../operate/metrics.md)"),
        ("README.md", "![m](docs/operate/map.png)", "![m](operate/map.png)"),
        ("README.md", "[e](examples/cluster.yaml)", "[e](files/examples/cluster.yaml)"),
        ("docs/use/a.md", "[e](../../examples/cluster.yaml)", "[e](../files/examples/cluster.yaml)"),
        ("docs/use/a.md", "the [examples](../../examples)", "the examples"),
        ("docs/use/a.md", "[b](https://example.com/x.md)", "[b](https://example.com/x.md)"),
        ("docs/use/a.md", "see [two\nwords](../../README.md)", "see [two words](../index.md)"),
        ("docs/use/a.md", "```\n[b](../../README.md)\n```", "```\n[b](../../README.md)\n```"),
    ],
)
def test_links_of_the_tree_become_links_of_the_site(source: str, written: str, made: str) -> None:
    assert pages.relinked(written, source) == made


@pytest.mark.parametrize(
    ("written", "made"),
    [
        pytest.param("- a\n  b\n- c\n", "- a\n    b\n- c\n", id="the rest of an item"),
        pytest.param("- a\n  - b\n    c\n", "- a\n    - b\n        c\n", id="a list in a list"),
        pytest.param("1. a\n\n   b\n\nc\n", "1. a\n\n    b\n\nc\n", id="a paragraph in an item, and one after it"),
        pytest.param(
            "- a\n\n  ```\n  x\n    y\n  ```\n", "- a\n\n    ```\n    x\n      y\n    ```\n", id="a block in an item"
        ),
        pytest.param("```\n- a\n  b\n```\n", "```\n- a\n  b\n```\n", id="a list in a block"),
        pytest.param("> a\n\nb\n", "> a\n\nb\n", id="no list"),
    ],
)
def test_what_is_in_lists_is_indented_by_four(written: str, made: str) -> None:
    assert pages.widened(written) == made


def test_the_page_of_recipes_has_their_files() -> None:
    text = pages.extended("examples/recipes/README.md")
    for file in (ROOT / "examples" / "recipes").glob("*/*.yaml"):
        assert file.read_text() in text


# Refusals


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("created", "... ... is over 100, where only multiples of 100 are whole devices; ask ... or ..."),
        ("created", "... is no QoS class; write one of ..."),
        ("created", "is written by koordgate when the Pod is bound; remove it"),
        ("node", "its CPUs are unknown (no NodeResourceTopology object, or one without a CPU topology)"),
        ("node", "no ... known here (no Device object, or none in it)"),
        ("bound", "Pod ... is not bound: ..."),
        ("claim", "devices of ... were reserved for it by attempts that were not performed"),
    ],
)
def test_refusals_are_found_in_the_sources(part: str, text: str) -> None:
    assert text in refusals.texts(part)


def test_no_docstring_counts_as_a_refusal() -> None:
    every = [text for part in refusals.PARTS for text in refusals.texts(part)]
    assert len(every) > 150
    assert [text for text in every if "Args:" in text or re.match(r"[A-Z][a-z]+ [a-z ]+\.$", text)] == []


@pytest.mark.parametrize("part", refusals.PARTS)
def test_each_refusal_says_what_to_do_or_the_page_does(part: str) -> None:
    page = refusals.PAGE.read_text()
    enough = {text for text, told in yaml.safe_load(refusals.REMEDIES.read_text()).items() if told is None}
    silent = [text for text in refusals.texts(part) if not refusals.remedy(text) and text not in enough]
    assert silent
    assert [text for text in silent if f"| `{text}` | " not in page] == []


def test_no_row_of_the_page_only_repeats_its_message() -> None:
    rows = [line for line in refusals.PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [row for row in rows if "as it says" in row.split("` | ")[-1]] == []


def test_a_refusal_without_a_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = tmp_path / "remedies.yaml"
    nothing.write_text('"nobody says this": wait\n')
    monkeypatch.setattr(refusals, "REMEDIES", nothing)
    with pytest.raises(SystemExit, match=r"no remedy for: container \.\.\. is named twice") as told:
        refusals.parts()
    assert "nothing refuses so any more, remove: nobody says this" in str(told.value)
