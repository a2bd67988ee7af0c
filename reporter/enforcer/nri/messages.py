"""NRI's messages, and what they are as the enforcer knows it (pure).

The messages are those of containerd/nri, pkg/api/api.proto (v0.12), and of containerd/ttrpc, proto/ttrpc.proto; only
the fields that are read or written are described.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary import cputopology
from allocator.vocabulary.names import LIMITS, is_allocation_annotation
from reporter import protobuf
from reporter.enforcer.model import Container, Edits, Mount, Sandbox, Update
from reporter.protobuf import BOOL, BYTES, INT32, INT64, TEXTS, UINT32, Field, MessageType

PACKAGE: Final = "nri.pkg.api.v1alpha1"
_STOPPED: Final = 4  # of ContainerState
# What else an author writes decides nothing, and may have a megabyte a container: all of a node is in memory at once.
_VARIABLES: Final = ("ACTIVE_OOM_KILLER", "CUDA_", "GPU_CORE_", "LD_PRELOAD", "NVIDIA_VISIBLE_", "RECORD_KERNEL_")

_POD: Final = Field("pod", 1, "PodSandbox")
_CONTAINER: Final = Field("container", 2, "Container")
_TABLE: Final = {
    "Request": (
        Field("service", 1),
        Field("method", 2),
        Field("payload", 3, BYTES),
    ),
    "Response": (Field("status", 1, "Status"), Field("payload", 2, BYTES)),
    "Status": (Field("code", 1, INT32), Field("message", 2)),
    "Empty": (),
    "RegisterPluginRequest": (Field("plugin_name", 1), Field("plugin_idx", 2)),
    "ConfigureRequest": (
        Field("runtime_name", 2),
        Field("runtime_version", 3),
        Field("request_timeout", 5, INT64),
    ),
    "ConfigureResponse": (Field("events", 2, INT32),),
    "SynchronizeRequest": (
        Field("pods", 1, "PodSandbox", many=True),
        Field("containers", 2, "Container", many=True),
        Field("more", 3, BOOL),
    ),
    "SynchronizeResponse": (Field("update", 1, "ContainerUpdate", many=True), Field("more", 2, BOOL)),
    "ContainerRequest": (_POD, _CONTAINER),  # CreateContainer, and all others about a container or a sandbox
    "CreateContainerResponse": (
        Field("adjust", 1, "ContainerAdjustment"),
        Field("update", 2, "ContainerUpdate", many=True),
    ),
    "UpdateContainerRequest": (_POD, _CONTAINER, Field("linux_resources", 3, "LinuxResources")),
    "UpdateResponse": (Field("update", 1, "ContainerUpdate", many=True),),  # of UpdateContainer and StopContainer
    "StateChangeEvent": (Field("event", 1, INT32), Field("pod", 2, "PodSandbox"), Field("container", 3, "Container")),
    "PodSandbox": (
        Field("id", 1),
        Field("name", 2),
        Field("uid", 3),
        Field("namespace", 4),
        Field("labels", 5, TEXTS),
        Field("annotations", 6, TEXTS),
        Field("runtime_handler", 7),
        Field("linux", 8, "LinuxPodSandbox"),
    ),
    "LinuxPodSandbox": (Field("cgroup_parent", 3),),
    "Container": (
        Field("id", 1),
        Field("pod_sandbox_id", 2),
        Field("name", 3),
        Field("state", 4, INT32),
        Field("env", 8, many=True),
        Field("mounts", 9, "Mount", many=True),
        Field("linux", 11, "LinuxContainer"),
        Field("pid", 12, UINT32),
        Field("CDI_devices", 20, "CDIDevice", many=True),
    ),
    "Mount": (
        Field("destination", 1),
        Field("type", 2),
        Field("source", 3),
        Field("options", 4, many=True),
    ),
    "LinuxContainer": (Field("resources", 3, "LinuxResources"), Field("cgroups_path", 5)),
    "LinuxResources": (Field("cpu", 2, "LinuxCPU"),),
    "LinuxCPU": (Field("cpus", 6), Field("mems", 7)),
    "CDIDevice": (Field("name", 1),),
    "ContainerAdjustment": (
        Field("mounts", 3, "Mount", many=True),
        Field("env", 4, "KeyValue", many=True),
        Field("linux", 6, "LinuxContainerAdjustment"),
        Field("CDI_devices", 8, "CDIDevice", many=True),
    ),
    "LinuxContainerAdjustment": (Field("resources", 2, "LinuxResources"),),
    "KeyValue": (Field("key", 1), Field("value", 2)),
    "ContainerUpdate": (
        Field("container_id", 1),
        Field("linux", 2, "LinuxContainerUpdate"),
        Field("ignore_failure", 3, BOOL),
    ),
    "LinuxContainerUpdate": (Field("resources", 1, "LinuxResources"),),
}


class MessageError(Exception):
    """Bytes that are no such message; the message says so."""


@cache
def types() -> dict[str, MessageType]:
    """The messages by their names."""
    return protobuf.messages(PACKAGE, _TABLE)


def make(name: str, **fields: Any) -> bytes:
    """Make a serialised message."""
    return types()[name](**fields).SerializeToString()


def read(name: str, data: bytes) -> Any:
    """Read a serialised message.

    Raises MessageError: it is truncated or malformed.
    """
    try:
        return protobuf.parse(types()[name], data)
    except ValueError as error:
        raise MessageError(str(error)) from error


def sandbox(pod: Any) -> Sandbox:
    """Read a PodSandbox."""
    return Sandbox(
        id=pod.id,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels={QOS_LABEL: pod.labels[QOS_LABEL]} if QOS_LABEL in pod.labels else {},
        annotations={
            key: value for key, value in pod.annotations.items() if key == LIMITS or is_allocation_annotation(key)
        },
        cgroup=pod.linux.cgroup_parent,
        handler=pod.runtime_handler,
    )


def container(found: Any) -> Container:
    """Read a Container."""
    cpu = found.linux.resources.cpu
    return Container(
        id=found.id,
        sandbox=found.pod_sandbox_id,
        name=found.name,
        environment=dict(_variable(one) for one in found.env if one.startswith(_VARIABLES)),
        mounts=tuple(one.destination for one in found.mounts),
        cdi=tuple(one.name for one in found.CDI_devices),
        cpus=listed(cpu.cpus),
        mems=listed(cpu.mems),
        cgroup=found.linux.cgroups_path,
        pid=found.pid,
    )


def there(containers: Iterable[Any]) -> tuple[Container, ...]:
    """Read the Containers that have not ended: of those, the runtime would refuse an update."""
    return tuple(container(one) for one in containers if one.state != _STOPPED)


def listed(text: str) -> int:
    """Read a list of CPUs, or of NUMA nodes; 0 if it is none."""
    try:
        return cputopology.parse(text)
    except cputopology.CpusetError:
        return 0


def adjustment(edits: Edits) -> dict[str, Any]:
    """Make a ContainerAdjustment's fields."""
    made: dict[str, Any] = {
        "env": [{"key": key, "value": value} for key, value in edits.environment.items()],
        "mounts": [_mount(one) for one in edits.mounts],
        "CDI_devices": [{"name": name} for name in edits.cdi],
    }
    if edits.cpus or edits.mems:
        made["linux"] = {"resources": _resources(edits.cpus, edits.mems)}
    return made


def updates(wanted: Iterable[Update]) -> list[dict[str, Any]]:
    """Make ContainerUpdates' fields.

    A container that has just ended cannot be updated; that is no failure of the call.
    """
    return [
        {
            "container_id": one.container,
            "linux": {"resources": _resources(one.cpus, one.mems)},
            "ignore_failure": True,
        }
        for one in wanted
        if one.cpus or one.mems
    ]


def _resources(cpus: int, mems: int) -> dict[str, Any]:
    return {"cpu": {"cpus": cputopology.format_cpuset(cpus), "mems": cputopology.format_cpuset(mems)}}


def _mount(mount: Mount) -> dict[str, Any]:
    options = ["bind", "rw" if mount.writable else "ro"]
    return {"destination": mount.destination, "type": "bind", "source": mount.source, "options": options}


def _variable(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value
