"""What the chart installs: definitions, workloads, webhook configurations, certificates, the headroom taint."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.names import HEADROOM
from console.doctor.findings import Finding, failure, listed, ok, unknown, unread, warning
from console.doctor.snapshot import REPORTER, REPORTERS, Raw, Snapshot
from console.reading import RELEASE
from webhook.settings import WebhookSettings
from webhook.tls.pki import CertificateError, Shown, certificates_in, shown

_VERSIONS: Final = "versions"
OLDEST: Final = (1, 34)
NEWEST: Final = (1, 37)  # the newest one that koordgate is tested with
_LABEL: Final = "app.kubernetes.io/version"
_OURS: Final = ("koordgate", "koordgate-reporter")


def versions(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the API server's version, that our parts have one version, and the definitions."""
    yield _api_server(snapshot.version)
    yield from _parts(snapshot)
    yield from _definitions(snapshot)


def _api_server(version: str) -> Finding:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if not found:
        return unknown(_VERSIONS, f"the API server states no version ({version!r})", "see kubectl version")
    number = int(found[1]), int(found[2])
    if number < OLDEST:
        todo = f"upgrade Kubernetes to 1.{OLDEST[1]} or newer: koordgate was tried on no older one"
        return failure(_VERSIONS, f"the API server is {version}", todo)
    if number > NEWEST:
        todo = "look for a newer koordgate; this one was not tested with it"
        return warning(_VERSIONS, f"the API server is {version}, newer than 1.{NEWEST[1]}", todo)
    return ok(_VERSIONS, f"the API server is {version}")


def _parts(snapshot: Snapshot) -> Iterator[Finding]:
    """The images of one installation are of one version: records and settings are those of that version."""
    pods = snapshot.of("pods")
    if pods.error:
        yield unread(_VERSIONS, "the Pods of koordgate", pods.error, "Pods")
        return
    images: dict[str, set[str]] = {}
    for pod in pods.items:
        name = pod["metadata"]["labels"].get("app.kubernetes.io/name", "")
        if name in _OURS and pod["images"]:
            images.setdefault(pod["images"][0], set()).add(name)
    if len(images) > 1:
        todo = "wait for the roll-out, or see why it does not end: kubectl rollout status"
        yield warning(_VERSIONS, f"Pods of koordgate run {len(images)} images: {listed(sorted(images))}", todo)
    elif images:
        yield ok(_VERSIONS, f"all Pods of koordgate run {next(iter(images))}")


def _definitions(snapshot: Snapshot) -> Iterator[Finding]:
    crds = snapshot.of("crds")
    if crds.error:
        todo = "run this as a user who may get customresourcedefinitions"
        yield unknown(_VERSIONS, f"the definitions of custom resources cannot be read: {crds.error}", todo)
        return
    fine = []
    for name, ours in snapshot.crds.items():
        found = crds.named(name)
        if found is None:
            todo = "kubectl apply --server-side -f crds/ of the chart; Helm installs definitions at first install only"
            yield failure(_VERSIONS, f"there is no definition {name}", todo)
        elif missing := _not_served(ours, found):
            todo = "kubectl apply --server-side -f crds/ of this version's chart"
            yield failure(_VERSIONS, f"the definition {name} does not serve {', '.join(missing)}", todo)
        elif _from_chart(found) and not _covers(found["spec"], ours["spec"]):
            todo = "kubectl apply --server-side --force-conflicts -f crds/ of this version's chart (docs/upgrade.md)"
            yield warning(_VERSIONS, f"the definition {name} is not that of this version's chart", todo)
        else:
            fine.append(name)
    if fine:
        yield ok(_VERSIONS, f"definitions are there and served: {listed(fine)}")


