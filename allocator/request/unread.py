"""What a Pod asks for in names that koordgate knows and does not read: dialects that are off, and device plugins'."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from allocator.quantity import is_zero
from allocator.request.misspelt import MOST_READ, meant_resource
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.foreign import Foreign, asked_names, foreign_of
from allocator.vocabulary.outcome import Problem


class Off(NamedTuple):
    """A dialect that is off, and where a Pod first uses it."""

    dialect: Dialect  # as the table has it
    path: str  # of the container, or of the Pod's annotations
    name: str  # the resource or annotation


@dataclass(frozen=True, slots=True)
class Unread:
    """What is not read of a Pod."""

    dialects: tuple[Off, ...] = ()  # those that are off
    resources: bool = False  # whether a container uses one of them; otherwise only annotations do
    selections: tuple[tuple[Dialect, str], ...] = ()  # annotations that choose among devices, of dialects that are off
    foreign: tuple[tuple[str, str, Foreign], ...] = ()  # names that no dialect has: place, name, and what it is


NOTHING: Final = Unread()


def find_unread(pod: Mapping[str, Any], types: DeviceTypes) -> Unread:
    """Find what a Pod states in names that are not read."""
    spec = pod.get("spec") or {}
    annotations: Mapping[str, object] = (pod.get("metadata") or {}).get("annotations") or {}
    read, known = types.resources, types.known.resources
    others = [one for one in asked_names(spec) if one[1] not in read]
    dialects: dict[str, Off] = {}
    foreign: dict[tuple[str, str, Foreign], None] = {}
    for path, name, amount in others:
        if name in known:
            if not is_zero(amount):
                dialects.setdefault(known[name].dialect.name, Off(known[name].dialect, path, name))
        elif (found := foreign_of(name)) is not None:
            foreign.update({} if is_zero(amount) else {(path, name, found): None})
    resources = bool(dialects)
    for off in _annotated(annotations, types) if annotations else ():
        dialects.setdefault(off.dialect.name, off)
    if not dialects and not foreign and types.selections.isdisjoint(annotations):
        return NOTHING
    selections = tuple(_selections(annotations, types))
    return Unread(tuple(dialects.values()), resources, selections, tuple(foreign))


class Taken(NamedTuple):
    """A resource by which another product would give a Pod devices of koordgate's."""

    name: str
    dialect: str  # that has it, which is off; "" for none
    type: str  # of the devices, by name
    vendor: str  # whose devices are meant; "": anybody's


def taken_by_others(spec: Mapping[str, Any], types: DeviceTypes) -> tuple[Taken, ...]:
    """Find by which resources other products would give a Pod devices of koordgate's, the first of each dialect."""
    found: dict[tuple[str, str], Taken] = {}
    for _, name, amount in asked_names(spec):
        if name in types.resources:
            continue
        meaning = types.known.resources.get(name)
        if meaning is not None and (meaning.term.states or meaning.term.template):
            taken = Taken(name, meaning.dialect.name, meaning.type.name, meaning.dialect.vendor)
        elif meaning is None and (foreign := foreign_of(name)) is not None and foreign.of:
            taken = Taken(name, "", foreign.of, "")
        else:
            continue
        if not is_zero(amount):
            found.setdefault((taken.dialect, taken.type), taken)
    return tuple(found.values())


def _annotated(annotations: Mapping[str, object], types: DeviceTypes) -> Iterator[Off]:
    """List the annotations that would ask for devices if a dialect were on."""
    for key in types.known.annotations.keys() & annotations.keys():
        if key not in types.annotations:
            yield Off(types.known.annotations[key].dialect, "metadata.annotations", key)
    for key in annotations if types.known.beginnings != types.beginnings else ():
        form = types.known.form_of(key)
        if form is not None and types.form_of(key) is None:
            yield Off(form[0], "metadata.annotations", key)


def _selections(annotations: Mapping[str, object], types: DeviceTypes) -> Iterator[tuple[Dialect, str]]:
    """List the annotations that would choose among devices if a dialect were on."""
    read = {key for one in types.dialects for key in one.selects.keys}
    for dialect in types.off:
        for key in dialect.selects.keys:
            if key in annotations and key not in read:
                read.add(key)
                yield dialect, key


def beside_ours(unread: Unread, types: DeviceTypes) -> Iterator[Problem]:
    """Find what cannot be in a Pod to which koordgate gives devices."""
    for at, (path, name, what) in enumerate(unread.foreign):
        meant = meant_resource(name, types.known) if at < MOST_READ else ""
        yield Problem(
            path,
            f"{name} counts {what.what}, which the vendor's device plugin gives, and koordgate decides what every "
            f"container of this Pod sees; ask for them in a Pod of their own{meant}",
        )
    for off in unread.dialects:
        if unread.resources:
            yield Problem(
                off.path,
                f"{off.name} is of the dialect {off.dialect}, which is off here, and the Pod also asks in another; "
                "use one",
            )
