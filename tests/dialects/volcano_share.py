"""Volcano's older GPU share: rows from its sources and tests (volcano-sh/volcano at ed72c7c8)."""

from dialects.rows import Row, cards, share

MEM, N = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
_MEMORY = "pkg/scheduler/api/devices/nvidia/gpushare/device_info_test.go: TestGetGPUMemoryOfPod"
_NUMBER = "pkg/scheduler/api/devices/nvidia/gpushare/device_info_test.go: TestGetGPUNumberOfPod"
_SHARE = "pkg/scheduler/api/devices/nvidia/gpushare/share.go"
_ONE = "pkg/scheduler/plugins/deviceshare/deviceshare.go: enablePredicate"
_DOC = "docs/user-guide/how_to_use_gpu_sharing.md"

ROWS = (
    Row("memory of one card", ({MEM: 1024},), {"a": share(mib=1024)}, source=_DOC),
    Row("much memory", ({MEM: 40960},), {"a": share(mib=40960)}, source=_DOC),
    Row("a card", ({N: 1},), {"a": cards()}, source="docs/user-guide/how_to_use_gpu_number.md"),
    Row("four cards", ({N: 4},), {"a": cards(4)}, source=_SHARE),
    Row("cards of two containers", ({N: 1}, {N: 2}), {"a": cards(), "b": cards(2)}, source=_NUMBER),
    Row("memory 0", ({MEM: 0},), {}, source=_SHARE),
    Row("number 0", ({N: 0},), {}, source=_SHARE),
    Row("number 0 beside memory", ({MEM: 512, N: 0},), {"a": share(mib=512)}, source=_SHARE),
    Row("memory 0 beside a number", ({MEM: 0, N: 2},), {"a": cards(2)}, source=_SHARE),
    Row(
        "containers share one card",
        ({MEM: 1000}, {MEM: 3000}),
        {"a": share(mib=1000), "b": share(mib=3000)},
        source=_MEMORY,
        one_card=True,
    ),
    Row(
        "init containers share it too",
        ({MEM: 2000},),
        {"i": share(mib=1000), "j": share(mib=3000), "a": share(mib=2000)},
        init=({MEM: 1000}, {MEM: 3000}),
        source=_MEMORY,
        one_card=True,
    ),
    Row("a container without", ({}, {MEM: 3000}), {"b": share(mib=3000)}, source=_MEMORY),
    Row("only an init container", ({},), {"i": share(mib=3000)}, init=({MEM: 3000},), source=_MEMORY),
    Row(
        "a unit of 10 MiB",
        ({MEM: 300},),
        {"a": share(mib=3000)},
        source="volcano-sh/devices: --gpu-memory-factor",
        settings={"memoryUnit": "10Mi"},
    ),
    Row("both in one container", ({MEM: 512, N: 1},), refused=f"reads one of {MEM} and {N} in a Pod", source=_ONE),
    Row(
        "both in a Pod",
        ({MEM: 512}, {N: 1}),
        refused=f"(spec.containers[0] asks for {MEM}, spec.containers[1] asks for {N})",
        source=_ONE,
    ),
    Row(
        "memory beside a card of an init container",
        ({MEM: 512}, {MEM: 512}),
        init=({N: 1},),
        refused=f"(spec.containers[0] asks for {MEM}, spec.initContainers[0] asks for {N})",
        source=_ONE,
    ),
    Row("bytes", ({MEM: "8Gi"},), refused="8Gi are 8192", source="ours"),
    Row("129 cards", ({N: 129},), refused="129 is more devices than any node has", source="ours"),
    Row("4 MiB were to be GiB", ({MEM: 4},), {"a": share(mib=4)}, warned="did you mean 4096?", source="ours"),
    Row(
        "beside vGPU names",
        ({MEM: 512, "volcano.sh/vgpu-cores": 10},),
        refused="volcano (Volcano vGPU), which is off",
        source="ours",
    ),
    Row("beside plain devices", ({MEM: 512}, {"nvidia.com/gpu": 1}), refused="in 2 dialects at once", source="ours"),
)
