"""A dialect needs only an entry in the table: for admission, its refusals, and the view of Pods."""

import json
from typing import Any

import pytest
from builders import GIB, ask, container, device_entry, device_object, gpu, holding, nic_entry, node, part, plain, pod
from hypothesis import given
from hypothesis import strategies as st
from made_dialects import MIB, TYPES
from world import asks

from allocator.place import Placement, place
from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.asks import DeviceAsk, ExclusiveLevel, Scope, TypeHint
from allocator.vocabulary.devicetype import BUILT_IN, RDMA_TYPE, DeviceTypeError, DeviceTypes
from allocator.vocabulary.dialects import Dialect, Term
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import GPU, GPU_MEMORY, KOORD_SCHEDULER, ORIGINAL_REQUEST
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.deviceobject import read_device_object
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate
from webhook.admission.validate import created
from webhook.settings import SchedulerNames
from webhook.view.podinfo import read_pod_info

POLICY = TranslationPolicy("kubernetes.io", TYPES)
N = V = "nvidia.com/gpu"
E = "example.com/"
Raw = dict[str, Any]


def admitted(obj: Raw) -> Raw:
    """A Pod as it is stored: translated, accepted, and translated again without a change."""
    made = translate(obj, POLICY, 80 * GIB)
    assert made.problems == ()
    done: Raw = patch.apply(obj, made.operations)
    assert created(asks(done), KOORD_SCHEDULER, TYPES) == []
    assert translate(done, POLICY, 80 * GIB).operations == ()
    return done


def asked(obj: Raw) -> list[DeviceAsk]:
    reading = read_asks(obj, TYPES)
    assert reading.problems == ()
    return [one.ask for one in reading.request.containers]


def refusals(obj: Raw) -> str:
    return "; ".join(map(str, translate(obj, POLICY, None).problems))


# Limits of each container -> the request of each.
SAID: dict[str, tuple[list[Raw], list[DeviceAsk]]] = {
    "whole cards, as ever": ([{N: 2}], [plain(2)]),
    "a share of each of two cards": (
        [{N: 2, f"{V}mem": 4096, f"{V}cores": 30}],
        [ask(2, core=30, memory=4096 * MIB)],
    ),
    "one card where no number is written": ([{f"{V}mem": 1024}], [ask(1, memory=GIB)]),
    "percent of each": ([{N: 3, f"{V}mem-percentage": 25}], [ask(3, ratio=25)]),
    "cores alone are of the whole memory": ([{f"{V}cores": 10}], [ask(1, core=10, ratio=100)]),
    "whole cards beside a container with a share": (
        [{N: 1}, {N: 1, f"{V}mem": 1024}],
        [ask(1, core=100, ratio=100), ask(1, memory=GIB)],
    ),
    "blocks of memory for all cards together": (
        [{f"{E}core": 200, f"{E}blocks": 8}],
        [ask(2, core=100, memory=GIB)],
    ),
    "another type in a dialect of its own": (
        [{f"{V}mem": 1024, "koordinator.sh/rdma": 50}],
        [ask(1, memory=GIB), DeviceAsk(RDMA_TYPE, 1, (50,))],
    ),
}


@pytest.mark.parametrize(("limits", "expected"), SAID.values(), ids=SAID)
def test_a_dialect_is_understood_and_rewritten_in_our_resources(limits: list[Raw], expected: list[DeviceAsk]) -> None:
    obj = pod(*(container(name, limits=one) for name, one in zip("ab", limits, strict=False)))
    assert asked(obj) == expected
    done = admitted(obj)
    assert [(one.type, one.count, one.amounts[0]) for one in asked(done)] == [
        (one.type, one.count, one.amounts[0]) for one in expected
    ]
    for one in done["spec"]["containers"]:
        assert all(name.startswith("kubernetes.io/") for name in one["resources"]["limits"])
    kept = json.loads(done["metadata"]["annotations"][ORIGINAL_REQUEST])
    assert [kept[name]["limits"] for name in "ab"[: len(limits)]] == limits


SEVERAL = {
    "of containers": (
        [{f"{V}mem": 1024}, {"kubernetes.io/gpu": 50}],
        (
            "gpu devices are asked for in 2 dialects at once (spec.containers[0] asks for nvidia.com/gpumem, "
            "spec.containers[1] asks for kubernetes.io/gpu); use one"
        ),
    ),
    "of one container": ([{f"{V}mem": 1024, f"{E}core": 10}], "in 2 dialects at once"),
    "whole cards beside blocks": ([{N: 1, f"{E}blocks": 4}], "in 2 dialects at once"),
    "three": ([{f"{V}mem": 1, f"{E}core": 10, "koordinator.sh/gpu": 1}], "in 3 dialects at once"),
}


