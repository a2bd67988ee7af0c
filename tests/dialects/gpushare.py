"""gpushare: rows from its sources (AliyunContainerService/gpushare-scheduler-extender at c0b6141)."""

from dialects.rows import Row, share

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_POD = "pkg/utils/pod.go: GetGPUMemoryFromPodResource"
_CARD = "pkg/cache/nodeinfo.go: allocateGPUID"
_COUNT = "pkg/utils/node.go: of Nodes only"
_UNIT = "deployer/chart/gpushare-installer/templates/gpushare-device-plugin-ds.yaml: --memory-unit"
MIB_UNIT = {"memoryUnit": "1Mi"}

ROWS = (
    Row("GiB of one card", ({MEM: 3},), {"a": share(mib=3072)}, source="samples/1.yaml"),
    Row("a GiB", ({MEM: 1},), {"a": share(mib=1024)}, source=_POD),
    Row("forty GiB", ({MEM: 40},), {"a": share(mib=40960)}, source=_POD),
    Row("0", ({MEM: 0},), {}, source="pkg/utils/pod.go: IsGPUsharingPod"),
    Row("MiB", ({MEM: 512},), {"a": share(mib=512)}, source=_UNIT, settings=MIB_UNIT),
    Row("many MiB", ({MEM: 8138},), {"a": share(mib=8138)}, source=_UNIT, settings=MIB_UNIT),
    Row(
        "containers share one card",
        ({MEM: 2}, {MEM: 3}),
        {"a": share(mib=2048), "b": share(mib=3072)},
        source=_CARD,
        one_card=True,
    ),
    Row(
        "three containers",
        ({MEM: 1}, {MEM: 1}, {MEM: 1}),
        {"a": share(mib=1024), "b": share(mib=1024), "c": share(mib=1024)},
        source=_CARD,
        one_card=True,
    ),
    Row("a container without", ({}, {MEM: 3}), {"b": share(mib=3072)}, source=_POD),
    Row("a container of 0", ({MEM: 0}, {MEM: 3}), {"b": share(mib=3072)}, source=_POD),
    # gpushare does not read init containers; its node plugin is asked for them all the same.
    Row(
        "an init container",
        ({MEM: 1},),
        {"i": share(mib=2048), "a": share(mib=1024)},
        init=({MEM: 2},),
        source="ours",
        one_card=True,
    ),
    Row(
        "a sidecar",
        ({MEM: 1},),
        {"s": share(mib=2048), "a": share(mib=1024)},
        sidecars=({MEM: 2},),
        source="ours",
        one_card=True,
    ),
    Row("a count beside it means nothing", ({MEM: 4, COUNT: 1},), {"a": share(mib=4096)}, source=_COUNT),
    Row("a count of two means nothing either", ({MEM: 4, COUNT: 2},), {"a": share(mib=4096)}, source=_COUNT),
    Row("a count alone asks for nothing", ({COUNT: 1},), {}, source=_COUNT),
    Row(
        "more than any card has",
        ({MEM: 16276},),
        {"a": share(mib=16276 * 1024)},
        warned="16276Gi of memory of each card, which none has; where Alibaba Cloud gpushare counts MiB, an",
        source="samples/4.yaml",
    ),
    Row("bytes", ({MEM: "4Gi"},), refused="write a number of 1Gi; 4Gi are 4", source="ours"),
    Row(
        "MiB where GiB are counted",
        ({MEM: 8138000},),
        refused="times 1Gi is more memory than any device has",
        source="gpushare#16",
    ),
    Row("bytes where MiB are counted", ({MEM: "4Gi"},), refused="4Gi are 4096", source="ours", settings=MIB_UNIT),
    Row(
        "GiB where MiB are counted",
        ({MEM: 4},),
        {"a": share(mib=4)},
        warned="did you mean 4096?",
        source="gpushare#156",
        settings=MIB_UNIT,
    ),
    Row(
        "beside Koordinator", ({MEM: 4}, {"koordinator.sh/gpu": 50}), refused="of Alibaba Cloud gpushare", source="ours"
    ),
    Row("beside plain devices", ({MEM: 4, "nvidia.com/gpu": 1},), refused="in 2 dialects at once", source="ours"),
)
