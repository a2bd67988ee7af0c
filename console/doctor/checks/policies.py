"""Policies of the cluster's own that no longer apply to Pods once these are translated."""

from collections.abc import Iterator
from typing import Final

from console.doctor.findings import Finding, ok, unknown, warning
from console.doctor.policies import cure, removed, what
from console.doctor.snapshot import Snapshot
from webhook.settings import types_of

_AREA: Final = "policies"
_MOST_TOLD: Final = 20


def policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Tell which policies name what translation removes."""
    settings, found = snapshot.settings, snapshot.policies
    if settings is None or found is None:
        return
    for problem in found.problems[:_MOST_TOLD]:
        yield unknown(_AREA, problem, "run this as a user who may list policies, or search it yourself")
    gone = removed(types_of(settings), settings.domain)
    for one in found.outdated[:_MOST_TOLD]:
        yield warning(_AREA, what(one), cure(one.names, gone))
    if len(found.outdated) > _MOST_TOLD:
        yield warning(
            _AREA, f"{len(found.outdated)} policies are like these", "koordgate adopt check -o json names all"
        )
    if not (found.outdated or found.problems):
        yield ok(_AREA, f"policies that were searched and name nothing that translation removes: {found.searched}")
