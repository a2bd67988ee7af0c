"""How a Pod's containers share its devices: the annotation koordgate.io/device-sharing, written by the Pod's author.

JSON, from the device type to `users`, `weights`, `groups`, `regions` and `slot`. A mistake refuses all of it, and every
mistake is named. The default slot is filled in when the Pod is created, so that a later default changes no Pod.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.names import DEVICE_SHARING
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.sharing import LARGEST_WEIGHT, Regions, TypeSharing
from allocator.wire.strict import MAX_TERMS, StrictReader, annotation_path, show
from allocator.wire.values import stated

_KEYS: Final = ("users", "weights", "groups", "regions", "slot")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # a container's, as Kubernetes has it


def read_sharing(
    annotations: Mapping[str, object], types: Collection[str]
) -> dict[str, TypeSharing] | tuple[Problem, ...] | None:
    """Read the annotation.

    Returns type's name to what is said of it; None without the annotation; or all that is wrong with it.
    """
    if DEVICE_SHARING not in annotations:
        return None
    reader = _Reader()
    raw = reader.load(DEVICE_SHARING, annotations[DEVICE_SHARING])
    path = annotation_path(DEVICE_SHARING)
    found = {kind: reader.sharing(f"{path}.{kind}", raw[kind]) for kind in reader.known(path, raw, sorted(types))}
    return tuple(reader.problems) or found


def write_sharing(sharing: Mapping[str, TypeSharing]) -> str:
    """Write the annotation; `read_sharing` reads it back."""
    return json.dumps({kind: _written(one) for kind, one in sharing.items()}, separators=(",", ":"))


def _written(one: TypeSharing) -> dict[str, Any]:
    return stated(
        users=list(one.users),
        weights=dict(one.weights),
        groups={name: list(members) for name, members in one.groups},
        regions="" if one.regions is Regions.ONE_GROUP else str(one.regions),
        slot=one.slot,
    )


class _Reader(StrictReader):
    """Reads what is said of a type."""

    def sharing(self, path: str, value: object) -> TypeSharing:
        """Read one type's entry."""
        raw = self.mapping(path, value)
        self.known(path, raw, _KEYS)
        regions = self.word(f"{path}.regions", raw.get("regions"), Regions)
        slot = raw.get("slot")
        return TypeSharing(
            self.containers(f"{path}.users", raw.get("users")),
            tuple(
                (
                    self.container(f"{path}.weights", name),
                    self.whole(f"{path}.weights.{show(name)}", weight, LARGEST_WEIGHT),
                )
                for name, weight in self.entries(f"{path}.weights", raw.get("weights"))
            ),
            tuple(
                (name, self.members(f"{path}.groups.{show(name)}", members))
                for name, members in self.entries(f"{path}.groups", raw.get("groups"))
            ),
            Regions(regions) if regions else Regions.ONE_GROUP,
            0 if slot is None else self.whole(f"{path}.slot", slot, FULL),
        )

    def entries(self, path: str, value: object) -> list[tuple[str, Any]]:
        """Return the entries of an optional object of bounded length."""
        raw = self.mapping(path, value)
        if len(raw) > MAX_TERMS:
            self.note(path, f"must have at most {MAX_TERMS} entries")
            return []
        return list(raw.items())

    def members(self, path: str, value: object) -> tuple[str, ...]:
        """Read the containers of a group."""
        found = self.containers(path, value)
        if not found:
            self.note(path, "must be a list of containers")
        return found

    def containers(self, path: str, value: object) -> tuple[str, ...]:
        """Read a list of containers, each named once."""
        found = tuple(self.container(path, name) for name in self.items(path, value))
        if len(set(found)) != len(found):
            self.note(path, "must name each container once")
        return found

    def container(self, path: str, value: object) -> str:
        """Return a container's name."""
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        self.note(path, f"{show(value)} is not a container's name")
        return ""

    def whole(self, path: str, value: object, most: int) -> int:
        """Return a whole number from 1 on."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.note(path, f"must be a whole number from 1 to {most}")
        return 1
