"""HAMi: rows from its sources and tests (Project-HAMi/HAMi at 4707fb02)."""

from dialects.rows import Row, cards, share

from allocator.vocabulary.asks import DeviceAsk

N, MEM, PCT, CORES = (f"nvidia.com/gpu{tail}" for tail in ("", "mem", "mem-percentage", "cores"))
PRIORITY = "nvidia.com/priority"
_REQUESTS = "pkg/device/nvidia/device_test.go: TestGenerateResourceRequests"
_FACTOR = "pkg/device/nvidia/device_test.go: TestGenerateResourceRequests_MemoryFactor"
_EXCLUSIVE = "pkg/device/nvidia/device_test.go: TestMutateAdmissionDefaultsExclusiveCore"
_PERCENT = "pkg/device/nvidia/device_test.go: Test_MutateAdmission_MemoryPercentageValidation"
_COUNT = "pkg/device/nvidia/device.go: mutateContainerResource"
_ZERO = "pkg/device/nvidia/device_test.go: TestZeroMemoryPercentageIsAccountedAsWholeCard"
_FIT = "pkg/device/nvidia/device.go: Fit"
_PODS = "pkg/device/devices.go: Resourcereqs"
_TYPE = "pkg/device/devices_test.go: TestCheckType"
_UUID = "pkg/device/devices_test.go: TestCheckUUID"

_DEFAULTS = "pkg/device/nvidia/device.go: GenerateResourceRequests, with defaultMemory and defaultCores"


def defaulted(name: str, limits: dict[str, int], asks: DeviceAsk, memory: str = "4Gi", cores: int = 30) -> Row:
    """A row of an installation with defaults of its own."""
    settings = {"defaultMemory": memory, "defaultCores": cores} if memory else {"defaultCores": cores}
    return Row(name, (limits,), {"a": asks}, source=_DEFAULTS, settings=settings)


