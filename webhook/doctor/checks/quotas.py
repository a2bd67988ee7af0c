"""Quotas that name devices go on limiting: each has its mirror."""

from collections.abc import Iterator
from typing import Final

from allocator.quantity import QuantityError
from webhook.doctor.findings import Finding, failure, listed, ok, unknown, warning
from webhook.doctor.snapshot import Snapshot
from webhook.quotas.mirror import Quota, is_right, mirror_name, mirrored, read_quota, written_names
from webhook.settings import types_of

_AREA: Final = "quotas"


def quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare the quotas that name devices with their mirrors."""
    settings, read = snapshot.settings, snapshot.of("quotas")
    if settings is None:
        return
    if read.error:
        yield unknown(_AREA, f"quotas cannot be read: {read.error}", "ask as a user who may list resourcequotas")
        return
    types = types_of(settings)
    written = written_names(types, settings.domain)
    exempt = {*settings.quota.exempt_namespaces, "kube-system", settings.identity.namespace}
    known: dict[tuple[str, str], Quota] = {}
    for obj in read.items:
        quota = read_quota(obj, types)
        if quota is not None and quota.namespace not in exempt:
            known[quota.namespace, quota.name] = quota
    covered, open_ = 0, []
    for quota in known.values():
        if quota.mirror:
            continue
        try:
            limits = mirrored(quota, types, written)
        except QuantityError:
            open_.append(f"{quota.namespace}/{quota.name}")
            continue
        if not limits:
            continue
        mirror = known.get((quota.namespace, mirror_name(quota.name)))
        if settings.quota.enabled and mirror is not None and is_right(mirror, quota, limits):
            covered += 1
        else:
            open_.append(f"{quota.namespace}/{quota.name}")
    yield from _told(covered, open_, enabled=settings.quota.enabled)


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
