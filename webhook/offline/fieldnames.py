"""What the API server refuses in objects that state Pods, by Kubernetes' own names of kinds and fields.

Offline no API server is asked. A field that it does not know would otherwise be passed over: a Pod whose `resources`
are misspelt asks for nothing. `fields.json` follows from Kubernetes' OpenAPI (`docs/podfields.py`).
"""

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from allocator.vocabulary.names import RESOURCE_MAPS
from webhook.offline.manifests import Way, must_have_pods, place_of, pods_in

Raw = Mapping[str, Any]

_ALIKE: Final = 0.6
_GROUPS: Final = frozenset({"v1", "apps/v1", "batch/v1"})
_OTHERS: Final = frozenset({"Device", "NodeAllocation", "NodeResourceTopology", "PodGroup"})
_OF_PODS: Final = ("cpu", "memory")  # and hugepages: what may be stated for a Pod as a whole
_POD: Final = "Pod"


@cache
def _known() -> Mapping[str, Any]:
    """`kinds`, and `types`: type -> field -> type of the field's value or elements, "" for one without fields."""
    found: Mapping[str, Any] = json.loads(files("webhook.offline").joinpath("fields.json").read_text())
    return found


def refused(obj: Raw, kind: str) -> str:
    """Why the API server would refuse the names in an object; "" if it would not.

    What comes from a cluster was accepted there, maybe by a later version of Kubernetes; it is not looked at.
    """
    metadata = obj.get("metadata")
    if isinstance(metadata, dict) and (metadata.get("uid") or metadata.get("resourceVersion")):
        return ""
    version = obj.get("apiVersion")
    if version in _GROUPS and kind not in _known()["kinds"] and kind not in _OTHERS:
        return f"{version} has no kind {kind}{_meant(kind, _known()['kinds'])}"
    if kind == "Pod" or must_have_pods(obj, kind):
        return next(_wrong(obj, kind, ()), "")
    return next(
        (why for way, pod in pods_in(obj, kind).items() for why in _wrong({"spec": pod["spec"]}, _POD, way)), ""
    )


def _wrong(part: object, of: str, way: Way) -> Iterator[str]:
    """Find what is wrong in a part of an object, given its type."""
    if isinstance(part, list):
        for index, inner in enumerate(part):
            yield from _wrong(inner, of, (*way, index))
    if not isinstance(part, dict):
        return
    fields = _known()["types"].get(of, {})
    for key, inner in part.items() if fields else ():
        if key not in fields:
            yield f"{place_of((*way, str(key)))} is no field{_meant(str(key), fields)}"
        elif fields[key]:
            yield from _wrong(inner, fields[key], (*way, key))
    if of == "PodSpec":
        yield from _of_whole(part.get("resources"), way)


def _of_whole(resources: object, way: Way) -> Iterator[str]:
    """Find what a Pod states as a whole and only its containers may."""
    for key in RESOURCE_MAPS if isinstance(resources, dict) else ():
        for name in resources.get(key) or () if isinstance(resources, dict) else ():
            if name not in _OF_PODS and not str(name).startswith("hugepages-"):
                place = place_of((*way, "resources", key))
                yield f"{place}[{name}]: a Pod as a whole may state cpu, memory and hugepages; ask in a container"


def _meant(word: str, words: Collection[str]) -> str:
    alike = difflib.get_close_matches(word, words, 1, _ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""