ROWS = (
    defaulted("default memory beside cores", {N: 1, CORES: 50}, share(core=50, mib=4096)),
    defaulted("default memory of two cards", {N: 2, CORES: 50}, share(2, core=50, mib=4096)),
    defaulted("default cores beside memory", {N: 1, MEM: 1024}, share(core=30, mib=1024)),
    defaulted("default cores beside percent", {N: 1, PCT: 50}, share(core=30, ratio=50)),
    defaulted("both are stated", {N: 1, MEM: 1024, CORES: 10}, share(core=10, mib=1024)),
    defaulted("cores 0 is stated", {N: 1, MEM: 1024, CORES: 0}, share(core=0, mib=1024)),
    defaulted("percent 0 gets the default memory", {N: 1, PCT: 0, CORES: 10}, share(core=10, mib=4096)),
    defaulted("memory 0 gets the default memory and cores", {N: 1, MEM: 0}, share(core=30, mib=4096)),
    defaulted("percent 100 takes all compute", {N: 1, PCT: 100}, cards()),
    defaulted("a count alone is whole cards whatever the defaults are", {N: 2}, cards(2)),
    defaulted("no default memory", {N: 1, CORES: 50}, share(core=50, ratio=100), memory="", cores=30),
    defaulted("no default cores", {N: 1, MEM: 1024}, share(mib=1024), cores=0),
    Row("a count alone is whole cards", ({N: 1},), {"a": cards()}, source=_EXCLUSIVE),
    Row("two whole cards", ({N: 2},), {"a": cards(2)}, source=_EXCLUSIVE),
    Row("eight whole cards", ({N: 8},), {"a": cards(8)}, source=_EXCLUSIVE),
    Row("memory of one card", ({N: 1, MEM: 3000},), {"a": share(mib=3000)}, source=_REQUESTS),
    Row("memory of each of two cards", ({N: 2, MEM: 4096},), {"a": share(2, mib=4096)}, source=_REQUESTS),
    Row("half of a card's memory", ({N: 1, PCT: 50},), {"a": share(ratio=50)}, source=_REQUESTS),
    Row("a third of each of three", ({N: 3, PCT: 33},), {"a": share(3, ratio=33)}, source=_REQUESTS),
    Row("all memory takes all cores", ({N: 1, PCT: 100},), {"a": cards()}, source=_EXCLUSIVE),
    Row("all memory of two takes all their cores", ({N: 2, PCT: 100},), {"a": cards(2)}, source=_EXCLUSIVE),
    Row("half of the memory leaves cores unlimited", ({N: 1, PCT: 50},), {"a": share(ratio=50)}, source=_EXCLUSIVE),
    Row("memory leaves cores unlimited", ({N: 1, MEM: 8192},), {"a": share(mib=8192)}, source=_EXCLUSIVE),
    Row("cores of the whole memory", ({N: 1, CORES: 50},), {"a": share(core=50, ratio=100)}, source=_REQUESTS),
    Row("70 cores stay 70", ({N: 1, CORES: 70},), {"a": share(core=70, ratio=100)}, source=_EXCLUSIVE),
    Row("100 cores are the whole card", ({N: 1, CORES: 100},), {"a": cards()}, source=_EXCLUSIVE),
    Row("cores and memory", ({N: 1, CORES: 30, MEM: 3000},), {"a": share(core=30, mib=3000)}, source=_REQUESTS),
    Row("cores and memory of two", ({N: 2, CORES: 30, MEM: 3000},), {"a": share(2, core=30, mib=3000)}, source=_FIT),
    Row("cores and percent", ({N: 1, CORES: 25, PCT: 25},), {"a": share(core=25, ratio=25)}, source=_FIT),
    Row("all cores and some memory", ({N: 1, CORES: 100, MEM: 1000},), {"a": share(core=100, mib=1000)}, source=_FIT),
    Row("1 percent", ({N: 1, PCT: 1},), {"a": share(ratio=1)}, source=_REQUESTS),
    Row("1 core", ({N: 1, CORES: 1, MEM: 512},), {"a": share(core=1, mib=512)}, source=_FIT),
    # Defaults
    Row("memory alone is of one card", ({MEM: 1024},), {"a": share(mib=1024)}, source=_COUNT),
    Row("percent alone is of one card", ({PCT: 30},), {"a": share(ratio=30)}, source=_COUNT),
    Row("all memory alone is one card", ({PCT: 100},), {"a": cards()}, source=_COUNT),
    Row("cores alone are of one card's memory", ({CORES: 20},), {"a": share(core=20, ratio=100)}, source=_COUNT),
    Row("cores and memory alone", ({CORES: 20, MEM: 2048},), {"a": share(core=20, mib=2048)}, source=_COUNT),
    # Zeros
    Row("percent 0 is all memory without the cores", ({N: 1, PCT: 0},), {"a": share(ratio=100)}, source=_ZERO),
    Row("memory 0 is all memory without the cores", ({N: 1, MEM: 0},), {"a": share(ratio=100)}, source=_ZERO),
    Row("cores 0 are unlimited cores", ({N: 1, CORES: 0},), {"a": share(ratio=100)}, source=_EXCLUSIVE),
    Row("memory counts beside percent 0", ({N: 1, MEM: 2000, PCT: 0},), {"a": share(mib=2000)}, source=_REQUESTS),
    Row("cores 0 beside memory", ({N: 1, CORES: 0, MEM: 2000},), {"a": share(mib=2000)}, source=_REQUESTS),
    Row("percent counts beside memory 0", ({N: 1, MEM: 0, PCT: 40},), {"a": share(ratio=40)}, source=_REQUESTS),
    Row("percent 100 beside memory 0", ({N: 1, MEM: 0, PCT: 100},), {"a": cards()}, source=_EXCLUSIVE),
    Row("memory 0 alone is one card's memory", ({MEM: 0},), {"a": share(ratio=100)}, source=_COUNT),
    Row("percent 0 alone is one card's memory", ({PCT: 0},), {"a": share(ratio=100)}, source=_COUNT),
    Row("no card", ({N: 0},), {}, source="pkg/device/devices.go: Resourcereqs, Nums > 0"),
    Row("no card of no memory", ({N: 0, MEM: 0},), {}, source="pkg/device/devices.go: Resourcereqs, Nums > 0"),
    Row("no card of some memory", ({N: 0, MEM: 100},), refused=f"{N}: 0 asks for no device", source="ours"),
    Row("no card of some cores", ({N: 0, CORES: 10},), refused=f"{N}: 0 asks for no device", source="ours"),
    # Both units
    Row("memory counts beside percent", ({N: 1, MEM: 3000, PCT: 50},), {"a": share(mib=3000)}, source=_FIT),
    Row("of two as well", ({N: 2, MEM: 3000, PCT: 50},), {"a": share(2, mib=3000)}, source=_FIT),
    Row(
        "memory beside percent 100 takes all cores",
        ({N: 1, MEM: 3000, PCT: 100},),
        {"a": share(core=100, mib=3000)},
        source=_EXCLUSIVE,
    ),
    # Wrong
    Row("101 percent", ({N: 1, PCT: 101},), refused=f"[{PCT}]: 101 is more than 100 percent", source=_PERCENT),
    Row("150 percent", ({N: 1, PCT: 150},), refused="write 100 at most", source=_PERCENT),
    Row("200 percent of two", ({N: 2, PCT: 200},), refused="write 100 at most", source=_PERCENT),
    Row(
        "bytes",
        ({N: 1, MEM: "16Gi"},),
        refused="more memory than any device has; write a number of 1Mi",
        source=_FACTOR,
    ),
    Row("bytes are told in MiB", ({N: 1, MEM: "16Gi"},), refused="16Gi are 16384", source=_REQUESTS),
    Row("bytes with a point", ({N: 1, MEM: "16.0Gi"},), refused="16Gi are 16384", source=_REQUESTS),
    Row("129 cards", ({N: 129},), refused="129 is more devices than any node has", source="ours"),
    Row("129 shares", ({N: 129, MEM: 1000},), refused="gpu.shared must be from 1 to 128", source="ours"),
    Row(
        "120 cores are 100",
        ({N: 1, CORES: 120, MEM: 1000},),
        {"a": share(core=100, mib=1000)},
        warned="120 is more than 100 percent and counts as 100",
        source=_FIT,
    ),
    Row(
        "16 MiB were to be GiB",
        ({N: 1, MEM: 16},),
        {"a": share(mib=16)},
        warned=f"[{MEM}]: 16 is 16Mi of memory of each card, which no program can use; did you mean 16384?",
        source="ours",
    ),
    # Installations
    Row(
        "a factor of two", ({N: 1, MEM: 1024},), {"a": share(mib=2048)}, source=_FACTOR, settings={"memoryUnit": "2Mi"}
    ),
    Row(
        "bytes and a factor",
        ({N: 1, MEM: "1Gi"},),
        refused="1Gi are 512",
        source=_FACTOR,
        settings={"memoryUnit": "2Mi"},
    ),
    Row("GiB", ({N: 1, MEM: 8},), {"a": share(mib=8192)}, source=_FACTOR, settings={"memoryUnit": "1Gi"}),
    # Containers
    Row(
        "two containers",
        ({N: 1, MEM: 1000}, {N: 1, MEM: 2000}),
        {"a": share(mib=1000), "b": share(mib=2000)},
        source=_PODS,
    ),
    Row("a container without", ({}, {N: 1, MEM: 2000}), {"b": share(mib=2000)}, source=_PODS),
    Row("whole cards beside a share", ({N: 1}, {N: 1, MEM: 2000}), {"a": cards(), "b": share(mib=2000)}, source=_PODS),
    Row("no card beside a share", ({N: 0}, {N: 1, MEM: 2000}), {"b": share(mib=2000)}, source=_PODS),
    Row(
        "an init container",
        ({N: 1, MEM: 1000},),
        {"i": share(mib=4000), "a": share(mib=1000)},
        init=({N: 1, MEM: 4000},),
        source=_PODS,
    ),
    Row("only an init container", ({},), {"i": share(mib=4000)}, init=({N: 1, MEM: 4000},), source=_PODS),
    Row(
        "a sidecar",
        ({N: 1, CORES: 50, MEM: 1000},),
        {"s": share(mib=500), "a": share(core=50, mib=1000)},
        sidecars=({N: 1, MEM: 500},),
        source=_PODS,
    ),
    Row(
        "a wrong init container", ({N: 1},), refused="spec.initContainers[0]", init=({N: 1, PCT: 120},), source=_PERCENT
    ),
    # Priority
    Row(
        "a priority is kept and gives nothing",
        ({N: 1, MEM: 1000, PRIORITY: 1},),
        {"a": share(mib=1000)},
        source="pkg/device/nvidia/device.go: MutateAdmission",
    ),
    Row(
        "a priority of whole cards",
        ({N: 2, PRIORITY: 0},),
        {"a": cards(2)},
        source="pkg/device/nvidia/device.go: MutateAdmission",
    ),
    # Selections
    Row(
        "a type",
        ({N: 1, MEM: 1000},),
        {"a": share(mib=1000)},
        annotations={"nvidia.com/use-gputype": "A100,V100"},
        source=_TYPE,
    ),
    Row("not a type", ({N: 1},), {"a": cards()}, annotations={"nvidia.com/nouse-gputype": "T4"}, source=_TYPE),
    Row(
        "a card",
        ({N: 1, MEM: 500},),
        {"a": share(mib=500)},
        annotations={"nvidia.com/use-gpuuuid": "GPU-1"},
        source=_UUID,
    ),
    Row(
        "not a card",
        ({N: 1, MEM: 500},),
        {"a": share(mib=500)},
        annotations={"nvidia.com/nouse-gpuuuid": "GPU-1"},
        source=_UUID,
    ),
    Row(
        "in one NUMA node",
        ({N: 2, MEM: 500},),
        {"a": share(2, mib=500)},
        annotations={"nvidia.com/numa-bind": "true"},
        source="pkg/device/nvidia/device_test.go: TestAssertNuma",
    ),
    Row(
        "limits in the container",
        ({N: 1, MEM: 500},),
        {"a": share(mib=500)},
        annotations={"nvidia.com/vgpu-mode": "hami-core"},
        source="pkg/device/nvidia/device_test.go: TestCheckType_AllocateMode",
    ),
    Row(
        "limits in the container or by MIG",
        ({N: 1, MEM: 500},),
        {"a": share(mib=500)},
        annotations={"nvidia.com/vgpu-mode": "hami-core,mig"},
        source="pkg/device/nvidia/device_test.go: TestCheckType_AllocateMode",
    ),
    Row(
        "MIG",
        ({N: 1, MEM: 500},),
        refused="metadata.annotations[nvidia.com/vgpu-mode]: mig: cards are not shared in this way here",
        annotations={"nvidia.com/vgpu-mode": "mig"},
        source="pkg/device/nvidia/device_test.go: TestCheckType_AllocateMode",
    ),
    Row(
        "MPS",
        ({N: 1, MEM: 500},),
        refused="cards are not shared in this way here",
        annotations={"nvidia.com/vgpu-mode": "mps"},
        source="pkg/device/nvidia/device.go: checkType",
    ),
    Row(
        "a scheduling policy",
        ({N: 1, MEM: 500},),
        {"a": share(mib=500)},
        warned="metadata.annotations[hami.io/gpu-scheduler-policy]: has no effect here",
        annotations={"hami.io/gpu-scheduler-policy": "spread"},
        source="pkg/util/util.go: GetGPUSchedulerPolicyByPod",
    ),
    # Two dialects
    Row(
        "HAMi and Koordinator",
        ({N: 1, MEM: 500}, {"koordinator.sh/gpu": 50}),
        refused="spec.containers[0] asks for nvidia.com/gpumem of HAMi, spec.containers[1] asks for koordinator.sh/gpu",
        source="ours",
    ),
    Row(
        "HAMi and Koordinator in one container",
        ({MEM: 500, "koordinator.sh/gpu-core": 50},),
        refused="gpu devices are asked for in 2 dialects at once",
        source="ours",
    ),
    Row(
        "HAMi and another that is off",
        ({N: 1, MEM: 500}, {"volcano.sh/vgpu-number": 1}),
        refused="volcano.sh/vgpu-number is of the dialect volcano (Volcano vGPU), which is off here",
        source="ours",
    ),
    Row(
        "HAMi and MIG",
        ({N: 1, MEM: 500}, {"nvidia.com/mig-1g.5gb": 1}),
        refused="nvidia.com/mig-1g.5gb counts MIG devices, which the vendor's device plugin gives",
        source="ours",
    ),
)
