"""The NodeAllocation object (koordgate.io/v1alpha1): one node's ledger, as it stands in the cluster."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from allocator.holdings import Holding, Share

API_VERSION: Final = "koordgate.io/v1alpha1"
KIND: Final = "NodeAllocation"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class RecordError(ValueError):
    """A NodeAllocation that is not of the format: somebody else wrote it."""


def write_spec(holdings: Iterable[Holding]) -> dict[str, Any]:
    """Write the `spec` for these holdings, sorted by UID."""
    return {"allocations": [_write_holding(holding) for holding in sorted(holdings, key=lambda h: h.uid)]}


def _write_holding(holding: Holding) -> dict[str, Any]:
    return {
        "uid": holding.uid,
        "namespace": holding.namespace,
        "name": holding.name,
        "since": datetime.fromtimestamp(holding.since, UTC).strftime(_TIME),
        "devices": [
            {
                "type": share.type,
                "id": share.id,
                "minor": share.minor,
                "amounts": dict(share.amounts),
                "containers": list(share.containers),
            }
            for share in holding.shares
        ],
    }


def read_spec(obj: Mapping[str, Any]) -> dict[str, Holding]:
    """Read the holdings of a NodeAllocation object by Pod UID.

    Raises:
        RecordError: an entry cannot be read; the node must not be allocated on until it is mended.
    """
    metadata = obj.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
    try:
        holdings = [_read_holding(entry) for entry in (obj.get("spec") or {}).get("allocations") or ()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"NodeAllocation {name}: not of the format ({error!r}); an administrator must mend or delete it"
        raise RecordError(message) from error
    by_uid = {holding.uid: holding for holding in holdings}
    if len(by_uid) != len(holdings):
        raise RecordError(f"NodeAllocation {name}: one Pod stands in it twice; an administrator must mend or delete it")
    return by_uid


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _read_holding(entry: Mapping[str, Any]) -> Holding:
    since = datetime.strptime(entry["since"], _TIME).replace(tzinfo=UTC)
    shares = tuple(
        Share(
            str(share["type"]),
            str(share["id"]),
            _whole(share["minor"]),
            {str(tail): _whole(amount) for tail, amount in share["amounts"].items()},
            tuple(str(container) for container in share.get("containers") or ()),
        )
        for share in entry["devices"]
    )
    return Holding(str(entry["uid"]), str(entry["namespace"]), str(entry["name"]), int(since.timestamp()), shares)
