"""What a test needs of the machine: skipped loudly where it is missing, failed in CI."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Say that a test cannot run here; with CI=true that is a failure, for there all tests must run."""
    reason = f"cannot run here: {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
