"""What an author is told of names that nobody reads, or that were probably meant otherwise."""

from typing import Any

import pytest
from builders import container, pod, pod_spec
from dialects.rows import types
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.request.devices import read_pod
from allocator.request.unread import ANNOTATIONS, LABELS, OTHERS, find_misspelt, find_misspelt_keys
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.outcome import did_you_mean, meant

TYPES = BUILT_IN.with_types([own_type("npu", "huawei.com/npu", Unit.DEVICES)])
PATH = "spec.containers[0].resources"
Raw = dict[str, Any]


def said(obj: Raw) -> list[str]:
    return find_misspelt(obj, TYPES)


def of_resource(name: str, amount: str = "1") -> list[str]:
    return said(pod(container(limits={name: amount}, requests={name: amount})))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kubernetes.io/gpus", "kubernetes.io/gpu"),
        ("kubernetes.io/gpu-cores", "kubernetes.io/gpu-core"),
        ("koordinator.sh/gpu-mem", "koordinator.sh/gpu-memory"),
        ("koordinator.sh/GPU", "koordinator.sh/gpu"),
        ("koordgate.io/gpu", "kubernetes.io/gpu"),
        ("gpus.koordgate.io/gpu-core", "kubernetes.io/gpu-core"),
        ("kubernets.io/gpu", "kubernetes.io/gpu"),
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("volcano.sh/vgpu-cores-", "volcano.sh/vgpu-cores"),
        ("huawei.com/npus", "huawei.com/npu"),
        ("gpu-cores", "kubernetes.io/gpu-core"),
    ],
)
def test_a_misspelt_resource_is_told_with_the_one_that_was_meant(name: str, meant: str) -> None:
    assert of_resource(name) == [f"{PATH}: {name} is no resource that koordgate reads; did you mean {meant}?"]


def test_a_resource_of_devices_that_is_like_none_is_told_with_all_of_its_domain() -> None:
    assert of_resource("kubernetes.io/gpu-percentage") == [
        (
            f"{PATH}: kubernetes.io/gpu-percentage is no resource that koordgate reads; those of kubernetes.io are "
            "fpga, gpu, gpu-core, gpu-memory, gpu-memory-ratio, gpu.shared, rdma"
        )
    ]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(TYPES.known.resources),
        "kubernetes.io/batch-cpu",
        "koordinator.sh/mid-memory",
        "cpu",
        "memory",
        "ephemeral-storage",
        "hugepages-2Mi",
        "attachable-volumes-aws-ebs",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpu-10gb",
        "nvidia.com/hostdev",
        "rdma/hca_shared_devices_a",
        "intel.com/sriov",
        "smarter-devices/fuse",
        "quota.koordgate.io/gpu",
        "huawei.com/Ascend910",
    ],
)
def test_a_resource_that_somebody_reads_is_not_told(name: str) -> None:
    assert of_resource(name) == []


@pytest.mark.parametrize("domain", sorted({term.name.partition("/")[0] for one in PEERS for term in one.terms}))
def test_of_a_pod_of_ours_any_name_in_a_domain_of_a_known_product_is_told_once_for_each_container(domain: str) -> None:
    name = f"{domain}/of-tomorrow"
    asked = pod(container("a", limits={name: 1}, requests={name: 1}), container("b", limits={name: 1, "x.y/z": 1}))
    assert [one.partition(" is ")[0] for one in find_misspelt(asked, TYPES, ours=True)] == [
        f"spec.containers[0]: {name}",
        f"spec.containers[1]: {name}",
    ]
    assert said(asked) == []


@pytest.mark.parametrize("name", ["nvidia.com/gpus", "nvidia.com/mig-1g.5gb", "nvidia.com/gpumem", "koordinator.sh/x"])
def test_a_name_of_a_pod_of_ours_that_is_told_otherwise_or_read_is_not_told_twice(name: str) -> None:
    assert find_misspelt(pod(container(limits={name: 1})), TYPES, ours=True) == of_resource(name)


def test_an_amount_of_0_is_not_told_and_each_container_is_told_once() -> None:
    assert of_resource("kubernetes.io/gpus", "0") == []
    two = pod(container("a", limits={"kubernetes.io/gpus": "1"}), init=[container("i", limits={"koordgate.io/gpu": 1})])
    assert [one.partition(":")[0] for one in said(two)] == [
        "spec.initContainers[0].resources",
        "spec.containers[0].resources",
    ]


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("koordgate.io/device-odrer", "; did you mean koordgate.io/device-order?"),
        ("koordinator.sh/resource-spec", "; did you mean scheduling.koordinator.sh/resource-spec?"),
        ("scheduling.koordinator.sh/resource-specs", "; did you mean scheduling.koordinator.sh/resource-spec?"),
        ("koordinator.sh/qosClass", ": it is one of a Pod's labels; write it under metadata.labels"),
        ("koordgate.io/qosClass", "; did you mean koordinator.sh/qosClass, one of a Pod's labels?"),
        ("node.koordinator.sh/cpu-bind-policy", ": keys of this domain are read on Nodes"),
        ("koordgate.io/whatever", ": koordgate has no annotation of this name for Pods; correct or remove it"),
    ],
)
def test_an_annotation_that_nobody_reads_is_told(annotation: str, told: str) -> None:
    assert said(pod(container(), annotations={annotation: "x"})) == [
        f"metadata.annotations[{annotation}]: nobody reads it{told}"
    ]


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("koordinator.sh/qosclass", "; did you mean koordinator.sh/qosClass?"),
        ("koordgate.io/limits", ": it is one of a Pod's annotations; write it under metadata.annotations"),
        ("koordgate.io/mode", " of a Pod: it is a label of Namespaces"),
        ("team.koordgate.io/x", ": koordgate has no label of this name for Pods; correct or remove it"),
    ],
)
def test_a_label_that_nobody_reads_is_told(label: str, told: str) -> None:
    assert said(pod(container(), labels={label: "x"})) == [f"metadata.labels[{label}]: nobody reads it{told}"]


