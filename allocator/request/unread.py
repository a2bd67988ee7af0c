"""What a Pod asks for in names that koordgate knows and does not read: dialects that are off, and device plugins'."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.foreign import Foreign, asked_names, foreign_names
from allocator.vocabulary.outcome import Problem


class Off(NamedTuple):
    """A dialect that is off, and where a Pod first uses it.

    Attributes:
        dialect: as the table has it.
        path: of the container, or of the Pod's annotations.
        name: the resource or annotation.
    """

    dialect: Dialect
    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Unread:
    """What is not read of a Pod.

    Attributes:
        dialects: those that are off.
        resources: whether a container uses one of them; otherwise only annotations do.
        selections: annotations that choose among devices, of dialects that are off.
        foreign: names that no dialect has: place, name, and what it is.
    """

    dialects: tuple[Off, ...] = ()
    resources: bool = False
    selections: tuple[tuple[Dialect, str], ...] = ()
    foreign: tuple[tuple[str, str, Foreign], ...] = ()


def find_unread(pod: Mapping[str, Any], types: DeviceTypes) -> Unread:
    """Find what a Pod states in names that are not read.

    Args:
        pod: the Pod.
        types: the table for its namespace.
    """
    spec = pod.get("spec") or {}
    annotations: Mapping[str, object] = (pod.get("metadata") or {}).get("annotations") or {}
    dialects: dict[str, Off] = {}
    resources = False
    for path, name, amount in asked_names(spec):
        if name in types.resources or name not in types.known.resources or amount in {0, "0"}:
            continue
        dialect = types.known.resources[name].dialect
        resources = True
        dialects.setdefault(dialect.name, Off(dialect, path, name))
    for key in types.known.annotations.keys() & annotations.keys():
        if key not in types.annotations:
            dialect = types.known.annotations[key].dialect
            dialects.setdefault(dialect.name, Off(dialect, "metadata.annotations", key))
    chosen = {key: one for one in reversed(types.off) for key in one.selects.keys if key in annotations}
    for read in types.dialects:
        for key in read.selects.keys:
            chosen.pop(key, None)
    return Unread(
        tuple(dialects.values()),
        resources,
        tuple((one, key) for key, one in chosen.items()),
        tuple(dict.fromkeys(foreign_names(spec, types.known.resources))),
    )


def beside_ours(unread: Unread) -> Iterator[Problem]:
    """Find what cannot be in a Pod to which koordgate gives devices."""
    for path, name, what in unread.foreign:
        yield Problem(
            path,
            f"{name} counts {what.what}, which the vendor's device plugin gives, and koordgate decides what every "
            "container of this Pod sees; ask for them in a Pod of their own",
        )
    for off in unread.dialects:
        if unread.resources:
            yield Problem(
                off.path,
                f"{off.name} is of the dialect {off.dialect}, which is off here, and the Pod also asks in another; "
                "use one",
            )
