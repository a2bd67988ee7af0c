"""The checks: each is a pure function from what was read to what it finds."""

from collections.abc import Callable, Iterable
from typing import Final

from webhook.doctor.checks.answers import answers
from webhook.doctor.checks.certificates import certificates
from webhook.doctor.checks.clashes import clashes
from webhook.doctor.checks.clocks import clocks
from webhook.doctor.checks.delivery import delivery
from webhook.doctor.checks.enforcement import enforcement
from webhook.doctor.checks.headroom import headroom
from webhook.doctor.checks.installed import installed
from webhook.doctor.checks.lease import lease
from webhook.doctor.checks.nodes import nodes
from webhook.doctor.checks.policies import policies
from webhook.doctor.checks.quotas import quotas
from webhook.doctor.checks.rights import rights
from webhook.doctor.checks.told import told
from webhook.doctor.checks.versions import versions
from webhook.doctor.findings import Finding
from webhook.doctor.snapshot import Snapshot

CHECKS: Final[tuple[Callable[[Snapshot], Iterable[Finding]], ...]] = (
    versions,
    clocks,
    installed,
    certificates,
    rights,
    answers,
    enforcement,
    lease,
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
