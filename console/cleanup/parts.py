"""What koordgate installs and makes, in the order in which it is removed."""

from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.names import KOORD_SCHEDULER
from koordgate.kube.resource import (
    ADMISSION_POLICIES,
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    DEVICE_TAINT_RULES,
    DISRUPTION_BUDGETS,
    FLOW_SCHEMAS,
    LEASES,
    MUTATING_WEBHOOKS,
    PODS,
    POLICY_BINDINGS,
    PRIORITY_LEVELS,
    RESOURCE_QUOTAS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from webhook.leasesettings import HealthLeaseSettings
from webhook.quotas.mirror import MIRROR_LABEL
from webhook.settings import Certificate

_PART_OF: Final = "app.kubernetes.io/part-of=koordgate"
_TESTED: Final = "app.kubernetes.io/name=koordgate-doctor"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by=koordgate"
_RBAC: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class RemovedKind:
    """Objects of one resource.

    Attributes:
        resource: their resource.
        selector: of their labels; "" with `names`.
        names: or their names, in the release's namespace.
        annotation: of those, only objects that have this annotation; "" for all.
        everywhere: in all namespaces, not only in the release's.
    """

    resource: Resource
    selector: str = _PART_OF
    names: tuple[str, ...] = ()
    annotation: str = ""
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class RemovalPhase:
    """What is removed together; the next phase begins when all of it is gone.

    Attributes:
        title: for people.
        parts: in order.
        ends_pods: whether the Pods of our workloads must be gone after it: they would write again.
    """

    title: str
    parts: tuple[RemovedKind, ...]
    ends_pods: bool = False


_MADE: Final = Certificate()
# cert-manager makes them of the chart's Certificates, and leaves them when these are deleted.
_ISSUED: Final = ("koordgate-cert", "koord-scheduler-cert")
PHASES: Final = (
    RemovalPhase(
        "what stops Pods while no replica lives", (RemovedKind(MUTATING_WEBHOOKS), RemovedKind(VALIDATING_WEBHOOKS))
    ),
    RemovalPhase(
        "what the API server refuses by itself", (RemovedKind(POLICY_BINDINGS), RemovedKind(ADMISSION_POLICIES))
    ),
    # Helm does not remove what it made for `helm test`.
    RemovalPhase(
        "what runs", (RemovedKind(DEPLOYMENTS), RemovedKind(DAEMON_SETS), RemovedKind(PODS, _TESTED)), ends_pods=True
    ),
    RemovalPhase(
        "what belongs to it",
        (
            RemovedKind(FLOW_SCHEMAS),
            RemovedKind(PRIORITY_LEVELS),
            RemovedKind(DISRUPTION_BUDGETS),
            RemovedKind(Resource("networking.k8s.io", "v1", "networkpolicies", namespaced=True)),
            *(
                RemovedKind(Resource("monitoring.coreos.com", "v1", plural, namespaced=True))
                for plural in ("prometheusrules", "servicemonitors", "podmonitors")
            ),
            RemovedKind(Resource("cert-manager.io", "v1", "certificates", namespaced=True)),
            RemovedKind(Resource("", "v1", "services", namespaced=True)),
            RemovedKind(CONFIG_MAPS),
            RemovedKind(Resource(_RBAC, "v1", "rolebindings", namespaced=True), everywhere=True),
            RemovedKind(Resource(_RBAC, "v1", "roles", namespaced=True), everywhere=True),
            RemovedKind(Resource(_RBAC, "v1", "clusterrolebindings", namespaced=False)),
            RemovedKind(Resource(_RBAC, "v1", "clusterroles", namespaced=False)),
            RemovedKind(Resource("", "v1", "serviceaccounts", namespaced=True)),
        ),
    ),
    RemovalPhase(
        "what it made",
        (
            RemovedKind(RESOURCE_QUOTAS, f"{MIRROR_LABEL}=true", everywhere=True),
            *(RemovedKind(rules, _MANAGED_BY) for rules in DEVICE_TAINT_RULES),
            RemovedKind(SECRETS, names=(_MADE.secret, _MADE.extender_secret, _MADE.client_secret)),
            RemovedKind(SECRETS, names=_ISSUED, annotation="cert-manager.io/certificate-name"),
            RemovedKind(LEASES, names=(KOORD_SCHEDULER, HealthLeaseSettings().name)),
        ),
    ),
)
