"""The kubelet's PodResources service: its answer to List, read from bytes.

k8s.io/kubelet, pkg/apis/podresources/v1/api.proto (Kubernetes v1.37). Only the fields that are read are described here;
the others are dropped.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from allocator.vocabulary.cpuset import MAX_CPU
from allocator.vocabulary.excerpt import excerpt
from reporter.kubelet.allocations import WHOLE_POD, ContainerResources, PodResources

METHOD: Final = "/v1.PodResourcesLister/List"
_MOST_PODS: Final = 4096
_MOST_PARTS: Final = 65536  # containers, rows of devices and CPUs together
_TEXT: Final = FieldDescriptorProto.TYPE_STRING
_INT64: Final = FieldDescriptorProto.TYPE_INT64
# Message to its fields: name, number, type (another message by its name), whether repeated.
_MESSAGES: Final[dict[str, tuple[tuple[str, int, Any, bool], ...]]] = {
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", True),),
    "PodResources": (
        ("name", 1, _TEXT, False),
        ("namespace", 2, _TEXT, False),
        ("containers", 3, "ContainerResources", True),
        ("cpu_ids", 4, _INT64, True),
    ),
    "ContainerResources": (
        ("name", 1, _TEXT, False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, _INT64, True),
    ),
    "ContainerDevices": (("resource_name", 1, _TEXT, False), ("device_ids", 2, _TEXT, True)),
}


class PodListError(ValueError):
    """An answer that cannot be used; the message says what is wrong with it."""


def parse(data: bytes) -> tuple[PodResources, ...]:
    """Read a serialised ListPodResourcesResponse.

    Raises PodListError: it is truncated or malformed, lists more than a node can have, or something without a name.
    """
    message: Any = _response()()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:  # the latter for text that is not UTF-8, by protobuf's slow half
        raise PodListError("its answer is no ListPodResourcesResponse: truncated or malformed") from error
    if len(message.pod_resources) > _MOST_PODS:
        raise PodListError(f"its answer lists {len(message.pod_resources)} Pods; at most {_MOST_PODS} are read")
    parts = 0
    for count in _counts(message):
        parts += count
        if parts > _MOST_PARTS:
            raise PodListError(f"its answer has more than {_MOST_PARTS} parts; no node has so many")
    return tuple(_pod(pod) for pod in message.pod_resources)


def _counts(message: Any) -> Iterator[int]:
    for pod in message.pod_resources:
        yield len(pod.containers) + len(pod.cpu_ids)
        for container in pod.containers:
            yield len(container.devices) + len(container.cpu_ids)
            yield from (len(row.device_ids) for row in container.devices)


def _pod(pod: Any) -> PodResources:
    containers: dict[str, ContainerResources] = {}
    for container in pod.containers:
        if containers.setdefault(_named(container.name, "a container"), found := _container(container)) is not found:
            raise PodListError(f"its answer lists container {excerpt(container.name)!r} of one Pod twice")
    if whole := _cpus(pod.cpu_ids):
        containers[WHOLE_POD] = ContainerResources(cpus=whole)
    return PodResources(_named(pod.namespace, "a namespace"), _named(pod.name, "a Pod"), containers)


def _container(container: Any) -> ContainerResources:
    """Combine the rows of a container, which have no order: a device near two NUMA nodes has two rows."""
    devices: dict[str, set[str]] = {}
    for row in container.devices:
        ids = devices.setdefault(_named(row.resource_name, "a resource"), set())
        ids.update(_named(identity, "a device") for identity in row.device_ids)
    return ContainerResources({name: frozenset(devices[name]) for name in sorted(devices)}, _cpus(container.cpu_ids))


def _cpus(ids: Iterable[int]) -> int:
    cpus = 0
    for cpu in ids:
        if not 0 <= cpu <= MAX_CPU:
            raise PodListError(f"its answer lists CPU {cpu}; the largest accepted number is {MAX_CPU}")
        cpus |= 1 << cpu
    return cpus


def _named(text: str, what: str) -> str:
    if not text:
        raise PodListError(f"its answer lists {what} without a name")
    return text


@cache
def _response() -> type[Message]:
    file = FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    file.message_type.extend(_described(name, fields) for name, fields in _MESSAGES.items())
    pool = DescriptorPool()  # a pool of its own: another library may use the name `v1` in the common one
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


def _described(name: str, fields: Iterable[tuple[str, int, Any, bool]]) -> DescriptorProto:
    described = DescriptorProto(name=name)
    for field, number, kind, many in fields:
        label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
        one = described.field.add(name=field, number=number, label=label)
        if isinstance(kind, str):
            one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".v1.{kind}"
        else:
            one.type = kind
    return described
