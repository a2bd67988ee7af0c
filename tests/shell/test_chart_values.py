"""The table of values in the chart's README: what is taken from the comments of values.yaml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VALUES = """\
# About the file. No key follows at once.

# How many.
replicas: 2

# Who may call: see docs/reference/limits.md.
calls:
  # true | false
  enabled: auto
  peers: []
  #  - an example: which is no comment
  deep:
    # In percent.
    share: 50

# Devices.
devices: {gpu: 1}
names:
  # None.
  first: ""
"""
TABLE = """\
| key | default | meaning |
|---|---|---|
| `replicas` | `2` | How many. |
| `calls` |  | Who may call: see [limits.md](../../docs/reference/limits.md). |
| `calls.enabled`, `calls.peers` | `auto`, `[]` | true \\| false |
| `calls.deep.share` | `50` | In percent. |
| `devices` | `{"gpu": 1}` | Devices. |
| `names.first` | `""` | None. |"""


def run(code: str, values: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; import chartvalues; {code}"]
    return subprocess.run(
        command, input=values, cwd=ROOT / "docs", env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False
    )


def test_each_value_has_a_row_with_its_default_and_its_comment() -> None:
    done = run("print(chartvalues.table(sys.stdin.read()))", VALUES)
    assert (done.stdout.strip(), done.stderr) == (TABLE, "")


def test_a_value_without_a_comment_is_refused_by_name() -> None:
    done = run("chartvalues.table(sys.stdin.read())", "plain: 1\n")
    assert "values.yaml: `plain` has no comment above it" in done.stderr
