"""Each resource: its objects' apiVersion, and where they live."""

import pytest

from koordgate.kube import resource
from koordgate.kube.resource import (
    DEVICES,
    EVENTS,
    MUTATING_WEBHOOKS,
    NODE_ALLOCATIONS,
    NODES,
    PLUGIN_POD_GROUPS,
    POD_GROUPS,
    PODS,
    SECRETS,
    TOPOLOGIES,
    VALIDATING_WEBHOOKS,
    Resource,
)

GROUPS = ["v1beta1", "v1alpha3", "v1alpha2"]


@pytest.mark.parametrize(
    ("made", "api_version", "path"),
    [
        (PODS, "v1", "/api/v1/namespaces/a/pods/x"),
        (SECRETS, "v1", "/api/v1/namespaces/a/secrets/x"),
        (EVENTS, "v1", "/api/v1/namespaces/a/events/x"),
        (
            PLUGIN_POD_GROUPS,
            "scheduling.x-k8s.io/v1alpha1",
            "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/a/podgroups/x",
        ),
        *(
            (group, f"scheduling.k8s.io/{version}", f"/apis/scheduling.k8s.io/{version}/namespaces/a/podgroups/x")
            for group, version in zip(POD_GROUPS, GROUPS, strict=True)
        ),
    ],
)
def test_a_namespaced_object_is_found_in_its_namespace_only(made: Resource, api_version: str, path: str) -> None:
    assert (made.api_version, made.path("x", "a")) == (api_version, path)
    with pytest.raises(ValueError, match="namespaced"):
        made.path("x")


@pytest.mark.parametrize(
    ("made", "api_version", "path"),
    [
        (NODES, "v1", "/api/v1/nodes/x"),
        (DEVICES, "scheduling.koordinator.sh/v1alpha1", "/apis/scheduling.koordinator.sh/v1alpha1/devices/x"),
        (TOPOLOGIES, "topology.node.k8s.io/v1alpha1", "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/x"),
        (NODE_ALLOCATIONS, "koordgate.io/v1alpha1", "/apis/koordgate.io/v1alpha1/nodeallocations/x"),
        (
            MUTATING_WEBHOOKS,
            "admissionregistration.k8s.io/v1",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/x",
        ),
        (
            VALIDATING_WEBHOOKS,
            "admissionregistration.k8s.io/v1",
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/x",
        ),
    ],
)
def test_a_cluster_scoped_object_is_in_no_namespace(made: Resource, api_version: str, path: str) -> None:
    assert (made.api_version, made.path("x")) == (api_version, path)
    with pytest.raises(ValueError, match="cluster-scoped"):
        made.path("x", "a")


def test_every_resource_is_in_a_namespace_or_in_none_as_the_api_has_it() -> None:
    paths = {
        resource.NODES: "/api/v1/nodes/x",
        resource.NAMESPACES: "/api/v1/namespaces/x",
        resource.PODS: "/api/v1/namespaces/a/pods/x",
        resource.SECRETS: "/api/v1/namespaces/a/secrets/x",
        resource.RESOURCE_QUOTAS: "/api/v1/namespaces/a/resourcequotas/x",
        resource.LIMIT_RANGES: "/api/v1/namespaces/a/limitranges/x",
        resource.EVENTS: "/api/v1/namespaces/a/events/x",
        resource.DEVICES: "/apis/scheduling.koordinator.sh/v1alpha1/devices/x",
        resource.TOPOLOGIES: "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/x",
        resource.NODE_ALLOCATIONS: "/apis/koordgate.io/v1alpha1/nodeallocations/x",
        resource.PLUGIN_POD_GROUPS: "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/a/podgroups/x",
        resource.KOORDINATOR_POD_GROUPS: "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/a/podgroups/x",
        resource.RESOURCE_CLAIMS: "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/x",
        resource.RESOURCE_SLICES: "/apis/resource.k8s.io/v1/resourceslices/x",
        resource.MUTATING_WEBHOOKS: "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/x",
        resource.VALIDATING_WEBHOOKS: "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/x",
        resource.ADMISSION_POLICIES: "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/x",
        resource.POLICY_BINDINGS: "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/x",
        resource.DEFINITIONS: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x",
        resource.DEPLOYMENTS: "/apis/apps/v1/namespaces/a/deployments/x",
        resource.DAEMON_SETS: "/apis/apps/v1/namespaces/a/daemonsets/x",
        resource.LEASES: "/apis/coordination.k8s.io/v1/namespaces/a/leases/x",
        resource.CONFIG_MAPS: "/api/v1/namespaces/a/configmaps/x",
        resource.PRIORITY_LEVELS: "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/x",
        resource.FLOW_SCHEMAS: "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/x",
        resource.DISRUPTION_BUDGETS: "/apis/policy/v1/namespaces/a/poddisruptionbudgets/x",
        resource.PRIORITY_CLASSES: "/apis/scheduling.k8s.io/v1/priorityclasses/x",
        resource.RUNTIME_CLASSES: "/apis/node.k8s.io/v1/runtimeclasses/x",
        resource.CLUSTER_POLICIES: "/apis/nvidia.com/v1/clusterpolicies/x",
        resource.TOKEN_REVIEWS: "/apis/authentication.k8s.io/v1/tokenreviews/x",
        resource.ACCESS_REVIEWS: "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
        resource.POD_GROUPS[0]: "/apis/scheduling.k8s.io/v1beta1/namespaces/a/podgroups/x",
        resource.POD_GROUPS[1]: "/apis/scheduling.k8s.io/v1alpha3/namespaces/a/podgroups/x",
        resource.POD_GROUPS[2]: "/apis/scheduling.k8s.io/v1alpha2/namespaces/a/podgroups/x",
        resource.DEVICE_TAINT_RULES[0]: "/apis/resource.k8s.io/v1/devicetaintrules/x",
        resource.DEVICE_TAINT_RULES[1]: "/apis/resource.k8s.io/v1beta2/devicetaintrules/x",
        resource.DEVICE_TAINT_RULES[2]: "/apis/resource.k8s.io/v1alpha3/devicetaintrules/x",
    }
    lists = [made if isinstance(made, tuple) else (made,) for name, made in vars(resource).items() if name.isupper()]
    known = {one for made in lists for one in made if isinstance(one, Resource)}
    assert paths.keys() == known
    for made, path in paths.items():
        inside = "/namespaces/a/" in path
        assert made.path("x", "a" if inside else None) == path
        with pytest.raises(ValueError, match="are namespaced" if inside else "are cluster-scoped"):
            made.path("x", None if inside else "a")
