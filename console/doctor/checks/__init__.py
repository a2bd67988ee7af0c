"""The checks: each is a pure function from what was read to what it finds."""

from collections.abc import Callable, Iterable
from typing import Final

from console.doctor.checks.delivery import delivery
from console.doctor.checks.installed import certificates, headroom, installed, versions
from console.doctor.checks.nodes import clocks, nodes, told
from console.doctor.checks.served import answers, clashes, enforcement, policies, quotas
from console.doctor.findings import Finding
from console.doctor.rights import rights
from console.doctor.snapshot import Snapshot

CHECKS: Final[tuple[Callable[[Snapshot], Iterable[Finding]], ...]] = (
    versions,
    clocks,
    installed,
    certificates,
    rights,
    answers,
    enforcement,
    clashes,
    policies,
    quotas,
    nodes,
    told,
    delivery,
    headroom,
)


def examine(snapshot: Snapshot) -> list[Finding]:
    """Run all checks, in the order in which their findings are best read."""
    return [finding for check in CHECKS for finding in check(snapshot)]
