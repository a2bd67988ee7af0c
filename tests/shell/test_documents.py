"""The documents: line lengths, valid links, defined sources, existing rooms."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120
PACKAGES = ("allocator", "koordgate", "webhook", "reporter")
DOCUMENTS = sorted(
    (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "charts" / "koordgate" / "README.md",
        ROOT / "examples" / "recipes" / "README.md",
    ),
)
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def prose(markdown: str) -> Iterator[str]:
    """The lines outside fenced blocks and tables."""
    fenced = False
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            yield line


def commands(document: Path) -> list[str]:
    """The texts in backquotes that begin with `make`."""
    return re.findall(r"`(make [^`]*)`", document.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    """The anchor that a heading gets: lower case, dashes for blanks, and no other punctuation."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def anchors(markdown: str) -> set[str]:
    return {anchor(line.lstrip("#")) for line in prose(markdown) if line.startswith("#")}


@EACH
def test_no_line_of_prose_is_too_wide(document: Path) -> None:
    assert [line for line in prose(document.read_text(encoding="utf-8")) if len(line) > WIDTH] == []


@EACH
def test_each_link_leads_to_a_file_and_a_heading_that_exist(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), target
        assert not heading or heading in anchors(file.read_text(encoding="utf-8")), target


@EACH
def test_each_path_of_the_tree_exists(document: Path) -> None:
    tops = "|".join((*PACKAGES, "charts", "docs", "examples", "bench", "tests"))
    paths = re.findall(rf"`((?:{tops})/[\w./-]+)`", document.read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


@EACH
def test_each_make_target_exists(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", text("Makefile"), re.MULTILINE)
    assert {command.split()[1] for command in commands(document)} <= set(targets)


# Sources

LIST = text("docs/develop/architecture.md").split("\n## Sources\n")[1]
SOURCES = {
    part.split("\n", 1)[0]: " ".join(part.split("\n", 1)[1].split())
    for part in re.split(r"^### ", LIST, flags=re.MULTILINE)[1:]
}
NAME = re.compile(r"\b(?:device|CPU|GPU|NUMA) proposal\b|\bFLIP-\d+|\bVolcano GPU sharing\b|\bpatent\b", re.IGNORECASE)
CITED = re.compile(r'\b(device proposal|CPU proposal|FLIP-53), ((?:"[^"]+"(?:,? and |, )?)+)', re.IGNORECASE)


def citing() -> list[Path]:
    """Code, tests, charts, examples and documents."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith((".py", ".md", ".yaml", ".tpl"))]
    return [file for file in files if file.exists() and file != Path(__file__)]


@pytest.fixture(scope="module")
def citations() -> dict[str, str]:
    """Each file that may cite, as one line without the marks of comments."""
    found = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in citing()}
    return {name: re.sub(r"\s+(?:#\s+)?", " ", content) for name, content in found.items()}


def test_each_source_that_is_cited_is_defined(citations: dict[str, str]) -> None:
    defined = {name.lower() for name in SOURCES}
    cited = {(file, found.lower()) for file, content in citations.items() for found in NAME.findall(content)}
    assert {name for _, name in cited} >= {"device proposal", "cpu proposal", "patent"}
    assert [(file, name) for file, name in sorted(cited) if name not in defined] == []


def test_each_section_that_is_cited_is_listed(citations: dict[str, str]) -> None:
    sections = [
        (file, source, section)
        for file, content in citations.items()
        for source, quoted in CITED.findall(content)
        for section in re.findall(r'"([^"]+)"', quoted)
    ]
    assert len(sections) > len(SOURCES)
    by_name = {name.lower(): listed for name, listed in SOURCES.items()}
    assert [one for one in sections if one[2] not in by_name[one[1].lower()]] == []


# Rooms


def rooms() -> dict[str, str]:
    """Path to description of everything that the architecture's listing names."""
    section = text("docs/develop/architecture.md").split("\n## Rooms\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    above = ""
    for line in section.split("```")[1].strip("\n").splitlines():
        match = re.fullmatch(r"(  )?(\S+) +(\S.*)", line)
        assert match is not None, line
        inner, name, told = match.groups()
        above = above if inner else name
        found[f"{above}{name}" if inner else name] = told
    return found


@pytest.mark.parametrize("path", rooms())
def test_each_room_and_module_of_the_listing_exists(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


def test_every_room_is_listed() -> None:
    packages = {
        f"{init.parent.relative_to(ROOT).as_posix()}/"
        for name in PACKAGES
        for init in (ROOT / name).rglob("__init__.py")
    }
    assert packages == {path for path in rooms() if path.endswith("/") and path.split("/")[0] in PACKAGES}


# The commands of the page about explain and simulate


def commands_of_simulate_page() -> list[str]:
    found = re.findall(r"^koordgate (simulate (?:.*\\\n)*.*)$", text("docs/operate/explain.md"), re.MULTILINE)
    own = [" ".join(command.replace("\\\n", " ").split()) for command in found if "examples/" in command]
    assert own
    return own


@pytest.mark.parametrize("command", commands_of_simulate_page())
def test_each_command_of_the_page_about_simulate_runs_on_the_examples(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ran = subprocess.run(
        [sys.executable, "-m", "koordgate", *shlex.split(command)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "train-0" in ran.stdout
    if "--junit" in command:
        assert (tmp_path / shlex.split(command)[shlex.split(command).index("--junit") + 1]).read_text()
