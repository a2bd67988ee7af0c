"""Versions: of the API server, of our parts, of the definitions of custom resources."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Snapshot

_AREA: Final = "versions"
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
        return unknown(_AREA, f"the API server states no version ({version!r})", "see kubectl version")
    number = int(found[1]), int(found[2])
    if number < OLDEST:
        todo = f"upgrade Kubernetes to 1.{OLDEST[1]} or newer: koordgate was tried on no older one"
        return failure(_AREA, f"the API server is {version}", todo)
    if number > NEWEST:
        todo = "look for a newer koordgate; this one was not tested with it"
        return warning(_AREA, f"the API server is {version}, newer than 1.{NEWEST[1]}", todo)
    return ok(_AREA, f"the API server is {version}")


def _parts(snapshot: Snapshot) -> Iterator[Finding]:
    """The images of one installation are of one version: records and settings are those of that version."""
    pods = snapshot.of("pods")
    if pods.error:
        todo = "run this as a user who may list Pods"
        yield unknown(_AREA, f"the Pods of koordgate cannot be read: {pods.error}", todo)
        return
    images: dict[str, set[str]] = {}
    for pod in pods.items:
        name = pod["metadata"]["labels"].get("app.kubernetes.io/name", "")
        if name in _OURS and pod["images"]:
            images.setdefault(pod["images"][0], set()).add(name)
    if len(images) > 1:
        todo = "wait for the roll-out, or see why it does not end: kubectl rollout status"
        yield warning(_AREA, f"Pods of koordgate run {len(images)} images: {listed(sorted(images))}", todo)
    elif images:
        yield ok(_AREA, f"all Pods of koordgate run {next(iter(images))}")


def _definitions(snapshot: Snapshot) -> Iterator[Finding]:
    crds = snapshot.of("crds")
    if crds.error:
        todo = "run this as a user who may get customresourcedefinitions"
        yield unknown(_AREA, f"the definitions of custom resources cannot be read: {crds.error}", todo)
        return
    fine = []
    for name, ours in snapshot.crds.items():
        found = crds.named(name)
        if found is None:
            todo = "kubectl apply --server-side -f crds/ of the chart; Helm installs definitions at first install only"
            yield failure(_AREA, f"there is no definition {name}", todo)
        elif missing := _not_served(ours, found):
            todo = "kubectl apply --server-side -f crds/ of this version's chart"
            yield failure(_AREA, f"the definition {name} does not serve {', '.join(missing)}", todo)
        elif _ours(found) and not _covers(found["spec"], ours["spec"]):
            todo = "kubectl apply --server-side --force-conflicts -f crds/ of this version's chart (docs/upgrade.md)"
            yield warning(_AREA, f"the definition {name} is not that of this version's chart", todo)
        else:
            fine.append(name)
    if fine:
        yield ok(_AREA, f"definitions are there and served: {listed(fine)}")


def _ours(definition: Mapping[str, Any]) -> bool:
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
