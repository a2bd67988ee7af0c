"""The rights that our accounts need (the chart's roles): asked one by one, so that a missing one is named."""

from collections.abc import Iterator
from typing import Any, Final

from console.doctor.findings import Finding, failure, listed, ok, unknown
from console.doctor.snapshot import REPORTER, Right, Snapshot
from webhook.settings import WebhookSettings

Raw = dict[str, Any]

_WATCH: Final = ("list", "watch")
_READ: Final = ("get", *_WATCH)
_ADMISSION: Final = "admissionregistration.k8s.io"
_DEVICES: Final = ("scheduling.koordinator.sh", "devices")
_TOPOLOGIES: Final = ("topology.node.k8s.io", "noderesourcetopologies")
_POD_GROUPS: Final = ("scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "scheduling.k8s.io")
_QUOTAS: Final = (
    ("", "limitranges", _WATCH),
    ("", "resourcequotas", (*_READ, "create", "update", "delete")),
)
_CLAIMS: Final = (("resource.k8s.io", "resourceclaims", _READ), ("resource.k8s.io", "resourceslices", _WATCH))
_TAINT_RULES: Final = (("resource.k8s.io", "devicetaintrules", (*_WATCH, "create", "delete")),)
_REVIEWS: Final = (
    ("authentication.k8s.io", "tokenreviews", ("create",)),
    ("authorization.k8s.io", "subjectaccessreviews", ("create",)),
)


def needed(settings: WebhookSettings, *, reporter: bool, configz: bool, policies: bool = False) -> tuple[Right, ...]:
    """List the rights of the webhook's and the reporter's account under these settings."""
    found = [*_webhook(settings), *(_reporter(configz=configz, policies=policies) if reporter else ())]
    return tuple(sorted(found))


def _webhook(settings: WebhookSettings) -> Iterator[Right]:
    account, home = "koordgate", settings.identity.namespace
    rules: list[tuple[str, str, tuple[str, ...]]] = [
        ("", "pods", _READ),
        ("", "namespaces", _WATCH),
        ("", "nodes", _WATCH),
        ("node.k8s.io", "runtimeclasses", _WATCH),
        (*_DEVICES, _WATCH),
        (*_TOPOLOGIES, _WATCH),
        *((group, "podgroups", _WATCH) for group in _POD_GROUPS),
        ("koordgate.io", "nodeallocations", (*_READ, "create", "update", "delete")),
        ("", "events", ("create",)),
        ("", "nodes/status", ("patch",)),
    ]
    for asked, more in (
        (settings.scheduler.nominate_from, (("", "pods/status", ("patch",)),)),
        (settings.gangs.all_or_nothing, (("", "pods", ("patch",)),)),
        (settings.quota.enabled, _QUOTAS),
        (settings.dra.enabled, _CLAIMS),
        (settings.headroom.mode != "none", (("", "nodes", ("get", "patch")),)),
        (settings.dra.enabled and settings.dra.taints, _TAINT_RULES),
        (settings.map.enabled, _REVIEWS),
    ):
        rules += more if asked else ()
    for group, resource, verbs in rules:
        yield from (Right(account, verb, group, resource) for verb in verbs)
    for resource, name in (
        ("mutatingwebhookconfigurations", settings.identity.mutating),
        ("validatingwebhookconfigurations", settings.identity.validating),
    ):
        yield from (Right(account, verb, _ADMISSION, resource, name) for verb in ("get", "patch"))
    if settings.certificate.files is None:
        secrets = [settings.certificate.secret, settings.certificate.extender_secret]
        secrets += [settings.certificate.client_secret] if settings.scheduler.client_certificates else []
        for name in secrets:
            yield from (Right(account, verb, "", "secrets", name, home) for verb in ("get", "update"))
        yield Right(account, "create", "", "secrets", "", home)


def _reporter(*, configz: bool, policies: bool) -> Iterator[Right]:
    rules: list[tuple[str, str, tuple[str, ...]]] = [
        ("", "pods", _WATCH),
        ("", "nodes", _READ),
        (*_DEVICES, (*_READ, "create", "patch")),
        (*_TOPOLOGIES, (*_READ, "create", "patch")),
        ("", "nodes/status", ("patch",)),
        ("", "events", ("create", "patch")),
    ]
    if policies:
        rules.append(("nvidia.com", "clusterpolicies", ("list",)))
    if configz:
        rules.append(("", "nodes/proxy", ("get",)))
    for group, resource, verbs in rules:
        yield from (Right(REPORTER, verb, group, resource) for verb in verbs)


def review(right: Right, namespace: str) -> Raw:
    """Write the question whether an account of a namespace has a right."""
    resource, _, sub = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource}
    more = {"subresource": sub, "name": right.name, "namespace": right.namespace}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{right.account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": {**attributes, **{key: text for key, text in more.items() if text}},
        },
    }


def rights(snapshot: Snapshot) -> Iterator[Finding]:
    """Check each right that was asked about."""
    if not snapshot.rights:
        return
    unasked = [right for right, may in snapshot.rights.items() if may is None]
    if len(unasked) == len(snapshot.rights):
        todo = "run this as a user who may create subjectaccessreviews, or read koordgate's log for Forbidden"
        yield unknown("the rights of koordgate's accounts cannot be asked", todo)
        return
    for account in sorted({right.account for right in snapshot.rights}):
        mine = {right: may for right, may in snapshot.rights.items() if right.account == account}
        missing = [str(right) for right, may in mine.items() if may is False]
        if missing:
            todo = "helm upgrade restores the roles; see whether something else removes them"
            yield failure(f"account {account} may not {listed(missing)}", todo)
        elif None in mine.values():
            yield unknown(f"not all rights of account {account} could be asked", "run the command again")
        else:
            yield ok(f"account {account} has its {len(mine)} rights")
