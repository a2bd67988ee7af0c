"""The examples of the sources: what was computed by hand from each document comes out of a simulation."""

import json
from pathlib import Path

import pytest

from allocator.vocabulary.names import DEVICE_QUOTAS
from koordgate.cli import main

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "examples" / "seeds"
NAMES = sorted(path.name.removesuffix(".expected.yaml") for path in FOLDER.glob("*.expected.yaml"))


def arguments(name: str) -> list[str]:
    config = FOLDER / f"{name}.config.yaml"
    configured = ["--config", str(config)] if config.exists() else []
    return ["simulate", "-f", str(FOLDER / f"{name}.yaml"), *configured]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_of_a_source_comes_out_as_computed_by_hand(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(name), "-e", str(FOLDER / f"{name}.expected.yaml")]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_the_head_of_an_example_names_its_source(name: str) -> None:
    head = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    sources = ("Device proposal", "CPU proposal", "Patent", "FLIP-53", "Volcano GPU sharing")
    assert head.startswith(tuple(f"# {source}, " for source in sources))


def test_the_fractions_of_operators_are_those_of_flip_53(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments("flip-53-fractions"), "-o", "json"]) == 0
    pods = {item["metadata"]["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    quotas = {
        name: json.loads(pods[name]["metadata"]["annotations"][DEVICE_QUOTAS]) for name in ("specified", "unknown")
    }
    memory = {
        name: {container: of["gpu"][0]["resources"]["kubernetes.io/gpu-memory"] for container, of in told.items()}
        for name, told in quotas.items()
    }
    assert memory == {"specified": {"map": "2Gi", "sort": "6Gi"}, "unknown": dict.fromkeys("abc", "4Gi")}
