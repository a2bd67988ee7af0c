"""A Pod for dry runs, and how the API server words what became of it."""

from collections.abc import Mapping
from typing import Any, Final

CONTAINER: Final = "main"
_IMAGE: Final = "registry.k8s.io/pause:3.10"
UNCALLED: Final = "failed calling webhook"
"""In the answer where a webhook that is Fail was not reached (k8s.io/apiserver, admission/plugin/webhook/errors)."""


def trial_pod(
    name: str,
    resources: Mapping[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    env: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Write a Pod that the strictest Pod security standard admits; the API server completes its name."""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": _IMAGE,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if env:
        container["env"] = env
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{name}-", "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
        },
    }
