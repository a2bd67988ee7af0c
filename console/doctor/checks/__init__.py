"""The checks: each is a pure function from what was read to what it finds."""

from collections.abc import Callable, Iterable
from typing import Final

from console.doctor.checks.answers import answers
from console.doctor.checks.certificates import certificates
from console.doctor.checks.clashes import clashes
from console.doctor.checks.clocks import clocks
from console.doctor.checks.delivery import delivery
from console.doctor.checks.enforcement import enforcement
from console.doctor.checks.headroom import headroom
from console.doctor.checks.installed import installed
from console.doctor.checks.nodes import nodes
from console.doctor.checks.policies import policies
from console.doctor.checks.quotas import quotas
from console.doctor.checks.rights import rights
from console.doctor.checks.told import told
from console.doctor.checks.versions import versions
from console.doctor.findings import Finding
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
