"""A machine of files."""

from pathlib import Path

import pytest
from sysfs_tree import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
