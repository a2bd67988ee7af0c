"""The chart as a release packages it, by a real Helm."""

import os
import tarfile
from pathlib import Path

import pytest
import yaml

from localplane import chart
from localplane.binaries import Binaries
from release.chart import package

CHECKOUT = Path(__file__).resolve().parents[2]
REPOSITORY = "registry.example.com/koordgate"
DIGEST = f"sha256:{'a' * 64}"


@pytest.fixture
def packaged(binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(binaries["helm"].parent), prepend=os.pathsep)
    package(CHECKOUT, REPOSITORY, DIGEST, 1_800_000_000, tmp_path)
    (made,) = tmp_path.iterdir()
    return made


def content(packaged: Path, name: str) -> str:
    with tarfile.open(packaged) as archive:
        file = archive.extractfile(f"koordgate/{name}")
        assert file
        return file.read().decode()


def test_what_it_installs_names_the_image_by_its_digest(packaged: Path, binaries: Binaries) -> None:
    rendered = chart.render(binaries, chart=packaged, tests=True)
    images = {
        container["image"]
        for one in rendered
        for spec in [one.get("spec", {}).get("template", one).get("spec", {})]
        for container in spec.get("containers", ())
    }
    assert images == {f"{REPOSITORY}@{DIGEST}", f"registry.k8s.io/kube-scheduler:{binaries.kubernetes}"}


def test_its_values_differ_from_the_charts_in_the_image_alone_and_keep_the_comments(packaged: Path) -> None:
    values = content(packaged, "values.yaml")
    own = (CHECKOUT / "charts" / "koordgate" / "values.yaml").read_text()
    changed = set(values.splitlines()) ^ set(own.splitlines())
    assert changed == {
        f"  repository: {REPOSITORY}",
        "  repository: koordgate",
        f"  digest: {DIGEST}",
        '  digest: ""',
    }


def test_artifact_hub_finds_the_image_and_the_licence(packaged: Path) -> None:
    told = yaml.safe_load(content(packaged, "Chart.yaml"))["annotations"]
    assert yaml.safe_load(told["artifacthub.io/images"]) == [{"name": "koordgate", "image": f"{REPOSITORY}@{DIGEST}"}]
    assert told["artifacthub.io/license"] == "Apache-2.0"


def test_the_same_tree_makes_the_same_bytes(packaged: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    package(CHECKOUT, REPOSITORY, DIGEST, 1_800_000_000, again)
    assert (again / packaged.name).read_bytes() == packaged.read_bytes()
