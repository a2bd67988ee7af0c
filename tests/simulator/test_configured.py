"""By which settings offline commands judge: one rule for all of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import container, device_entry, device_object, pod

from koordgate.cli import main

Raw = dict[str, Any]
OFF = "mode: enforce"
ON = "dialects: {hami: {enabled: true}}"
ROOM = {"cpu": "8", "memory": "64Gi", "pods": "9", "kubernetes.io/gpu-core": "100"}
ROOM |= {"kubernetes.io/gpu-memory-ratio": "100", "kubernetes.io/gpu-memory": "80Gi"}


def told(command: str, folder: Path, capsys: pytest.CaptureFixture[str], among: str, config: str) -> bool:
    """Whether a command reads HAMi's names of a Pod, given the settings among the objects and those of --config."""
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}
    node = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": ROOM}}
    card = device_object(device_entry(0, domain="kubernetes.io"), name="n1")
    card["metadata"]["annotations"] = {"koordgate.io/runtime": '{"defaultShows":true}'}
    wanted = {**pod(container(limits=asked), name="p", namespace="default"), "kind": "Pod", "apiVersion": "v1"}
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": among}}
    objects = [node, {**card, "kind": "Device"}, wanted, *([stated] if among else [])]
    file, settings = folder / "objects.json", folder / "settings.yaml"
    file.write_text("\n".join(map(json.dumps, objects)))
    settings.write_text(config)
    words = ["explain", "p"] if command == "explain" else [command]
    main([*words, "-f", str(file), "-o", "json", *(["--config", str(settings)] if config else [])])
    out, err = capsys.readouterr()
    if command == "explain":
        return "fits on 1 of 1 node now" in out
    read = "koordgate.io/original-request" in out
    assert read != ("nvidia.com/gpumem is of the dialect hami" in err)
    return read


@pytest.mark.parametrize("command", ["simulate", "translate", "explain"])
@pytest.mark.parametrize(
    ("among", "config", "read"),
    [
        pytest.param("", "", True, id="none are stated: every dialect is on"),
        pytest.param(OFF, "", False, id="an installation's are among the objects"),
        pytest.param(ON, "", True, id="an installation's turn it on"),
        pytest.param(ON, OFF, False, id="those of --config come first"),
        pytest.param(OFF, ON, True, id="those of --config turn it on"),
    ],
)
def test_every_command_judges_by_the_same_settings(
    command: str, among: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, read: bool
) -> None:
    assert told(command, tmp_path, capsys, among, config) == read


@pytest.mark.parametrize("command", ["simulate", "translate"])
def test_settings_among_the_objects_that_are_wrong_are_told(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": "mod: x"}}
    file = tmp_path / "objects.json"
    file.write_text(json.dumps(stated))
    assert main([command, "-f", str(file)]) == 2
    assert "ConfigMap koordgate" in capsys.readouterr().err
