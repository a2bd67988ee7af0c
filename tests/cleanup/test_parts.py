"""What `koordgate cleanup` removes, in which order, and where it looks for it."""

from console.cleanup.parts import PHASES, RemovedKind

INSTALLED = "app.kubernetes.io/part-of=koordgate"
ADMISSION = "admissionregistration.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io/v1"
MONITORING = "monitoring.coreos.com/v1"


def told(part: RemovedKind) -> tuple[str, str, str]:
    """The resource, where it is looked for, and by what: a selector, or names with the annotation that they need."""
    one = part.resource
    where = "cluster" if not one.namespaced else "everywhere" if part.everywhere else "release"
    by = part.selector if not part.names else f"{', '.join(part.names)} {part.annotation}".strip()
    return f"{one.api_version} {one.plural}", where, by


def test_what_is_removed_stands_in_the_order_in_which_it_goes() -> None:
    assert [(phase.title, phase.ends_pods, list(map(told, phase.parts))) for phase in PHASES] == [
        (
            "what stops Pods while no replica lives",
            False,
            [
                (f"{ADMISSION} mutatingwebhookconfigurations", "cluster", INSTALLED),
                (f"{ADMISSION} validatingwebhookconfigurations", "cluster", INSTALLED),
            ],
        ),
        (
            "what the API server refuses by itself",
            False,
            [
                (f"{ADMISSION} validatingadmissionpolicybindings", "cluster", INSTALLED),
                (f"{ADMISSION} validatingadmissionpolicies", "cluster", INSTALLED),
            ],
        ),
        (
            "what runs",
            True,
            [
                ("apps/v1 deployments", "release", INSTALLED),
                ("apps/v1 daemonsets", "release", INSTALLED),
                ("v1 pods", "release", "app.kubernetes.io/name=koordgate-doctor"),
            ],
        ),
        (
            "what belongs to it",
            False,
            [
                ("flowcontrol.apiserver.k8s.io/v1 flowschemas", "cluster", INSTALLED),
                ("flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations", "cluster", INSTALLED),
                ("policy/v1 poddisruptionbudgets", "release", INSTALLED),
                ("networking.k8s.io/v1 networkpolicies", "release", INSTALLED),
                (f"{MONITORING} prometheusrules", "release", INSTALLED),
                (f"{MONITORING} servicemonitors", "release", INSTALLED),
                (f"{MONITORING} podmonitors", "release", INSTALLED),
                ("cert-manager.io/v1 certificates", "release", INSTALLED),
                ("v1 services", "release", INSTALLED),
                ("v1 configmaps", "release", INSTALLED),
                (f"{RBAC} rolebindings", "everywhere", INSTALLED),
                (f"{RBAC} roles", "everywhere", INSTALLED),
                (f"{RBAC} clusterrolebindings", "cluster", INSTALLED),
                (f"{RBAC} clusterroles", "cluster", INSTALLED),
                ("v1 serviceaccounts", "release", INSTALLED),
            ],
        ),
        (
            "what it made",
            False,
            [
                ("v1 resourcequotas", "everywhere", "quota.koordgate.io/mirror=true"),
                ("resource.k8s.io/v1 devicetaintrules", "cluster", "app.kubernetes.io/managed-by=koordgate"),
                ("resource.k8s.io/v1beta2 devicetaintrules", "cluster", "app.kubernetes.io/managed-by=koordgate"),
                ("resource.k8s.io/v1alpha3 devicetaintrules", "cluster", "app.kubernetes.io/managed-by=koordgate"),
                ("v1 secrets", "release", "koordgate-tls, koordgate-extender-tls, koordgate-scheduler-tls"),
                (
                    "v1 secrets",
                    "release",
                    "koordgate-cert, koord-scheduler-cert cert-manager.io/certificate-name",
                ),
                ("coordination.k8s.io/v1 leases", "release", "koord-scheduler, koordgate-health"),
            ],
        ),
    ]