@pytest.mark.parametrize(("limits", "told"), SEVERAL.values(), ids=SEVERAL)
def test_two_dialects_at_once_are_refused_by_both_webhooks(limits: list[Raw], told: str) -> None:
    obj = pod(*(container(name, limits=one) for name, one in zip("ab", limits, strict=False)))
    assert told in refusals(obj)
    assert told in "; ".join(map(str, created(asks(obj), KOORD_SCHEDULER, TYPES)))


def test_a_request_must_equal_its_limit_where_kubernetes_wants_it() -> None:
    told = refusals(pod(container(requests={f"{V}mem": 1}, limits={f"{V}mem": 2})))
    assert "nvidia.com/gpumem: the request must equal the limit" in told


@pytest.mark.parametrize("limits", [{f"{V}mem": 1024}, {N: 1, f"{V}cores": 5}, {f"{E}blocks": 1}], ids=str)
def test_names_of_a_device_plugin_leave_an_untranslated_pod_to_its_scheduler(limits: Raw) -> None:
    obj = pod(container(limits=limits))
    info = read_pod_info(obj, types=TYPES)
    assert info is not None
    assert not info.canonical
    assert not info.in_scope(SchedulerNames())
    done = read_pod_info(admitted(obj), types=TYPES)
    assert done is not None
    assert done.canonical
    assert read_pod_info(obj) is None or N in limits  # without the entry the names mean nothing


# Annotations of a Pod of two containers, a and b -> the request of each.
FRACTIONS: dict[str, tuple[Raw, dict[str, DeviceAsk]]] = {
    "half a card for the first": ({"gpu-fraction": "0.5"}, {"a": ask(1, core=50, ratio=50)}),
    "a third, rounded up": ({"gpu-fraction": "0.333"}, {"a": ask(1, core=34, ratio=34)}),
    "for the other": (
        {"gpu-fraction": "0.25", "gpu-fraction-container": "b"},
        {"b": ask(1, core=25, ratio=25)},
    ),
    "bytes": ({"gpu-fraction-memory": "1024"}, {"a": ask(1, memory=GIB)}),
    "half of each of two": (
        {"gpu-fraction": "1", "gpu-fraction-devices": "2"},
        {"a": ask(2, core=50, ratio=50)},
    ),
}


@pytest.mark.parametrize(("annotations", "expected"), FRACTIONS.values(), ids=FRACTIONS)
def test_annotations_ask_for_one_container(annotations: Raw, expected: dict[str, DeviceAsk]) -> None:
    obj = pod(container("a"), container("b"), annotations=annotations)
    assert is_ours(obj, TYPES)
    assert not is_ours(obj)
    made = read_asks(obj, TYPES).request
    assert {one.name: one.ask for one in made.containers} == expected
    done = admitted(obj)
    names = {one["name"] for one in done["spec"]["containers"] if "resources" in one}
    assert names == expected.keys()
    again = {one.name: one.ask for one in read_asks(done, TYPES).request.containers}
    assert {name: (one.count, one.amounts[0]) for name, one in again.items()} == {
        name: (one.count, one.amounts[0]) for name, one in expected.items()
    }


def test_a_container_that_asks_by_annotation_alone_stays_translated_when_another_one_is_translated_again() -> None:
    obj = pod(container("a"), container("b", limits={"kubernetes.io/rdma": 50}), annotations={"gpu-fraction": "0.5"})
    made = patch.apply(obj, translate(obj, POLICY, None).operations)
    del made["spec"]["containers"][1]["resources"]["requests"]  # by another webhook
    again = translate(made, POLICY, None)
    assert again.problems == ()
    assert read_asks(patch.apply(made, again.operations), TYPES).request == read_asks(obj, TYPES).request


def test_what_an_annotation_asks_is_read_again_while_the_pod_waits() -> None:
    known = read_pod_info(pod(container("a", limits={N: 1})), types=TYPES)
    changed = pod(container("a", limits={N: 1}), annotations={"gpu-fraction": "0.5"})
    assert known is not None
    info = read_pod_info(changed, known, TYPES)
    assert info is not None
    assert "in 2 dialects at once" in info.problem


