"""A Pod in another dialect: what is replaced, what stays, and what its author is told."""

from typing import Any

import pytest
from builders import container, pod

from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import Dialect
from allocator.vocabulary.names import KOORDINATOR_DOMAIN
from console.simulator.documents import every_dialect
from console.simulator.translate import rewrite
from webhook.settings import types_of

Raw = dict[str, Any]
HINT = "scheduling.koordinator.sh/device-allocate-hint"
ORDER = "koordgate.io/device-order"


def types() -> DeviceTypes:
    return types_of(every_dialect())


def dialect(name: str) -> Dialect:
    return next(one for one in types().known.spoken["gpu"] if one.name == name)


def resources(made: Raw) -> list[Raw | None]:
    spec = made["spec"]
    return [one.get("resources") for one in (*spec.get("initContainers", ()), *spec["containers"])]


def test_amounts_of_other_devices_and_of_hosts_stay_and_those_of_quotas_go() -> None:
    gpu = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
    others = {"cpu": "2", "memory": "1Gi", "koordinator.sh/rdma": "25"}
    quota = {"quota.koordgate.io/gpu": "50"}
    given = pod(
        container("both", {**others, **gpu, **quota}, {**others, **gpu, **quota}),
        container("limits", None, {**gpu, "cpu": "1"}),
        container("requests", gpu),
        container("plain", {"cpu": "1"}),
        container("none"),
        container("empty", resources={}),
        init=[container("first", gpu, gpu), container("second", {"memory": "1Mi"}, {"memory": "2Mi"})],
    )
    asked = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    short = {"koordinator.sh/gpu": "50"}
    told = rewrite(given, dialect(KOORDINATOR_DOMAIN), types())
    assert told.missing == told.notes == ()
    assert asked.keys() != short.keys()
    assert resources(told.pod) == [
        {"requests": short, "limits": short},
        {"requests": {"memory": "1Mi"}, "limits": {"memory": "2Mi"}},
        {"requests": {**others, **short}, "limits": {**others, **short}},
        {"limits": {"cpu": "1", **short}},
        {"requests": short, "limits": short},
        {"requests": {"cpu": "1"}},
        None,
        {},
    ]
    assert resources(given)[2] == {"requests": {**others, **gpu, **quota}, "limits": {**others, **gpu, **quota}}


def test_a_pod_that_asks_for_another_type_alone_stays_and_beside_it_the_target_is_written() -> None:
    nic = {"koordinator.sh/rdma": "25"}
    alone = pod(container("a", nic, nic))
    assert rewrite(alone, dialect("hami"), types()).pod is alone
    beside = pod(container("a", nic, nic), container("b", None, {"kubernetes.io/gpu": "100"}))
    assert resources(rewrite(beside, dialect("hami"), types()).pod) == [
        {"requests": nic, "limits": nic},
        {"limits": {"nvidia.com/gpu": "1"}},
    ]


@pytest.mark.parametrize(
    ("to", "annotations", "notes"),
    [
        ("hami", {HINT: "{}"}, (f"HAMi does not read the annotation {HINT}",)),
        (
            "hami",
            {ORDER: "mostUsed", HINT: "{}", "example.com/x": "y"},
            (f"HAMi does not read the annotation {HINT}", f"HAMi does not read the annotation {ORDER}"),
        ),
        ("hami", {"example.com/x": "y"}, ()),
        ("hami", {}, ()),
        (KOORDINATOR_DOMAIN, {HINT: "{}"}, ()),
    ],
)
def test_annotations_that_the_product_does_not_read_are_kept_and_told(
    to: str, annotations: dict[str, str], notes: tuple[str, ...]
) -> None:
    given = pod(container("a", None, {"kubernetes.io/gpu": "100"}), annotations=annotations)
    told = rewrite(given, dialect(to), types())
    assert told.notes == notes
    assert told.pod["metadata"].get("annotations", {}) == annotations
    assert bool(annotations) is ("annotations" in told.pod["metadata"])


@pytest.mark.parametrize(
    ("asking", "named"),
    [("a", {}), ("b", {"gpu-fraction-container-name": "b"}), ("c", {"gpu-fraction-container-name": "c"})],
)
def test_an_annotation_that_means_the_first_container_names_any_other(asking: str, named: dict[str, str]) -> None:
    half = {"kubernetes.io/gpu": "50"}
    given = pod(*(container(name, None, half if name == asking else None) for name in "abc"))
    told = rewrite(given, dialect("kai"), types())
    assert told.missing == ()
    assert told.pod["metadata"]["annotations"] == {"gpu-fraction": "0.5", **named}


def test_a_pod_that_cannot_be_written_is_given_back_with_each_reason() -> None:
    wrong = pod(container("a", None, {"kubernetes.io/gpu": "150"}), container("b", None, {"kubernetes.io/gpu": "250"}))
    told = rewrite(wrong, dialect("hami"), BUILT_IN)
    assert told.pod is wrong
    assert [text.partition(" is over")[0] for text in told.missing] == [
        "spec.containers[0].resources.limits: gpu 150",
        "spec.containers[1].resources.limits: gpu 250",
    ]


def test_limits_of_memory_are_written_in_the_names_of_each_dialect_and_others_go() -> None:
    annotations = {
        "nvidia.com/container.main.gpu-memory.request": "4Gi",
        "nvidia.com/container.main.gpu-memory.limit": "8Gi",
        "nvidia.com/container.main.gpu-compute.mode": "time-slicing",
        "example.com/x": "1",
    }
    ours = rewrite(pod(container("main"), annotations=annotations), dialect("kubernetes.io"), types())
    assert (ours.missing, ours.notes) == ((), ())
    assert resources(ours.pod) == [{"limits": {"kubernetes.io/gpu-memory": "4Gi"}}]
    assert ours.pod["metadata"]["annotations"] == {
        "example.com/x": "1",
        "gpu-memory-limit.koordgate.io/main": "8Gi",
    }
    back = rewrite(ours.pod, dialect("kai"), types())
    assert back.missing == ()
    assert resources(back.pod) == [{}]
    assert back.pod["metadata"]["annotations"] == {
        key: text for key, text in annotations.items() if key != "nvidia.com/container.main.gpu-compute.mode"
    }
    (told,) = rewrite(ours.pod, dialect("hami"), types()).missing
    assert told == "container main: hami (HAMi) cannot state a limit of memory above the request (8Gi here)"
