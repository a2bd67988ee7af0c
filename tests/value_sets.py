"""Values with which people install the chart: each is rendered, and tried on a real API server."""

from pathlib import Path
from typing import Any, Final

import yaml

KOORDINATOR: Final = "system:serviceaccount:koordinator-system:koord-scheduler"
_ON: Final = {"enabled": True}
_DIALECTS: Final = ("hami", "volcano", "volcano-share", "gpushare", "kai", "tencent", "amd", "dcu")
_POLICIES: Final = (
    "visibleDevices",
    "peerResults",
    "presetNode",
    "allocations",
    "modes",
    "bindings",
    "webhook",
)
_NPU: Final = {
    "name": "npu",
    "resource": "huawei.com/npu",
    "unit": "devices",
    "amounts": [
        {"name": "core", "resource": "huawei.com/npu-core", "unit": "units"},
        {
            "name": "memory",
            "resource": "huawei.com/npu-memory",
            "unit": "bytes",
            "ratio": "huawei.com/npu-memory-ratio",
        },
    ],
    "templates": [{"name": "vir04", "amounts": {"core": 4, "memory": "12Gi"}}],
}
_QUEUE: Final = {
    "name": "queue",
    "resource": "example.com/queue",
    "unit": "units",
    "environment": "QUEUE",
    "pools": [{"nodeSelector": {"example.com/site": "west"}, "devices": {"fast": 10, "slow": 40}}],
}

