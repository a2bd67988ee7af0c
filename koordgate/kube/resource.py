"""Where resources live under the API server's root."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource type of the API."""

    group: str  # API group, empty for the core group
    version: str  # as `v1`
    plural: str  # as `pods`
    namespaced: bool  # whether its objects live in namespaces

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str | None = None, namespace: str | None = None, subresource: str | None = None) -> str:
        """The path of a collection, of an object or of its subresource.

        `name`: of the object; None for the collection. `namespace`: where a namespaced object or collection is; None
        for the collection over all namespaces. Raises ValueError: the parts do not fit together, or one cannot be a
        name.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.plural} are cluster-scoped, namespace {namespace!r} given")
        if name is not None and namespace is None and self.namespaced:
            raise ValueError(f"{self.plural} are namespaced, none given for {name!r}")
        if subresource is not None and name is None:
            raise ValueError(f"subresource {subresource!r} of no object")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        space = "" if namespace is None else f"/namespaces/{_segment(namespace)}"
        rest = "".join(f"/{_segment(part)}" for part in (name, subresource) if part is not None)
        return f"{root}{space}/{self.plural}{rest}"


def _segment(text: str) -> str:
    """Quote one segment of a path: names come from objects of other people, and must not lead to another path."""
    if text in {"", ".", ".."} or "/" in text or "%" in text:  # as path.IsValidPathSegmentName of apimachinery
        raise ValueError(f"{text!r} cannot be a name")
    return quote(text, safe=":")


NODES: Final = Resource("", "v1", "nodes", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", namespaced=False)
PODS: Final = Resource("", "v1", "pods", namespaced=True)
SECRETS: Final = Resource("", "v1", "secrets", namespaced=True)
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", namespaced=True)
LIMIT_RANGES: Final = Resource("", "v1", "limitranges", namespaced=True)
EVENTS: Final = Resource("", "v1", "events", namespaced=True)
TOLD_AGAIN_S: Final = 1800
"""Seconds after which an Event about what is still so is written again: Kubernetes keeps Events for an hour."""
DEVICES: Final = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
TOPOLOGIES: Final = Resource("topology.node.k8s.io", "v1alpha1", "noderesourcetopologies", namespaced=False)
NODE_ALLOCATIONS: Final = Resource("koordgate.io", "v1alpha1", "nodeallocations", namespaced=False)
# PodGroups, of scheduler-plugins, of Koordinator and of Kubernetes; a cluster may serve none of them.
PLUGIN_POD_GROUPS: Final = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", namespaced=True)
KOORDINATOR_POD_GROUPS: Final = Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", namespaced=True)
POD_GROUPS: Final = tuple(
    Resource("scheduling.k8s.io", version, "podgroups", namespaced=True)
    for version in ("v1beta1", "v1alpha3", "v1alpha2")  # the preferred one first; all spell the size alike
)
ALL_POD_GROUPS: Final = ((PLUGIN_POD_GROUPS,), (KOORDINATOR_POD_GROUPS,), POD_GROUPS)  # the versions, by API group
# Dynamic resource allocation; a cluster may not serve it.
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)
DEVICE_TAINT_RULES: Final = tuple(
    Resource("resource.k8s.io", version, "devicetaintrules", namespaced=False)
    for version in ("v1", "v1beta2", "v1alpha3")  # the preferred one first; all spell a rule alike
)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
)
VALIDATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", namespaced=False
)
ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False
)
POLICY_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", namespaced=False
)
DEFINITIONS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", namespaced=True)
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", namespaced=True)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", namespaced=True)
PRIORITY_LEVELS: Final = Resource("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", namespaced=False)
FLOW_SCHEMAS: Final = Resource("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", namespaced=False)
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", namespaced=True)
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
CLUSTER_POLICIES: Final = Resource("nvidia.com", "v1", "clusterpolicies", namespaced=False)  # of NVIDIA's GPU Operator
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", namespaced=False)
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
