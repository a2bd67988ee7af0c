"""The CPUs that an administrator keeps from Pods, by annotations of a NodeResourceTopology object or of a Node.

Koordinator, apis/extension: node.koordinator.sh/reservation and node.koordinator.sh/system-qos-resource.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.quantity import to_milli
from allocator.vocabulary.cpuset import format_cpuset
from allocator.wire.values import Problems, as_cpus, as_flag, as_json, stated, write_amount

NODE_RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS_RESOURCE: Final = "node.koordinator.sh/system-qos-resource"


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """What the administrator keeps from all Pods: CPUs by number, or else an amount in thousandths of a CPU.

    The node's reporter turns an amount into CPUs (Koordinator, pkg/koordlet/statesinformer); only it knows which.
    """

    cpus: int = 0
    milli: int = 0


@dataclass(frozen=True, slots=True)
class SystemCpus:
    """The CPUs of Pods of class SYSTEM, and whether these have them for themselves."""

    cpus: int = 0
    exclusive: bool = True


def read_kept(annotations: Mapping[str, Any]) -> tuple[NodeReservation, SystemCpus, tuple[str, ...]]:
    """Read what an administrator keeps on a Node, by annotations of the same names; and what cannot be read of it."""
    problems = Problems()
    return *read_kept_into(problems, annotations), tuple(problems)


def read_kept_into(problems: Problems, annotations: Mapping[str, Any]) -> tuple[NodeReservation, SystemCpus]:
    """Read what an administrator keeps; what cannot be read is left out and named in `problems`."""
    reserved, system = (
        problems.read(f"annotation {key}", as_json, annotations.get(key), None)
        for key in (NODE_RESERVATION, SYSTEM_QOS_RESOURCE)
    )
    return _read_reservation(reserved, problems), _read_system(system, problems)


def _read_reservation(raw: object, problems: Problems) -> NodeReservation:
    where = f"annotation {NODE_RESERVATION}"
    entry = problems.object(where, raw)
    amounts = problems.object(f"{where}: resources", entry.get("resources"))
    return NodeReservation(
        problems.read(f"{where}: reservedCPUs", as_cpus, entry.get("reservedCPUs"), 0),
        problems.read(f"{where}: resources: cpu", _milli, amounts.get("cpu"), 0),
    )


def _milli(value: object) -> int:
    return 0 if value is None else to_milli(value)


def _read_system(raw: object, problems: Problems) -> SystemCpus:
    where = f"annotation {SYSTEM_QOS_RESOURCE}"
    entry = problems.object(where, raw)
    exclusive = entry.get("cpusetExclusive")
    return SystemCpus(
        problems.read(f"{where}: cpuset", as_cpus, entry.get("cpuset"), 0),
        exclusive is None or problems.read(f"{where}: cpusetExclusive", as_flag, exclusive, True),
    )


def write_reservation(reservation: NodeReservation) -> dict[str, Any]:
    """Write the value of the annotation `NODE_RESERVATION`."""
    return stated(
        resources={"cpu": write_amount("cpu", reservation.milli)} if reservation.milli else {},
        reservedCPUs=format_cpuset(reservation.cpus),
    )


def write_system(system: SystemCpus) -> dict[str, Any]:
    """Write the value of the annotation `SYSTEM_QOS_RESOURCE`."""
    exclusive = {} if system.exclusive else {"cpusetExclusive": False}
    return {"cpuset": format_cpuset(system.cpus), **exclusive}
