"""Builds what is published of a version, as files in one folder: `make release VERSION=... IMAGE=... BASE=...`."""


class ReleaseError(RuntimeError):
    """A release cannot be built; the message says why and what to do."""
