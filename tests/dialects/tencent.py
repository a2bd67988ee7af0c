"""Tencent's gpu-manager: rows from its sources (tkestack/gpu-admission at 47d56ae, gpu-manager at 8cd842ed)."""

from dialects.rows import Row, cards, share

CORE, MEM = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
_FILTER = "gpu-admission, pkg/predicate/gpu_predicate_test.go: TestDeviceFilter"
_ONE = "gpu-admission, pkg/algorithm/allocate.go: AllocateOne"
_ASKS = "gpu-admission, pkg/util/util.go: IsGPURequiredContainer"
_NODE = "gpu-manager, pkg/services/allocator/nvidia/allocator.go: allocateOne"
_DOC = "gpu-manager, README.md"
BLOCK = 256

ROWS = (
    Row("a share", ({CORE: 50, MEM: 30},), {"a": share(core=50, mib=30 * BLOCK)}, source=_DOC),
    Row("a small share", ({CORE: 10, MEM: 1},), {"a": share(core=10, mib=BLOCK)}, source=_FILTER),
    Row("1 core", ({CORE: 1, MEM: 2},), {"a": share(core=1, mib=2 * BLOCK)}, source=_ONE),
    Row("99 cores", ({CORE: 99, MEM: 60},), {"a": share(core=99, mib=60 * BLOCK)}, source=_ONE),
    Row("a whole card", ({CORE: 100},), {"a": cards()}, source=_ONE),
    Row("memory beside a whole card is not read", ({CORE: 100, MEM: 3},), {"a": cards()}, source=_FILTER),
    Row("two whole cards", ({CORE: 200, MEM: 10},), {"a": cards(2)}, source=_FILTER),
    Row("eight whole cards", ({CORE: 800},), {"a": cards(8)}, source=_ONE),
    Row("nothing", ({CORE: 0, MEM: 0},), {}, source=_ASKS),
    Row("no cores", ({CORE: 0},), {}, source=_ASKS),
    Row("no memory", ({MEM: 0},), {}, source=_ASKS),
    Row("memory 0 beside whole cards", ({CORE: 200, MEM: 0},), {"a": cards(2)}, source=_ONE),
    Row(
        "two containers",
        ({CORE: 10, MEM: 1}, {CORE: 10, MEM: 1}),
        {"a": share(core=10, mib=BLOCK), "b": share(core=10, mib=BLOCK)},
        source=_FILTER,
    ),
    Row(
        "a whole card and a share",
        ({CORE: 100, MEM: 3}, {CORE: 80, MEM: 3}),
        {"a": cards(), "b": share(core=80, mib=3 * BLOCK)},
        source=_FILTER,
    ),
    Row("a container without", ({CORE: 10, MEM: 2}, {}), {"a": share(core=10, mib=2 * BLOCK)}, source=_FILTER),
    Row(
        "a container of 0", ({CORE: 10, MEM: 2}, {CORE: 0, MEM: 0}), {"a": share(core=10, mib=2 * BLOCK)}, source=_ASKS
    ),
    Row(
        "an init container",
        ({CORE: 10, MEM: 2},),
        {"i": cards(), "a": share(core=10, mib=2 * BLOCK)},
        init=({CORE: 100},),
        source="ours",
    ),
    Row(
        "a sidecar",
        ({CORE: 10, MEM: 2},),
        {"s": share(core=5, mib=BLOCK), "a": share(core=10, mib=2 * BLOCK)},
        sidecars=({CORE: 5, MEM: 1},),
        source="ours",
    ),
    # Wrong
    Row("a share without memory", ({CORE: 50},), refused=f"{CORE} is asked without memory; add {MEM}", source=_NODE),
    Row("a share of memory 0", ({CORE: 50, MEM: 0},), refused=f"{CORE} is asked without memory", source=_NODE),
    Row("memory alone", ({MEM: 4},), refused=f"{MEM} alone asks for no device; add {CORE}", source=_NODE),
    Row("memory of 0 cores", ({CORE: 0, MEM: 4},), refused=f"{MEM} alone asks for no device; add {CORE}", source=_NODE),
    Row(
        "150 cores",
        ({CORE: 150, MEM: 4},),
        refused=f"{CORE} 150 is over 100, where only multiples of 100 are whole devices; ask 100 or 200",
        source=_NODE,
    ),
    Row("250 cores", ({CORE: 250},), refused="ask 200 or 300", source=_NODE),
    Row("12900 cores", ({CORE: 12900},), refused="is more than 128 devices", source="ours"),
    Row("bytes", ({CORE: 50, MEM: "4Gi"},), refused="is more memory than any device has", source="ours"),
    Row(
        "a limit of cores",
        ({CORE: 50, MEM: 4},),
        {"a": share(core=50, mib=4 * BLOCK)},
        warned="[tencent.com/vcuda-core-limit]: has no effect here",
        annotations={"tencent.com/vcuda-core-limit": "50"},
        source=_DOC,
    ),
    Row(
        "beside plain devices",
        ({CORE: 100}, {"nvidia.com/gpu": 1}),
        refused="asks for tencent.com/vcuda-core of Tencent gpu-manager",
        source="ours",
    ),
    Row(
        "beside Koordinator",
        ({CORE: 50, MEM: 2, "kubernetes.io/gpu": 50},),
        refused="in 2 dialects at once",
        source="ours",
    ),
)
