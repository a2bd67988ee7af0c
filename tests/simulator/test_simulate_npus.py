"""`koordgate simulate` with a type of several amounts that is defined by settings alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import device_object
from npus import TEXT, npu
from simulator.clusters import ALLOCATED, asking, listed, node, saved

from koordgate.cli import main

H = "huawei.com/npu"

# The requests of two Pods, one after the other -> the devices of each, or the refusal.
CASES: dict[str, tuple[dict[str, str], dict[str, str], list[list[int] | str]]] = {
    "two templates on one device": ({f"{H}-vir04_3c": "1"}, {f"{H}-core": "4", f"{H}-cpu": "3"}, [[0], [0]]),
    "a part, and a whole one": ({f"{H}-vir01": "1"}, {H: "1"}, [[0], [1]]),
    "more than is left whole": ({f"{H}-vir01": "1"}, {H: "2"}, [[0], "1 of 2 npu devices can hold it"]),
    "what no template has": ({f"{H}-core": "7"}, {H: "2"}, ["no template of a npu has as much", [0, 1]]),
}


@pytest.mark.parametrize(("first", "second", "expected"), CASES.values(), ids=CASES)
def test_npus_are_given_by_template_and_whole(
    first: dict[str, str],
    second: dict[str, str],
    expected: list[list[int] | str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    pods: list[dict[str, Any]] = []
    for number, amounts in enumerate((first, second)):
        pods.append(asking(f"pod-{number}", amounts))
        pods[-1]["spec"]["containers"][0]["resources"]["limits"] = amounts
    path = saved(tmp_path, [node(), device_object(npu(0), npu(1)), *pods])
    told = listed(capsys, "-f", path, "--config", str(config))
    for number, right in enumerate(expected):
        pod = told[f"pod-{number}"]
        if isinstance(right, str):
            assert right in pod["status"]["message"]
        else:
            shares = json.loads(pod["metadata"]["annotations"][ALLOCATED])["npu"]
            assert [share["minor"] for share in shares] == right


def test_the_table_shows_them_in_their_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    pod = asking("pod", {f"{H}-vir04": "1"})
    pod["spec"]["containers"][0]["resources"]["limits"] = {f"{H}-vir04": "1"}
    path = saved(tmp_path, [node(), device_object(npu(0)), pod])
    assert main(["simulate", "-f", path, "--config", str(config)]) == 0
    written = " ".join(capsys.readouterr().out.split())
    assert "core 4, cpu 4, memory 12 GiB (50 %), dvpp 50 %" in written
    assert "core 4 of 8, cpu 4 of 7, 12 of 24 GiB, dvpp 50 %" in written


DCUS = {"example.com/dcu": "200", "example.com/dcu-vram": "64Gi"}
STATED: dict[str, tuple[dict[str, str], dict[str, str], list[int] | str]] = {
    "whole devices by their number": (
        {H: "2", f"{H}-core": "16", f"{H}-cpu": "14", f"{H}-memory": "48Gi"},
        {H: "2"},
        [0, 1],
    ),
    "a template of one": ({H: "1", f"{H}-core": "8", f"{H}-cpu": "7", f"{H}-memory": "24Gi"}, {f"{H}-vir04": "1"}, [0]),
    "percent": (DCUS, {"example.com/dcu": "100"}, [0]),
    "bytes that nothing states": ({H: "2"}, {H: "1"}, "how much core each has is unknown, because the Node states no"),
    "a part of a device": ({**DCUS, "example.com/dcu": "150"}, {"example.com/dcu": "100"}, "150 percent are no whole"),
    "too many": ({**DCUS, H: "65"}, {H: "1"}, "65 devices are more than 64"),
}


@pytest.mark.parametrize("name", STATED)
def test_devices_of_a_configured_type_are_assumed_from_the_nodes_capacity(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    has, asks, expected = STATED[name]
    config = tmp_path / "config.yaml"
    config.write_text(TEXT)
    machine = node()
    machine["status"]["allocatable"] |= has
    pod = asking("pod", asks)
    pod["spec"]["containers"][0]["resources"]["limits"] = asks
    path = saved(tmp_path, [machine, pod])
    assert main(["simulate", "-f", path, "--config", str(config), "-o", "json"]) == 0
    captured = capsys.readouterr()
    if isinstance(expected, str):
        assert expected in captured.err
        return
    item = json.loads(captured.out)["items"][0]
    shares = next(iter(json.loads(item["metadata"]["annotations"][ALLOCATED]).values()))
    assert [share["minor"] for share in shares] == expected
    assert item["metadata"]["annotations"]["koordgate.io/assumed"] == str(len(expected))
    assert "no Device object lists them" in captured.err
