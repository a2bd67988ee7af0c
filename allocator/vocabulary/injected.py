"""Containers that other products add to Pods of their users, by name.

Their authors size them for traffic or for secrets, and the Pod's author has no say in it. Each name is the one that the
product's injector writes: Istio (istio/istio, manifests), Linkerd (linkerd/linkerd2, pkg/k8s), Kuma (kumahq/kuma,
pkg/plugins/runtime/k8s/util), Consul (hashicorp/consul-k8s, control-plane/connect-inject), Dapr (dapr/dapr,
pkg/injector), Knative (knative/serving, pkg/reconciler/revision/resources), Vault (hashicorp/vault-k8s,
agent-inject/agent), OpenTelemetry (open-telemetry/opentelemetry-operator), GKE's driver for Cloud Storage
(GoogleCloudPlatform/gcs-fuse-csi-driver, pkg/webhook), and Azure's workload identity
(Azure/azure-workload-identity, pkg/webhook).
"""

from typing import Final

INJECTORS: Final = {
    "Istio": ("istio-proxy", "istio-init", "istio-validation"),
    "Linkerd": ("linkerd-proxy", "linkerd-init", "linkerd-network-validator", "linkerd-debug"),
    "Kuma": ("kuma-sidecar", "kuma-init"),
    "Consul": ("consul-dataplane", "consul-connect-inject-init"),
    "Dapr": ("daprd",),
    "Knative": ("queue-proxy",),
    "Vault": ("vault-agent", "vault-agent-init"),
    "OpenTelemetry": ("otc-container",),
    "Cloud Storage FUSE (GKE)": ("gke-gcsfuse-sidecar", "gke-gcsfuse-metadata-prefetch"),
    "Azure Workload Identity": ("azwi-proxy", "azwi-proxy-init"),
}
"""Product to the containers that it adds."""

INJECTED: Final = frozenset(name for names in INJECTORS.values() for name in names)
"""The names of all of them."""
