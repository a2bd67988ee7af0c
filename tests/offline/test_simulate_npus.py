"""`koordgate simulate` with a type of several amounts that is defined by settings alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import device_object
from npus import TEXT, npu
from offline.clusters import ALLOCATED, asking, listed, node, saved

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
