"""`koordgate lease` as a process."""

import subprocess
import sys
from pathlib import Path

import pytest


def ran(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the command without a cluster."""
    (folder / "config.yaml").write_text(text)
    code = (
        "import argparse, logging, pathlib, sys; from webhook.lease.command import COMMAND\n"
        "status = COMMAND.run(argparse.Namespace(config=pathlib.Path(sys.argv[1])))\n"
        "logging.getLogger('x').warning('said'); sys.exit(status)"
    )
    argv = [sys.executable, "-c", code, str(folder / "config.yaml")]
    env = {"KUBECONFIG": str(folder / "none"), "PYTHONPATH": ":".join(sys.path), "HOME": str(folder)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


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
