"""What `make release` refuses, and the notes that it cuts from the changelog."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from release.stated import commit_time, notes, problems

CHECKOUT = Path(__file__).resolve().parents[2]
REPOSITORY = "registry.example.com/koordgate"
CHANGELOG = """\
# Changelog

## 1.3.0 - unreleased

- Later.

## 1.2.0 - 2026-12-01

### Requests

- One, as [a page of
  the tree](docs/page.md#part) says.
- Two, as [Keep a Changelog](https://keepachangelog.com) says.

## 1.1.0 - 2026-11-01

- Earlier.
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of version 1.2.0 with all committed, and a helm on PATH."""
    root = tmp_path / "tree"
    (root / "charts" / "koordgate").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (root / "charts" / "koordgate" / "Chart.yaml").write_text("version: 1.2.0\nappVersion: 1.2.0\n")
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(root, "init", "--quiet")
    commit(root)
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(helm.parent), prepend=":")
    return root


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    subprocess.run(("git", *who, *words), cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "x", "--date", "2026-12-01T00:00:00Z")


def change(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text()
    assert old in text
    (root / name).write_text(text.replace(old, new))
    commit(root)


def test_a_version_that_is_stated_everywhere_and_dated_and_committed_may_be_released(tree: Path) -> None:
    assert problems(tree, "1.2.0", REPOSITORY, trial=False) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "wanted"),
    [
        pytest.param(
            "pyproject.toml", "1.2.0", "1.1.0", "VERSION is 1.2.0, but pyproject.toml states 1.1.0", id="the project"
        ),
        pytest.param(
            "charts/koordgate/Chart.yaml", "\nappVersion: 1.2.0", "\nappVersion: 1.1.0", "appVersion is 1.1.0", id="app"
        ),
        pytest.param("charts/koordgate/Chart.yaml", "version: 1.2.0\na", "version: 9\na", "version is 9", id="chart"),
        pytest.param("CHANGELOG.md", "## 1.2.0 -", "## 1.2.1 -", "no part `## 1.2.0 - YYYY-MM-DD`", id="no part"),
        pytest.param("CHANGELOG.md", "1.2.0 - 2026-12-01", "1.2.0 - unreleased", "1.2.0 is unreleased", id="no day"),
    ],
)
def test_what_states_another_version_is_named_with_the_remedy(
    tree: Path, name: str, old: str, new: str, wanted: str
) -> None:
    change(tree, name, old, new)
    assert wanted in "\n".join(problems(tree, "1.2.0", REPOSITORY, trial=False))


@pytest.mark.parametrize(
    "repository",
    ["", "koordgate", f"{REPOSITORY}:1", f"{REPOSITORY}@sha256:{'a' * 64}", "https://registry.example.com/koordgate"],
)
def test_a_repository_of_the_image_that_nodes_could_not_pull_from_is_refused(tree: Path, repository: str) -> None:
    (problem,) = problems(tree, "1.2.0", repository, trial=False)
    assert problem.startswith("IMAGE is ")


@pytest.mark.parametrize(
    "repository", ["localhost/koordgate", "registry.example.com:5000/a/b-c/koordgate", "ghcr.io/someone/koord_gate"]
)
def test_a_repository_with_its_registry_is_taken(tree: Path, repository: str) -> None:
    assert problems(tree, "1.2.0", repository, trial=False) == []


def test_files_that_are_not_committed_are_named(tree: Path) -> None:
    (tree / "new.py").touch()
    (problem,) = problems(tree, "1.2.0", REPOSITORY, trial=False)
    assert problem.startswith("not everything is committed (new.py): ")


def test_a_trial_is_built_from_changes_and_without_a_day(tree: Path) -> None:
    change(tree, "CHANGELOG.md", "1.2.0 - 2026-12-01", "1.2.0 - unreleased")
    (tree / "new.py").touch()
    assert problems(tree, "1.2.0", REPOSITORY, trial=True) == []


def test_a_call_without_a_version_is_told_which_one_the_tree_states(tree: Path) -> None:
    assert problems(tree, "", REPOSITORY, trial=False) == ["VERSION is empty: pyproject.toml states 1.2.0"]


def test_all_problems_are_told_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # no helm
    found = problems(tree, "9.9.9", "", trial=False)
    words = ("VERSION", "CHANGELOG.md", "IMAGE", "helm")
    assert [word for problem in found for word in words if word in problem] == list(words)


def test_the_notes_are_the_part_of_that_version_alone_without_links_into_the_tree(tree: Path) -> None:
    assert notes(tree, "1.2.0") == (
        "### Requests\n\n- One, as a page of\n  the tree says.\n"
        "- Two, as [Keep a Changelog](https://keepachangelog.com) says.\n"
    )


def test_the_files_have_the_time_of_the_commit(tree: Path) -> None:
    git(tree, "commit", "--quiet", "--amend", "--no-edit", "--date", "2026-12-01T00:00:00Z")
    before = commit_time(tree)
    (tree / "new.py").touch()
    assert commit_time(tree) == before > 1_700_000_000


def test_this_tree_states_one_version_and_says_what_it_brings(tree: Path) -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    assert problems(CHECKOUT, version, REPOSITORY, trial=True) == []
    assert "### " in notes(CHECKOUT, version)