@pytest.mark.parametrize(
    "key",
    [
        *ANNOTATIONS,
        *sorted(OTHERS),
        "gpu-memory-limit.koordgate.io/main",
        "visible-devices.koordgate.io/main",
        "gpu-memory.device-quotas.koordgate.io/main",
        "scheduling.koordinator.sh/reservation-affinity",
        "gang.scheduling.koordinator.sh/mode",
        "slo.koordinator.sh/memoryQOS",
        "example.com/koordgate",
    ],
)
def test_an_annotation_that_somebody_reads_is_not_told(key: str) -> None:
    assert said(pod(container(), annotations={key: "x"})) == []


@pytest.mark.parametrize("key", [*LABELS, "koordinator.sh/priority", "quota.scheduling.koordinator.sh/name", "app"])
def test_a_label_that_somebody_reads_is_not_told(key: str) -> None:
    assert said(pod(container(), labels={key: "x"})) == []


NODE = {
    "annotations": ("koordgate.io/classes",),
    "labels": ("node.koordinator.sh/cpu-bind-policy", "koordgate.io/delivery"),
}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("node.koordinator.sh/cpu-bind-polcy", "node.koordinator.sh/cpu-bind-policy"),
        ("koordgate.io/cpu-bind-policy", "node.koordinator.sh/cpu-bind-policy"),
        ("koordgate.io/Delivery", "koordgate.io/delivery"),
        ("koordgate.io/anything", ""),
        ("node.koordinator.sh/system-qos-resource", ""),
        ("example.com/delivery", ""),
        *((key, "") for key in NODE["labels"]),
    ],
)
def test_a_key_of_another_object_is_told_if_it_is_near_to_one_that_is_read_there(key: str, meant: str) -> None:
    told = [f"metadata.labels[{key}]: nobody reads it; did you mean {meant}?"] if meant else []
    assert find_misspelt_keys({"labels": {key: "x"}, "annotations": None}, NODE) == told
    assert find_misspelt_keys({"annotations": {key: "x"}}, NODE) == []


def test_of_many_only_eight_are_told() -> None:
    labels = {f"koordgate.io/delivery{'-' * at}": "" for at in range(1, 50)}
    assert len(find_misspelt_keys({"labels": labels}, NODE)) == 8
    assert len(said(pod(container(), annotations={f"koordgate.io/x{at}": "" for at in range(50)}))) == 8


@settings(max_examples=examples(100))
@given(st.dictionaries(st.text(max_size=99), st.text(max_size=9), max_size=9))
def test_whatever_a_pods_keys_are_they_are_read(keys: dict[str, str]) -> None:
    keys |= {f"koordgate.io/{key}": value for key, value in keys.items()}
    assert len(said(pod(container(limits=keys), annotations=keys, labels=keys))) <= 8


TAILS = ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared", "rdma", "fpga")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gpus", "gpu"),
        ("gup", "gpu"),
        ("GPU", "gpu"),
        ("gp", "gpu"),
        ("gpu-cores", "gpu-core"),
        ("gpu_core", "gpu-core"),
        ("gpucore", "gpu-core"),
        ("core", "gpu-core"),
        ("gpu-mem", "gpu-memory"),
        ("gpumem", "gpu-memory"),
        ("gpu-memroy", "gpu-memory"),
        ("gpu-mem-ratio", "gpu-memory-ratio"),
        ("gpu-shared", "gpu.shared"),
        ("rdmas", "rdma"),
        ("fgpa", "fpga"),
        ("cpu", ""),
        ("tpu", ""),
        ("memory", ""),
        ("batch-cpu", ""),
        ("gpu-percentage", ""),
        ("", ""),
        ("gpu" * 99, ""),
    ],
)
def test_a_near_name_is_meant_and_no_other(written: str, name: str) -> None:
    assert meant(written, TAILS) == name
    assert did_you_mean(written, TAILS) == (f"; did you mean {name}?" if name else "")


@pytest.mark.parametrize(("written", "name"), [("nri", "nvidia-nri"), ("runtimeclass", "runtimeClass"), ("xyz", "")])
def test_a_part_of_one_name_only_means_it(written: str, name: str) -> None:
    assert meant(written, ("environment", "runtimeClass", "nvidia-nri")) == name