@pytest.mark.parametrize(
    ("annotations", "limits", "told"),
    [
        ({"gpu-fraction": "0.5"}, {N: 1}, "gpu devices are asked for in 2 dialects at once"),
        ({"gpu-fraction": "-1"}, {}, "metadata.annotations[gpu-fraction]: '-1' is not a decimal number above 0"),
        ({"gpu-fraction": "half"}, {}, "metadata.annotations[gpu-fraction]"),
        ({"gpu-fraction": "1.5"}, {}, "gpu 150 is over 100"),
        ({"gpu-fraction": "1", "gpu-fraction-container": "x"}, {}, "names no container of the Pod"),
    ],
)
def test_annotations_that_make_no_sense_are_reported(annotations: Raw, limits: Raw, told: str) -> None:
    assert told in refusals(pod(container("a", limits=limits), annotations=annotations))


def test_annotations_of_each_type_are_judged_by_themselves() -> None:
    other = Dialect(
        "rdma by annotation", "rdma", (), annotations=(Term("rdma-share", "rdma"),), container="rdma-box", own=False
    )
    policy = TranslationPolicy("kubernetes.io", TYPES.with_dialects([other]))

    def made(**boxes: str) -> list[str]:
        annotations = {
            "gpu-fraction": "0.5",
            "rdma-share": "50",
            **{key.replace("_", "-"): box for key, box in boxes.items()},
        }
        return [
            problem.path for problem in translate(pod(container("a"), annotations=annotations), policy, None).problems
        ]

    assert made() == []
    assert made(rdma_box="y") == ["metadata.annotations[rdma-box]"]
    assert made(gpu_fraction_container="x") == ["metadata.annotations[gpu-fraction-container]"]
    both = ["metadata.annotations[gpu-fraction-container]", "metadata.annotations[rdma-box]"]
    assert sorted(made(gpu_fraction_container="x", rdma_box="y")) == both


def test_a_name_of_another_type_cannot_be_in_a_dialect() -> None:
    with pytest.raises(DeviceTypeError, match=r"koordinator\.sh/rdma of device type rdma is already that of gpu"):
        BUILT_IN.with_dialects([Dialect("x", "gpu", (Term("koordinator.sh/rdma", "gpu"),))])
    with pytest.raises(DeviceTypeError, match="is named twice"):
        BUILT_IN.with_dialects([Dialect("x", "gpu", (Term("a/b", "gpu"), Term("a/b", "gpu-core")))])


@given(
    st.dictionaries(
        st.sampled_from([N, f"{V}mem", f"{V}cores", f"{V}mem-percentage", f"{E}core", "kubernetes.io/gpu"]),
        st.integers(0, 300),
        max_size=3,
    ),
    st.sampled_from(["kubernetes.io", "koordinator.sh"]),
)
def test_whatever_is_asked_is_refused_or_translated_once_and_for_all(limits: Raw, domain: str) -> None:
    obj = pod(container("a", limits=limits))
    policy = TranslationPolicy(domain, TYPES)
    first = translate(obj, policy, 80 * GIB)
    if first.problems:
        return
    done = patch.apply(obj, first.operations)
    again = translate(done, policy, 80 * GIB)
    assert (again.problems, again.operations) == ((), ())
    before, after = first.reading.request.containers, again.reading.request.containers
    assert [(one.ask.count, one.ask.amounts[0]) for one in before] == [
        (one.ask.count, one.ask.amounts[0]) for one in after
    ]


# A dialect of one vendor's devices


RADEON = Dialect("amd.com/gpu", "gpu", (Term("amd.com/gpu", GPU, counts=True),), own=False, vendor="amd")
OF_VENDORS = BUILT_IN.with_dialects([RADEON])
VENDORS = ["amd", "nvidia", "", "huawei"]  # of cards 0 to 3
CARDS = {
    N: [1, 2],
    "amd.com/gpu": [0],
    "koordinator.sh/gpu": [0, 1, 2, 3],
}


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("again", [False, True])
def test_a_name_of_one_vendor_takes_that_vendors_cards_only(name: str, *, again: bool) -> None:
    """A card of an unknown vendor counts as NVIDIA's."""
    cards = [gpu(minor, vendor=vendor) for minor, vendor in enumerate(VENDORS)]
    asked_ = {name: "100" if name == "koordinator.sh/gpu" else 1}
    obj = pod(container("a", limits=asked_), container("b"))
    policy = TranslationPolicy("kubernetes.io", OF_VENDORS)
    done = patch.apply(obj, translate(obj, policy, None).operations)
    if again:  # called again with what another webhook left, now that all cards are known to be alike
        done = patch.apply(done, translate(done, policy, 80 * GIB).operations)
    request = read_asks(done, OF_VENDORS).request
    assert request.containers == read_asks(obj, OF_VENDORS).request.containers

    taken: list[Holding] = []
    while isinstance(answer := place(request, node(*cards, holdings=taken)), Placement):
        taken.append(holding(f"u{len(taken)}", *answer.shares))

    assert sorted(share.minor for one in taken for share in one.shares) == CARDS[name]
    others = len(cards) - len(CARDS[name])
    away = f" ({others} of another vendor)" if others else ""
    assert f"of {len(cards)} GPUs{away} can hold it; the most free is gpu {CARDS[name][0]} with" in answer.message


