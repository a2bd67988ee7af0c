"""Running Pods as other products leave them on the API server."""

from collections.abc import Mapping, Sequence
from typing import Any

from fake_kube import FakeKube

from koordgate.kube.resource import CONFIG_MAPS, PODS

Raw = dict[str, Any]
STARTED = "2026-11-20T10:00:05Z"
STARTED_S = 1_795_168_805


def running(
    name: str = "peer",
    *,
    scheduler: str = "default-scheduler",
    annotations: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    limits: Mapping[str, Any] | None = None,
    namespace: str = "team",
    node: str = "n1",
    phase: str = "Running",
    started: str | None = STARTED,
) -> Raw:
    container = {"name": "main", "image": "none", "resources": {"limits": dict(limits or {}), "requests": {}}}
    state = {"running": {"startedAt": started}} if started else {"waiting": {"reason": "ContainerCreating"}}
    status: Raw = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        },
        "spec": {"nodeName": node, "schedulerName": scheduler, "containers": [container]},
        "status": status | ({"startTime": started} if started else {}),
    }


def with_containers(pod: Raw, early: Sequence[Mapping[str, Any]], apps: Sequence[Mapping[str, Any]]) -> Raw:
    """Give a Pod other containers, each with its limits; of an early one, "sidecar" says that it is one."""
    made = [
        [
            {
                "name": f"{of}-{number}",
                "image": "none",
                "resources": {"limits": {key: amount for key, amount in limits.items() if key != "sidecar"}},
                **({"restartPolicy": "Always"} if limits.get("sidecar") else {}),
            }
            for number, limits in enumerate(group)
        ]
        for of, group in (("init", early), ("app", apps))
    ]
    pod["spec"] |= {"initContainers": made[0], "containers": made[1]}
    return pod


def init_ended(pod: Raw, code: int = 0) -> Raw:
    """Let all init containers of a Pod have ended, the last with this code; sidecars run."""
    early = pod["spec"]["initContainers"]
    states: list[Raw] = [
        {"running": {"startedAt": STARTED}} if "restartPolicy" in one else {"terminated": {"exitCode": 0}}
        for one in early
    ]
    if code:
        states[-1] = {"terminated": {"exitCode": code}}
    statuses = [{"name": one["name"], "state": state} for one, state in zip(early, states, strict=True)]
    pod["status"]["initContainerStatuses"] = statuses
    return pod


def hami(text: Any, **about: Any) -> Raw:
    annotations = {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-node": "n1"}
    return running(annotations=annotations, **{"scheduler": "hami-scheduler", **about})


def vgpu(text: Any, **about: Any) -> Raw:
    return running(annotations={"volcano.sh/vgpu-ids-new": text}, **{"scheduler": "volcano", **about})


def volcano(index: Any, memory: Any = "1000", **about: Any) -> Raw:
    limits = {} if memory is None else {"volcano.sh/gpu-memory": memory}
    told = {"scheduler": "volcano", "limits": limits, **about}
    return running(annotations={"volcano.sh/gpu-index": index}, **told)


def gpushare(index: Any, pod: Any = "4", dev: Any = "16", asked: Any = 4, **about: Any) -> Raw:
    stated = {"ALIYUN_COM_GPU_MEM_IDX": index, "ALIYUN_COM_GPU_MEM_POD": pod, "ALIYUN_COM_GPU_MEM_DEV": dev}
    annotations = {key: value for key, value in stated.items() if value is not None}
    limits = {} if asked is None else {"aliyun.com/gpu-mem": asked}
    return running(annotations=annotations, limits=limits, **about)


def kai(*groups: str, **about: Any) -> Raw:
    labels = {"runai-gpu-group": groups[0]} if len(groups) == 1 else {f"runai-gpu-group/{one}": one for one in groups}
    return running(labels=labels, **{"scheduler": "kai-scheduler", **about})


def reservation(group: str, uuid: str | None, name: str = "reserve", **about: Any) -> Raw:
    annotations = {} if uuid is None else {"run.ai/reserve_for_gpu_index": uuid}
    told = {"namespace": "kai-resource-reservation", **about}
    return running(name, labels={"runai-gpu-group": group}, annotations=annotations, **told)


def install(fake: FakeKube, settings: str = "") -> None:
    """Let the cluster have an installation with these settings, in YAML."""
    obj = {"metadata": {"name": "koordgate"}, "data": {"config.yaml": settings}}
    fake.put(CONFIG_MAPS.path(namespace="koordgate-system"), obj)


def put_pod(fake: FakeKube, pod: Raw) -> None:
    """Let the cluster have a Pod."""
    fake.put(PODS.path(namespace=pod["metadata"]["namespace"]), pod)
