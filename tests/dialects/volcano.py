"""Volcano vGPU: rows from its sources (volcano-sh/volcano at ed72c7c8)."""

from dialects.rows import Row, share

N, MEM, PCT, CORES = (f"volcano.sh/vgpu-{tail}" for tail in ("number", "memory", "memory-percentage", "cores"))
_READ = "pkg/scheduler/api/devices/util.go: ExtractResourceRequest"
_FIT = "pkg/scheduler/api/devices/nvidia/vgpu/utils.go: checkNodeGPUSharingPredicateAndScore"
_SEEN = "pkg/scheduler/api/devices/nvidia/vgpu/utils.go: checkVGPUResourcesInPod"
_TYPE = "pkg/scheduler/api/devices/nvidia/vgpu/utils.go: checkGPUtype"
_UUID = "pkg/scheduler/api/devices/nvidia/vgpu/utils_test.go: the UUID filter"
_FACTOR = "Project-HAMi/volcano-vgpu-device-plugin, doc/design.md: gpu-memory-factor"
_DOC = "docs/user-guide/how_to_use_volcano_vgpu.md"

ROWS = (
    Row("a number alone is all memory and unlimited cores", ({N: 1},), {"a": share(ratio=100)}, source=_READ),
    Row("two", ({N: 2},), {"a": share(2, ratio=100)}, source=_READ),
    Row("memory of one", ({N: 1, MEM: 3000},), {"a": share(mib=3000)}, source=_DOC),
    Row("memory of each of two", ({N: 2, MEM: 8000},), {"a": share(2, mib=8000)}, source=_READ),
    Row("cores and memory", ({N: 1, CORES: 50, MEM: 3000},), {"a": share(core=50, mib=3000)}, source=_DOC),
    Row(
        "cores and memory of each of four",
        ({N: 4, CORES: 25, MEM: 16384},),
        {"a": share(4, core=25, mib=16384)},
        source=_DOC,
    ),
    Row("cores of all memory", ({N: 1, CORES: 50},), {"a": share(core=50, ratio=100)}, source=_READ),
    Row("a percentage", ({N: 1, PCT: 25},), {"a": share(ratio=25)}, source=_READ),
    Row("a percentage of each of two", ({N: 2, PCT: 10},), {"a": share(2, ratio=10)}, source=_READ),
    Row("all memory leaves cores unlimited", ({N: 1, PCT: 100},), {"a": share(ratio=100)}, source=_READ),
    Row("all cores and all memory", ({N: 1, PCT: 100, CORES: 100},), {"a": share(core=100, ratio=100)}, source=_FIT),
    Row("all cores and some memory", ({N: 1, MEM: 100, CORES: 100},), {"a": share(core=100, mib=100)}, source=_FIT),
    # Defaults and zeros
    Row("memory without a number is of one", ({MEM: 2048},), {"a": share(mib=2048)}, source=_READ),
    Row("memory and cores without a number", ({MEM: 2048, CORES: 10},), {"a": share(core=10, mib=2048)}, source=_READ),
    Row("memory and a percentage without a number", ({MEM: 2048, PCT: 10},), {"a": share(ratio=10)}, source=_READ),
    Row("memory 0 is all memory", ({N: 1, MEM: 0},), {"a": share(ratio=100)}, source=_READ),
    Row("memory 0 without a number is all memory of one", ({MEM: 0},), {"a": share(ratio=100)}, source=_READ),
    Row("cores 0 are unlimited", ({N: 1, CORES: 0},), {"a": share(ratio=100)}, source=_READ),
    Row("cores 0 beside memory", ({N: 1, MEM: 500, CORES: 0},), {"a": share(mib=500)}, source=_READ),
    Row("cores of memory 0", ({MEM: 0, CORES: 30},), {"a": share(core=30, ratio=100)}, source=_READ),
    Row("number 0", ({N: 0},), {}, source=_READ),
    Row("number 0 of memory 0", ({N: 0, MEM: 0},), {}, source=_READ),
    Row("number 0 of some memory", ({N: 0, MEM: 10},), refused=f"{N}: 0 asks for no device", source="ours"),
    # Volcano books no memory for it and leaves it unlimited.
    Row("percentage 0 is all memory", ({N: 1, PCT: 0},), {"a": share(ratio=100)}, source="ours"),
    Row("percentage 0 beside memory", ({N: 1, PCT: 0, MEM: 700},), {"a": share(mib=700)}, source="ours"),
    # Both units
    Row("a percentage counts beside memory", ({N: 1, PCT: 50, MEM: 3000},), {"a": share(ratio=50)}, source=_FIT),
    Row("of two as well", ({N: 2, PCT: 50, MEM: 3000},), {"a": share(2, ratio=50)}, source=_FIT),
    Row("with cores", ({N: 1, PCT: 50, MEM: 3000, CORES: 5},), {"a": share(core=5, ratio=50)}, source=_FIT),
    # Wrong
    Row("cores alone", ({CORES: 50},), refused=f"{CORES} alone asks for no device; add {N} or {MEM}", source=_SEEN),
    Row("a percentage alone", ({PCT: 50},), refused=f"{PCT} alone asks for no device", source=_SEEN),
    Row("cores and a percentage", ({PCT: 50, CORES: 10},), refused="alone asks for no device", source=_SEEN),
    Row("101 cores", ({N: 1, CORES: 101},), refused=f"[{CORES}]: 101 is more than 100 percent", source=_FIT),
    Row("101 percent", ({N: 1, PCT: 101},), refused=f"[{PCT}]: 101 is more than 100 percent", source=_FIT),
    Row("bytes", ({N: 1, MEM: "8Gi"},), refused="8Gi are 8192", source="ours"),
    Row("129", ({N: 129},), refused="gpu.shared must be from 1 to 128", source="ours"),
    Row(
        "8 MiB were to be GiB",
        ({N: 1, MEM: 8},),
        {"a": share(mib=8)},
        warned="8 is 8Mi of memory of each card, which no program can use; did you mean 8192?",
        source="ours",
    ),
    # Installations
    Row(
        "a factor of ten", ({N: 1, MEM: 300},), {"a": share(mib=3000)}, source=_FACTOR, settings={"memoryUnit": "10Mi"}
    ),
    Row(
        "a factor of ten in GB",
        ({N: 1, MEM: "1Gi"},),
        refused="write a number of 10Mi",
        source=_FACTOR,
        settings={"memoryUnit": "10Mi"},
    ),
    # Containers
    Row(
        "two containers", ({N: 1, MEM: 500}, {N: 1, MEM: 900}), {"a": share(mib=500), "b": share(mib=900)}, source=_READ
    ),
    Row("a container without", ({}, {N: 2, MEM: 900}), {"b": share(2, mib=900)}, source=_READ),
    Row("one of number 0", ({N: 0}, {N: 2, MEM: 900}), {"b": share(2, mib=900)}, source=_READ),
    # Volcano's scheduler does not read these; its node plugin is asked for them all the same.
    Row(
        "an init container",
        ({N: 1},),
        {"i": share(mib=500), "a": share(ratio=100)},
        init=({N: 1, MEM: 500},),
        source="ours",
    ),
    Row(
        "a sidecar",
        ({N: 1},),
        {"s": share(mib=500), "a": share(ratio=100)},
        sidecars=({N: 1, MEM: 500},),
        source="ours",
    ),
    # Selections
    Row("a type", ({N: 1},), {"a": share(ratio=100)}, annotations={"nvidia.com/use-gputype": "A100"}, source=_TYPE),
    Row(
        "not a type", ({N: 1},), {"a": share(ratio=100)}, annotations={"nvidia.com/nouse-gputype": "A100"}, source=_TYPE
    ),
    Row(
        "a card",
        ({N: 1},),
        {"a": share(ratio=100)},
        annotations={"volcano.sh/vgpu-use-gpuuuid": "GPU-1, GPU-2"},
        source=_UUID,
    ),
    Row(
        "not a card",
        ({N: 1},),
        {"a": share(ratio=100)},
        annotations={"volcano.sh/vgpu-nouse-gpuuuid": "GPU-1"},
        source=_UUID,
    ),
    Row(
        "limits in the container",
        ({N: 1},),
        {"a": share(ratio=100)},
        annotations={"volcano.sh/vgpu-mode": "hami-core"},
        source=_DOC,
    ),
    Row(
        "MIG",
        ({N: 1},),
        refused="cards are not shared in this way here",
        annotations={"volcano.sh/vgpu-mode": "mig"},
        source=_DOC,
    ),
    Row(
        "a policy for groups",
        ({N: 1},),
        {"a": share(ratio=100)},
        warned="metadata.annotations[volcano.sh/vgpu-podgroup-policy]: has no effect here",
        annotations={"volcano.sh/vgpu-podgroup-policy": "spread"},
        source=_DOC,
    ),
    # Two dialects
    Row(
        "Volcano and plain devices",
        ({N: 1}, {"nvidia.com/gpu": 1}),
        refused="volcano.sh/vgpu-number of Volcano vGPU, spec.containers[1] asks for nvidia.com/gpu",
        source="ours",
    ),
    Row("Volcano and Koordinator", ({N: 1, "koordinator.sh/gpu": 50},), refused="in 2 dialects at once", source="ours"),
    Row(
        "Volcano and HAMi, which is off",
        ({N: 1, "nvidia.com/gpumem": 50},),
        refused="is of the dialect hami (HAMi)",
        source="ours",
    ),
)