def test_the_vendor_of_a_card_is_that_of_its_entry_else_of_its_object() -> None:
    label = "node.koordinator.sh/gpu-vendor"
    obj = device_object(device_entry(0), device_entry(1, labels={label: "AMD"}), nic_entry(0))
    assert [one.vendor for one in read_device_object(obj).devices] == ["", "amd", ""]
    obj["metadata"]["labels"] = {label: "huawei"}
    assert [one.vendor for one in read_device_object(obj).devices] == ["huawei", "amd", ""]


# A dialect in which all containers of a Pod share one card

ONE_CARD = Dialect("one card", "gpu", (Term("example.com/mib", GPU_MEMORY, factor=MIB),), own=False, one_device=True)
WITH_ONE_CARD = TYPES.with_dialects([ONE_CARD])
QUARTERS = [part(gpu(minor), percent, "x") for minor, percent in enumerate((75, 75, 25))]


def placed(obj: Raw, types: DeviceTypes) -> Any:
    reading = read_asks(obj, types)
    assert reading.problems == ()
    cards = [gpu(minor) for minor in range(3)]
    held = [holding(f"u{at}", one) for at, one in enumerate(QUARTERS)]  # a quarter, a quarter and three are free
    answer = place(reading.request, node(*cards, holdings=held))
    return [(one.minor, one.containers) for one in answer.shares] if isinstance(answer, Placement) else answer.short


# Limits of each container, init container first -> the cards, and who is on them
SHARED: dict[str, tuple[list[Raw], Any]] = {
    "two that fit one card together": ([{f"{E}mib": 20480}, {}, {f"{E}mib": 20480}], [(2, ("b", "d"))]),
    "three": ([{f"{E}mib": 10240}, {f"{E}mib": 20480}, {f"{E}mib": 10240}], [(2, ("b", "c", "d"))]),
    "one alone": ([{f"{E}mib": 20480}], [(0, ("b",))]),
    "two that fit two cards only": (
        [{f"{E}mib": 51200}, {f"{E}mib": 20480}],
        "GPUs fit each container, not all together inside one device",
    ),
}


@pytest.mark.parametrize(("limits", "expected"), SHARED.values(), ids=SHARED)
def test_containers_share_one_card_where_the_dialect_means_one(limits: list[Raw], expected: Any) -> None:
    obj = pod(*(container(name, limits=one) for name, one in zip("bcd", limits, strict=False)))
    policy = TranslationPolicy("kubernetes.io", WITH_ONE_CARD)

    done = patch.apply(obj, translate(obj, policy, None).operations)

    assert f"{E}mib" not in json.dumps(done["spec"])
    assert placed(obj, WITH_ONE_CARD) == placed(done, WITH_ONE_CARD) == expected
    assert translate(done, policy, None).operations == ()


def test_a_narrower_scope_of_the_dialect_replaces_that_of_a_hint() -> None:
    hint = {DEVICE_ALLOCATE_HINT: '{"gpu":{"requiredTopologyScope":"Node","exclusivePolicy":"DeviceLevel"}}'}
    obj = pod(*(container(name, limits={f"{E}mib": 1024}) for name in "ab"), annotations=hint)

    told = read_asks(obj, WITH_ONE_CARD).request.wishes.hint("gpu")

    assert told == TypeHint(scope=Scope.DEVICE, exclusive=ExclusiveLevel.DEVICE)


def test_containers_of_other_dialects_may_be_on_different_cards() -> None:
    obj = pod(
        *(container(name, limits={"koordinator.sh/gpu-memory": f"{size}Gi"}) for name, size in (("a", 50), ("b", 20)))
    )
    assert placed(obj, WITH_ONE_CARD) == [(0, ("b",)), (2, ("a",))]
