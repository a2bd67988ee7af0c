"""The local control plane before it runs: what is said of its build, and how the playground is used."""

import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from localplane import binaries, playground
from localplane.binaries import Binaries, BuildError, find_or_build
from localplane.playground import TENANTS, TRY, guide

GO = """#!/bin/sh
case "$1" in
  env) echo go1.26.6;;
  install)
    echo "go: downloading k8s.io/api v0.37.2" >&2
    for package in one two three; do echo "example.com/$package" >&2; done
    until test -e "$GOBIN/told"; do sleep 0.01; done
    test ! -e "$GOBIN/broken" || { echo "one.go:1: it is broken" >&2; exit 1; }
    touch "$GOBIN/helm";;
esac
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Go that waits while it builds until progress was told."""
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setenv("KOORDGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "_EVERY_S", 0.01)
    (tmp_path / "cache" / "bin").mkdir(parents=True)
    return tmp_path / "cache"


def test_a_build_tells_how_far_it_is(cache: Path) -> None:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if "3 packages" in line:
            (cache / "bin" / "told").touch()

    found = find_or_build(["helm"], progress=tell)
    assert found["helm"] == cache / "bin" / "helm"
    assert any(line.endswith(" s: 1 module fetched, 3 packages compiled") for line in lines), lines


def test_a_build_that_fails_says_what_go_said(cache: Path) -> None:
    for mark in ("told", "broken"):
        (cache / "bin" / mark).touch()
    with pytest.raises(BuildError, match=r"install -v .* failed with status 1:\n(.*\n)*one.go:1: it is broken"):
        find_or_build(["helm"], progress=lambda _line: None)


def test_the_playground_says_what_it_takes_before_anything_is_built(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    told: list[str] = []

    def build(names: Sequence[str]) -> Binaries:
        told.append(capsys.readouterr().out)
        return Binaries({name: cache / name for name in names})

    monkeypatch.setattr(playground, "find_or_build", build)
    assert "kubectl" in playground.programs().paths  # none is on the PATH
    for said in ("Ctrl-C", "2 GiB of memory", "Kubernetes v", "helm", f"into {cache}", "5 to 20 minutes", "Go 1.26"):
        assert said in told[0]


def test_the_guide_names_the_kubeconfig_the_tenants_and_the_path_whatever_this_terminal_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{own}:/cache/bin")
    lines = list(guide(Path("/tmp/a folder/admin.yaml"), Binaries({"kubectl": Path("/cache/bin/kubectl")})))
    assert lines[1] == "  export KUBECONFIG='/tmp/a folder/admin.yaml'"
    assert lines[2] == f'  export PATH={own}:/cache/bin:"$PATH"'
    assert [name for name in (tenant.namespace for tenant in TENANTS) if f"  {name} " not in "\n".join(lines)] == []
    assert [command for command, _ in TRY if f"  {command} " not in "\n".join(lines)] == []
