"""What the chart renders: by default, and what other values change in it, as files of `golden`.

`KOORDGATE_GOLDEN=write .venv/bin/python -m pytest tests/chart/test_golden.py` writes the files; look at what changed.
"""

import difflib
import os
import re
from pathlib import Path

import pytest
import yaml
from chart.conftest import Render
from value_sets import VALUE_SETS

GOLDEN = Path(__file__).parent / "golden"
ELSEWHERE = {"CustomResourceDefinition", "ValidatingAdmissionPolicy"}  # tests/controlplane tries what they do
SETS = (
    "minimal",
)


def text(render: Render, name: str) -> str:
    """The objects, each as YAML, without what only says that something else changed."""
    objects = [one for one in render(VALUE_SETS[name]) if one["kind"] not in ELSEWHERE]
    ordered = sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", "")))
    made = yaml.safe_dump_all(ordered, width=120, default_flow_style=None)
    return re.sub(r"(checksum/[\w-]+): \w+", r"\1: ...", made)
