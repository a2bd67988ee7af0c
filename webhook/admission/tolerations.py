"""The tolerations of Pods that ask for devices, by device type (pure).

Nodes with cards are often tainted with the name of the resource that their device plugin reports. The API server's
plugin ExtendedResourceToleration lets Pods onto them that ask for this name (Kubernetes,
plugin/pkg/admission/extendedresourcetoleration). A Pod that asks for a share of such a card in another name is let onto
them here, by the same toleration.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from allocator.request.devices import PodReading
from webhook.patch import Operation, add

TaintKeys = Mapping[str, Sequence[str]]  # device type -> keys of taints


def translate_tolerations(
    pod: Mapping[str, Any], reading: PodReading, keys: TaintKeys, operations: list[Operation]
) -> None:
    """Let a Pod tolerate the taints of the types of which it asks for devices."""
    asked = dict.fromkeys(ask.type.name for container in reading.containers for ask in container.requests)
    stated: Sequence[Mapping[str, Any]] | None = pod["spec"].get("tolerations")
    missing = [
        _toleration(key)
        for key in dict.fromkeys(key for kind in asked for key in keys.get(kind, ()))
        if not any(_covers(one, key) for one in stated or ())
    ]
    if stated is None and missing:
        operations.append(add("/spec/tolerations", missing))
    else:
        operations.extend(add("/spec/tolerations/-", one) for one in missing)


def reapply_tolerations(
    old: Mapping[str, Any], new: Mapping[str, Any], keys: TaintKeys, operations: list[Operation]
) -> None:
    """Put back the tolerations that were written, and their order if an update changes nothing else of them.

    An update may replace the list as a whole: in a manifest it is no map. Nobody may remove a toleration from a Pod.
    """
    stored, stated = old["spec"].get("tolerations") or [], new["spec"].get("tolerations") or []
    ours = [_toleration(key) for key in dict.fromkeys(key for of in keys.values() for key in of)]
    back = [one for one in stored if one in ours and one not in stated]
    if back:
        same = _contains(stored, stated) and _contains([*stated, *back], stored)
        operations.append(add("/spec/tolerations", stored if same else [*stated, *back]))


def _contains(many: Collection[Any], few: Collection[Any]) -> bool:
    return all(one in many for one in few)


def _toleration(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists"}


def _covers(toleration: Mapping[str, Any], key: str) -> bool:
    """Whether a toleration is for all taints with a key, whatever their values and effects."""
    same = toleration.get("key") in {key, None, ""} and toleration.get("operator") == "Exists"
    return same and not toleration.get("effect") and toleration.get("tolerationSeconds") is None
