"""Who creates a Pod anew when it is deleted, and what that means for the advice to delete it."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.names import MIRROR_POD

NODE: Final = "Node"
"""Of a static Pod, which a node's kubelet makes from a manifest there."""


def maker_of(metadata: Mapping[str, Any]) -> str:
    """The kind of a Pod's controller; `NODE` for a static Pod, "" if nothing creates it anew."""
    if MIRROR_POD in (metadata.get("annotations") or {}):
        return NODE
    owners = metadata.get("ownerReferences") or ()
    return next((sys.intern(str(one.get("kind"))) for one in owners if one.get("controller")), "")


def deleting(pods: Iterable[tuple[str, str]]) -> str:
    """What must be known before these Pods, each with its maker, are deleted: the end of a sentence; "" for nothing."""
    of: dict[str, list[str]] = {}
    for name, maker in sorted(pods):
        of.setdefault(maker, []).append(name)
    static = ", ".join(of.pop(NODE, ()))
    of.pop("", None)
    said = [f"of static Pods ({static}) remove the manifest from the node instead of deleting them"] if static else []
    said += [f"a {kind} then creates {' and '.join(names)} anew" for kind, names in sorted(of.items())]
    return "".join(f"; {one}" for one in said)
