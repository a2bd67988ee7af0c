"""RBAC: our accounts may do what they need."""

from collections.abc import Iterator
from typing import Final

from console.doctor.findings import Finding, failure, listed, ok, unknown
from console.doctor.snapshot import Snapshot

_AREA: Final = "rights"


def rights(snapshot: Snapshot) -> Iterator[Finding]:
    """Check each right that was asked about."""
    if not snapshot.rights:
        return
    unasked = [right for right, may in snapshot.rights.items() if may is None]
    if len(unasked) == len(snapshot.rights):
        todo = "run this as a user who may create subjectaccessreviews, or read koordgate's log for Forbidden"
        yield unknown(_AREA, "the rights of koordgate's accounts cannot be asked", todo)
        return
    for account in sorted({right.account for right in snapshot.rights}):
        mine = {right: may for right, may in snapshot.rights.items() if right.account == account}
        missing = [str(right) for right, may in mine.items() if may is False]
        if missing:
            todo = "helm upgrade restores the roles; see whether something else removes them"
            yield failure(_AREA, f"account {account} may not {listed(missing)}", todo)
        elif None in mine.values():
            yield unknown(_AREA, f"not all rights of account {account} could be asked", "run the command again")
        else:
            yield ok(_AREA, f"account {account} has its {len(mine)} rights")
