"""`koordgate demo`: over real HTTPS (on a real control plane: controlplane/test_playground.py)."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from simulator.clusters import asking, gpus, machine, saved

from console import data
from console.data import MissingDataError, data_folder
from console.simulator import demo, devicemap
from console.simulator.cluster import OfflineCluster
from koordgate.cli import main


def _played(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["demo", *arguments]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def test_the_demo_reports_what_each_pod_asked_became_and_got(capsys: pytest.CaptureFixture[str]) -> None:
    told = _played(capsys, "--wide")
    assert re.match(r"The webhook serves on https://127\.0\.0\.1:\d+, in this process", told)
    assert (
        "default/train-2-cards  bound to h100-1\n"
        "  asked   train: nvidia.com/gpu=2\n"
        "  became  train: kubernetes.io/gpu-core=200 kubernetes.io/gpu-memory=163118Mi "
        "kubernetes.io/gpu-memory-ratio=200\n"
        "     gpu 0 GPU-54dc7651: core 100 %, memory 79.6 GiB (100 %)\n"
    ) in told
    assert "default/wrong-node-preset  refused at admission\n" in told
    assert "spec.nodeName: must be empty" in told
    assert "A Binding of demo-bound-around by somebody-else: refused\n" in told
    assert "somebody-else is not its scheduler" in told


def test_the_demo_ends_with_the_verdict_and_where_to_look_next(capsys: pytest.CaptureFixture[str]) -> None:
    told = _played(capsys)
    _, _, end = told.partition("\nWhat was shown\n")
    sums, _, rest = end.partition("\n\ndemo: passed\n\n")
    rows = [re.split(r" {2,}", line.strip(), maxsplit=1) for line in sums.splitlines()]
    assert ["30 Pods", "22 bound, 7 refused at admission, 1 without a node"] in rows
    assert ["given twice", "no device and no CPU"] in rows
    assert ["foreign Binding", "refused"] in rows
    assert re.search(r"it ran on +the real webhook: \d+ requests over HTTPS", sums)
    assert rest.startswith("Where to look next\n")


def test_the_next_steps_are_commands_that_run_and_files_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    _played(capsys)
    named = [line for step in demo.steps() for line in step[1:]]
    files = [word.rstrip(",") for line in named for word in line.split() if word.rstrip(",").endswith((".md", ".yaml"))]
    assert len(files) == 6
    assert [file for file in files if not Path(file).exists()] == []
    command = "".join(demo.steps()[0][1:]).replace("\\", "")
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "team-a/chat-" in ran.stdout


@pytest.mark.parametrize(
    ("display", "opened"),
    [pytest.param("", False, id="a machine without windows"), pytest.param(":0", True, id="a desktop")],
)
def test_a_browser_is_opened_only_where_it_has_a_window(
    display: str, *, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("webbrowser.open", lambda url: not seen.append(url))  # type: ignore[func-returns-value]
    assert devicemap.browse("http://127.0.0.1:1/") is opened
    assert seen == ["http://127.0.0.1:1/"] * opened


def test_the_demo_draws_the_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "map.html"
    assert f"The device map is in {path}" in _played(capsys, "--map", str(path))
    text = path.read_text()
    for name in ("h200-1", "a100-2", "own-whole-cores", "wrong-one-and-a-half-cpus"):
        assert f'"name":"{name}"' in text


async def test_the_demo_serves_the_map_until_it_is_interrupted() -> None:
    arguments = (sys.executable, "-m", "koordgate", "demo", "--map-port", "0")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = ""
    while not url:
        line = (await process.stdout.readline()).decode()
        assert line, "the demo ended without serving the map"
        if found := re.match(r"The device map is at (http://127\.0\.0\.1:\d+/)", line):
            url = found[1]
    async with aiohttp.ClientSession() as session, session.get(f"{url}api/nodes") as answer:
        assert [one["name"] for one in (await answer.json())["nodes"]] == ["a100-1", "a100-2", "h100-1", "h200-1"]
    process.send_signal(signal.SIGINT)
    assert (await process.communicate())[0] == b"Ctrl-C to end.\n", "no browser was to be opened"
    assert process.returncode == 0


async def test_the_demo_that_opens_a_browser_says_so_where_there_is_none() -> None:
    arguments = (sys.executable, "-m", "koordgate", "demo", "--open")
    environment = {name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    told = ""
    while not told.endswith("in one.\n"):
        line = (await process.stdout.readline()).decode()
        assert line, "the demo ended without serving the map"
        told += line
    found = re.search(r"The device map is at http://127\.0\.0\.1:(\d+)/", told)
    assert found is not None
    assert int(found[1]) > 1023, "any free port"
    assert told.endswith("\nNo browser could be opened from here: open the address above in one.\n")
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{found[1]}/") as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


def test_a_demo_whose_reader_goes_away_ends_as_a_shell_reports_it() -> None:
    arguments = (sys.executable, "-m", "koordgate", "demo")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_pod_that_cannot_be_created_shows_no_guard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    cluster, workload = saved(tmp_path, [*machine(), quota], "a.json"), saved(tmp_path, [gpus("mine", 50)], "b.json")
    capsys.readouterr()
    assert main(["demo", "--cluster", cluster, "--workload", workload]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "A Binding of demo-bound-around by somebody-else: refused at admission, which must not happen Pod "
        "default/demo-bound-around is forbidden: exceeded quota: q, requested: pods=1, "
    ) in told


def test_a_part_of_the_examples_stands_in_for_what_is_not_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = asking("mine", {"example.com/queue": "2"})
    told = _played(capsys, "--workload", saved(tmp_path, [pod]))
    assert "h200-1: 8 GPUs" in told
    assert "default/mine  bound to a100-2\n" in told
    assert re.search(r"1 Pod +1 bound\n", told)


def test_a_demo_without_its_examples_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "__file__", str(tmp_path / "data.py"))
    assert main(["demo"]) == 2
    assert capsys.readouterr().err.startswith("koordgate demo: no folder examples in ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--map-port", "65536"), "state a TCP port, 0 to 65535"),
        (("--map-port", "-1"), "state a TCP port, 0 to 65535"),
        (("--map-port", "0", "--no-map-server"), "not allowed with"),
    ],
)
def test_a_port_that_is_none_is_told(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", *arguments])
    assert told in capsys.readouterr().err


def test_settings_of_ones_own_are_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("devices: {types: [{name: seat, resource: example.com/seat, pools: [{devices: {one: 100}}]}]}\n")
    pod = asking("mine", {"example.com/seat": "40"})
    cluster, workload = saved(tmp_path, machine(cards=1), "cluster.json"), saved(tmp_path, [pod], "workload.json")
    told = _played(capsys, "--cluster", cluster, "--workload", workload, "--config", str(config))
    assert "seat 0 one: seat 40 %" in told
    assert main(["demo", "--config", str(tmp_path / "none")]) == 2


def test_files_that_cannot_be_used_end_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--workload", str(tmp_path / "none")]) == 2
    assert "koordgate demo: " in capsys.readouterr().err


def test_examples_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (data_folder("examples") / "cluster.yaml").exists()
    package = tmp_path / "koordgate"
    (package / "data" / "examples").mkdir(parents=True)
    monkeypatch.setattr(data, "__file__", str(package / "data.py"))
    assert data_folder("examples") == package / "data" / "examples"
    with pytest.raises(MissingDataError, match=r"no folder charts in .*; install again"):
        data_folder("charts")


async def test_only_the_webhooks_own_authority_is_trusted() -> None:
    """It is real TLS: a client that does not know the CA is refused."""
    async with OfflineCluster.over_https() as (_, way), aiohttp.ClientSession() as stranger:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await stranger.get(f"{way.url}/healthz", ssl=ssl.create_default_context())
