"""Huawei's NPUs with templates, by settings (Koordinator's names; tests/npus.py has the type)."""

from dialects.rows import Row
from npus import NPU

from allocator.vocabulary.asks import DeviceAsk

N = "huawei.com/npu"
_UTILS = "koordinator, pkg/scheduler/plugins/deviceshare/utils.go: ValidDeviceResourceCombinationsHuaweiNPUShared"
_TEMPLATES = "koordinator, docs/proposals/scheduling: templates from a ConfigMap"


def cut(name: str, count: int = 1) -> DeviceAsk:
    return DeviceAsk(NPU, count, NPU.template(name).amounts, template=name)


def whole(count: int) -> DeviceAsk:
    return DeviceAsk(NPU, count, tuple(100 if percent else None for percent in NPU.percent))


ROWS = (
    Row("one", ({N: 1},), {"a": whole(1)}, source=_UTILS),
    Row("four", ({N: 4},), {"a": whole(4)}, source=_UTILS),
    Row("a template", ({f"{N}-vir04": 1},), {"a": cut("vir04")}, source=_TEMPLATES),
    Row("two of a template", ({f"{N}-vir01": 2},), {"a": cut("vir01", 2)}, source=_TEMPLATES),
    Row("another template", ({f"{N}-vir04_3c": 1},), {"a": cut("vir04_3c")}, source=_TEMPLATES),
    Row("cores are cut", ({f"{N}-core": 1},), {"a": cut("vir01")}, source=_TEMPLATES),
    Row("cores and CPUs are cut", ({f"{N}-core": 4, f"{N}-cpu": 4},), {"a": cut("vir04")}, source=_TEMPLATES),
    Row("memory is cut", ({f"{N}-memory": "5Gi"},), {"a": cut("vir02")}, source=_TEMPLATES),
    Row(
        "two containers",
        ({f"{N}-vir01": 1}, {f"{N}-vir02": 1}),
        {"a": cut("vir01"), "b": cut("vir02")},
        source=_TEMPLATES,
    ),
    Row("an init container", ({f"{N}-vir01": 1},), {"i": whole(1), "a": cut("vir01")}, init=({N: 1},), source="ours"),
    Row(
        "two templates",
        ({f"{N}-vir01": 1, f"{N}-vir02": 1},),
        refused="are both asked for; keep one",
        source=_TEMPLATES,
    ),
    Row(
        "a template and cores",
        ({f"{N}-vir01": 1, f"{N}-core": 4},),
        refused="template vir01 already states what is asked",
        source=_TEMPLATES,
    ),
    Row(
        "more than any template",
        ({f"{N}-core": 7},),
        refused="no template of a npu has as much as is asked",
        source=_TEMPLATES,
    ),
    Row(
        "a name that the type lacks",
        ({f"{N}-vir08": 1},),
        {},
        warned="huawei.com/npu-vir08",
        source="ours",
    ),
)
