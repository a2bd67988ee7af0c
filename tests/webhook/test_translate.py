"""How admission changes a Pod: every form, every phase of its life; nothing else is touched."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from builders import GIB, container, pod, sidecar_container
from hypothesis import example, given, settings
from hypothesis import strategies as st
from npus import TYPES as NPU_TYPES
from strategies import pod_specs
from trials import examples
from world import applied_again, asks

from allocator.quantity import to_int
from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.delivery import LIMIT_VARIABLES
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NVIDIA_GPU,
    ORIGINAL_REQUEST,
)
from webhook import patch
from webhook.admission.reapply import reapply
from webhook.admission.translate import Translation, TranslationPolicy, translate
from webhook.admission.validate import created

POLICY = TranslationPolicy("kubernetes.io")
KOORDINATOR = TranslationPolicy("koordinator.sh")
Raw = dict[str, Any]


def applied(obj: Raw, memory: int | None = None, policy: TranslationPolicy = POLICY) -> Raw:
    translation = translate(obj, policy, memory)
    assert translation.problems == ()
    return patch.apply(obj, translation.operations)


def amounts(domain: str = "kubernetes.io", **tails: str) -> Raw:
    return {
        f"{domain}/{tail.replace('_', '-').replace('gpu-shared', 'gpu.shared')}": text for tail, text in tails.items()
    }


def env_of(name: str) -> Raw:
    path = f"metadata.annotations['visible-devices.koordgate.io/{name}']"
    return {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def parts(ask: DeviceAsk) -> tuple[int | None, int | None, int | None]:
    """Core, memory ratio and memory of each card."""
    return ask.amount(GPU_CORE), ask.amount(GPU_MEMORY_RATIO), ask.amount(GPU_MEMORY)


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def original_of(obj: Mapping[str, Any]) -> Any:
    return json.loads(obj["metadata"]["annotations"][ORIGINAL_REQUEST])


# --- every form


FORMS: dict[str, tuple[Raw, Raw, Raw]] = {
    # request -> translation without a stated memory, and the addition for cards of 8Gi
    "seed: two whole cards": (
        {"nvidia.com/gpu": 2},
        amounts(gpu_core="200", gpu_memory_ratio="200"),
        amounts(gpu_memory="16Gi"),
    ),
    "seed: half a card": (
        amounts(gpu="50"),
        amounts(gpu_core="50", gpu_memory_ratio="50"),
        amounts(gpu_memory="4Gi"),
    ),
    "one whole card": (
        {"nvidia.com/gpu": "1"},
        amounts(gpu_core="100", gpu_memory_ratio="100"),
        amounts(gpu_memory="8Gi"),
    ),
    "three cards in percent": (
        amounts(gpu="300"),
        amounts(gpu_core="300", gpu_memory_ratio="300"),
        amounts(gpu_memory="24Gi"),
    ),
    "core and ratio apart": (
        amounts(gpu_core="60", gpu_memory_ratio="30"),
        amounts(gpu_core="60", gpu_memory_ratio="30"),
        amounts(gpu_memory=str(8 * GIB * 30 // 100)),  # rounded down to the byte
    ),
    "ratio alone": (
        amounts(gpu_memory_ratio="25"),
        amounts(gpu_memory_ratio="25"),
        amounts(gpu_memory="2Gi"),
    ),
    "no bytes beside a ratio": (
        amounts(gpu_memory_ratio="25", gpu_memory="0"),
        amounts(gpu_memory_ratio="25"),
        amounts(gpu_memory="2Gi"),
    ),
    "two cards' memory alone": (
        amounts(gpu_memory_ratio="200"),
        amounts(gpu_memory_ratio="200"),
        amounts(gpu_memory="16Gi"),
    ),
    "core and bytes": (
        amounts(gpu_core="30", gpu_memory="3Gi"),
        amounts(gpu_core="30", gpu_memory="3Gi"),
        {},
    ),
    "bytes alone": (amounts(gpu_memory="4Gi"), amounts(gpu_memory="4Gi"), {}),
    "bytes of two whole cards' compute": (
        amounts(gpu_core="200", gpu_memory="10Gi"),
        amounts(gpu_core="200", gpu_memory="10Gi"),
        {},
    ),
    "half of each of two cards": (
        amounts(gpu="100", gpu_shared="2"),
        amounts(gpu_core="100", gpu_memory_ratio="100", gpu_shared="2"),
        amounts(gpu_memory="8Gi"),
    ),
    "bytes over three cards": (
        amounts(gpu_memory="9Gi", gpu_shared="3"),
        amounts(gpu_memory="9Gi", gpu_shared="3"),
        {},
    ),
    "whole cards need no gpu.shared": (
        amounts(gpu="200", gpu_shared="2"),
        amounts(gpu_core="200", gpu_memory_ratio="200"),
        amounts(gpu_memory="16Gi"),
    ),
    "any spelling of a quantity": (
        {"kubernetes.io/gpu": "0.2k"},
        amounts(gpu_core="200", gpu_memory_ratio="200"),
        amounts(gpu_memory="16Gi"),
    ),
    "Koordinator's whole card": (
        {"koordinator.sh/gpu": "100"},
        amounts(gpu_core="100", gpu_memory_ratio="100"),
        amounts(gpu_memory="8Gi"),
    ),
}


@pytest.mark.parametrize("maps", [("limits",), ("requests",), ("requests", "limits")])
@pytest.mark.parametrize("memory", [None, 8 * GIB])
@pytest.mark.parametrize("policy", [POLICY, KOORDINATOR], ids=lambda policy: policy.domain)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_core_ratio_and_memory_in_both_maps(
    form: str, policy: TranslationPolicy, memory: int | None, maps: tuple[str, ...]
) -> None:
    asked, written, more = FORMS[form]
    asked_maps: Raw = {name: {"cpu": "1", **asked} for name in maps}
    done = applied(pod(container(**asked_maps)), memory, policy)
    wanted = {**written, **(more if memory else {})}
    if policy is POLICY:  # kube-scheduler would look for nodes that report it
        wanted.pop("kubernetes.io/gpu.shared", None)
    wanted = {name.replace("kubernetes.io", policy.domain): text for name, text in wanted.items()}
    resources = done["spec"]["containers"][0]["resources"]
    for name in ("requests", "limits"):
        assert resources[name] == ({"cpu": "1", **wanted} if name in maps else wanted)
    assert done["spec"]["schedulerName"] == "koord-scheduler"
    assert done["spec"]["containers"][0]["env"] == [env_of("main")]
    assert read_asks(done).request == read_asks(pod(container(**asked_maps))).request


# --- gpu.shared, which kube-scheduler cannot ignore in the domain kubernetes.io


@pytest.mark.parametrize("domain", ["kubernetes.io", "koordinator.sh"])
def test_over_how_many_cards_is_kept_in_the_annotation(domain: str) -> None:
    both = amounts(domain, gpu_core="100", gpu_memory_ratio="100", gpu_shared="2")
    done = applied(pod(container(requests=both, limits=both)), 8 * GIB)
    left = amounts(gpu_core="100", gpu_memory_ratio="100", gpu_memory="8Gi")
    assert done["spec"]["containers"][0]["resources"] == {"requests": left, "limits": left}
    assert original_of(done) == {"main": {"requests": both, "limits": both}}
    ask = read_asks(done).request.containers[0].ask
    assert (ask.count, *parts(ask)) == (2, 50, 50, None)
    assert translate(done, POLICY, 8 * GIB).operations == ()


def test_for_koordinators_scheduler_the_count_comes_back_into_the_resources() -> None:
    done = applied(pod(container(limits=amounts(gpu="100", gpu_shared="2"))))
    theirs = applied(done, None, KOORDINATOR)
    whole = amounts("koordinator.sh", gpu_core="100", gpu_memory_ratio="100", gpu_shared="2")
    assert theirs["spec"]["containers"][0]["resources"] == {"requests": whole, "limits": whole}
    assert read_asks(theirs).request == read_asks(done).request
    assert read_asks(applied(theirs)).request == read_asks(done).request


def test_a_second_translation_of_one_container_forgets_no_count() -> None:
    done = applied(
        pod(container("a", limits=amounts(gpu="100", gpu_shared="2")), container("b", limits=amounts(gpu="50")))
    )
    for one in done["spec"]["containers"]:
        del one["resources"]["requests"]  # as another webhook might
    again = applied(done)
    assert read_asks(again).request == read_asks(done).request
    assert [c.ask.count for c in read_asks(again).request.containers] == [2, 1]


SPLITTERS = [
    ('{"main":{"limits":{"kubernetes.io/gpu.shared":"%s"}}}', "2", 2),
    ('{"main":{"requests":{"koordinator.sh/gpu.shared":%s}}}', "4", 4),
    ('{"main":{"limits":{"kubernetes.io/gpu.shared":"%s"},"requests":{"kubernetes.io/gpu.shared":"5"}}}', "2", 5),
    ('{"main":{"limits":{"kubernetes.io/gpu.shared":%s}}}', "1.5", 1),
    ('{"main":{"limits":{"kubernetes.io/gpu.shared":%s}}}', "[2]", 1),
    ('{"main":{"limits":{"kubernetes.io/gpu.shared":%s}}}', "-2", 1),
    ('{"main":{"annotations":{"kubernetes.io/gpu.shared":%s}}}', "2", 1),
    ('{"other":{"limits":{"kubernetes.io/gpu.shared":%s}}}', "2", 1),
]


@pytest.mark.parametrize(("text", "shared", "count"), SPLITTERS)
@pytest.mark.parametrize("policy", [POLICY, KOORDINATOR], ids=lambda policy: policy.domain)
def test_a_forged_original_request_only_splits_the_same_amounts_over_more_cards(
    text: str, shared: str, count: int, policy: TranslationPolicy
) -> None:
    both = amounts(gpu_core="100", gpu_memory_ratio="100")
    obj = pod(container(requests=both, limits=both), annotations={ORIGINAL_REQUEST: text % shared})
    for one in (obj, applied(obj, None, policy), applied(applied(obj, None, policy), 8 * GIB, policy)):
        ask = read_asks(one).request.containers[0].ask
        core, ratio, _ = parts(ask)
        assert (ask.count, (core or 0) * count, (ratio or 0) * count) == (count, 100, 100)
        limits = one["spec"]["containers"][0]["resources"]["limits"]
        assert {text for name, text in limits.items() if name.endswith(("-core", "-ratio"))} == {"100"}


@pytest.mark.parametrize("shared", ["0", "129", "3"])
def test_a_forged_count_that_makes_no_sense_is_refused(shared: str) -> None:
    both = amounts(gpu_core="100", gpu_memory_ratio="100")
    text = json.dumps({"main": {"limits": {"kubernetes.io/gpu.shared": shared}}})
    translation = translate(pod(container(limits=both), annotations={ORIGINAL_REQUEST: text}), POLICY, None)
    assert "gpu.shared" in str(translation.problems[0])
    assert ORIGINAL_REQUEST in str(translation.problems[0])


def test_a_request_below_its_limit_stays_below() -> None:
    done = applied(pod(container(requests=amounts(gpu="50"), limits=amounts(gpu="100"))), 8 * GIB)
    resources = done["spec"]["containers"][0]["resources"]
    assert resources["requests"] == amounts(gpu_core="50", gpu_memory_ratio="50", gpu_memory="4Gi")
    assert resources["limits"] == amounts(gpu_core="100", gpu_memory_ratio="100", gpu_memory="8Gi")


def test_a_request_of_zero_below_its_limit_stays_zero() -> None:
    one = container(requests={"kubernetes.io/gpu-core": "0"}, limits=amounts(gpu_core="5", gpu_memory_ratio="5"))
    done = applied(pod(one))
    requests = done["spec"]["containers"][0]["resources"]["requests"]
    assert requests == amounts(gpu_core="0", gpu_memory_ratio="5")
    assert not translate(done, POLICY, None).operations


def test_a_request_below_its_limit_cannot_be_written_in_koordinators_domain() -> None:
    one = container(requests=amounts(gpu_memory_ratio="5"), limits=amounts(gpu_memory_ratio="50"))
    (problem,) = translate(pod(one), KOORDINATOR, None).problems
    assert str(problem) == (
        "spec.containers[0].resources: the request must equal the limit, because this installation writes it as "
        "koordinator.sh; write the same amount in both"
    )


def test_each_container_is_translated_by_itself_and_who_asks_for_none_sees_none() -> None:
    done = applied(
        pod(
            container("half", limits=amounts(gpu="50")),
            container("none", limits={"cpu": "1"}),
            init=[
                container("first", limits=amounts(gpu="100")),
                sidecar_container("side", limits=amounts(gpu_memory="1Gi")),
                container("quiet"),
            ],
        )
    )
    every = [*done["spec"]["initContainers"], *done["spec"]["containers"]]
    assert {one["name"]: one["env"] for one in every} == {
        "first": [env_of("first")],
        "side": [env_of("side")],
        "quiet": [VOID],
        "half": [env_of("half")],
        "none": [VOID],
    }
    assert every[0]["resources"]["limits"] == amounts(gpu_core="100", gpu_memory_ratio="100")
    assert every[1]["resources"]["requests"] == amounts(gpu_memory="1Gi")
    assert "resources" not in every[2]
    assert every[4]["resources"] == {"limits": {"cpu": "1"}}


def test_a_pod_that_asks_for_nothing_is_left_alone() -> None:
    for obj in (pod(container(limits={"cpu": "1"})), pod(container(limits={NVIDIA_GPU: 0})), Raw(metadata={})):
        assert translate(obj, POLICY, 8 * GIB).operations == ()


@pytest.mark.parametrize("zero", [0, "0"])
def test_no_plain_device_beside_a_container_that_asks_is_removed(zero: object) -> None:
    done = applied(pod(container("a", limits=amounts(gpu="50")), container("b", limits={"cpu": "1", NVIDIA_GPU: zero})))
    b = done["spec"]["containers"][1]
    assert b["resources"] == {"limits": {"cpu": "1"}}
    assert b["env"] == [VOID]
    assert original_of(done)["b"] == {"limits": {NVIDIA_GPU: zero}}


@pytest.mark.parametrize("absent", [{}, {"schedulerName": ""}, {"schedulerName": "default-scheduler"}])
def test_the_default_scheduler_is_replaced_without_a_word(absent: Raw) -> None:
    translation = translate(pod(container(limits={NVIDIA_GPU: 1}), **absent), POLICY, None)
    assert translation.warnings == ()
    assert patch.apply(pod(**absent), translation.operations[-1:])["spec"]["schedulerName"] == "koord-scheduler"


def test_a_scheduler_of_the_authors_choice_is_replaced_with_a_warning() -> None:
    translation = translate(pod(container(limits={NVIDIA_GPU: 1}), schedulerName="volcano"), POLICY, None)
    assert [one for one in translation.warnings if "volcano" in one and "koord-scheduler" in one]


# --- environment


def test_the_variable_comes_first_so_that_others_may_refer_to_it() -> None:
    done = applied(pod(container(limits={NVIDIA_GPU: 1}, env=[{"name": "A", "value": "$(NVIDIA_VISIBLE_DEVICES)"}])))
    assert [entry["name"] for entry in done["spec"]["containers"][0]["env"]] == ["NVIDIA_VISIBLE_DEVICES", "A"]


@pytest.mark.parametrize("name", ["asks", "asks-none"])
def test_the_authors_own_visible_devices_are_replaced_with_a_warning(name: str) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "B", "value": "2"}]
    obj = pod(container("asks", limits={NVIDIA_GPU: 1}), container("asks-none"))
    index = ["asks", "asks-none"].index(name)
    obj["spec"]["containers"][index]["env"] = env
    translation = translate(obj, POLICY, None)
    assert len(translation.warnings) == 1
    assert f"spec.containers[{index}].env: NVIDIA_VISIBLE_DEVICES" in translation.warnings[0]
    done = patch.apply(obj, translation.operations)["spec"]["containers"][index]["env"]
    assert done == [env[0], env_of("asks") if name == "asks" else VOID, env[2]]


def test_of_several_entries_one_stays() -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    env = [own, {"name": "A", "value": "1"}, env_of("main"), own, {"name": "B", "value": "2"}]
    done = applied(pod(container(limits={NVIDIA_GPU: 1}, env=env)))
    assert done["spec"]["containers"][0]["env"] == [env_of("main"), env[1], env[4]]


def test_very_many_entries_become_one_in_one_operation() -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    env = [{"name": "A", "value": "1"}, *[own] * 20_000, {"name": "B", "value": "2"}]
    obj = pod(container(limits={NVIDIA_GPU: 1}, env=env))
    assert applied(obj)["spec"]["containers"][0]["env"] == [env[0], env_of("main"), env[-1]]
    assert len(translate(obj, POLICY, None).operations) < 20


@pytest.mark.parametrize(("surplus", "removals"), [(1, 1), (16, 16), (17, 0)])
def test_up_to_sixteen_entries_are_removed_one_by_one(surplus: int, removals: int) -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    env = [{"name": "A", "value": "1"}, own, {"name": "B", "value": "2"}, *[own] * surplus, {"name": "C", "value": "3"}]
    obj = pod(container(limits={NVIDIA_GPU: 1}, env=env))
    assert applied(obj)["spec"]["containers"][0]["env"] == [env[0], env_of("main"), env[2], env[-1]]
    done = [one["op"] for one in translate(obj, POLICY, None).operations if "/env" in one["path"]]
    assert done == ["replace", *["remove"] * removals]


def test_the_api_servers_default_in_our_own_entry_is_no_change() -> None:
    done = applied(pod(container(limits={NVIDIA_GPU: 1})))
    done["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    assert translate(done, POLICY, None).operations == ()


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0", "valueFrom": env_of("main")["valueFrom"]},
        env_of("another"),
        {
            "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {
                **env_of("main")["valueFrom"],
                "configMapKeyRef": {"name": "mine", "key": "all"},
            },
        },
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}},
        VOID,
    ],
)
def test_an_entry_that_only_looks_like_ours_is_replaced(forged: Raw) -> None:
    done = applied(pod(container(limits={NVIDIA_GPU: 1}, env=[forged])))
    assert done["spec"]["containers"][0]["env"] == [env_of("main")]


LIMIT_OF_ANOTHER = "nvidia-gpu-memory-limit.koordgate.io/other"


@pytest.mark.parametrize("name", ["asks", "asks-none"])
@pytest.mark.parametrize("variable", LIMIT_VARIABLES)
@pytest.mark.parametrize(
    "value",
    [
        {"value": "1"},
        {"value": ""},
        {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{LIMIT_OF_ANOTHER}']"}}},
        {"valueFrom": {"configMapKeyRef": {"name": "mine", "key": "all"}}},
    ],
    ids=["a figure", "nothing", "another container's", "a ConfigMap's"],
)
def test_a_memory_limit_of_the_authors_is_removed_with_a_warning(name: str, variable: str, value: Raw) -> None:
    env = [{"name": "A", "value": "1"}, {"name": variable, **value}, {"name": "B", "value": "2"}]
    obj = pod(container("asks", limits={NVIDIA_GPU: 1}), container("asks-none"))
    index = ["asks", "asks-none"].index(name)
    obj["spec"]["containers"][index]["env"] = env

    translation = translate(obj, POLICY, None)

    (warning,) = translation.warnings
    assert warning == (
        f"spec.containers[{index}].env: {variable} was set by the author; koordgate decides what a container may use "
        "of its devices, and has removed it"
    )
    done = patch.apply(obj, translation.operations)["spec"]["containers"][index]["env"]
    assert done == [env_of("asks") if name == "asks" else VOID, env[0], env[2]]


def test_every_entry_with_a_memory_limit_is_removed() -> None:
    limits = [{"name": variable, "value": str(n)} for n in range(30) for variable in LIMIT_VARIABLES]
    for few in (limits[:5], limits):
        env = [{"name": "A", "value": "1"}, *few, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        done = applied(pod(container(limits={NVIDIA_GPU: 1}, env=env)))
        assert done["spec"]["containers"][0]["env"] == [env[0], env_of("main")]


@pytest.mark.parametrize("resource", [{"cpu": "1"}, {NVIDIA_GPU: 0}], ids=str)
def test_a_pod_without_devices_keeps_its_variables(resource: Raw) -> None:
    env = [{"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "1"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "3"}]
    translation = translate(pod(container(limits=resource, env=env)), POLICY, None)
    assert (translation.operations, translation.warnings) == ((), ())


@pytest.mark.parametrize(
    "value",
    [
        {"value": "3"},
        {"value": "0"},
        {"value": "GPU-7b2c0f6e"},
        {},
        {"valueFrom": {"configMapKeyRef": {"name": "mine", "key": "cards"}}},
        {"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['visible-devices.koordgate.io/main']"}}},
    ],
    ids=str,
)
def test_cudas_own_choice_of_cards_stays_and_is_warned_about_where_a_container_gets_cards(value: Raw) -> None:
    env = [{"name": "CUDA_VISIBLE_DEVICES", **value}]
    obj = pod(
        container("none", limits={"cpu": "1"}, env=env),
        container("rdma", limits=amounts(rdma="50"), env=env),
        container("asks", limits=amounts(gpu="50"), env=env),
        init=[container("first", limits=amounts(gpu="100"), env=env)],
    )

    translation = translate(obj, POLICY, None)

    told = (
        "CUDA_VISIBLE_DEVICES was set by the author; the container sees its own cards alone, which CUDA numbers from "
        "0, and an index or UUID of the host then names another card or none: remove it"
    )
    assert translation.warnings == (f"spec.initContainers[0].env: {told}", f"spec.containers[2].env: {told}")
    done = patch.apply(obj, translation.operations)["spec"]["containers"]
    assert [one["env"][-1] for one in done] == [*env] * 3


# --- the original-request annotation


def test_the_annotation_says_what_the_author_wrote_and_nothing_of_other_resources() -> None:
    done = applied(
        pod(
            container("a", requests={NVIDIA_GPU: "2", "cpu": "1"}, limits={NVIDIA_GPU: "2", "memory": "1Gi"}),
            container("b", limits={"cpu": "1"}),
            init=[container("c", limits={NVIDIA_GPU: 1})],
        ),
        8 * GIB,
    )
    assert original_of(done) == {
        "a": {"requests": {NVIDIA_GPU: "2"}, "limits": {NVIDIA_GPU: "2"}},
        "c": {"limits": {NVIDIA_GPU: 1}},
    }


def test_a_pod_written_as_we_would_have_needs_no_annotation() -> None:
    both = amounts(gpu_core="50", gpu_memory="4Gi")
    done = applied(pod(container(requests=both, limits=both)), 8 * GIB)
    assert "annotations" not in done["metadata"]
    assert done["spec"]["containers"][0]["resources"] == {"requests": both, "limits": both}


def test_other_annotations_stay() -> None:
    done = applied(pod(container(limits={NVIDIA_GPU: 1}), annotations={"a/b": "1", "~": "2"}))
    assert {key: value for key, value in done["metadata"]["annotations"].items() if key != ORIGINAL_REQUEST} == {
        "a/b": "1",
        "~": "2",
    }


FORGERIES = ['{"main":{}}', '{"main":{"limits":{}}}', '{"main":null}', '{"main":{"limits":{"nvidia.com/gpu":"1"}}}']


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_forged_original_request_cannot_hide_memory(forged: str) -> None:
    """Memory beside a ratio is dropped, not hidden: the ratio remains, in the object and in the request."""
    hiding = amounts(gpu_core="1", gpu_memory_ratio="1", gpu_memory="80Gi")
    obj = pod(container(requests=hiding, limits=hiding), annotations={ORIGINAL_REQUEST: forged})
    done = applied(obj)
    ask = read_asks(done).request.containers[0].ask
    assert parts(ask) == (1, 1, None)
    left = amounts(gpu_core="1", gpu_memory_ratio="1")
    assert done["spec"]["containers"][0]["resources"] == {"requests": left, "limits": left}


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_forged_original_request_cannot_hide_memory_without_a_ratio(forged: str) -> None:
    hiding = amounts(gpu_core="1", gpu_memory="80Gi")
    done = applied(pod(container(requests=hiding, limits=hiding), annotations={ORIGINAL_REQUEST: forged}))
    ask = read_asks(done).request.containers[0].ask
    assert parts(ask) == (1, None, 80 * GIB)


MIXED = {
    "in one map": ({"main": {"limits": {"volcano.sh/gpu-memory": "8192", "aliyun.com/gpu-mem": "8"}}}, "volcano"),
    "in two maps": (
        {"main": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"koordinator.sh/gpu": "50"}}},
        "nvidia.com/gpu",
    ),
    "in two containers": (
        {"main": {"limits": {"nvidia.com/gpumem": "8192"}}, "side": {"limits": {"amd.com/gpu": "1"}}},
        "amd.com/gpu, nvidia.com/gpumem",
    ),
}


@pytest.mark.parametrize(("forged", "named"), MIXED.values(), ids=MIXED)
def test_a_forged_original_request_in_two_dialects_is_refused(forged: dict[str, Any], named: str) -> None:
    """It would lose the vendor whose cards its dialect means."""
    both = amounts(gpu_core="100", gpu_memory_ratio="100")
    side = container("side", requests=both, limits=both)
    obj = pod(container(requests=both, limits=both), side, annotations={ORIGINAL_REQUEST: json.dumps(forged)})
    obj["spec"]["schedulerName"] = "koord-scheduler"
    (told,) = map(str, translate(obj, POLICY, None).problems)
    assert told.startswith(
        "metadata.annotations[koordgate.io/original-request]: states gpu devices in several dialects"
    )
    assert named in told
    assert told in map(str, created(asks(obj), "koord-scheduler"))


ALIKE = {
    "a zero of another product": {"main": {"limits": {"nvidia.com/gpumem": "8192", "aliyun.com/gpu-mem": "0"}}},
    "a name that states nothing": {"main": {"limits": {"nvidia.com/gpumem": "8192", "aliyun.com/gpu-count": "1"}}},
    "names of one product in two containers": {
        "main": {"limits": {"nvidia.com/gpu": "1"}},
        "side": {"limits": {"nvidia.com/gpumem": "8192"}},
    },
    "a container that was added in koordgate's names": {
        "main": {"limits": {"nvidia.com/gpu": "1"}},
        "side": {"limits": {"kubernetes.io/gpu": "50"}},
    },
    "names of two types": {"main": {"limits": {"nvidia.com/gpu": "1", "koordinator.sh/rdma": "50"}}},
    "names that nobody knows": {"main": {"limits": {"nvidia.com/gpu": "1", "example.com/gpu": "1"}}},
}


@pytest.mark.parametrize("stated", ALIKE.values(), ids=ALIKE)
def test_an_original_request_in_one_dialect_is_read(stated: dict[str, Any]) -> None:
    both = amounts(gpu_core="100", gpu_memory_ratio="100")
    obj = pod(container(requests=both, limits=both), annotations={ORIGINAL_REQUEST: json.dumps(stated)})
    (asked,) = read_asks(obj).request.containers
    assert read_asks(obj).problems == ()
    assert asked.ask.vendor == "nvidia"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "null", "7", '"text"', '{"main":[1]}', "[" * 60_000])
def test_an_original_request_that_is_not_ours_is_as_good_as_none(text: str) -> None:
    both = amounts(gpu_memory_ratio="50", gpu_memory="8Gi")
    obj = pod(container(limits=both), annotations={ORIGINAL_REQUEST: text})
    if text == '{"main":[1]}':  # names the container, like the forgeries above
        assert parts(read_asks(obj).request.containers[0].ask)[1] == 50
    else:
        assert "both asked" in str(translate(obj, POLICY, None).problems[0])


@pytest.mark.parametrize("shared", ["2", "0"])
def test_a_forged_count_beside_no_gpus_means_nothing(shared: str) -> None:
    """gpu.shared in the annotation belongs to GPUs: a container with other devices has none to split."""
    forged = json.dumps({"main": {"limits": {"kubernetes.io/gpu.shared": shared}}})
    obj = pod(container(limits={"koordinator.sh/rdma": "100"}), annotations={ORIGINAL_REQUEST: forged})
    done = applied(obj)
    assert done["spec"]["containers"][0]["resources"]["requests"] == {"kubernetes.io/rdma": "100"}
    assert translate(done, POLICY, None).operations == ()


# --- nothing else is touched


def test_fields_that_we_have_never_heard_of_survive_byte_for_byte() -> None:
    strange: Raw = {"zeta": [1, {"x": None}], "alpha": {"1.50": 1e100, "é": "\u2028"}, "empty": {}, "list": []}
    one = container("main", limits={"cpu": "1", NVIDIA_GPU: "1"}, newField=strange, resizePolicy=[strange])
    one["resources"]["claims"] = [{"name": "a-claim", "request": "new"}]
    one["env"] = [{"name": "A", "valueFrom": {"fileKeyRef": {"path": "p", "key": "k", "optional": True}}}]
    obj = pod(one, annotations={"a": "b"}, newSpecField=strange, schedulingGroup={"podGroupName": "g"})
    obj["newTop"] = strange
    obj["metadata"]["newMeta"] = strange
    obj = {"newFirst": strange, **obj}

    def less_what_is_ours(done: Raw) -> bytes:
        done = copy.deepcopy(done)
        done["spec"].pop("schedulerName", None)
        done["metadata"]["annotations"].pop(ORIGINAL_REQUEST, None)
        for each in done["spec"]["containers"]:
            each["env"] = [entry for entry in each["env"] if entry["name"] != "NVIDIA_VISIBLE_DEVICES"]
            for name in ("requests", "limits"):
                held = each["resources"].pop(name, {})
                each["resources"][f"{name} less"] = {key: held[key] for key in held if "gpu" not in key}
        return orjson.dumps(done)

    before = orjson.dumps(obj)
    done = applied(obj, 8 * GIB)
    assert orjson.dumps(obj) == before  # the object that was read stays as it is
    assert less_what_is_ours(done) == less_what_is_ours(obj)


# --- properties


@st.composite
def askers(draw: st.DrawFn) -> Raw:
    """Valid Pods in one dialect, with containers and environments of every kind."""
    dialect = draw(st.sampled_from(["nvidia", "kubernetes.io", "koordinator.sh"]))
    nics = draw(st.sampled_from(["kubernetes.io", "koordinator.sh"]))
    others: list[Raw] = [{}, {}, {f"{nics}/rdma": "50"}, {f"{nics}/rdma": "200", f"{nics}/fpga": 100}]
    forms: list[Raw] = [
        {f"{dialect}/gpu": "50"},
        {f"{dialect}/gpu": "200"},
        {f"{dialect}/gpu-core": "30", f"{dialect}/gpu-memory-ratio": "40"},
        {f"{dialect}/gpu-core": "30", f"{dialect}/gpu-memory": "3Gi"},
        {f"{dialect}/gpu-memory": "8589934591"},
        {f"{dialect}/gpu-memory-ratio": "300"},
        {f"{dialect}/gpu": "90", f"{dialect}/gpu.shared": "3"},
        {f"{dialect}/gpu-memory": "4Gi", f"{dialect}/gpu.shared": "2"},
    ]
    if dialect == "nvidia":
        forms = [{NVIDIA_GPU: 1}, {NVIDIA_GPU: "3"}, {NVIDIA_GPU: 0}]
    entries = st.sampled_from(
        [{"name": "A", "value": "1"}, VOID, env_of("c0"), {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    )

    def one(name: str, **fields: Any) -> Raw:
        asked = {**draw(st.sampled_from([{}, *forms, *forms])), **draw(st.sampled_from(others))}
        maps = draw(st.sampled_from([("limits",), ("requests",), ("requests", "limits")]))
        made = container(name, **{key: {"cpu": "1", **asked} for key in maps}, **fields)
        if draw(st.booleans()):
            made["env"] = draw(st.none() | st.lists(entries, max_size=4))
        return made

    first = [
        one(f"i{n}", **({"restartPolicy": "Always"} if draw(st.booleans()) else {}))
        for n in range(draw(st.integers(0, 2)))
    ]
    obj = pod(*(one(f"c{n}") for n in range(draw(st.integers(1, 3)))), init=first)
    if draw(st.booleans()):
        obj["metadata"]["annotations"] = draw(
            st.sampled_from([{}, {"a/b": "c"}, {ORIGINAL_REQUEST: '{"c0":{}}'}])
            | st.dictionaries(
                st.sampled_from(["c0", "c1", "i0"]),
                st.dictionaries(
                    st.sampled_from(["requests", "limits"]),
                    st.dictionaries(
                        st.sampled_from(
                            ["kubernetes.io/gpu.shared", "koordinator.sh/gpu.shared", "kubernetes.io/gpu-memory"]
                        ),
                        st.sampled_from([1, 2, "3", "10", "x", None, 0]),
                    ),
                ),
            ).map(lambda forged: {ORIGINAL_REQUEST: json.dumps(forged)})
        )
    if draw(st.booleans()):
        obj["spec"]["schedulerName"] = draw(st.sampled_from(["", "default-scheduler", "other", "koord-scheduler"]))
    return obj


PODS = askers() | pod_specs().map(lambda spec: {"metadata": {"name": "p"}, "spec": spec})
MEMORY = st.sampled_from([None, 8 * GIB, 15472384 * 1024, 8_589_934_591])
DOMAINS = st.sampled_from([POLICY, KOORDINATOR])


FORGED = pod(
    container("c0", limits={"kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory-ratio": "40"}),
    container("c1", limits={"cpu": "1"}),
    annotations={ORIGINAL_REQUEST: json.dumps({"c0": {"requests": {"kubernetes.io/gpu-memory": 1}}})},
)
SPLITS = {"kubernetes.io/gpu.shared": 1, "koordinator.sh/gpu.shared": "10"}  # in another order once they are rewritten
TWO_SPLITS = pod(
    container("c0", limits={"kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory": "3Gi"}),
    container("c1", limits={"kubernetes.io/gpu": "50"}),
    annotations={ORIGINAL_REQUEST: json.dumps({"c0": {"requests": SPLITS}})},
)


@given(PODS, DOMAINS, MEMORY)
@settings(max_examples=300)
@example(pod(container(limits={NVIDIA_GPU: 2})), POLICY, 8 * GIB)
@example(TWO_SPLITS, POLICY, None)
@example(pod(container(limits={"kubernetes.io/gpu-core": 10, "kubernetes.io/gpu-memory": 1})), POLICY, None)
def test_translating_a_translated_pod_changes_nothing(obj: Raw, policy: TranslationPolicy, memory: int | None) -> None:
    once = translate(obj, policy, memory)
    if once.problems:
        assert once.operations == ()
        return
    done = patch.apply(obj, once.operations)
    again = translate(done, policy, memory)
    assert set(again.warnings) <= set(once.warnings)  # what is odd in koordgate's own names is odd again
    assert again._replace(warnings=()) == Translation(read_asks(done, implied=False))


@given(PODS, DOMAINS, MEMORY, MEMORY)
@settings(max_examples=200)
@example(FORGED, POLICY, 8 * GIB, None)
@example(FORGED, POLICY, None, 8 * GIB)
def test_translation_never_changes_what_is_asked(
    obj: Raw, policy: TranslationPolicy, memory: int | None, later: int | None
) -> None:
    """Whatever memory is stated, and stated again by a later call, the request stays."""
    once = translate(obj, policy, memory)
    if once.problems:
        return
    done = patch.apply(obj, once.operations)
    assert read_asks(done, implied=False).request == once.reading.request
    assert [c.limits for c in read_asks(done).containers] == [c.limits for c in once.reading.containers]
    again = translate(done, policy, later)
    assert again.problems == ()
    assert read_asks(patch.apply(done, again.operations), implied=False).request == once.reading.request


@given(obj=PODS, policy=DOMAINS, memory=MEMORY, charged=st.booleans())
@settings(max_examples=examples(200))
def test_a_manifest_that_is_applied_again_leaves_the_translated_pod_as_it_is(
    obj: Raw, policy: TranslationPolicy, memory: int | None, *, charged: bool
) -> None:
    obj["metadata"].get("annotations", {}).pop(ORIGINAL_REQUEST, None)
    for one in [*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]]:
        if one.get("env"):  # which the API server merges by name
            one["env"] = list({entry["name"]: entry for entry in one["env"]}.values())
    submitted = applied_again(obj, obj)
    policy = replace(policy, charges=charged, tolerations={"gpu": ["nvidia.com/gpu"]})
    once = translate(submitted, policy, memory)
    if once.problems or not once.reading.request:
        return
    stored = patch.apply(submitted, once.operations)
    again = applied_again(stored, obj)
    answer = reapply(stored, again, policy)
    assert answer.problems == []
    assert patch.apply(again, answer.operations) == stored


@given(askers(), MEMORY)
@settings(max_examples=100)
def test_after_translation_no_container_keeps_a_word_of_another_dialect(obj: Raw, memory: int | None) -> None:
    once = translate(obj, POLICY, memory)
    if once.problems or not once.reading.request:
        return
    done = patch.apply(obj, once.operations)
    canonical = {"gpu-core", "gpu-memory", "gpu-memory-ratio"}
    for one in [*done["spec"].get("initContainers", ()), *done["spec"]["containers"]]:
        for name in ("requests", "limits"):
            found = [key for key in one.get("resources", {}).get(name, {}) if "gpu" in key]
            assert all(key.split("/")[0] == "kubernetes.io" and key.split("/")[1] in canonical for key in found)
        assert sum(entry["name"] == "NVIDIA_VISIBLE_DEVICES" for entry in one["env"]) == 1


# Shares of Huawei's NPUs as Koordinator names them: limits, the device types; whether they are allocated here

NPUS: dict[str, tuple[dict[str, Any], DeviceTypes, bool]] = {
    "cores and a ratio of a GPU": (
        {"huawei.com/npu-core": 4, "koordinator.sh/gpu-memory-ratio": 50},
        BUILT_IN,
        False,
    ),
    "a template beside GPU memory": (
        {
            "koordinator.sh/gpu.shared": 1,
            "huawei.com/npu-core": 4,
            "huawei.com/npu-cpu": 3,
            "koordinator.sh/gpu-memory": "12Gi",
        },
        BUILT_IN,
        False,
    ),
    "nothing but cores": ({"huawei.com/npu-core": 4}, BUILT_IN, False),
    "nothing asked of it": ({"huawei.com/npu-core": 0, "koordinator.sh/gpu-memory-ratio": 50}, BUILT_IN, True),
    "a type by settings": ({"huawei.com/npu-core": 4}, NPU_TYPES, True),
    "a name that the settings leave out": ({"huawei.com/npu-core": 4, "huawei.com/npu-aicpu": 1}, NPU_TYPES, False),
}


@pytest.mark.parametrize(("limits", "types", "ours"), NPUS.values(), ids=NPUS)
def test_a_share_of_an_npu_is_understood_wholly_or_left_alone(
    limits: dict[str, Any], types: DeviceTypes, *, ours: bool
) -> None:
    each: list[Raw] = [{"limits": limits}, {"requests": limits, "limits": limits}]
    for amounts in each:
        obj = pod(container(**amounts), container("gpu", limits={"nvidia.com/gpu": 1} if not ours else {}))
        translation = translate(obj, replace(POLICY, types=types), None)
        assert translation.problems == ()
        assert is_ours(obj, types) is bool(translation.reading.request) is ours
        if ours:
            assert not any("huawei" in one for one in translation.warnings)
        else:
            (warning,) = translation.warnings
            assert "allocates no device to this Pod: huawei.com/npu-" in warning
            assert translation.operations == ()


# Pods for Koordinator's own scheduler: the containers' limits; the sums by which it judges the Pod

SUMS: dict[str, tuple[list[dict[str, Any]], dict[str, int]]] = {
    "cards by core, memory by bytes": (
        [{"koordinator.sh/gpu-core": 200, "koordinator.sh/gpu-memory": "32Gi"}],
        {"gpu-core": 200, "gpu-memory": 32 * GIB, "gpu.shared": 2},
    ),
    "two containers of a share": (
        [{"koordinator.sh/gpu": 60}, {"koordinator.sh/gpu": 60}],
        {"gpu-core": 120, "gpu-memory-ratio": 120, "gpu.shared": 2},
    ),
    "one share": ([{"koordinator.sh/gpu": 60}], {"gpu-core": 60, "gpu-memory-ratio": 60, "gpu.shared": 1}),
    "whole cards": ([{"nvidia.com/gpu": 3}], {"gpu-core": 300, "gpu-memory-ratio": 300, "gpu.shared": 3}),
    "a split of one's own": (
        [{"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory": "8Gi"}],
        {"gpu-memory": 8 * GIB, "gpu.shared": 2},
    ),
}


@pytest.mark.parametrize(("limits", "expected"), SUMS.values(), ids=SUMS)
def test_koordinators_scheduler_reads_the_number_of_cards_from_the_split(
    limits: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    obj = pod(*(container(f"c{at}", limits=one) for at, one in enumerate(limits)))
    policy = replace(KOORDINATOR, split=True)
    done = applied(obj, policy=policy)
    sums: dict[str, int] = {}
    for one in done["spec"]["containers"]:
        for name, amount in one["resources"]["limits"].items():
            tail = name.removeprefix("koordinator.sh/")
            sums[tail] = sums.get(tail, 0) + to_int(amount)
    assert sums == expected
    assert applied(done, policy=policy) == done
    assert read_asks(done).request.containers == read_asks(obj).request.containers


# What Koordinator's own scheduler cannot give: init containers, containers, and the problem; None where it can

UNEQUAL: dict[str, tuple[list[Raw], list[Raw], str | None]] = {
    "a share beside whole cards": (
        [],
        [{"koordinator.sh/gpu": 60}, {"koordinator.sh/gpu": 200}],
        (
            "spec.containers[1].resources: gpu-core 100 of a card, but Koordinator's scheduler gives each of the "
            "Pod's 3 cards the same part of the Pod's gpu-core 260; ask for the same of each card in every container, "
            "or give the containers Pods of their own"
        ),
    ),
    "a sum that divides, of unequal shares": (
        [],
        [{"koordinator.sh/gpu": 20}, {"koordinator.sh/gpu": 60}],
        (
            "spec.containers[1].resources: gpu-core 60 of a card, but Koordinator's scheduler gives each of the "
            "Pod's 2 cards the same part of the Pod's gpu-core 80; ask for"
        ),
    ),
    "unequal bytes": (
        [],
        [{"koordinator.sh/gpu-memory": "4Gi"}, {}, {"koordinator.sh/gpu-memory": "8Gi"}],
        "spec.containers[2].resources: gpu-memory 8589934592 of a card",
    ),
    "little core in one container only": (
        [],
        [
            {"koordinator.sh/gpu-memory-ratio": 50},
            {"koordinator.sh/gpu-core": 1, "koordinator.sh/gpu-memory-ratio": 50},
        ],
        "spec.containers[1].resources: gpu-core 1 of a card",
    ),
    "core in one container only": (
        [],
        [{"koordinator.sh/gpu-memory-ratio": 50}, {"koordinator.sh/gpu": 50}],
        "spec.containers[1].resources: gpu-core 50 of a card",
    ),
    "bytes beside a ratio": (
        [],
        [
            {"koordinator.sh/gpu": 50},
            *([{"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "8Gi"}] * 2),
            {"koordinator.sh/gpu": 50},
        ],
        (
            "spec.containers[1].resources: gpu-memory here and gpu-memory-ratio in spec.containers[0]: Koordinator's "
            "scheduler takes one of them for the whole Pod; write the same one in every container"
        ),
    ),
    "an init container that needs more of a card": (
        [{"koordinator.sh/gpu": 75}],
        [{"koordinator.sh/gpu": 50}, {"koordinator.sh/gpu": 50}],
        "spec.initContainers[0].resources: gpu-core 75 of a card",
    ),
    "an init container that needs no more": ([{"koordinator.sh/gpu": 50}], [{"koordinator.sh/gpu": 50}] * 2, None),
    "equal shares": ([], [{"koordinator.sh/gpu": 60}, {"koordinator.sh/gpu": 60}], None),
    "whole cards in unequal numbers": ([], [{"koordinator.sh/gpu": 100}, {"koordinator.sh/gpu": 300}], None),
    "a share beside devices of another type": ([], [{"koordinator.sh/gpu": 60}, {"koordinator.sh/rdma": 100}], None),
}


@pytest.mark.parametrize(("first", "limits", "problem"), UNEQUAL.values(), ids=UNEQUAL)
def test_unequal_shares_are_refused_where_koordinators_scheduler_reads_the_sum(
    first: list[Raw], limits: list[Raw], problem: str | None
) -> None:
    obj = pod(
        *(container(f"c{at}", limits=one) for at, one in enumerate(limits)),
        init=[container(f"i{at}", limits=one) for at, one in enumerate(first)],
    )

    refused = translate(obj, replace(KOORDINATOR, split=True), None)

    assert [str(one)[: len(problem)] for one in refused.problems] == [problem] if problem else refused.operations
    assert bool(refused.problems) == bool(problem)
    assert not (problem and refused.operations)
    for policy in (KOORDINATOR, replace(POLICY, split=True), POLICY):
        assert translate(obj, policy, None).problems == ()


SHARES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([10, 20, 50, 100])), min_size=1, max_size=4)


@settings(max_examples=examples(100), deadline=None)
@given(SHARES)
def test_a_pod_is_refused_exactly_if_an_equal_part_of_its_sum_serves_no_container(
    shares: list[tuple[int, int]],
) -> None:
    limits = [{"koordinator.sh/gpu": each * cards, "koordinator.sh/gpu.shared": cards} for cards, each in shares]
    obj = pod(*(container(f"c{at}", limits=one) for at, one in enumerate(limits)))

    refused = translate(obj, replace(KOORDINATOR, split=True), None)

    assert bool(refused.problems) == (len({each for _, each in shares}) > 1)
