"""Files about the container runtime as they are on real nodes, ClusterPolicies, and what a reporter tells of both."""

from dataclasses import replace
from typing import Any

from allocator.vocabulary.delivery import NodeRuntime

PLUGIN = "k8s.device-plugin.nvidia.com/gpu"
MANAGEMENT = "management.nvidia.com/gpu"


def spec(kind: str, *names: str, hook: str = "") -> str:
    """A CDI specification, as nvidia-ctk and NVIDIA's device plugin write it."""
    devices = "".join(
        f"""
- name: {name!r}
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia{at}
      hostPath: /dev/nvidia{at}
    hooks:
    - hookName: createRuntime
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, {hook or "chmod"}, --gpu-id, {name!r}]"""
        for at, name in enumerate(names)
    )
    return f"""---
cdiVersion: 0.5.0
kind: {kind}
devices:{devices}
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes:
  - path: /dev/nvidia-uvm
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib]
"""


CONTAINERD = """
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example.com".auth]
  password = "hunter2"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
PACKAGES = CONTAINERD.replace('default_runtime_name = "runc"', 'default_runtime_name = "nvidia"') + (
    """
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/bin/nvidia-container-runtime"
"""
)
OPERATORS_DROP_IN = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia-cdi.options]
    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"
"""
K3S = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia'.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""
CRIO_NVIDIA = """
[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
runtime_type = "oci"
"""
CRIO_PLAIN = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
"""
NVIDIA_LEGACY = """
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
[nvidia-container-cli]
environment = []
[nvidia-container-runtime]
mode = "legacy"
runtimes = ["runc", "crun"]
[nvidia-container-runtime.modes.cdi]
default-kind = "nvidia.com/gpu"
"""
NVIDIA_OPERATORS = NVIDIA_LEGACY.replace('"legacy"', '"cdi"').replace('"nvidia.com/gpu"', f'"{MANAGEMENT}"')
BOTTLEROCKET = (
    'accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[nvidia-container-runtime]\nmode="auto"\n'
)


def policy(version: str = "v25.10.0", tag: str = "v1.18.1", **over: Any) -> dict[str, Any]:
    """A ClusterPolicy of an operator of this version, with its defaults."""
    spec: dict[str, Any] = {"cdi": {"enabled": True}, "toolkit": {"enabled": True, "version": tag}, **over}
    labels = {"app.kubernetes.io/version": version} if version else {}
    return {"metadata": {"name": "cluster-policy", "labels": labels}, "spec": spec, "status": {"state": "ready"}}


def cluster_node(*handlers: str, version: str = "containerd://2.1.4", **over: Any) -> dict[str, Any]:
    """A Node as its kubelet writes it: the first handler is the default one."""
    return {
        "metadata": {"name": "n1", "uid": "node-uid"},
        "status": {
            "runtimeHandlers": [{"name": name, "features": {}} for name in ("", *handlers)],
            "nodeInfo": {"containerRuntimeVersion": version},
            **over,
        },
    }


# The GPU Operator 25.10 by its defaults: NVIDIA's runtime is not the default one.
OPERATOR = NodeRuntime(
    handlers=("nvidia", "runc"),
    showing=("nvidia",),
    default_shows=False,
    kinds=(PLUGIN,),
    nri=False,
    toolkit=(1, 18, 1),
    mode="cdi",
    unprivileged=True,
)
# The operator 26.3 with NVIDIA's NRI plugin, and without a handler of NVIDIA's.
OPERATOR_NRI = replace(OPERATOR, handlers=("runc",), showing=(), nri=True)
