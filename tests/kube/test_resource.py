"""Each resource: its objects' apiVersion, and where they live."""

import pytest

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
