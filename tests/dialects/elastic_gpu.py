"""elastic-gpu: rows from its sources (elastic-ai/elastic-gpu-scheduler at 09b010d)."""

from typing import Any

from dialects.rows import Row, cards, share

CORE, MEM = "elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"
CODE_CORE, CODE_MEM = "elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"
QGPU_CORE, QGPU_MEM = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
NANO = "nano-gpu/gpu-percent"
_READ = "pkg/scheduler/allocate.go: NewGPURequest"
_DOC = "README.md"
_NAMES = "elastic-ai/elastic-gpu, apis/elasticgpu/v1alpha1/types.go"


def row(name: str, *fields: Any, unit: str = "1Mi", **more: Any) -> Row:
    return Row(name, *fields, **{"settings": {"memoryUnit": unit}, **more})


ROWS = (
    row("memory alone", ({MEM: 256},), {"a": share(mib=256)}, source=_DOC),
    row("GiB", ({MEM: 4},), {"a": share(mib=4096)}, unit="1Gi", source="elastic-gpu-agent, pkg/plugins"),
    row("cores and memory", ({CORE: 30, MEM: 1024},), {"a": share(core=30, mib=1024)}, source=_READ),
    row("a whole card", ({CORE: 100},), {"a": cards()}, source=_READ),
    row("two whole cards", ({CORE: 200},), {"a": cards(2)}, source=_DOC),
    row("memory beside whole cards is not read", ({CORE: 200, MEM: 100},), {"a": cards(2)}, source=_READ),
    row("nothing", ({CORE: 0, MEM: 0},), {}, source=_READ),
    row(
        "cores 0 beside memory",
        ({CORE: 0, MEM: 400},),
        {"a": share(mib=400)},
        source="pkg/scheduler/scheduler_test.go: generatePods",
    ),
    row("no memory", ({MEM: 0},), {}, source=_READ),
    row("the names in code", ({CODE_CORE: 30, CODE_MEM: 1024},), {"a": share(core=30, mib=1024)}, source=_NAMES),
    row("qGPU", ({QGPU_CORE: 30, QGPU_MEM: 10},), {"a": share(core=30, mib=10240)}, unit="1Gi", source=_NAMES),
    row("nano-gpu", ({NANO: 50},), {"a": share(core=50, ratio=50)}, source="nano-gpu: README"),
    row("two whole cards of nano-gpu", ({NANO: 200},), {"a": cards(2)}, source="nano-gpu: README"),
    row("two containers", ({MEM: 256}, {CORE: 100}), {"a": share(mib=256), "b": cards()}, source=_READ),
    row("a container without", ({}, {MEM: 256}), {"b": share(mib=256)}, source=_READ),
    row("an init container", ({MEM: 256},), {"i": cards(), "a": share(mib=256)}, init=({CORE: 100},), source="ours"),
    row("a sidecar", ({MEM: 256},), {"s": share(mib=512), "a": share(mib=256)}, sidecars=({MEM: 512},), source="ours"),
    # The scheduler counts 0 memory for it, so that cards fill beyond what they have.
    row("cores without memory", ({CORE: 50},), refused=f"{CORE} is asked without memory; add {MEM}", source="ours"),
    # The scheduler drops what is beyond the hundreds.
    row("150 cores", ({CORE: 150},), refused="ask 100 or 200", source="ours"),
    row(
        "names of both domains",
        ({MEM: 256, CODE_MEM: 256},),
        refused="gpu-memory is asked for in two domains at once",
        source="ours",
    ),
    row(
        "nano-gpu beside cores",
        ({NANO: 50, CORE: 10, MEM: 200},),
        refused="gpu already states core and memory",
        source="ours",
    ),
    row("bytes", ({MEM: "4Gi"},), refused="4Gi are 4096", source="ours"),
    row(
        "beside plain devices",
        ({MEM: 256}, {"nvidia.com/gpu": 1}),
        refused="in 2 dialects at once",
        source="elasticgpu.io beside ResourcePGPU",
    ),
    row("a few MiB", ({MEM: 16},), {"a": share(mib=16)}, warned="did you mean 16384?", source="ours"),
)
