"""What a Pod states in names that are not read: which of them are found, and what of them is reported."""

from typing import Any

import pytest
from builders import container, pod

from allocator.request.devices import foreign_npus
from allocator.request.unread import FOREIGN, NOTHING, Off, Unread, beside_ours, find_unread
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import DIALECTS, PEERS

PEER = {one.name: one for one in PEERS}
HAMI, KAI, VOLCANO, GPUSHARE = (PEER[name] for name in ("hami", "kai", "volcano", "gpushare"))
MIG, NPUS = FOREIGN[0], FOREIGN[-1]
MEM, NUMBER, MEMORY = "nvidia.com/gpumem", "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
Raw = dict[str, Any]


def unread(*limits: Raw, init: Raw | None = None, types: DeviceTypes = BUILT_IN, **annotations: str) -> Unread:
    said = {key.replace("_", "-"): text for key, text in annotations.items()}
    first = [] if init is None else [container("i", limits=init)]
    apps = [container(name, limits=one) for name, one in zip("abc", limits, strict=False)]
    return find_unread(pod(*apps, init=first, annotations=said), types)


def test_nothing_is_found_of_a_pod_that_uses_only_what_is_read() -> None:
    for found in (
        unread({"nvidia.com/gpu": 1, "cpu": 2}),
        unread({}),
        unread({"x/y": 1}, some="text"),
        find_unread({}, BUILT_IN),
    ):
        assert found == NOTHING
    assert Unread((), resources=False, selections=(), foreign=()) == NOTHING


def test_dialects_that_are_off_are_found_where_they_are_used_first() -> None:
    limits = {NUMBER: 1, MEMORY: 5, MEM: "0"}, {MEM: 10, NUMBER: 2}
    path = "spec.containers[{}]".format
    assert unread(*limits) == Unread((Off(VOLCANO, path(0), NUMBER), Off(HAMI, path(1), MEM)), resources=True)
    assert unread(*limits, init={MEM: 1}) == Unread(
        (Off(HAMI, "spec.initContainers[0]", MEM), Off(VOLCANO, path(0), NUMBER)), resources=True
    )
    assert unread({NUMBER: 0}) == NOTHING


def test_a_dialect_that_is_off_may_be_used_by_annotations_alone() -> None:
    of_kai = Off(KAI, "metadata.annotations", "gpu-fraction")
    assert unread({}, gpu_fraction="0.5", other="x") == Unread((of_kai,))
    assert unread({MEM: 1}, gpu_fraction="0.5") == Unread(
        (Off(HAMI, "spec.containers[0]", MEM), of_kai), resources=True
    )
    on = DeviceTypes(BUILT_IN.types, (*DIALECTS, KAI), off=(HAMI,))
    assert unread({}, types=on, gpu_fraction="0.5") is NOTHING


def test_names_that_only_a_device_plugin_gives_are_found_once_for_each_place() -> None:
    mig, ascend = "nvidia.com/mig-1g.5gb", "huawei.com/npu-core"
    found = unread({mig: 1, ascend: 2}, {mig: 1, "nvidia.com/mig-2g.10gb": 0})
    assert found == Unread(
        foreign=(
            ("spec.containers[0]", mig, MIG),
            ("spec.containers[0]", ascend, NPUS),
            ("spec.containers[1]", mig, MIG),
        )
    )


def test_annotations_that_would_choose_among_devices_are_found_once_unless_they_are_read() -> None:
    use, ids = "nvidia.com/use-gputype", "volcano.sh/vgpu-use-gpuuuid"
    obj = pod(annotations={use: "T4", ids: "x", "example.com/y": "z"})
    assert find_unread(obj, BUILT_IN) == Unread(selections=((HAMI, use), (VOLCANO, ids)))
    on = DeviceTypes(BUILT_IN.types, (*DIALECTS, HAMI), off=(VOLCANO,))
    assert find_unread(obj, on) == Unread(selections=((VOLCANO, ids),))


def test_annotations_that_name_a_container_are_of_a_dialect_that_is_off_until_it_is_on() -> None:
    forms = [f"nvidia.com/container.{name}.gpu-memory.limit" for name in "ba"]
    annotations = dict.fromkeys(["nvidia.com/container.a.other", *forms], "30Gi")
    found = find_unread(pod(annotations=annotations), BUILT_IN)
    assert found == Unread((Off(KAI, "metadata.annotations", forms[0]),))
    assert find_unread(pod(annotations=annotations), DeviceTypes(BUILT_IN.types, (*DIALECTS, KAI))) == NOTHING
    assert find_unread(pod(annotations={"nvidia.com/container.a.other": "1"}), BUILT_IN) == NOTHING


def test_what_cannot_be_beside_devices_of_ours_is_each_named() -> None:
    mig = "nvidia.com/mig-1g.5gb"
    both = unread({MEM: 1, mig: 1}, {"aliyun.com/gpu-mem": 1}, gpu_fraction="0.5")
    told = [str(one) for one in beside_ours(both, BUILT_IN)]
    assert told == [
        (
            f"spec.containers[0]: {mig} counts MIG devices, which the vendor's device plugin gives, and koordgate "
            "decides what every container of this Pod sees; ask for them in a Pod of their own"
        ),
        *(
            f"{path}: {name} is of the dialect {dialect}, which is off here, and the Pod also asks in another; use one"
            for path, name, dialect in (
                ("spec.containers[0]", MEM, HAMI),
                ("spec.containers[1]", "aliyun.com/gpu-mem", GPUSHARE),
                ("metadata.annotations", "gpu-fraction", KAI),
            )
        ),
    ]
    assert list(beside_ours(unread({}, gpu_fraction="0.5"), BUILT_IN)) == []
    (slices,) = beside_ours(unread({"nvidia.com/gpu-mem": 1000}), BUILT_IN)
    assert str(slices).endswith("; ask for them in a Pod of their own; did you mean nvidia.com/gpumem?")


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, ""),
        ({"containers": None, "initContainers": None}, ""),
        ({"containers": [{"resources": None}, {"resources": {"limits": None}}]}, ""),
        ({"containers": [{"resources": {"limits": {"huawei.com/npu-core": "0", "cpu": 1, "huawei.com/gpu": 1}}}]}, ""),
        (
            {"containers": [{}, {"resources": {"requests": {"cpu": 1}, "limits": {"huawei.com/npu-core": 1}}}]},
            "huawei.com/npu-core",
        ),
        (
            {
                "initContainers": [{"resources": {"requests": {"huawei.com/npu-cpu": 0, "huawei.com/npu-dvpp": "x"}}}],
                "containers": [{"resources": {"limits": {"huawei.com/npu-core": 1}}}],
            },
            "huawei.com/npu-dvpp",
        ),
    ],
)
def test_the_first_share_of_an_npu_that_no_type_has_is_named(spec: Raw, found: str) -> None:
    assert foreign_npus(spec) == found
