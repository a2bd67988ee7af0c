"""Quotas that name devices go on limiting: each has its mirror."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Snapshot
from webhook.quotas.mirror import is_right, mirror_name, mirrored, read_quota, written_names
from webhook.settings import WebhookSettings, types_of

_AREA: Final = "quotas"


def quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare the quotas that name devices with their mirrors."""
    settings, read = snapshot.settings, snapshot.of("quotas")
    if settings is None:
        return
    if read.error:
        yield unknown(_AREA, f"quotas cannot be read: {read.error}", "run this as a user who may list resourcequotas")
        return
    if read.cut:
        todo = "compare quotas and mirrors by hand: kubectl get resourcequotas -A"
        yield unknown(_AREA, f"there are more than {len(read.items)} quotas: they are not compared", todo)
        return
    covered, open_ = _compared(read.items, settings)
    yield from _told(covered, open_, enabled=settings.quota.enabled)


def _compared(items: Iterable[Mapping[str, Any]], settings: WebhookSettings) -> tuple[int, list[str]]:
    """Count the quotas that have a right mirror, and name those that need one and have none."""
    types = types_of(settings)
    written = written_names(types, settings.domain)
    exempt = {*settings.quota.exempt_namespaces, "kube-system", settings.identity.namespace}
    quotas = [quota for obj in items if (quota := read_quota(obj, types)) is not None]
    known = {(one.namespace, one.name): one for one in quotas if one.namespace not in exempt}
    covered, open_ = 0, []
    for quota in known.values():
        mirror = known.get((quota.namespace, mirror_name(quota.name)))
        try:
            limits = {} if quota.mirror else mirrored(quota, types, written)
        except QuantityError:
            open_.append(f"{quota.namespace}/{quota.name}")
            continue
        if limits and settings.quota.enabled and mirror is not None and is_right(mirror, quota, limits):
            covered += 1
        elif limits:
            open_.append(f"{quota.namespace}/{quota.name}")
    return covered, open_


def _told(covered: int, open_: list[str], *, enabled: bool) -> Iterator[Finding]:
    if open_ and not enabled:
        what = f"{len(open_)} quotas name devices and count no translated Pod: {listed(open_)}"
        yield warning(_AREA, what, "set quota.enabled: true (docs/quotas.md)")
    elif open_:
        what = f"{len(open_)} quotas name devices and have no right mirror: {listed(open_)}"
        yield failure(_AREA, what, "see Events on the quotas: the mirror's name is taken, or an amount cannot be read")
    elif covered:
        yield ok(_AREA, f"all {covered} quotas that name devices have their mirrors")
    else:
        yield ok(_AREA, "no quota names devices")
