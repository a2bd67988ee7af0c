"""What is installed: names that only we use, and a wheel with everything needed and nothing else."""

import email
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("allocator", "console", "koordgate", "reporter", "webhook")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built as pip builds it, without isolation: the build tools are installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    code = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, file: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{file}")]
        return archive.read(name).decode()


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_owns_our_names(name: str) -> None:
    assert set(packages_distributions().get(name, [])) <= {"koordgate"}


def test_the_wheel_is_five_packages_and_their_metadata(names: set[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_every_module_of_ours_is_in_the_wheel_and_no_rubbish(names: set[str]) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in listed.stdout.split() if (ROOT / name).exists()}
    assert ours <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".orig", "~"))]
    assert not [name for name in names if name.split("/")[-1].startswith("test_")]


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_says_that_it_is_typed(names: set[str], name: str) -> None:
    assert f"{name}/py.typed" in names


def test_charts_and_examples_come_along(names: set[str]) -> None:
    for folder in ("charts", "examples"):
        listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
        files = {f"console/data/{name}" for name in listed.stdout.split() if (ROOT / name).exists()}
        assert files
        assert files <= names


def test_the_commands_are_declared(wheel: Path) -> None:
    points = metadata(wheel, "entry_points.txt")
    assert "koordgate = koordgate.cli:main" in points
    assert "webhook = webhook.command:COMMAND" in points


def test_it_cannot_be_published_by_mistake_and_says_what_it_needs(wheel: Path) -> None:
    about = email.message_from_string(metadata(wheel, "METADATA"))
    assert "Private :: Do Not Upload" in (about.get_all("Classifier") or [])
    assert about["Requires-Python"] == ">=3.11"
    assert about["License-Expression"] == "Apache-2.0"


def test_the_contents_are_as_they_should_be(wheel: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", str(wheel)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_an_unpacked_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Its modules import each other from the wheel, and find their data in it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path[:] = [{str(tmp_path)!r}, *(p for p in sys.path if p and p != {str(ROOT)!r})]\n"
        "import allocator, console.data, webhook.command\n"
        f"assert all(m.__file__.startswith({str(tmp_path)!r}) for m in (allocator, console.data, webhook.command))\n"
        "print(*(console.data.data_folder(name) for name in ('charts', 'examples')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(found.startswith(str(tmp_path)) for found in ran.stdout.split())
