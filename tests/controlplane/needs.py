"""What a test needs from the machine: if it is missing, the test is skipped with a report, and fails in CI."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Report that a test cannot run here; with CI=true this is a failure, because all tests must run there."""
    reason = f"cannot run here: {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