def _from_chart(definition: Mapping[str, Any]) -> bool:
    return (definition["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of") == "koordgate"


def _not_served(ours: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    served = {one["name"] for one in found["spec"]["versions"] if one.get("served")}
    return sorted({one["name"] for one in ours["spec"]["versions"]} - served)


def _covers(found: Any, ours: Any) -> bool:
    """Return whether all that ours states is stated there too: the API server adds defaults."""
    if isinstance(ours, Mapping):
        return isinstance(found, Mapping) and all(_covers(found.get(key), value) for key, value in ours.items())
    if isinstance(ours, list):
        return isinstance(found, list) and len(found) == len(ours) and all(map(_covers, found, ours))
    return bool(found == ours) or (found is None and not ours)


_INSTALLED: Final = "installed"
_SCHEDULER: Final = "koord-scheduler"


def installed(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the settings, the workloads, the webhook configurations and the API server's queues."""
    space = snapshot.namespace
    if snapshot.settings is None:
        todo = "name the release's namespace with --namespace, or install koordgate"
        yield failure(_INSTALLED, f"the settings are unknown: {snapshot.settings_problem}", todo)
        return
    yield ok(_INSTALLED, f"the settings in {space} are read")
    yield from _workload(snapshot, "deployments", RELEASE)
    deployed = [one for one in snapshot.of("deployments").items if one["metadata"]["namespace"] == space]
    if any(one["metadata"]["name"] == _SCHEDULER for one in deployed):
        yield from _workload(snapshot, "deployments", _SCHEDULER)
    else:
        todo = f"see that the scheduler of user {snapshot.settings.scheduler.username} runs"
        yield unknown(_INSTALLED, f"{_SCHEDULER} is not installed by this chart", todo)
    if snapshot.reporter:
        for name in _reporters(snapshot) or [REPORTER]:
            yield from _workload(snapshot, "daemonsets", name)
    yield from _budget(snapshot)
    yield from _queues(snapshot)


def _reporters(snapshot: Snapshot) -> list[str]:
    """The DaemonSets of reporters that have nodes: where all nodes have cards, the other has none."""
    ours = {
        one["metadata"]["name"] for one in snapshot.of("daemonsets").items if _ours(snapshot, one) and one["wanted"]
    }
    return [name for name in REPORTERS if name in ours]


def _ours(snapshot: Snapshot, one: Raw) -> bool:
    return bool(one["metadata"]["namespace"] == snapshot.namespace)


def _workload(snapshot: Snapshot, key: str, name: str) -> Iterator[Finding]:
    space, read = snapshot.namespace, snapshot.of(key)
    if read.error:
        yield unread(_INSTALLED, key, read.error, key)
        return
    mine = [one for one in read.items if (one["metadata"]["namespace"], one["metadata"]["name"]) == (space, name)]
    if not mine:
        yield failure(
            _INSTALLED, f"there is no {name} among the {key} of {space}", "helm upgrade --install koordgate ..."
        )
        return
    wanted, ready = mine[0]["wanted"], mine[0]["ready"]
    if ready >= wanted > 0:
        yield ok(_INSTALLED, f"{name}: {ready} of {wanted} Pods are ready")
        return
    todo = f"kubectl -n {space} get pods; kubectl -n {space} logs {key}/{name}{_reasons(snapshot, name)}"
    what = f"{name}: {ready} of {wanted} Pods are ready"
    if not wanted and key == "daemonsets":
        yield warning(_INSTALLED, f"{name}: no node takes it", "compare reporter.nodeSelector with the labels of nodes")
    else:
        yield (warning if ready else failure)(_INSTALLED, what, todo)


def _reasons(snapshot: Snapshot, name: str) -> str:
    """Why containers of a workload do not start, as the kubelet says it."""
    reasons = {
        reason
        for pod in snapshot.of("pods").items
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") == name
        for reason in pod["waiting"]
        if reason
    }
    return f" ({listed(sorted(reasons))})" if reasons else ""


def _budget(snapshot: Snapshot) -> Iterator[Finding]:
    found: dict[str, Any] = {
        one["metadata"]["name"]: one
        for one in snapshot.of("deployments").items
        if one["metadata"]["namespace"] == snapshot.namespace
    }
    replicas = found.get(RELEASE, {}).get("wanted", 0)
    if replicas == 1:
        todo = "set replicas: 2, so that a drained node stops nobody"
        yield warning(_INSTALLED, "the webhook has one replica", todo)
    elif replicas > 1 and not snapshot.of("budgets").error and RELEASE not in snapshot.of("budgets").names:
        yield warning(_INSTALLED, "the webhook has no PodDisruptionBudget", "helm upgrade: the chart installs one")


def _queues(snapshot: Snapshot) -> Iterator[Finding]:
    levels, flows = snapshot.of("levels"), snapshot.of("flows")
    if levels.error or flows.error:
        todo = "run this as an administrator"
        yield unknown(_INSTALLED, f"flow control cannot be read: {levels.error or flows.error}", todo)
    elif missing := {RELEASE, _SCHEDULER} - (levels.names & flows.names):
        todo = "set flowControl.enabled: true, or see that binds cannot starve the ledger's writes"
        yield warning(_INSTALLED, f"no priority level and flow schema of its own: {listed(sorted(missing))}", todo)
    else:
        yield ok(_INSTALLED, "binds and the ledger have priority levels of their own")


_CERTIFICATES: Final = "certificates"
_SOON: Final = timedelta(days=5)
_EXTENDER_SOON: Final = timedelta(days=90)
_PRESENT: Final = (
    (
        "mutating",
        ("bindings.mutate.koordgate.io", "pods.mutate.koordgate.io", "updates.mutate.koordgate.io"),
    ),
    ("validating", ("bindings.validate.koordgate.io", "guard.validate.koordgate.io", "pods.validate.koordgate.io")),
)
# An administrator may have opened those of Pods by hand, while no replica answered (docs/operations.md).
_MUST_FAIL: Final = tuple(
    f"{about}.{step}.koordgate.io" for about in ("bindings", "pods") for step in ("mutate", "validate")
)


def certificates(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the webhook configurations and what they trust."""
    settings = snapshot.settings
    if settings is None:
        return
    bundles: set[bytes] = set()
    for key, names in _PRESENT:
        read = snapshot.of(key)
        if read.error:
            yield unread(_CERTIFICATES, "webhook configurations", read.error, "webhook configurations")
            continue
        name = {"mutating": settings.identity.mutating, "validating": settings.identity.validating}[key]
        yield from _configuration(read.named(name), f"{key} webhook configuration {name}", names, bundles)
    if settings.certificate.files is None:
        yield from _secrets(snapshot, settings, bundles)


def _configuration(
    found: Mapping[str, Any] | None, about: str, names: tuple[str, ...], bundles: set[bytes]
) -> Iterator[Finding]:
    if found is None:
        yield failure(_CERTIFICATES, f"there is no {about}", "helm upgrade restores it")
        return
    entries = {one["name"]: one for one in found["webhooks"]}
    if missing := sorted(set(names) - entries.keys()):
        yield failure(_CERTIFICATES, f"the {about} lacks {listed(missing)}", "helm upgrade restores it")
    loose = [name for name in _MUST_FAIL if name in entries and entries[name].get("failurePolicy") == "Ignore"]
    if loose:
        todo = "helm upgrade restores failurePolicy: Fail"
        yield warning(_CERTIFICATES, f"failurePolicy is Ignore, so Pods may bypass koordgate: {listed(loose)}", todo)
    empty = [name for name, one in entries.items() if not (one.get("clientConfig") or {}).get("caBundle")]
    if empty:
        todo = "wait until a replica is ready: it publishes its CA; then see its log"
        yield failure(_CERTIFICATES, f"the {about} states no CA: {listed(empty)}", todo)
        return
    for one in entries.values():
        try:
            bundles.update(certificates_in(base64.b64decode(one["clientConfig"]["caBundle"], validate=True)))
        except (CertificateError, binascii.Error) as error:
            yield failure(
                _CERTIFICATES, f"the CA of {one['name']} cannot be read: {error}", "remove caBundle; see the log"
            )
            return
    yield ok(_CERTIFICATES, f"the {about} has {len(entries)} entries with a CA")


def _secrets(snapshot: Snapshot, settings: WebhookSettings, bundles: set[bytes]) -> Iterator[Finding]:
    read = snapshot.of("secrets")
    if read.error:
        todo = "the dry runs show whether they are accepted; run this as a user who may get Secrets for their dates"
        yield unknown(_CERTIFICATES, f"the Secrets with certificates cannot be read: {read.error}", todo)
        return
    now = datetime.fromtimestamp(snapshot.now, UTC)
    names = settings.certificate.secret, settings.certificate.extender_secret
    for name, soon in zip(names, (_SOON, _EXTENDER_SOON), strict=True):
        secret = read.named(name)
        if secret is None:
            yield failure(
                _CERTIFICATES, f"there is no Secret {name}", "see the log of deployment/koordgate: it makes it"
            )
            continue
        try:
            pems = {key: base64.b64decode(text) for key, text in secret["data"].items()}
            leaf, authority = shown(pems.get("tls.crt", b"")), shown(pems.get("ca.crt", b""))
        except (CertificateError, binascii.Error) as error:
            yield failure(_CERTIFICATES, f"Secret {name}: {error}", "see the log of deployment/koordgate")
            continue
        yield from _dates(name, leaf, authority, now, soon)
        if name == settings.certificate.secret and bundles and not _trusted(pems["ca.crt"], bundles):
            todo = "see the log of deployment/koordgate: it may not patch its webhook configurations"
            yield failure(_CERTIFICATES, f"the API server does not trust the CA of Secret {name}", todo)


def _trusted(authority: bytes, bundles: set[bytes]) -> bool:
    return bool(set(certificates_in(authority)) & bundles)


def _dates(name: str, leaf: Shown, authority: Shown, now: datetime, soon: timedelta) -> Iterator[Finding]:
    see = "see the log of deployment/koordgate: clocks, or rights to the Secret"
    for what, one, early in (("certificate", leaf, _SOON), ("CA", authority, soon)):
        if now >= one.ends:
            yield failure(_CERTIFICATES, f"Secret {name}: the {what} expired at {one.ends:%Y-%m-%d %H:%M} UTC", see)
        elif now < one.begins:
            yield failure(
                _CERTIFICATES, f"Secret {name}: the {what} is valid from {one.begins:%Y-%m-%d %H:%M} UTC only", see
            )
        elif now >= one.ends - early:
            todo = "restart koord-scheduler" if early is _EXTENDER_SOON else see
            yield warning(_CERTIFICATES, f"Secret {name}: the {what} expires at {one.ends:%Y-%m-%d}", todo)
    if now < leaf.ends:
        yield ok(
            _CERTIFICATES, f"Secret {name}: valid until {leaf.ends:%Y-%m-%d}, its CA until {authority.ends:%Y-%m-%d}"
        )


_HEADROOM: Final = "headroom"


def headroom(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that somebody keeps the taints that are there, and that they can have an effect."""
    settings, read = snapshot.settings, snapshot.of("nodes")
    if settings is None:
        return
    if not (read.error or read.cut):  # reported by the check of nodes
        short = sorted(one["metadata"]["name"] for one in read.items if one.get("short"))
        yield _taints(settings.headroom.mode, short, len(read.items))
    if settings.scheduler.preference is Preference.FRAGMENTATION or settings.headroom.mode == "taint":
        yield _typical(settings)


def _taints(mode: str, short: list[str], nodes: int) -> Finding:
    has = f"{len(short)} of {nodes} nodes have the taint {HEADROOM}"
    if mode == "taint":
        if not short or len(short) < nodes:
            return ok(_HEADROOM, f"{has} (headroom.mode taint)")
        todo = "add nodes without devices, or set a lower headroom.taintBelowPercent (docs/packing.md)"
        return warning(_HEADROOM, f"all {nodes} nodes have the taint {HEADROOM}: it keeps no Pod away from any", todo)
    if mode == "remove":
        if not short:
            return ok(_HEADROOM, f"no node has the taint {HEADROOM} any more; headroom.mode can be none")
        todo = "wait a minute; if they stay, see the webhook's log and the lines about rights"
        return warning(_HEADROOM, f"{has}, which are being removed: {listed(short)}", todo)
    if not short:
        return ok(_HEADROOM, f"no node has the taint {HEADROOM} (headroom.mode none)")
    todo = f"set headroom.mode to taint or remove, or run: kubectl taint nodes --all {HEADROOM}-"
    return warning(_HEADROOM, f"{has}, and nobody keeps it (headroom.mode none): {listed(short)}", todo)


def _typical(settings: WebhookSettings) -> Finding:
    if settings.scheduler.mix:
        return ok(_HEADROOM, f"the typical requests are the {len(settings.scheduler.mix)} stated in scheduler.mix")
    return ok(
        _HEADROOM,
        "the typical requests are those of Pods that hold devices (metric koordgate_typical_requests; while it is 0, "
        "headroom sets no taint, and fragmentation compares nodes by its other rules)",
    )
