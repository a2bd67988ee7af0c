"""Which taints Pods for devices tolerate: by the types that they ask for, whatever name they ask in."""

import copy
from typing import Any

import pytest
from builders import container, pod
from fake_kube import FakeKube
from world import World, applied_again, asks

from allocator.request.original import read_asks
from koordgate.kube.client import KubeClient
from webhook import patch
from webhook.admission.additions import reapply_tolerations, translate_tolerations
from webhook.patch import Operation
from webhook.settings import WebhookSettings, parse

Raw = dict[str, Any]
NVIDIA = {"key": "nvidia.com/gpu", "operator": "Exists"}
OTHER = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
LATE = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
KEYS = {"gpu": ["nvidia.com/gpu", "example.com/cards"], "rdma": ["example.com/nics"], "fpga": []}


def tolerated(obj: Raw) -> list[Raw] | None:
    operations: list[Operation] = []
    translate_tolerations(obj, read_asks(obj, implied=False), KEYS, operations)
    found: list[Raw] | None = patch.apply(obj, operations)["spec"].get("tolerations")
    return found


def keys(obj: Raw) -> list[str]:
    return [one["key"] for one in tolerated(obj) or ()]


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "1"},
        {"kubernetes.io/gpu": "50"},
        {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"},
    ],
    ids=str,
)
def test_a_pod_tolerates_the_taints_of_the_types_that_it_asks_for_in_any_name(limits: Raw) -> None:
    assert keys(pod(container("a"), container("b", limits=limits))) == ["nvidia.com/gpu", "example.com/cards"]
    beside = container("first", limits={"kubernetes.io/rdma": "50"})
    assert keys(pod(container(limits=limits), init=[beside])) == [
        "example.com/nics",
        "nvidia.com/gpu",
        "example.com/cards",
    ]


def test_a_pod_without_such_devices_tolerates_no_more_than_its_author_wrote() -> None:
    for limits in ({"cpu": "1"}, {"nvidia.com/gpu": "0"}, {"kubernetes.io/fpga": "100"}):
        assert tolerated(pod(container(limits=limits))) is None
        assert tolerated(pod(container(limits=limits), tolerations=[OTHER])) == [OTHER]


@pytest.mark.parametrize("covers", [NVIDIA, {"operator": "Exists"}, {"key": "", "operator": "Exists"}], ids=str)
def test_what_is_tolerated_already_is_not_written_again(covers: Raw) -> None:
    found = tolerated(pod(container(limits={"nvidia.com/gpu": "1"}), tolerations=[OTHER, covers]))
    assert found is not None
    assert [one for one in found if one == NVIDIA] == [one for one in [covers] if one == NVIDIA]


@pytest.mark.parametrize(
    "less", [{"effect": "NoSchedule"}, {"operator": "Equal", "value": "x"}, {"tolerationSeconds": 9}]
)
def test_a_toleration_of_a_part_is_kept_beside_that_of_all(less: Raw) -> None:
    found = tolerated(pod(container(limits={"nvidia.com/gpu": "1"}), tolerations=[{**NVIDIA, **less}]))
    assert found == [{**NVIDIA, **less}, NVIDIA, {"key": "example.com/cards", "operator": "Exists"}]


async def test_by_default_every_pod_for_gpus_tolerates_the_taint_of_nvidias_name(
    fake: FakeKube, kube: KubeClient
) -> None:
    for text, wanted in (
        ("{}", [NVIDIA]),
        ("devices: {tolerations: {gpu: []}}", None),
        ("devices: {tolerations: {}}", None),
    ):
        parts = World(fake, kube, parse(text)).parts
        obj = pod(container(limits={"kubernetes.io/gpu": "50"}))
        made = patch.apply(obj, parts.pods.mutate(asks(obj)).patch)
        assert made["spec"].get("tolerations") == wanted
        assert parts.pods.mutate(asks(made)).patch == ()
    assert WebhookSettings().devices.tolerations == {"gpu": ["nvidia.com/gpu"]}


def test_only_known_types_and_keys_of_taints_are_settings() -> None:
    with pytest.raises(ValueError, match=r"devices\.tolerations names tpu: the device types are gpu, rdma, fpga"):
        parse("devices: {tolerations: {tpu: [a]}}")
    with pytest.raises(ValueError, match="tolerations"):
        parse("devices: {tolerations: {gpu: ['a b']}}")


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        (None, [OTHER, NVIDIA, LATE]),
        ([OTHER], [OTHER, NVIDIA]),  # the API server writes the late ones itself
        ([OTHER, LATE], [OTHER, NVIDIA, LATE]),
        ([LATE, OTHER], [OTHER, NVIDIA, LATE]),
        ([OTHER, {"key": "new", "operator": "Exists"}], [OTHER, {"key": "new", "operator": "Exists"}, NVIDIA]),
        ([OTHER, NVIDIA, LATE], [OTHER, NVIDIA, LATE]),
    ],
    ids=str,
)
def test_a_list_that_is_applied_again_keeps_what_was_written(stated: list[Raw] | None, wanted: list[Raw]) -> None:
    old = pod(container(), tolerations=[OTHER, NVIDIA, LATE])
    fields: Raw = {} if stated is None else {"tolerations": copy.deepcopy(stated)}
    new = applied_again(old, pod(container(), **fields))
    operations: list[Operation] = []
    reapply_tolerations(old, new, KEYS, operations)
    assert patch.apply(new, operations)["spec"]["tolerations"] == wanted


def test_a_toleration_that_admission_does_not_write_is_not_put_back() -> None:
    old, new = pod(container(), tolerations=[OTHER, LATE]), pod(container(), tolerations=[LATE])
    operations: list[Operation] = []
    reapply_tolerations(old, new, KEYS, operations)
    assert operations == []
