"""What commands that ask about a cluster read: a live cluster, a snapshot, or manifests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from console.adopt.objects import Cluster, ReadCluster
from console.simulator import apiserver
from console.simulator.apiserver import Priorities, with_defaults
from console.simulator.assumed import assume_devices
from console.simulator.documents import InputError, settings_of, stated_among
from console.simulator.manifests import refused, wrong_shape
from console.simulator.objects import read_all
from console.simulator.running import assume, counting_all
from console.snapshot.command import progress
from console.snapshot.read import ABOUT, SnapshotWanted, take
from koordgate.kube.client import KubeClient
from webhook.settings import WebhookSettings, adoption_of, types_of

Raw = dict[str, Any]
Found = tuple[str, Raw, str]
"""Where an object is, the object, and its kind."""

# The kinds that only commands read; the others are checked where they are taken.
_CHECKED: Final = ("Pod", "ConfigMap", "ResourceQuota", "Event", "PodDisruptionBudget", apiserver.PRIORITY_CLASS)
_MAX_AGAIN: Final = 3  # objects that are given more than once and are named


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read."""

    objects: Sequence[Found]
    notes: Sequence[str] = ()  # what could not be read, or was assumed, a sentence each
    manifests: bool = False  # whether they are written by hand or by kubectl: what running Pods hold is then assumed


def read_files(paths: Sequence[str], configured: WebhookSettings | None) -> Reading:
    """Read a snapshot, or manifests; idle devices are assumed for their Nodes without a Device object.

    `configured`: settings to be used instead of those of an installation that is among the objects. Raises InputError:
    something cannot be read.
    """
    listed, notes = _latest(read_all(paths))
    notes += _prioritize(listed)
    if any(map(_is_about, listed)):
        return Reading(listed, notes)
    objects, assumed = with_assumed(listed, configured)
    return Reading(objects, [*notes, *assumed], manifests=True)


def _latest(listed: Iterable[Found]) -> tuple[list[Found], list[str]]:
    """Of objects that are given more than once, such as a Pod before and after its bind, keep the last and note it."""
    found: dict[tuple[object, ...], Found] = {}
    again: dict[tuple[object, ...], str] = {}
    for where, obj, kind in listed:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str):
            found[where,] = (where, obj, kind)  # what is wrong with it is reported where it is checked
            continue
        namespace, group = metadata.get("namespace") or "default", str(obj.get("apiVersion")).rpartition("/")[0]
        key = (kind, group, str(namespace), name)
        if key in found:
            again[key] = f"{kind} {name} is given more than once: that of {where} counts"
        found[key] = (where, obj, kind)
    told = list(again.values())
    notes = told[:_MAX_AGAIN]
    if len(told) > len(notes):
        notes.append(f"{len(told) - len(notes)} more objects are given more than once: the last of each counts")
    return list(found.values()), notes


def priorities_of(listed: Iterable[Found], note: Callable[[str], object]) -> Priorities:
    """Collect the PriorityClasses among objects; what an API server would not send is reported elsewhere."""
    known = Priorities(note)
    for _, obj, kind in listed:
        if kind == apiserver.PRIORITY_CLASS and not wrong_shape(kind, obj):
            known.put(obj)
    return known


def _prioritize(listed: Sequence[Found]) -> list[str]:
    """Write the priorities of their classes into Pods that state none; returns what was assumed."""
    notes: list[str] = []
    known = priorities_of(listed, notes.append)
    for _, obj, kind in listed:
        if kind == "Pod" and not wrong_shape(kind, obj):
            known.complete(obj)
    return notes


async def read_live(kube: KubeClient, installed_in: str, configured: WebhookSettings | None) -> Reading:
    """Read a cluster as `koordgate snapshot` does.

    `configured`: settings to be used instead of those of the installation. Raises KubeError: the API server refuses
    Nodes or Pods, or cannot be reached.
    """
    wanted = SnapshotWanted(installed_in, configured=configured)
    with progress() as told:
        taken = await take(kube, wanted, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), told)
    return Reading([("the cluster", obj, obj["kind"]) for obj in taken.items], taken.notes)


def mapping(value: object) -> Mapping[str, Any]:
    """A part of an object that nobody has checked; one without fields where it is something else."""
    return value if isinstance(value, Mapping) else {}


def _is_about(found: Found) -> bool:
    """Whether an object says that the others are a snapshot, which has all Device objects that the cluster has."""
    _, obj, kind = found
    return kind == "ConfigMap" and mapping(obj.get("metadata")).get("name") == ABOUT


def with_assumed(listed: list[Found], configured: WebhookSettings | None) -> tuple[list[Found], list[str]]:
    """Add devices for the Nodes of manifests that have no Device object, as simulate does; returns what was assumed.

    `configured`: settings to be used instead of those of an installation that is among the objects. Raises InputError:
    the settings are wrong.
    """
    nodes, devices, pods = ([obj for _, obj, kind in listed if kind == of] for of in ("Node", "Device", "Pod"))
    stated = stated_among(listed)
    maps = () if stated is None else (stated,)
    wrong = [one for one in (*nodes, *devices, *pods, *maps) if wrong_shape(str(one.get("kind")), one)]
    if wrong:
        return listed, []  # what is wrong with them is reported when they are read
    assumed = assume_devices(nodes, devices, pods, types=types_of(configured or settings_of(stated)))
    return [*listed, *(("assumed", one, "Device") for one in assumed.devices)], list(assumed.notes)


def checked(where: str, obj: Raw, kind: str) -> Found:
    """An object with the defaults of an API server.

    Raises InputError: an API server would not send it.
    """
    wrong = (wrong_shape(kind, obj) if kind in _CHECKED else "") or refused(obj, kind)
    if wrong:
        raise InputError(f"{where}: {kind}: {wrong}; the API server would refuse it; correct it")
    return where, with_defaults(obj) if kind == "Pod" else obj, kind


def let_hold(cluster: Cluster, *, counted: bool) -> ReadCluster | None:
    """Let running Pods hold what `simulate` lets them hold.

    `counted`: whether settings say which products count; otherwise all do that can be read. Returns the cluster as a
    replica would see it, if that did not change; None if a Pod holds something now.
    """
    if not counted:
        cluster.settings = counting_all(cluster.settings)
    seen = ReadCluster(cluster, adoption_of(cluster.settings))
    pods = cluster.objects("Pod")
    assumed = {pod["metadata"]["uid"]: pod for pod in assume(pods, seen.view.snapshot, types_of(cluster.settings))}
    if not assumed:
        return seen
    cluster.of["Pod"] = [assumed.get(pod["metadata"]["uid"], pod) for pod in pods]
    return None