VALUE_SETS: Final[dict[str, dict[str, Any]]] = {
    "the defaults": {},
    "minimal": {
        "replicas": 1,
        "scheduler": {"replicas": 1},
        "priorityClassName": "",
        "flowControl": {"enabled": False},
        "quota": {"enabled": False},
        "dra": {"enabled": False},
        "reporter": {"enabled": False},
        "policies": {name: {"action": "off"} for name in _POLICIES},
        "warnOffDialects": False,
    },
    "highly available": {
        "replicas": 5,
        "scheduler": {"replicas": 3},
        "nodeFailureSeconds": 10,
        "webhook": {"sessionAffinity": "ClientIP"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
                            ]
                        }
                    ]
                }
            }
        },
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "guard": {"failurePolicy": "Fail"},
        "dra": {"failurePolicy": "Fail"},
    },
    "certificates of cert-manager": {
        "certificate": {"certManager": {"enabled": True, "issuer": {"name": "ca"}, "clientIssuer": {"name": "own"}}}
    },
    "certificates of an administrator": {
        "certificate": {"existingSecret": "koordgate-cert", "existingClientSecret": "koord-scheduler-cert"},
        "webhook": {"caBundle": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="},
    },
    "callers with certificates": {
        "webhook": {
            "clientAuthority": "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n",
            "clientName": "kube-apiserver",
        }
    },
    "outside the cluster": {
        "webhook": {"externalURL": "https://gate.example.com", "externalExtenderURL": "https://10.0.0.7:9444"}
    },
    "IPv6 only": {"webhook": {"host": "::"}, "networkPolicy": {"apiServers": ["fd00::1/128"]}},
    "Koordinator's scheduler and agents": {
        "scheduler": {"enabled": False, "username": KOORDINATOR},
        "reporter": {"enabled": False},
        "domain": "koordinator.sh",
        "stateMemory": False,
        "quota": {"ignoredByScheduler": True},
    },
    "the preference fragmentation": {
        "scheduler": {
            "preference": "fragmentation",
            "mix": [{"requests": {"cpu": "8", "koordinator.sh/gpu": 100}, "models": ["A100"], "weight": 3}],
        }
    },
    "CPUs aligned and exclusive": {
        "scheduler": {
            "preference": "leastRequested",
            "preferenceClasses": ["cpu", "memory", "gpu"],
            "mostNodes": 0,
            "nominateFrom": 0,
            "percentageOfNodesToScore": 0,
        },
        "cpus": {
            "bindPolicy": "SpreadByPCPUs",
            "exclusivePolicy": "NUMANodeLevel",
            "numaAllocateStrategy": "DistributeEvenly",
            "numaTopologyPolicy": "Restricted",
        },
        "numa": {"scope": {"namespaces": ["training"], "selector": {"example.com/numa": "aligned"}}},
    },
    "device types of one's own": {
        "devices": {
            "types": [_NPU, _QUEUE],
            "order": "leastUsed",
            "tolerations": {"gpu": [], "npu": ["huawei.com/npu"]},
            "quotaEnvironment": True,
            "defaultSlotResourceFraction": {"types": {"gpu": 50}, "namespaces": {"team-a": {"gpu": 25}}},
        },
        "limits": {"provider": "nvidia-toolkit", "require": ["*"]},
    },
    "the enforcer": {
        "enforcement": {
            "enabled": True,
            "kinds": {"rdma": "example.com/rdma"},
            "hamiCore": {"library": "/opt/hami/libvgpu.so"},
            "mps": {"pipe": "/run/nvidia-mps", "shm": "/run/nvidia-mps/shm"},
        },
        "devices": {"delivery": "nri", "closed": True},
        "limits": {"provider": "cgroup", "require": ["*"]},
        "policies": {"visibleDevices": {"exemptNamespaces": ["gpu-operator"]}},
    },
    "every dialect, some in namespaces": {
        "dialects": {
            **{name: {"enabled": True, "namespaces": ["team-a", "team-b"]} for name in _DIALECTS[:5]},
            **dict.fromkeys(_DIALECTS[5:], _ON),
            "elastic-gpu": {"enabled": True, "memoryUnit": "1Mi"},
        },
        "warnOffDialects": False,
    },
    "network policies": {
        "networkPolicy": {
            "apiServers": ["10.0.0.1/32", "10.0.0.2/32"],
            "callers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        }
    },
    "watched": {
        "monitors": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": _ON,
        "reporter": {"metrics": {"pods": True}},
        "logLevel": "debug",
    },
    "shadow mode": {"mode": "shadow", "exemptNamespaces": ["gpu-operator"]},
    "every policy warns": {"policies": {name: {"action": "Warn"} for name in _POLICIES}},
    "beside other products": {
        "adopt": {
            "peers": ["hami", "volcano", "gpushare", "kai"],
            "schedulers": {"hami": ["hami-scheduler"]},
            "writers": ["system:serviceaccount:kube-system:hami-scheduler"],
        },
        "mirror": ["hami", "volcano", "gpushare"],
        "policies": {"visibleDevices": {"variables": ["CUDA_DISABLE_CONTROL"], "exemptNamespaces": ["gpu-operator"]}},
        "dialects": {"volcano-share": {"enabled": True, "memoryUnit": "1Gi"}},
    },
    "headroom kept": {"headroom": {"mode": "taint"}},
    "DRA with taints": {"dra": {"taints": True, "drivers": {"gpu.example.com": "gpu"}}},
    "gangs as a whole": {"gangs": {"allOrNothing": True}},
    "a reporter with all rights": {
        "reporter": {
            "kubelet": {"configz": True, "configuration": "/etc/kubernetes/kubelet.yaml"},
            "cpus": {"memory": True},
            "proof": {"environment": True},
            "gpus": {"runtimeClassName": "nvidia"},
            "pci": [{"type": "fpga", "vendor": "0x10ee", "device": "0x5004"}],
        }
    },
    "a reporter with few rights": {
        "reporter": {
            "ownNodeOnly": False,
            "gpus": {"enabled": False, "discoveryLabels": False},
            "cpus": {"enforce": False},
            "proof": {"enabled": False},
            "kubelet": {"podResources": False},
            "tolerations": [],
            "nodeSelector": {"example.com/gpu": "true"},
        }
    },
    "Pods of a platform team": {
        "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "x"},
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"role": "system"},
        "doctor": {"tryIn": "team-a", "strict": True, "probe": "registry.example.com/busybox:1.37"},
    },
    # What a release brings for kinds of clusters.
    **{
        f"the values for {file.stem}": yaml.safe_load(file.read_text(encoding="utf-8"))
        for file in sorted((Path(__file__).parents[1] / "examples" / "values").glob("*.yaml"))
    },
    "an image by its digest": {
        "image": {"repository": "registry.example.com/koordgate", "digest": f"sha256:{'a' * 64}"},
        "scheduler": {"image": {"digest": f"sha256:{'b' * 64}"}},
    },
}
