"""Other products in the cluster that give GPUs or pin CPUs: what of them meets koordgate, and where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.names import NVIDIA_GPU, REPORTER_MANAGER, TYPE_GPU
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import REPORTER, Snapshot

_AREA: Final = "other products"


@dataclass(frozen=True, slots=True)
class OtherProduct:
    """Another product.

    Attributes:
        title: as people name it.
        images: parts of the names of its images.
        webhooks: parts of the names of its webhooks that change Pods.
        writer: its DaemonSet writes Device objects.
        todo: what to do where it runs beside koordgate.
    """

    title: str
    images: tuple[str, ...]
    webhooks: tuple[str, ...] = ()
    writer: bool = False
    todo: str = ""


_ONE_PER_NODE: Final = "let each node be given by one product: label nodes, and set both products' nodeSelector"
PRODUCTS: Final = (
    OtherProduct(
        "NVIDIA's device plugin",
        ("nvidia/k8s-device-plugin", "nvidia-device-plugin"),
        todo="keep it off koordgate's nodes: label nvidia.com/gpu.deploy.device-plugin=false, or devicePlugin.enabled",
    ),
    OtherProduct(
        "HAMi",
        ("projecthami/hami", "4pdosc/k8s-vdevice", "hami-device-plugin"),
        ("vgpu.hami.io",),
        todo=_ONE_PER_NODE,
    ),
    OtherProduct(
        "Volcano's vGPU device plugin",
        ("volcano-vgpu-device-plugin", "volcanosh/volcano-device-plugin"),
        todo=_ONE_PER_NODE,
    ),
    OtherProduct("Volcano", ("volcanosh/vc-scheduler",), ("mutatepod.volcano.sh",), todo=_ONE_PER_NODE),
    OtherProduct("Alibaba Cloud gpushare", ("gpushare-device-plugin", "k8s-gpushare-plugin"), todo=_ONE_PER_NODE),
    OtherProduct("Tencent gpu-manager", ("tkestack/gpu-manager",), todo=_ONE_PER_NODE),
    OtherProduct("KAI Scheduler", ("kai-scheduler/binder",), ("kai-admission", "binder.run.ai"), todo=_ONE_PER_NODE),
    OtherProduct(
        "Koordinator's koordlet",
        ("koordlet",),
        writer=True,
        todo="let only one of the two report: reporter.enabled=false, or turn off koordlet's Devices and NodeTopology",
    ),
    OtherProduct(
        "Koordinator's koord-manager",
        ("koord-manager",),
        ("koordinator.sh",),
        todo="turn off its Pod webhooks for device resources (feature gates), or koordgate's namespaces",
    ),
)


def clashes(snapshot: Snapshot) -> Iterator[Finding]:
    """Look for other products by their images and webhooks, and for nodes that two products give."""
    sets, runs, hooks = (snapshot.of(key) for key in ("daemonsets", "deployments", "mutating"))
    for key, read in (("daemonsets", sets), ("deployments", runs), ("mutating", hooks)):
        if read.error:
            yield unknown(_AREA, f"{key} cannot be read: {read.error}", "run this as a user who may list them")
    names = [one["name"] for read in hooks.items for one in read["webhooks"]]
    met = False
    for product in PRODUCTS:
        agents = [_name(one) for one in sets.items if _runs(one, product)]
        others = [_name(one) for one in runs.items if _runs(one, product)]
        entries = [name for name in names if any(part in name for part in product.webhooks)]
        entries = [name for name in entries if not name.endswith(".koordgate.io")]
        if not (agents or others or entries):
            continue
        met = True
        where = listed([*agents, *others, *(f"webhook {name}" for name in entries)])
        yield _clash(snapshot, product, agents, where)
    yield from _given_twice(snapshot)
    if not met and not any(read.error for read in (sets, runs, hooks)):
        yield ok(_AREA, f"none of {len(PRODUCTS)} known products runs here")


def _clash(snapshot: Snapshot, product: OtherProduct, agents: list[str], where: str) -> Finding:
    what = f"{product.title} runs: {where}"
    if product.writer and agents and snapshot.reporter:
        return failure(_AREA, f"{what}; two writers of Device objects overwrite each other", product.todo)
    if product.writer and agents:
        return ok(_AREA, f"{what}; koordgate reads its objects")
    return warning(_AREA, what, product.todo)


def _runs(workload: Mapping[str, Any], product: OtherProduct) -> bool:
    """By the image's name without its tag: a registry's port has a colon too."""
    return any(part in image for image in workload["images"] for part in product.images)


def _name(workload: Mapping[str, Any]) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def _given_twice(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes whose cards a device plugin offers and our reporter lists."""
    nodes, devices = snapshot.of("nodes"), snapshot.of("devices")
    if nodes.error or devices.error or not snapshot.reporter:
        return
    ours = {one["metadata"]["name"] for one in devices.items if TYPE_GPU in one["types"] and _reported(one)}
    offered = {one["metadata"]["name"] for one in nodes.items if one["allocatable"].get(NVIDIA_GPU, "0") != "0"}
    both = sorted(ours & offered)
    if both:
        todo = f"turn off the device plugin there; {REPORTER} holds what it gave to Pods until these end"
        what = f"a device plugin offers {NVIDIA_GPU} on {len(both)} nodes of koordgate's: {listed(both)}"
        yield warning(_AREA, what, todo)
    elif ours:
        yield ok(_AREA, f"no device plugin offers {NVIDIA_GPU} on the {len(ours)} nodes whose cards koordgate gives")


def _reported(device: Mapping[str, Any]) -> bool:
    return REPORTER_MANAGER in device["managers"]
