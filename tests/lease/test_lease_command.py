"""`koordgate lease` as a process."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from fake_kube import FakeKube
from kubeconfigs import write_kubeconfig
from waiting import until

from koordgate.kube.resource import LEASES
from koordgate.settings import SettingsError
from webhook.settings import parse

CODE = (
    "import argparse, logging, pathlib, sys; from webhook.lease.command import COMMAND\n"
    "status = COMMAND.run(argparse.Namespace(config=pathlib.Path(sys.argv[1])))\n"
    "logging.getLogger('x').warning('said'); sys.exit(status)"
)


def command(folder: Path, text: str) -> tuple[list[str], dict[str, str]]:
    """The command line and its environment; the kubeconfig is the folder's, if there is one."""
    (folder / "config.yaml").write_text(text)
    own = {"KUBECONFIG": str(folder / "kubeconfig"), "PYTHONPATH": ":".join(sys.path), "HOME": str(folder)}
    env = {**os.environ, **own}
    return [sys.executable, "-c", CODE, str(folder / "config.yaml")], env


def ran(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it ends by itself."""
    argv, env = command(folder, text)
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


@pytest.mark.parametrize(
    ("style", "expected"),
    [("json", '"component":"lease"'), ("text", "WARNING x said component=lease")],
)
def test_its_log_is_in_the_style_of_the_settings_and_names_the_process(
    tmp_path: Path, style: str, expected: str
) -> None:
    done = ran(tmp_path, f"logFormat: {style}\nhealthLease: {{enabled: true}}")
    assert expected in done.stderr


def test_without_a_cluster_it_ends_with_the_reason(tmp_path: Path) -> None:
    done = ran(tmp_path, "healthLease: {enabled: true}")
    assert done.returncode == 1
    assert "koordgate lease: " in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_in_which_it_is_off_are_refused_with_what_to_do(tmp_path: Path) -> None:
    done = ran(tmp_path, "healthLease: {enabled: false}")
    assert done.returncode == 2
    assert "set it to true, or do not run this command" in done.stderr


def test_settings_that_make_no_sense_are_refused_with_the_key(tmp_path: Path) -> None:
    done = ran(tmp_path, "healthLease: {enabled: true, openAfter: 1}")
    assert done.returncode == 2
    assert done.stderr.startswith("koordgate lease: ")
    assert "openAfter" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_looks_at_the_lease_and_serves_health_until_it_is_told_to_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with FakeKube() as fake:
        write_kubeconfig(tmp_path, fake.url)
        argv, env = command(tmp_path, "healthLease: {enabled: true, host: 127.0.0.1, port: 0}\nlogFormat: text")
        said = tmp_path / "said"
        with said.open("wb") as log:
            process = await asyncio.create_subprocess_exec(*argv, env=env, stderr=log)
        await until(lambda: fake.seen("get", LEASES.plural))
        found = re.search(r"serving on (127\.0\.0\.1:[0-9]+)", said.read_text())
        assert found is not None
        with await asyncio.to_thread(urlopen, f"http://{found[1]}/healthz") as answer:
            assert answer.read() == b"ok"
        process.send_signal(number)
        assert await process.wait() == 0
    assert "Traceback" not in said.read_text()


def test_a_port_that_is_taken_is_told_with_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        write_kubeconfig(tmp_path, "http://127.0.0.1:1")
        port = taken.getsockname()[1]
        done = ran(tmp_path, f"healthLease: {{enabled: true, host: 127.0.0.1, port: {port}}}")
    assert done.returncode == 1
    assert "set healthLease.port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("every", "after", "least"), [(10, 29.9, 30), (1, 2, 3), (100, 299, 300)])
def test_silence_that_is_shorter_than_three_renewals_is_refused_with_what_is_enough(
    every: float, after: float, least: float
) -> None:
    enough = parse(f"healthLease: {{renewSeconds: {every}, openAfterSeconds: {least}}}")
    assert enough.health_lease.open_after_seconds == least
    with pytest.raises(SettingsError, match=f"set it to {least} or more, 3 times renewSeconds"):
        parse(f"healthLease: {{renewSeconds: {every}, openAfterSeconds: {after}}}")
