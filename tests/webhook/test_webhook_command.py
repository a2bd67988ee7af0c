"""`koordgate serve webhook` as a process: what its exit status and its output say."""

import os
import signal
import sys
from asyncio import create_subprocess_exec
from pathlib import Path

from fake_kube import FakeKube
from kubeconfigs import write_kubeconfig
from waiting import until

from koordgate.kube.resource import PODS

CODE = (
    "import argparse, pathlib, sys; from webhook.command import COMMAND\n"
    "parser = argparse.ArgumentParser(); COMMAND.arguments(parser)\n"
    "sys.exit(COMMAND.run(parser.parse_args(sys.argv[1:])))"
)


def command(folder: Path, text: str, *more: str) -> tuple[list[str], dict[str, str]]:
    (folder / "config.yaml").write_text(text)
    own = {"KUBECONFIG": str(folder / "kubeconfig"), "PYTHONPATH": ":".join(sys.path), "HOME": str(folder)}
    return [sys.executable, "-c", CODE, "--config", str(folder / "config.yaml"), *more], {**os.environ, **own}


async def test_it_ends_well_when_it_is_told_to(tmp_path: Path) -> None:
    async with FakeKube() as fake:
        write_kubeconfig(tmp_path, fake.url)
        serve = "serve: {host: 127.0.0.1, port: 0, extenderPort: 0, shutdownDelaySeconds: 0}"
        argv, env = command(tmp_path, f"{serve}\ncertificate: {{ipAddresses: [127.0.0.1]}}")
        with (tmp_path / "said").open("wb") as log:
            process = await create_subprocess_exec(*argv, env=env, stderr=log)
        await until(lambda: fake.seen("list", PODS.plural))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert "Traceback" not in (tmp_path / "said").read_text()
