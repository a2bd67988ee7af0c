"""`koordgate demo`: over real HTTPS, and on a real control plane."""

import asyncio
import re
import signal
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest
from controlplane.needs import missing
from offline.clusters import asking, gpus, machine, saved

from koordgate.cli import main
from webhook import data
from webhook.data import MissingDataError, data_folder
from webhook.localplane.binaries import BuildError, find_or_build
from webhook.offline import controlplane
from webhook.offline.cluster import OfflineCluster


def _played(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["demo", *arguments]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    return written.out


def test_the_demo_reports_what_each_pod_asked_became_and_got(capsys: pytest.CaptureFixture[str]) -> None:
    told = _played(capsys)
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
    last = told.splitlines()[-1]
    assert last.startswith("demo: 30 Pods: 22 bound, 7 refused at admission, 1 without a node; ")
    assert re.search(r"; no device and no CPU is given twice; \d+ requests were answered over HTTPS$", last)


def test_the_demo_ends_with_who_holds_what_of_each_node(capsys: pytest.CaptureFixture[str]) -> None:
    told = _played(capsys)
    for line in (
        "h200-1: 8 GPUs, 4 rdma devices, 2 queue devices, 64 CPUs (2 sockets, 2 NUMA nodes, 2 threads a core)",
        "rdma 0   0000:1a:00.0  -      0     0 %, 0 of 4 functions           -",
        "0     1-4,33-36    own-whole-cores (LSR)",
        "      5-15,37-47   shared pool: class LS, and all others without CPUs of their own",
        "      1-15,33-47   best-effort pool: class BE, and BestEffort",
    ):
        assert f"\n{line}\n" in told
    for part in (
        "encoder 0",
        "whole-encoder: whole",
        "places-in-a-queue: 3",
        "cordoned by an administrator",
        "XID79: ",
    ):
        assert part in told
    assert "write 1 or 2" in told, "the wrong LSR Pod is refused with the cure"


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
    assert await process.wait() == 0


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


def test_a_map_that_cannot_be_written_ends_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--map", str(tmp_path)]) == 2
    assert f"koordgate demo: --map {tmp_path}: cannot be written (Is a directory)" in capsys.readouterr().err


def test_settings_of_ones_own_are_honoured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("devices: {types: [{name: seat, resource: example.com/seat, pools: [{devices: {one: 100}}]}]}\n")
    pod = asking("mine", {"example.com/seat": "40"})
    cluster, workload = saved(tmp_path, machine(cards=1), "cluster.json"), saved(tmp_path, [pod], "workload.json")
    told = _played(capsys, "--cluster", cluster, "--workload", workload, "--config", str(config))
    assert "seat 0 one: seat 40 %" in told
    assert main(["demo", "--config", str(tmp_path / "none")]) == 2


def test_the_demo_takes_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = saved(tmp_path, machine(cards=1), "cluster.json")
    workload = saved(tmp_path, [gpus("mine", 100), asking("plain")], "workload.json")
    told = _played(capsys, "--cluster", cluster, "--workload", workload)
    assert "default/mine  bound to node-1" in told
    assert "demo: 2 Pods: 2 bound; 1 of 1 GPUs in use" in told


def test_files_that_cannot_be_used_end_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--workload", str(tmp_path / "none")]) == 2
    assert "koordgate demo: " in capsys.readouterr().err


def test_a_control_plane_that_cannot_be_had_ends_it_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_names: object) -> None:
        raise BuildError("there is no Go here")

    monkeypatch.setattr(controlplane, "find_or_build", none)
    assert main(["demo", "--control-plane"]) == 1
    assert capsys.readouterr().err == "koordgate demo: there is no Go here\n"


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


@pytest.mark.controlplane
def test_a_real_control_plane_gives_the_same_cards(capsys: pytest.CaptureFixture[str]) -> None:
    """Who holds what, card by card, is the same on etcd, kube-apiserver and kube-scheduler as in memory."""
    try:
        find_or_build(("etcd", "kube-apiserver", "kube-scheduler", "helm"))
    except BuildError as error:
        missing(str(error))

    def cards(told: str) -> str:
        return told[told.index("a100-1: 8 GPUs") : told.index("demo: ")]

    real = _played(capsys, "--control-plane")
    assert cards(real) == cards(_played(capsys))
    assert real.splitlines()[-1].endswith(
        "; a foreign Binding refused; no device and no CPU is given twice; all on a real control plane"
    )
