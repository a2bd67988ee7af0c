"""What the chart installs: definitions, workloads, webhook configurations, certificates, the headroom taint."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.names import HEADROOM
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import REPORTER, REPORTERS, Raw, Snapshot, taints_of
from console.reading import RELEASE
from console.terminal import counted
from webhook.tls.pki import CertificateError, Shown, certificates_in, shown

OLDEST: Final = (1, 34)
NEWEST: Final = (1, 37)  # the newest one that koordgate is tested with
_LABEL: Final = "app.kubernetes.io/version"
_OURS: Final = ("koordgate", "koordgate-reporter")


def api_server(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server's version."""
    version = snapshot.version
    found = re.match(r"v?(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else ()
    if not found:
        yield unknown(f"the API server states no version ({version!r})", "see kubectl version")
    elif number < OLDEST:
        todo = f"upgrade Kubernetes to 1.{OLDEST[1]} or newer: koordgate was tried on no older one"
        yield failure(f"the API server is {version}", todo)
    elif number > NEWEST:
        todo = "look for a newer koordgate; this one was not tested with it"
        yield warning(f"the API server is {version}, newer than 1.{NEWEST[1]}", todo)
    else:
        yield ok(f"the API server is {version}")


def images(snapshot: Snapshot) -> Iterator[Finding]:
    """The images of one installation are of one version: records and settings are those of that version."""
    found: dict[str, set[str]] = {}
    for pod in snapshot.of("pods").items:
        name = pod["metadata"]["labels"].get("app.kubernetes.io/name", "")
        if name in _OURS and pod["images"]:
            found.setdefault(pod["images"][0], set()).add(name)
    if len(found) > 1:
        todo = "wait for the roll-out, or see why it does not end: kubectl rollout status"
        yield warning(f"Pods of koordgate run {len(found)} images: {listed(sorted(found))}", todo)
    elif found:
        yield ok(f"all Pods of koordgate run {next(iter(found))}")


def definitions(snapshot: Snapshot) -> Iterator[Finding]:
    """The definitions of custom resources are there, and those of this version."""
    fine = []
    for name, ours in snapshot.crds.items():
        found = snapshot.of("crds").named(name)
        if found is None:
            todo = "kubectl apply --server-side -f crds/ of the chart; Helm installs definitions at first install only"
            yield failure(f"there is no definition {name}", todo)
        elif missing := _not_served(ours, found):
            todo = "kubectl apply --server-side -f crds/ of this version's chart"
            yield failure(f"the definition {name} does not serve {', '.join(missing)}", todo)
        elif _from_chart(found) and not _covers(found["spec"], ours["spec"]):
            command = "kubectl apply --server-side --force-conflicts -f crds/"
            todo = f"{command} of this version's chart (docs/install/upgrade.md)"
            yield warning(f"the definition {name} is not that of this version's chart", todo)
        else:
            fine.append(name)
    if fine:
        yield ok(f"definitions are there and served: {listed(fine)}")


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


_SCHEDULER: Final = "koord-scheduler"


def settings_read(snapshot: Snapshot) -> Iterator[Finding]:
    """The settings of the installation."""
    if snapshot.settings_problem:
        todo = "name the release's namespace with --installed-in, or install koordgate"
        yield failure(snapshot.settings_problem, todo)
    else:
        yield ok(f"the settings in {snapshot.namespace} are read")


def replicas(snapshot: Snapshot) -> Iterator[Finding]:
    """The Deployments of webhook and scheduler."""
    yield from _workload(snapshot, "deployments", RELEASE)
    if any(one["metadata"]["name"] == _SCHEDULER for one in _own(snapshot, "deployments")):
        yield from _workload(snapshot, "deployments", _SCHEDULER)
    else:
        todo = f"see that the scheduler of user {snapshot.settings.scheduler.username} runs"
        yield unknown(f"{_SCHEDULER} is not installed by this chart", todo)


def reporters(snapshot: Snapshot) -> Iterator[Finding]:
    """The DaemonSets of reporters that have nodes: where all nodes have cards, the other has none."""
    ours = {one["metadata"]["name"] for one in _own(snapshot, "daemonsets") if one["wanted"]}
    for name in [name for name in REPORTERS if name in ours] or [REPORTER]:
        yield from _workload(snapshot, "daemonsets", name)


def _own(snapshot: Snapshot, key: str) -> list[Raw]:
    return [one for one in snapshot.of(key).items if one["metadata"]["namespace"] == snapshot.namespace]


def _workload(snapshot: Snapshot, key: str, name: str) -> Iterator[Finding]:
    space = snapshot.namespace
    mine = [one for one in _own(snapshot, key) if one["metadata"]["name"] == name]
    if not mine:
        yield failure(f"there is no {name} among the {key} of {space}", "helm upgrade --install koordgate ...")
        return
    wanted, ready = mine[0]["wanted"], mine[0]["ready"]
    if ready >= wanted > 0:
        yield ok(f"{name}: {ready} of {wanted} Pods are ready")
        return
    todo = f"kubectl -n {space} get pods; kubectl -n {space} logs {key}/{name}{_reasons(snapshot, name)}"
    what = f"{name}: {ready} of {wanted} Pods are ready"
    if not wanted and key == "daemonsets":
        yield warning(f"{name}: no node takes it", "compare reporter.nodeSelector with the labels of nodes")
    else:
        yield (warning if ready else failure)(what, todo)


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


def budget(snapshot: Snapshot) -> Iterator[Finding]:
    """A drained node must not stop the webhook."""
    found = {one["metadata"]["name"]: one for one in _own(snapshot, "deployments")}
    wanted = found.get(RELEASE, {}).get("wanted", 0)
    if wanted == 1:
        yield warning("the webhook has one replica", "set replicas: 2, so that a drained node stops nobody")
    elif wanted > 1 and RELEASE not in snapshot.of("budgets").names:
        yield warning("the webhook has no PodDisruptionBudget", "helm upgrade: the chart installs one")


def queues(snapshot: Snapshot) -> Iterator[Finding]:
    """The API server's queues for the ledger and for binds."""
    if missing := {RELEASE, _SCHEDULER} - (snapshot.of("levels").names & snapshot.of("flows").names):
        todo = "set flowControl.enabled: true, or see that binds cannot starve the ledger's writes"
        yield warning(f"no priority level and flow schema of its own: {listed(sorted(missing))}", todo)
    else:
        yield ok("binds and the ledger have priority levels of their own")


_SOON: Final = timedelta(days=5)
_EXTENDER_SOON: Final = timedelta(days=90)
_PRESENT: Final = {
    "mutating": ("bindings.mutate.koordgate.io", "pods.mutate.koordgate.io", "updates.mutate.koordgate.io"),
    "validating": ("bindings.validate.koordgate.io", "guard.validate.koordgate.io", "pods.validate.koordgate.io"),
}
# An administrator may have opened those of Pods by hand, while no replica answered (docs/operate/operations.md).
_MUST_FAIL: Final = tuple(
    f"{about}.{step}.koordgate.io" for about in ("bindings", "pods") for step in ("mutate", "validate")
)


def _hooks(snapshot: Snapshot, key: str) -> tuple[str, Raw | None]:
    """A webhook configuration, and what it is called."""
    identity = snapshot.settings.identity
    name = identity.mutating if key == "mutating" else identity.validating
    return f"{key} webhook configuration {name}", snapshot.of(key).named(name)


def configuration(snapshot: Snapshot, key: str) -> Iterator[Finding]:
    """The `mutating` or `validating` webhook configuration, and what it trusts."""
    about, found = _hooks(snapshot, key)
    if found is None:
        yield failure(f"there is no {about}", "helm upgrade restores it")
        return
    entries = {one["name"]: one for one in found["webhooks"]}
    if missing := sorted(set(_PRESENT[key]) - entries.keys()):
        yield failure(f"the {about} lacks {listed(missing)}", "helm upgrade restores it")
    loose = [name for name in _MUST_FAIL if name in entries and entries[name].get("failurePolicy") == "Ignore"]
    if loose:
        todo = "helm upgrade restores failurePolicy: Fail"
        yield warning(f"failurePolicy is Ignore, so Pods may bypass koordgate: {listed(loose)}", todo)
    empty = [name for name, one in entries.items() if not (one.get("clientConfig") or {}).get("caBundle")]
    if empty:
        todo = "wait until a replica is ready: it publishes its CA; then see its log"
        yield failure(f"the {about} states no CA: {listed(empty)}", todo)
        return
    for one in entries.values():
        try:
            _trusted_by(one)
        except (CertificateError, binascii.Error) as error:
            yield failure(f"the CA of {one['name']} cannot be read: {error}", "remove caBundle; see the log")
            return
    yield ok(f"the {about} has {len(entries)} entries with a CA")


def _trusted_by(entry: Mapping[str, Any]) -> set[bytes]:
    """The certificates that an entry of a webhook configuration trusts; raises CertificateError or binascii.Error."""
    return set(certificates_in(base64.b64decode(entry["clientConfig"]["caBundle"], validate=True)))


def _trusted(snapshot: Snapshot) -> set[bytes]:
    """What the API server trusts, as far as it can be read."""
    found: set[bytes] = set()
    for key in _PRESENT:
        for entry in (_hooks(snapshot, key)[1] or {"webhooks": ()})["webhooks"]:
            with suppress(CertificateError, binascii.Error, KeyError):
                found |= _trusted_by(entry)
    return found


def secrets(snapshot: Snapshot) -> Iterator[Finding]:
    """The certificates in Secrets, and whether the API server trusts them."""
    stated, read, bundles = snapshot.settings.certificate, snapshot.of("secrets"), _trusted(snapshot)
    if stated.files is not None:
        return
    if read.error:
        todo = "the dry runs show whether they are accepted; run this as a user who may get Secrets for their dates"
        yield unknown(f"the Secrets with certificates cannot be read: {read.error}", todo)
        return
    now = datetime.fromtimestamp(snapshot.now, UTC)
    names = stated.secret, stated.extender_secret
    for name, soon in zip(names, (_SOON, _EXTENDER_SOON), strict=True):
        secret = read.named(name)
        if secret is None:
            yield failure(f"there is no Secret {name}", "see the log of deployment/koordgate: it makes it")
            continue
        try:
            pems = {key: base64.b64decode(text) for key, text in secret["data"].items()}
            leaf, authority = shown(pems.get("tls.crt", b"")), shown(pems.get("ca.crt", b""))
        except (CertificateError, binascii.Error) as error:
            yield failure(f"Secret {name}: {error}", "see the log of deployment/koordgate")
            continue
        yield from _dates(name, leaf, authority, now, soon)
        if name == stated.secret and bundles and bundles.isdisjoint(certificates_in(pems["ca.crt"])):
            todo = "see the log of deployment/koordgate: it may not patch its webhook configurations"
            yield failure(f"the API server does not trust the CA of Secret {name}", todo)


def _dates(name: str, leaf: Shown, authority: Shown, now: datetime, soon: timedelta) -> Iterator[Finding]:
    see = "see the log of deployment/koordgate: clocks, or rights to the Secret"
    for what, one, early in (("certificate", leaf, _SOON), ("CA", authority, soon)):
        if now >= one.ends:
            yield failure(f"Secret {name}: the {what} expired at {one.ends:%Y-%m-%d %H:%M} UTC", see)
        elif now < one.begins:
            yield failure(f"Secret {name}: the {what} is valid from {one.begins:%Y-%m-%d %H:%M} UTC only", see)
        elif now >= one.ends - early:
            todo = "restart koord-scheduler" if early is _EXTENDER_SOON else see
            yield warning(f"Secret {name}: the {what} expires at {one.ends:%Y-%m-%d}", todo)
    if now < leaf.ends:
        yield ok(f"Secret {name}: valid until {leaf.ends:%Y-%m-%d}, its CA until {authority.ends:%Y-%m-%d}")


def taints(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that somebody keeps the taints that are there, and that they can have an effect."""
    nodes = snapshot.of("nodes").items
    short = [one["metadata"]["name"] for one in nodes if HEADROOM in (taint.get("key") for taint in taints_of(one))]
    yield _taints(snapshot.settings.headroom.mode, sorted(short), len(nodes))


def _taints(mode: str, short: list[str], nodes: int) -> Finding:
    has = f"the taint {HEADROOM} is on {len(short)} of {counted(nodes, 'node')}"
    if mode == "taint":
        if not short or len(short) < nodes:
            return ok(f"{has} (headroom.mode taint)")
        todo = "add nodes without devices, or set a lower headroom.taintBelowPercent (docs/operate/packing.md)"
        return warning(f"the taint {HEADROOM} is on every node ({nodes}): it keeps no Pod away from any", todo)
    if mode == "remove":
        if not short:
            return ok(f"no node has the taint {HEADROOM} any more; headroom.mode can be none")
        todo = "wait a minute; if they stay, see the webhook's log and the lines about rights"
        return warning(f"{has}, which are being removed: {listed(short)}", todo)
    if not short:
        return ok(f"no node has the taint {HEADROOM} (headroom.mode none)")
    todo = f"set headroom.mode to taint or remove, or run: kubectl taint nodes --all {HEADROOM}-"
    return warning(f"{has}, and nobody keeps it (headroom.mode none): {listed(short)}", todo)


def typical(snapshot: Snapshot) -> Iterator[Finding]:
    """Which requests are typical, where somebody asks."""
    scheduler = snapshot.settings.scheduler
    if scheduler.preference is not Preference.FRAGMENTATION and snapshot.settings.headroom.mode != "taint":
        return
    if scheduler.mix:
        yield ok(f"the typical requests are the {len(scheduler.mix)} stated in scheduler.mix")
    else:
        yield ok(
            "the typical requests are those of Pods that hold devices (metric koordgate_typical_requests; while it is "
            "0, headroom sets no taint, and fragmentation compares nodes by its other rules)"
        )