@settings(max_examples=examples(200))
@given(st.sampled_from(TAILS), st.data())
def test_one_letter_too_many_or_too_few_after_the_first_is_understood(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(name) - 1))
    letter = data.draw(st.sampled_from("aeioxyz"))
    assert meant(name[:at] + letter + name[at:], TAILS) == name


@settings(max_examples=examples(100))
@given(st.text(max_size=300), st.lists(st.text(max_size=80), max_size=20))
def test_what_is_meant_is_one_of_the_known_names_or_nothing(written: str, known: list[str]) -> None:
    assert meant(written, known) in {"", *known}
    if written in known and written.strip("-_. /") and len(written) <= 128:
        assert meant(written, known).casefold()


S = "koordinator.sh/gpu"
H = "nvidia.com/gpu"
OWN, HAMI = types("koordinator"), types("hami")
NO_USE = "of memory of each card, which no program can use; did you mean"

# Amounts in koordgate's own names, or in HAMi's, and what their author is told
TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "64 MiB": ({f"{S}-memory": "64Mi"}, ""),
    "a byte less": ({f"{S}-memory": 67108863}, f"[{S}-memory]: 67108863 is 67108863 bytes {NO_USE} 67108863Ki?"),
    "64 KiB": ({f"{S}-memory": 65536}, f"[{S}-memory]: 65536 is 64Ki {NO_USE} 64Mi?"),
    "a byte less than 64 KiB": ({f"{S}-memory": 65535}, f"[{S}-memory]: 65535 is 65535 bytes {NO_USE} 65535Mi?"),
    "64 bytes": ({f"{S}-memory": 64}, f"[{S}-memory]: 64 is 64 bytes {NO_USE} 64Mi?"),
    "63 bytes": ({f"{S}-memory": 63}, f"[{S}-memory]: 63 is 63 bytes {NO_USE} 63Gi?"),
    "a byte": ({f"{S}-memory": 1}, f"[{S}-memory]: 1 is 1 bytes {NO_USE} 1Gi?"),
    "for two cards": ({f"{S}-memory": 160, f"{S}.shared": 2}, f"[{S}-memory]: 160 is 80 bytes {NO_USE} 160Mi?"),
    "beside compute": ({f"{S}-core": 10, f"{S}-memory": 16}, f"[{S}-memory]: 16 is 16 bytes {NO_USE} 16Gi?"),
    "beside no whole card": ({H: 0, f"{S}-memory": 16}, f"[{S}-memory]: 16 is 16 bytes {NO_USE} 16Gi?"),
    "no memory in bytes": ({f"{S}-core": 1, f"{S}-memory-ratio": 1}, ""),
    "of a type without memory": ({"koordinator.sh/rdma": 9}, ""),
    "one percent": ({S: 1}, f"[{S}]: 1 is 1 percent of a card; a whole card is 100 (or nvidia.com/gpu: 1)"),
    "as many as a node has": (
        {S: "8"},
        f"[{S}]: 8 is 8 percent of a card; 8 whole cards are 800 (or nvidia.com/gpu: 8)",
    ),
    "more than that": ({S: 9}, ""),
    "for two cards each": (
        {S: 2, f"{S}.shared": 2},
        f"[{S}]: 2 is 2 percent of a card; 2 whole cards are 200 (or nvidia.com/gpu: 2)",
    ),
    "one percent of another type": (
        {"koordinator.sh/rdma": 1},
        "[koordinator.sh/rdma]: 1 is 1 percent of a device; a whole device is 100",
    ),
    "a whole card": ({H: 1}, ""),
    "HAMi's 64 MiB": ({f"{H}mem": 64}, ""),
    "HAMi's 63 MiB": ({f"{H}mem": 63}, f"[{H}mem]: 63 is 63Mi {NO_USE} 64512?"),
    "HAMi's 63 MiB of two": ({H: 2, f"{H}mem": 63}, f"[{H}mem]: 63 is 63Mi {NO_USE} 64512?"),
    "HAMi's beside a percentage": ({f"{H}mem-percentage": 50, f"{H}mem": 1}, f"[{H}mem]: 1 is 1Mi {NO_USE} 1024?"),
}


@pytest.mark.parametrize(("limits", "told"), TOLD.values(), ids=TOLD)
def test_less_memory_than_any_program_can_use_is_told_with_what_was_probably_meant(
    limits: dict[str, Any], told: str
) -> None:
    reading = read_pod(pod_spec(container(limits=limits)), types=HAMI if f"{H}mem" in limits else OWN)
    assert reading.problems == ()
    assert reading.warnings == ((f"spec.containers[0].resources.limits{told}",) if told else ())


def test_a_request_that_equals_its_limit_is_told_once() -> None:
    few = {f"{S}-memory": 16}
    (told,) = read_pod(pod_spec(container(requests=few, limits=few), container("b"))).warnings
    assert told.startswith(f"spec.containers[0].resources.requests[{S}-memory]: 16 is 16 bytes")
