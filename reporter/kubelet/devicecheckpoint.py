"""The checkpoint of the kubelet's device manager (`kubelet_internal_checkpoint`): which devices it allocated.

Device proposal, "Compatible": they are reported on the Device object, so that no other Pod gets them. `DeviceIDs` is an
object from NUMA node to list. The checksum covers Go's names of the layout (pkg/kubelet/cm/devicemanager/checkpoint).
"""

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.outcome import excerpt
from allocator.wire.deviceobject import device_of
from reporter.kubelet.checkpoint import (
    NIL,
    CheckpointError,
    checksum,
    decode,
    read_bytes,
    read_checksum,
    read_list,
    read_map,
    read_text,
    read_texts,
    show_bytes,
    show_list,
    show_map,
)

# The kubelet's own constant: its --root-dir does not move it (k8s.io/kubelet, pkg/apis/deviceplugin).
PATH: Final = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
# All annotations of an object together may have 256 KiB. This text is written under two names, beside others.
ANNOTATION_BYTES: Final = 64 * 1024
# Not JSON: a reader must then assume that every device is allocated.
UNTOLD: Final = "which devices are allocated cannot be told here"
_NUMA_KEY: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,9})", re.ASCII)  # -1: a device that names no NUMA node

_Ids = dict[int, list[str] | None] | None


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices of one resource that the kubelet allocated to one container."""

    pod_uid: str  # UID of the Pod
    container: str  # name of the container
    resource: str  # for example `nvidia.com/gpu`
    device_ids: tuple[str, ...]  # as the device plugin names them; NUMA node by NUMA node, in the file's order
    # the device plugin's answer (a serialised ContainerAllocateResponse); empty if there was none
    response: bytes = b""


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    """The file as read."""

    entries: tuple[PodDevices, ...]  # in the file's order


def absent() -> DeviceCheckpoint:
    """The meaning of a missing file: no device plugin has registered yet, so no device is allocated."""
    return DeviceCheckpoint(())


def parse(data: bytes) -> DeviceCheckpoint:
    """Read the file.

    Raises CheckpointError: it is truncated, malformed or too large, or its checksum does not match its data.
    """
    top = decode(data)
    body = read_map(top.get("Data", {}), "Data") or {}
    rows = read_list(body.get("PodDeviceEntries", []), "PodDeviceEntries")
    entries = None if rows is None else [_read_entry(row, f"PodDeviceEntries[{n}]") for n, row in enumerate(rows)]
    stated = read_map(body.get("RegisteredDevices", {}), "RegisteredDevices")
    registered = None
    if stated is not None:
        registered = {name: read_texts(ids, f"RegisteredDevices[{excerpt(name)}]") for name, ids in stated.items()}
    _verify(read_checksum(top.get("Checksum")), entries, registered)
    return DeviceCheckpoint(entries=tuple(_plain(entry) for entry in entries or ()))


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry as it is in the file: null and empty stay distinct, for the checksum."""

    uid: str
    container: str
    resource: str
    ids: _Ids
    response: bytes | None


def _read_entry(row: object, where: str) -> _Entry:
    entry = read_map(row, where) or {}
    return _Entry(
        uid=read_text(entry.get("PodUID"), f"{where}.PodUID"),
        container=read_text(entry.get("ContainerName"), f"{where}.ContainerName"),
        resource=read_text(entry.get("ResourceName"), f"{where}.ResourceName"),
        ids=_read_ids(entry.get("DeviceIDs"), f"{where}.DeviceIDs"),
        response=read_bytes(entry.get("AllocResp"), f"{where}.AllocResp"),
    )


def _read_ids(value: object, where: str) -> _Ids:
    entries = read_map(value, where)
    if entries is None:
        return None
    for key in entries:
        if not _NUMA_KEY.fullmatch(key):
            raise CheckpointError(f"{where} has a key that is not a NUMA node: {excerpt(key)!r}")
    return {int(key): read_texts(ids, f"{where}[{key}]") for key, ids in entries.items()}


def _plain(entry: _Entry) -> PodDevices:
    by_node = entry.ids or {}
    ids = tuple(device for node in sorted(by_node) for device in by_node[node] or ())
    return PodDevices(entry.uid, entry.container, entry.resource, ids, entry.response or b"")


def _verify(stated: int, entries: list[_Entry] | None, registered: Mapping[str, list[str] | None] | None) -> None:
    computed = checksum(_show(entries, registered))
    if stated != computed:
        raise CheckpointError(f"its checksum is {stated}, its data have {computed}: corrupt")


def _show(entries: list[_Entry] | None, registered: Mapping[str, list[str] | None] | None) -> str:
    rows = None
    if entries is not None:
        rows = [
            f"{{PodUID:(string){entry.uid} ContainerName:(string){entry.container} "
            f"ResourceName:(string){entry.resource} DeviceIDs:{_show_ids(entry.ids)} "
            f"AllocResp:([]uint8){show_bytes(entry.response)}}}"
            for entry in entries
        ]
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){show_list(rows)} "
        f"RegisteredDevices:(map[string][]string){show_map(registered, show_list)}}}"
    )


def _show_ids(ids: _Ids) -> str:
    return f"(checkpoint.DevicesPerNUMA){NIL if ids is None else show_map(ids, show_list)}"


def annotation(entries: Collection[PodDevices], limit: int = ANNOTATION_BYTES) -> str:
    """Write the value of devices-checkpoints and gpu-checkpoints (device proposal, `PodDevicesEntries`).

    In a stable order, so that the same devices give the same text.
    `limit`: bytes. If the text would be longer, the plugins' answers are left out, because they are not needed to know
    who holds what; then everything but the ids. Raises CheckpointError: it would still be longer; write `UNTOLD`
    instead.
    """
    ordered = sorted(entries, key=lambda entry: (entry.pod_uid, entry.container, entry.resource, entry.device_ids))
    for rows in (
        [_row(entry, response=True) for entry in ordered],
        [_row(entry, response=False) for entry in ordered],
        # Replicas of a time-shared card (GPU-...::3) count as the card, for other readers too.
        [{"deviceIDs": sorted({device_of(device) for entry in ordered for device in entry.device_ids})}],
    ):
        text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) <= limit:
            return text
    raise CheckpointError(f"{len(ordered)} entries do not fit an annotation of {limit} bytes")


def read_annotation(text: str) -> tuple[PodDevices, ...]:
    """Read what `annotation` wrote; the Pods are "" where only the ids were written.

    Raises CheckpointError: it is `UNTOLD`, or something else that `annotation` does not write.
    """
    rows = [read_map(row, "an entry") or {} for row in read_list(_json(text), "the annotation") or ()]
    return tuple(
        PodDevices(
            read_text(row.get("podUID"), "podUID"),
            read_text(row.get("containerName"), "containerName"),
            read_text(row.get("resourceName"), "resourceName"),
            tuple(read_texts(row.get("deviceIDs"), "deviceIDs") or ()),
            read_bytes(row.get("allocResp"), "allocResp") or b"",
        )
        for row in rows
    )


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}") from error


def _row(entry: PodDevices, *, response: bool) -> dict[str, Any]:
    row = {
        "podUID": entry.pod_uid,
        "containerName": entry.container,
        "resourceName": entry.resource,
        "deviceIDs": list(entry.device_ids),
        "allocResp": base64.b64encode(entry.response).decode() if response else "",
    }
    return {key: value for key, value in row.items() if value}
