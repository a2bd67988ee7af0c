"""The kubeconfig of a fake cluster."""

from pathlib import Path

import yaml


def write_kubeconfig(folder: Path, url: str, **context: str) -> Path:
    """Write the file; returns its path.

    Args:
        folder: where it is written.
        url: of the API server.
        **context: more fields of its one context, as `namespace`.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me", **context}}],
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path
