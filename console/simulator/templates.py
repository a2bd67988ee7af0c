"""The Pods of objects of other kinds, such as a Volcano Job, a PyTorchJob or a RayCluster (pure).

A template is found by its `spec.containers`. How many Pods there are of it is the product of the numbers that stand on
the way to it: `replicas`, and of a Job's template the Pods that run at once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.simulator.manifests import Way, place_of, pods_in
from console.terminal import counted

Raw = dict[str, Any]
_MOST: Final = 250_001  # more than anybody may ask for
_LONGEST: Final = 200
_NOT_IN_NAMES: Final = frozenset({"spec", "template", "jobTemplate", "leaderWorkerTemplate"})
_NAMES: Final = ("name", "groupName")
_NUMBERS: Final = ("replicas", "numOfHosts")
_OUTSIDE: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """A Pod template in an object.

    Attributes:
        pod: the Pod that is made of it, with the object's name.
        place: where it is in the object.
        names: of its Pods.
        told: how many there are and why, for people.
    """

    pod: Raw
    place: str
    names: Sequence[str]
    told: str


def templates_of(obj: Mapping[str, Any], kind: str) -> Iterator[FoundTemplate]:
    """Find the templates of an object, in its order."""
    for way, pod in pods_in(obj, kind).items():
        place = place_of(way) or "the object itself"
        count, by = 1, list[str]()
        for at, number, key in _numbers(obj, way):
            count = min(count * number, _MOST)
            by.append(place_of((*at, key)))
        base = _base(obj, way)
        names = [f"{base}-{index}" for index in range(count)]
        why = f"by {' and '.join(by)}" if by else "no number is stated beside it"
        yield FoundTemplate(pod, place, names, f"{counted(count, 'Pod')} of {place}: {why}")


def _numbers(obj: Mapping[str, Any], way: Way) -> Iterator[tuple[Way, int, str]]:
    """The numbers on the way to a template: where each stands, how many Pods it makes of one, and its key."""
    part: Any = obj
    for depth, key in enumerate(way):
        if isinstance(part, dict) and depth:
            for name in _NUMBERS:
                if _is_number(part.get(name)):
                    yield way[:depth], part[name], name
            if key == "template" and _is_number(part.get("parallelism")):
                most = part.get("completions")
                yield (
                    way[:depth],
                    min(part["parallelism"], most) if _is_number(most) else part["parallelism"],
                    ("parallelism"),
                )
            size: Any = part.get("size")
            if key == "workerTemplate" and _is_number(size):
                # Of a LeaderWorkerSet: the leader is one of the group, and has the workers' template if it has none.
                yield way[:depth], size - 1 if part.get("leaderTemplate") else size, "size"
        part = part[key]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _base(obj: Mapping[str, Any], way: Way) -> str:
    """The beginning of the names: the object's name, and the nearest name of the part that has the template."""
    part: Any = obj
    nearest = ""
    for depth, key in enumerate(way):
        if isinstance(part, dict) and depth:
            stated = next((part[name] for name in _NAMES if isinstance(part.get(name), str) and part[name]), "")
            nearest = stated or nearest
        if isinstance(key, str) and key not in _NOT_IN_NAMES:
            nearest = key
        part = part[key]
    name = f"{obj['metadata']['name']}-{nearest}" if nearest else str(obj["metadata"]["name"])
    return _OUTSIDE.sub("-", name.lower()).strip("-")[:_LONGEST]
