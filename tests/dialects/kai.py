"""KAI Scheduler and Run:ai: rows from its sources and tests (NVIDIA/KAI-Scheduler at 72de64f)."""

from typing import Any

from dialects.rows import Row, share

from allocator.vocabulary.asks import DeviceAsk

FRACTION, MEM, COUNT, WHERE = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name"
_VALID = "pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator_test.go"
_READ = "pkg/scheduler/api/pod_info/pod_info.go: updatePodAdditionalFields"
_WHERE = "pkg/binder/common/gpu_access.go: GetFractionContainerRef"
_ROUND = "pkg/scheduler/api/node_info: shares of 0.01"


def part(percent: int, count: int = 1) -> DeviceAsk:
    return share(count, core=percent, ratio=percent, vendor="")


def mib(amount: int, count: int = 1) -> DeviceAsk:
    return share(count, mib=amount, vendor="")


def row(name: str, asks: dict[str, DeviceAsk] | None = None, source: str = _VALID, **fields: Any) -> Row:
    keys = {"fraction": FRACTION, "memory": MEM, "devices": COUNT, "where": WHERE}
    annotations = {keys[key]: fields.pop(key) for key in list(fields) if key in keys}
    return Row(name, asks=asks or {}, source=source, annotations=annotations, **fields)


ROWS = (
    row("half a card", {"a": part(50)}, fraction="0.5"),
    row("a tenth", {"a": part(10)}, fraction="0.1"),
    row("99 hundredths", {"a": part(99)}, fraction="0.99"),
    row("without a leading 0", {"a": part(50)}, fraction=".5", source=_READ),
    row("with an exponent", {"a": part(50)}, fraction="5e-1", source=_READ),
    row("a third is rounded up", {"a": part(34)}, fraction="0.333", source=_ROUND),
    row("a thousandth is rounded up", {"a": part(1)}, fraction="0.001", source=_ROUND),
    row("MiB of one card", {"a": mib(1000)}, memory="1000"),
    row("many MiB", {"a": mib(40960)}, memory="40960"),
    row("a fraction of each of two", {"a": part(30, 2)}, fraction="0.3", devices="2"),
    row("a fraction of each of eight", {"a": part(50, 8)}, fraction="0.5", devices="8"),
    row("MiB of each of two", {"a": mib(1000, 2)}, memory="1000", devices="2"),
    row("one device", {"a": part(30)}, fraction="0.3", devices="1", source=_READ),
    row("the first of two containers", {"a": part(50)}, fraction="0.5", limits=({}, {}), source=_WHERE),
    row("the second", {"b": part(50)}, fraction="0.5", where="b", limits=({}, {}), source=_WHERE),
    row("the first by name", {"a": mib(500)}, memory="500", where="a", limits=({}, {}), source=_WHERE),
    row("an init container", {"i": part(50)}, fraction="0.5", where="i", init=({},), source=_WHERE),
    row("an init container is not the first", {"a": part(50)}, fraction="0.5", init=({},), source=_WHERE),
    row("a sidecar", {"s": part(50)}, fraction="0.5", where="s", sidecars=({},), source=_WHERE),
    row("beside CPU", {"a": part(50)}, fraction="0.5", limits=({"cpu": "1"},), source=_READ),
    row(
        "a unit of GiB",
        {"a": mib(2048)},
        memory="2",
        settings={"memoryUnit": "1Gi"},
        source="node label nvidia.com/gpu.memory",
    ),
    row("MPS is no more than a hint", {"a": part(50)}, fraction="0.5"),
    # Wrong
    row("no such container", refused="names no container of the Pod", fraction="0.5", where="x", source=_WHERE),
    row("a whole card", refused="'1' is not a decimal number above 0 and below 1", fraction="1"),
    row("a whole card as decimal", refused="'1.0' is not a decimal number above 0 and below 1", fraction="1.0"),
    row("more than a card", refused="'1.5' is not a decimal number", fraction="1.5"),
    row("1.2", refused="metadata.annotations[gpu-fraction]", fraction="1.2"),
    row("nothing", refused="'0' is not a decimal number above 0", fraction="0"),
    row("negative", refused="'-1' is not a decimal number above 0", fraction="-1"),
    row("no number", refused="'half' is not a decimal number", fraction="half"),
    row("NaN", refused="'NaN' is not a decimal number", fraction="NaN", source="KAI#1798"),
    row("infinite", refused="'Inf' is not a decimal number", fraction="Inf", source="KAI#1798"),
    row("a quantity", refused="'500m' is not a decimal number", fraction="500m"),
    row("an empty text", refused="'' is not a decimal number", fraction=""),
    row("percent", refused="'50%' is not a decimal number", fraction="50%"),
    row("negative memory", refused="'-1' is not a whole number above 0", memory="-1"),
    row("no memory", refused="'0' is not a whole number above 0", memory="0"),
    row("a fraction of memory", refused="'0.5' is not a whole number above 0", memory="0.5"),
    row("a quantity of memory", refused="'4Gi' is not a whole number above 0", memory="4Gi"),
    row("devices alone", refused=f"{COUNT} alone asks for no device; add {FRACTION} or {MEM}", devices="1"),
    row("1.2 devices", refused="'1.2' is not a whole number above 0", fraction="0.2", devices="1.2"),
    row("0 devices", refused="'0' is not a whole number above 0", fraction="0.2", devices="0"),
    row("129 devices", refused="gpu.shared must be from 1 to 128", fraction="0.2", devices="129", source="ours"),
    row("both", refused=f"KAI Scheduler and Run:ai reads one of {FRACTION} and {MEM}", fraction="0.5", memory="1"),
    row(
        "a whole card beside a fraction",
        refused="in 2 dialects at once",
        fraction="0.5",
        limits=({"nvidia.com/gpu": 2},),
    ),
    row("a whole card beside memory", refused="in 2 dialects at once", memory="100", limits=({"nvidia.com/gpu": 1},)),
    row(
        "a whole card in another container",
        refused="in 2 dialects at once",
        memory="100",
        limits=({}, {"nvidia.com/gpu": 1}),
    ),
    row(
        "beside Koordinator",
        refused="metadata.annotations asks for gpu-fraction of KAI",
        fraction="0.5",
        limits=({"koordinator.sh/gpu": 50},),
        source="ours",
    ),
    *(
        Row(
            f"a form of 0.18: {name}",
            refused=f"metadata.annotations[{name}]: asks for GPU memory in a form of KAI Scheduler and Run:ai that",
            annotations={name: "30Gi"},
            source="gpu-sharing-operator: per-container annotations",
        )
        for name in (
            "nvidia.cdi.k8s.io/a.gpu-memory.request",
            "nvidia.cdi.k8s.io/a.gpu-memory.limit",
            "nvidia.com/container.a.gpu-memory.request",
            "nvidia.com/container.a.gpu-memory.limit",
            "nvidia.com/container.a.gpus.devices",
        )
    ),
    Row(
        "a form of 0.18 beside a fraction",
        refused="write gpu-fraction or gpu-memory, and gpu-fraction-container-name for the container",
        annotations={FRACTION: "0.5", "nvidia.com/container.a.gpu-memory.limit": "30Gi"},
        source="ours",
    ),
    row("a few MiB", {"a": mib(24)}, warned="did you mean 24576?", memory="24", source="ours"),
)
