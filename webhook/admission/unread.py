"""What admission warns the author of a Pod about that asks in names which are not read (pure)."""

from collections.abc import Iterator, Mapping
from typing import Any

from allocator.devices.words import describe
from allocator.request.cpus import names_cpus
from allocator.request.devices import PodReading
from allocator.request.original import read_asks
from allocator.request.unread import MAX_READ, Unread, find_misspelt, meant_resource
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import Dialect


def belongs_to_others(pod: Mapping[str, Any], reading: PodReading, unread: Unread, types: DeviceTypes) -> bool:
    """Return whether a Pod is left alone, because its names are those of a dialect that is off.

    `nvidia.com/gpu` alone is read. Beside the names of a dialect that is off it means what that product makes of it,
    which only that product can give. The guard still refuses to bind the Pod to devices of ours.
    """
    if not unread.resources or names_cpus(pod):
        return False
    named = {name for container in reading.containers for names in container.names for name in names}
    known = [types.resources[name].dialect for name in named]
    return not any(dialect.own or dialect.title for dialect in (*known, *reading.dialects))


def unread_warnings(pod: Mapping[str, Any], types: DeviceTypes, unread: Unread, *, ours: bool) -> Iterator[str]:
    """Warn of each dialect that is off, of each name that no dialect has, and of names that nobody reads."""
    for dialect, path, name in unread.dialects:
        at = f"{path}[{name}]" if path.startswith("metadata") else f"{path}: {name}"
        yield (
            f"{at} is of the dialect {dialect}, which is off here: koordgate gives nothing for it. "
            f"{_becoming(pod, types, dialect)}. An administrator turns it on with dialects.{dialect.name}.enabled"
        )
    for number, (path, name, what) in enumerate(unread.foreign):
        if number < MAX_READ and meant_resource(name, types.known):
            continue  # a typo, which is told below
        cure = f"; to have koordgate give them, {what.cure}" if what.cure else ""
        yield (
            f"{path}: {name} counts {what.what}, which koordgate does not give; the vendor's device plugin and the "
            f"kubelet choose them{cure}"
        )
    if ours:
        for dialect, key in unread.selections:
            yield f"metadata.annotations[{key}]: has no effect, because the dialect {dialect} is off here"
    yield from find_misspelt(pod, types, unread.unknown, ours=ours)


def _becoming(pod: Mapping[str, Any], types: DeviceTypes, dialect: Dialect) -> str:
    """Say what the Pod would ask for if the dialect were on."""
    if dialect.sized and not dialect.unit:
        return f"If it were on, memory would be read in units of dialects.{dialect.name}.memoryUnit"
    reading = read_asks(pod, types.known, implied=False)
    if reading.problems:
        return f"If it were on, the Pod would be refused: {reading.problems[0]}"
    asks = [f"{one.name} {describe(one.ask)}" for one in reading.request.containers]
    return f"If it were on, the Pod would ask for {', '.join(asks) or 'nothing'}"
