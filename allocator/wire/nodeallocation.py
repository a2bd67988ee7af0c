"""The NodeAllocation object (koordgate.io/v1alpha1): one node's ledger, as stored in the cluster.

A share names the containers that see it. Where more than a few containers of a Pod see devices, the holding lists their
names once, and its shares state positions in that list: a Pod of many containers and devices then takes little room.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from allocator.vocabulary.cpunode import BindPolicy, CpuShare, ExclusivePolicy, NumaShare
from allocator.vocabulary.cputopology import format_cpuset, parse
from allocator.vocabulary.holdings import Function, Holding, Share

API_VERSION: Final = "koordgate.io/v1alpha1"
KIND: Final = "NodeAllocation"
_FEW: Final = 4  # containers that are written by name at each share
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class RecordError(ValueError):
    """A NodeAllocation is malformed: another writer changed it."""


def write_spec(holdings: Iterable[Holding]) -> dict[str, Any]:
    """Write the `spec` for these holdings, sorted by UID."""
    return {"allocations": [_write_holding(holding) for holding in sorted(holdings, key=lambda h: h.uid)]}


def write_status(holdings: Collection[Holding]) -> dict[str, int]:
    """Count what is held, for people: the columns of `kubectl get nodeallocations`. Nothing reads it back.

    Returns `holders`: Pods and ResourceClaims. `devices`: those of which something is held. `cpus`: those that Pods
    have for their own.
    """
    return {
        "holders": len(holdings),
        "devices": len({(share.type, share.id) for holding in holdings for share in holding.shares}),
        "cpus": sum(holding.cpus.cpus.bit_count() for holding in holdings if holding.cpus is not None),
    }


def _write_holding(holding: Holding) -> dict[str, Any]:
    listed = _listed(holding.shares)
    written: dict[str, Any] = {
        "uid": holding.uid,
        "namespace": holding.namespace,
        "name": holding.name,
        "since": _write_time(holding.since),
        "devices": [_write_share(share, listed) for share in holding.shares],
    }
    if listed:
        written["containers"] = list(listed)
    if holding.cpus is not None:
        written["cpus"] = _write_cpus(holding.cpus)
    if holding.gang:
        written["gang"] = holding.gang
    if holding.until:
        written["heldUntil"] = _write_time(holding.until)
    if holding.ending:
        written["ending"] = holding.ending
    if holding.fence:
        written["claimRevision"] = holding.fence
    return written


def _listed(shares: Sequence[Share]) -> dict[str, int]:
    """The containers that a holding lists, with their positions; none where they are few."""
    names = dict.fromkeys(name for share in shares for name in share.containers)
    return {name: at for at, name in enumerate(names)} if len(names) > _FEW else {}


def _write_time(seconds: int) -> str:
    # Not strftime, which writes years before 1000 with fewer digits than it reads.
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def _read_time(text: str) -> int:
    return int(datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp())


def _write_share(share: Share, listed: Mapping[str, int]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "type": share.type,
        "id": share.id,
        "minor": share.minor,
        "amounts": dict(share.amounts),
        "containers": [listed[name] for name in share.containers] if listed else list(share.containers),
    }
    if share.functions:
        written["functions"] = [{"minor": minor, "busID": bus_id} for minor, bus_id in share.functions]
    if share.alone:
        written["alone"] = True
    if share.unshared:
        written["unshared"] = True
    return written


def _write_cpus(share: CpuShare) -> dict[str, Any]:
    written: dict[str, Any] = {"qosClass": share.qos}
    if share.cpus:
        written["cpuset"] = format_cpuset(share.cpus)
    if share.bind is not None:
        written["bindPolicy"] = share.bind.value
    if share.exclusive is not ExclusivePolicy.NONE:
        written["exclusivePolicy"] = share.exclusive.value
    if share.numa:
        written["numaNodes"] = [_write_numa(one) for one in share.numa]
    return written


def _write_numa(one: NumaShare) -> dict[str, Any]:
    written: dict[str, Any] = {
        "node": one.node,
        "socket": one.socket,
        "milliCPU": one.milli,
        "memory": one.memory,
    }
    if one.others:
        written["others"] = dict(one.others)
    return written


def read_spec(obj: Mapping[str, Any]) -> dict[str, Holding]:
    """Read the holdings of a NodeAllocation object by Pod UID.

    Raises RecordError: an entry cannot be read; nothing may be allocated on the node until it is corrected.
    """
    metadata = obj.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
    try:
        holdings = [_read_holding(entry) for entry in (obj.get("spec") or {}).get("allocations") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"NodeAllocation {name}: wrong format ({error!r}); an administrator must correct or delete it"
        raise RecordError(message) from error
    by_uid = {holding.uid: holding for holding in holdings}
    if len(by_uid) != len(holdings):
        raise RecordError(
            f"NodeAllocation {name}: a Pod occurs in it twice; an administrator must correct or delete it"
        )
    return by_uid


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _read_function(entry: Mapping[str, Any]) -> Function:
    minor = entry["minor"]
    return Function(minor if minor == -1 and isinstance(minor, int) else _whole(minor), str(entry["busID"]))


def _read_holding(entry: Mapping[str, Any]) -> Holding:
    cpus, until = entry.get("cpus"), entry.get("heldUntil")
    listed = tuple(str(name) for name in entry.get("containers") or ())
    return Holding(
        str(entry["uid"]),
        str(entry["namespace"]),
        str(entry["name"]),
        _read_time(entry["since"]),
        tuple([_read_share(share, listed) for share in entry["devices"]]),
        None if cpus is None else _read_cpus(cpus),
        str(entry.get("gang") or ""),
        0 if until is None else _read_time(until),
        str(entry.get("ending") or ""),
        fence=_whole(entry.get("claimRevision") or 0),
    )


def _read_container(container: object, listed: Sequence[str]) -> str:
    if isinstance(container, str):
        return container
    at = _whole(container)
    if at >= len(listed):
        raise ValueError(f"container {at} of {len(listed)}")
    return listed[at]


def _read_share(share: Mapping[str, Any], listed: Sequence[str]) -> Share:
    return Share(
        str(share["type"]),
        str(share["id"]),
        _whole(share["minor"]),
        {str(tail): _whole(amount) for tail, amount in share["amounts"].items()},
        tuple([_read_container(container, listed) for container in share.get("containers") or ()]),
        tuple(map(_read_function, share.get("functions") or ())),
        share.get("alone") is True,
        share.get("unshared") is True,
    )


def _read_cpus(share: Mapping[str, Any]) -> CpuShare:
    bind = share.get("bindPolicy")
    return CpuShare(
        str(share["qosClass"]),
        parse(str(share.get("cpuset", ""))),
        None if bind is None else BindPolicy(bind),
        ExclusivePolicy(share.get("exclusivePolicy", ExclusivePolicy.NONE)),
        tuple(map(_read_numa, share.get("numaNodes") or ())),
    )


def _read_numa(one: Mapping[str, Any]) -> NumaShare:
    others = one.get("others") or {}
    return NumaShare(
        _whole(one["node"]),
        _whole(one["milliCPU"]),
        _whole(one["memory"]),
        _whole(one["socket"]),
        tuple(sorted((str(name), _whole(amount)) for name, amount in others.items())),
    )
