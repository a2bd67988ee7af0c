"""The versions of Kubernetes of which the local control plane is built."""

import os
import re
from pathlib import Path
from typing import Final

KUBERNETES: Final = "v1.37.2"  # what is built unless another version is named; `module/` has its modules
VARIABLE: Final = "KOORDGATE_KUBERNETES"
OLDER: Final = Path(__file__).parent / "older"  # a folder with go.mod and go.sum for each other version


class VersionError(ValueError):
    """There is no such version; the message names those that there are."""


def versions() -> tuple[str, ...]:
    """All versions that can be built, the oldest first, such as v1.36.3."""
    return tuple(sorted((*(path.name for path in OLDER.iterdir() if path.is_dir()), KUBERNETES), key=number))


def number(version: str) -> tuple[int, ...]:
    """The parts of a version as integers: (1, 36, 3) of v1.36.3.

    Raises:
        VersionError: The text is no version.
    """
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        raise VersionError(f"{version!r} is no version of Kubernetes: write it as 1.36 or v1.36.3")
    return tuple(int(part) for part in found.groups() if part is not None)


def chosen(version: str | None = None) -> str:
    """The version to use, in full.

    Args:
        version: As 1.36, v1.36 or v1.36.3; if left out, $KOORDGATE_KUBERNETES, and without it `KUBERNETES`.

    Raises:
        VersionError: It is none of `versions()`.
    """
    wanted = version or os.environ.get(VARIABLE) or KUBERNETES
    parts = number(wanted)
    for known in versions():
        if number(known)[: len(parts)] == parts:
            return known
    raise VersionError(f"Kubernetes {wanted} cannot be built here: there are {', '.join(versions())}")
