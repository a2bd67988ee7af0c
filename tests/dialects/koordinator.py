"""Koordinator's names in both domains, which are always read (koordinator-sh/koordinator at a7a1b76b)."""

from dialects.rows import Row, cards, share

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import GPU_TYPE

K, U = "koordinator.sh/", "kubernetes.io/"
_UTILS = "pkg/scheduler/plugins/deviceshare/utils.go: ValidDeviceResourceCombinations"
_MAP = "pkg/scheduler/plugins/deviceshare/utils.go: ResourceCombinationsMapper"
_PERCENT = "pkg/scheduler/plugins/deviceshare/utils.go: ValidatePercentageResource"
_SHARED = "pkg/scheduler/plugins/deviceshare/utils.go: ValidDeviceResourceCombinationsGPUShared"


def own(count: int = 1, core: int = 0, ratio: int | None = None, mib: int = 0) -> DeviceAsk:
    return share(count, core=core, ratio=ratio, mib=mib, vendor="")


ROWS = (
    Row("half a card", ({f"{K}gpu": 50},), {"a": own(core=50, ratio=50)}, source=_MAP),
    Row("half a card in kubernetes.io", ({f"{U}gpu": 50},), {"a": own(core=50, ratio=50)}, source=_MAP),
    Row("two cards", ({f"{K}gpu": 200},), {"a": cards(2, "")}, source=_MAP),
    Row(
        "core and ratio",
        ({f"{K}gpu-core": 30, f"{K}gpu-memory-ratio": 60},),
        {"a": own(core=30, ratio=60)},
        source=_UTILS,
    ),
    Row(
        "core and memory",
        ({f"{K}gpu-core": 30, f"{K}gpu-memory": "4Gi"},),
        {"a": own(core=30, mib=4096)},
        source=_UTILS,
    ),
    Row("memory alone", ({f"{K}gpu-memory": "4Gi"},), {"a": own(mib=4096)}, source=_UTILS),
    Row("ratio alone", ({f"{K}gpu-memory-ratio": 40},), {"a": own(ratio=40)}, source=_UTILS),
    Row("ratio of two cards", ({f"{K}gpu-memory-ratio": 200},), {"a": own(2, ratio=100)}, source=_UTILS),
    Row(
        "a share of each of two",
        ({f"{K}gpu.shared": 2, f"{K}gpu-core": 100, f"{K}gpu-memory-ratio": 100},),
        {"a": own(2, core=50, ratio=50)},
        source=_SHARED,
    ),
    Row(
        "bytes of each of two",
        ({f"{K}gpu.shared": 2, f"{K}gpu-memory": "8Gi"},),
        {"a": own(2, mib=4096)},
        source=_SHARED,
    ),
    Row("core 0 beside memory", ({f"{K}gpu-core": 0, f"{K}gpu-memory": "4Gi"},), {"a": own(mib=4096)}, source=_UTILS),
    Row(
        "two containers",
        ({f"{K}gpu": 50}, {f"{K}gpu": 30}),
        {"a": own(core=50, ratio=50), "b": own(core=30, ratio=30)},
        source="ours",
    ),
    Row(
        "an init container",
        ({f"{K}gpu": 50},),
        {"i": cards(1, ""), "a": own(core=50, ratio=50)},
        init=({f"{K}gpu": 100},),
        source="ours",
    ),
    Row("150 percent", ({f"{K}gpu": 150},), refused="gpu 150 is over 100", source=_PERCENT),
    Row(
        "ratio and bytes",
        ({f"{K}gpu-memory": "4Gi", f"{K}gpu-memory-ratio": 50},),
        refused="gpu-memory and gpu-memory-ratio are both asked for",
        source=_UTILS,
    ),
    Row("core alone", ({f"{K}gpu-core": 50},), refused="gpu-core 50 is asked without memory", source=_UTILS),
    Row(
        "an uneven share",
        ({f"{K}gpu.shared": 2, f"{K}gpu-memory-ratio": 75},),
        refused="does not split evenly over gpu.shared 2",
        source=_SHARED,
    ),
    Row("nothing", ({f"{K}gpu": 0},), refused="gpu must be greater than zero", source="ours"),
    Row("both domains", ({f"{K}gpu": 50}, {f"{U}gpu": 50}), refused="in 2 dialects at once", source="ours"),
    Row(
        "bytes were to be GiB",
        ({f"{U}gpu-memory": 4096},),
        {"a": DeviceAsk(GPU_TYPE, 1, (0, 4096, None))},
        warned="4096 is 4Ki of memory of each card, which no program can use; did you mean 4Gi?",
        source="ours",
    ),
    Row(
        "a few bytes were to be GiB",
        ({f"{K}gpu-memory": 16},),
        {"a": DeviceAsk(GPU_TYPE, 1, (0, 16, None))},
        warned="16 is 16 bytes of memory of each card, which no program can use; did you mean 16Gi?",
        source="ours",
    ),
)
