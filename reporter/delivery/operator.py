"""What NVIDIA's GPU Operator is told to do: its ClusterPolicy, where the cluster has that."""

import re
from collections.abc import Mapping
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError, NotFound
from koordgate.kube.resource import CLUSTER_POLICIES
from reporter.delivery.facts import UNTOLD, OperatorPolicy

_VERSION: Final = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?:[-+].*)?", re.ASCII)
_MOST: Final = "16"  # the operator heeds one, and marks the others as ignored


async def ask(kube: KubeClient, before: OperatorPolicy = UNTOLD) -> OperatorPolicy:
    """Read the ClusterPolicy.

    `before`: what was read last, which is kept while the API server does not answer.
    """
    try:
        return policy((await kube.get(CLUSTER_POLICIES.path(), params={"limit": _MOST})).get("items"))
    except (NotFound, Forbidden):
        return UNTOLD
    except KubeError:
        return before


def policy(items: object) -> OperatorPolicy:
    """Read the ClusterPolicy that counts (pure), of a list of them; nothing is known of what makes no sense."""
    for one in items if isinstance(items, list) else ():
        if isinstance(one, dict) and _table(one.get("status")).get("state") != "ignored":
            spec, metadata = _table(one.get("spec")), _table(one.get("metadata"))
            cdi, toolkit = _table(spec.get("cdi")), _table(spec.get("toolkit"))
            return OperatorPolicy(
                cdi=_flag(cdi.get("enabled")),
                nri=_flag(cdi.get("nriPluginEnabled", False)),  # operators before 26.3 do not have it
                brings_toolkit=_flag(toolkit.get("enabled", True)),
                toolkit=version(toolkit.get("version")),
                version=version(_table(metadata.get("labels")).get("app.kubernetes.io/version")),
            )
    return UNTOLD


def version(text: object) -> tuple[int, ...]:
    """Read a version, as v1.18.1 or v1.18.1-ubi8; empty if it is none, for example a digest."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    return tuple(map(int, match[1].split("."))) if match else ()


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
