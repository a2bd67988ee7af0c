"""Pods whose containers share devices, through admission, scheduling and binding: what is written, told and refused."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, container, device_entry, pod
from fake_kube import FakeKube
from sharings import sharing, uses
from world import POLICY, SCHEDULER, World, asks, binding, binds

from allocator.request.original import read_asks
from allocator.vocabulary.names import DEVICE_QUOTAS, DEVICE_SHARING, ORIGINAL_REQUEST
from console import devicewords
from koordgate.kube.client import KubeClient
from webhook import patch
from webhook.admission.additions import SlotDefaults
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy, translate
from webhook.quotas.limits import NamespaceLimits
from webhook.review import Response
from webhook.settings import SchedulerNames, WebhookSettings, parse
from webhook.view.podinfo import read_pod_info

Raw = dict[str, Any]
MEMORY, CORE = "KOORDGATE_GPU_MEMORY_BYTES", "KOORDGATE_GPU_CORE_PERCENT"
EXAMPLE: Raw = {"users": ["trainer", "loader"], "weights": {"trainer": 3}, "slot": 50}


def webhooks(policy: TranslationPolicy = POLICY, memory: int | None = 80 * GIB) -> PodWebhooks:
    return PodWebhooks(
        policy,
        SCHEDULER,
        lambda _pod: (memory or 0, memory or 0),
        limits=lambda _: NamespaceLimits(),
    )


def example() -> Raw:
    return sharing(uses("trainer"), uses("loader"), container("proxy"), **EXAMPLE)


def created(obj: Raw, policy: TranslationPolicy = POLICY) -> Raw:
    """The Pod as both reviews let it through."""
    reviewed = webhooks(policy)
    mutated = reviewed.mutate(asks(obj))
    assert mutated.allowed, mutated.message
    made = patch.apply(obj, mutated.patch)
    judged = reviewed.validate(asks(made))
    assert judged.allowed, judged.message
    return made


def refused(obj: Raw, policy: TranslationPolicy = POLICY) -> str:
    response = webhooks(policy).mutate(asks(obj))
    assert not response.allowed
    assert response.code == 422
    return response.message


def changed(old: Raw, new: Raw) -> Response:
    return webhooks().validate(asks(new, old=old, operation="UPDATE"))


def variables(obj: Raw) -> dict[str, dict[str, str]]:
    """Container -> its variables, as the kubelet resolves them."""
    annotations = obj["metadata"]["annotations"]
    found: dict[str, dict[str, str]] = {}
    for one in [*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]]:
        found[one["name"]] = {}
        for entry in one.get("env", ()):
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            key = path.removeprefix("metadata.annotations['").removesuffix("']")
            found[one["name"]][entry["name"]] = annotations.get(key, "") if key else entry["value"]
    return found


# --- created


def test_users_get_their_part_of_the_slot_and_the_pod_keeps_that_they_stated_none() -> None:
    made = created(example())
    limits = {one["name"]: one.get("resources", {}).get("limits", {}) for one in made["spec"]["containers"]}
    assert limits["trainer"]["kubernetes.io/gpu-core"] == limits["trainer"]["kubernetes.io/gpu-memory-ratio"] == "38"
    assert limits["loader"]["kubernetes.io/gpu-core"] == limits["loader"]["quota.koordgate.io/gpu"] == "12"
    assert limits["trainer"]["quota.koordgate.io/gpu-memory"] == "30Gi"
    assert limits["proxy"] == {}
    assert json.loads(made["metadata"]["annotations"][ORIGINAL_REQUEST]) == {"loader": {}, "trainer": {}}
    assert made["spec"]["schedulerName"] == "koord-scheduler"


def test_only_containers_that_use_cards_are_told_what_they_may_use() -> None:
    names = {name: list(found) for name, found in variables(created(example())).items()}
    assert names["trainer"] == names["loader"] == ["NVIDIA_VISIBLE_DEVICES", MEMORY, CORE]
    assert names["proxy"] == ["NVIDIA_VISIBLE_DEVICES"]


def test_what_an_author_writes_into_these_variables_is_replaced_with_a_warning() -> None:
    obj = sharing(uses("a", 50) | {"env": [{"name": MEMORY, "value": "0"}, {"name": MEMORY, "value": "1"}]})
    response = webhooks().mutate(asks(obj))
    assert any(f"{MEMORY} was set by the author" in warning for warning in response.warnings)
    made = patch.apply(obj, response.patch)
    assert [entry["name"] for entry in made["spec"]["containers"][0]["env"]].count(MEMORY) == 1
    assert variables(made)["a"][MEMORY] == ""


def test_other_pods_are_told_nothing_unless_the_installation_tells_all() -> None:
    obj = pod(uses("a", 50))
    plain = created(obj)
    assert list(variables(plain)["a"]) == ["NVIDIA_VISIBLE_DEVICES"]
    assert DEVICE_SHARING not in plain["metadata"]["annotations"]
    told = created(obj, replace(POLICY, quota_environment=True))
    assert list(variables(told)["a"]) == ["NVIDIA_VISIBLE_DEVICES", MEMORY, CORE]
    assert told["metadata"]["annotations"][DEVICE_SHARING] == "{}"
    assert read_asks(told).request.containers == read_asks(plain).request.containers
    assert DEVICE_SHARING not in created(pod(container()), replace(POLICY, quota_environment=True))["metadata"].get(
        "annotations", {}
    )


def test_a_default_slot_is_that_of_the_namespace_of_the_review() -> None:
    policy = replace(POLICY, slots=SlotDefaults({"gpu": 40}, {"default": {"gpu": 20, "rdma": 10}}))
    obj = sharing(uses("a"), users=["a"])
    assert json.loads(created(obj, policy)["metadata"]["annotations"][DEVICE_SHARING])["gpu"]["slot"] == 20
    elsewhere = pod(*obj["spec"]["containers"], namespace="other", annotations=obj["metadata"]["annotations"])
    assert json.loads(created(elsewhere, policy)["metadata"]["annotations"][DEVICE_SHARING])["gpu"]["slot"] == 40
    assert "states no slot, and there is no default" in refused(obj)


def test_a_wrong_pod_is_refused_by_both_reviews() -> None:
    obj = sharing(uses("a", 60), uses("b", 60))
    told = "ask 100 or 200 in all; or write regions: GroupEach, so that each has its own"
    assert refused(obj).endswith(told)
    assert webhooks().validate(asks(obj)).message.endswith(told)


@pytest.mark.parametrize("part", ["requests", "limits"])
def test_resources_that_are_not_the_part_of_the_slot_are_refused_as_untranslated(part: str) -> None:
    for amount in (None, "39", "0"):
        made = created(example())
        found = made["spec"]["containers"][0]["resources"][part]
        found.pop("kubernetes.io/gpu-core")
        found |= {"kubernetes.io/gpu-core": amount} if amount else {}
        response = webhooks().validate(asks(made))
        assert not response.allowed
        assert f"resources.{part}: does not state the container's part of the gpu slot (gpu-core 38" in response.message
        again = patch.apply(made, webhooks().mutate(asks(made)).patch)
        assert again["spec"]["containers"][0]["resources"][part]["kubernetes.io/gpu-core"] == "38"


def test_a_pod_without_koordgates_variables_is_refused_as_untranslated() -> None:
    made = created(example())
    made["spec"]["containers"][0]["env"] = made["spec"]["containers"][0]["env"][:1]
    assert f"does not hold koordgate's {MEMORY}" in webhooks().validate(asks(made)).message


def test_a_forged_original_request_gains_nothing() -> None:
    obj = example()
    obj["spec"]["containers"][0]["resources"] = {
        "limits": {"kubernetes.io/gpu-core": "1", "kubernetes.io/gpu-memory-ratio": "1"}
    }
    assert "container trainer states an amount of gpu" in refused(obj)
    obj["metadata"]["annotations"][ORIGINAL_REQUEST] = '{"trainer":{},"loader":{}}'
    assert created(obj)["spec"] == created(example())["spec"]


def test_what_another_webhook_changes_in_a_translated_pod_is_not_taken_for_the_authors_request() -> None:
    made = created(example())
    made["spec"]["containers"][1]["resources"]["limits"]["kubernetes.io/gpu-core"] = "99"
    made["spec"]["containers"][1]["resources"]["requests"]["kubernetes.io/gpu-core"] = "99"
    again = patch.apply(made, webhooks().mutate(asks(made)).patch)
    assert again["metadata"]["annotations"] == created(example())["metadata"]["annotations"]
    assert again["spec"] == created(example())["spec"]


def test_users_without_a_percent_get_no_resource() -> None:
    made = created(sharing(uses("a"), uses("b"), users=["a", "b"], weights={"a": 1000}, slot=50))
    assert "resources" not in made["spec"]["containers"][1] or set(
        made["spec"]["containers"][1]["resources"]["limits"]
    ) == {"quota.koordgate.io/gpu-memory"}
    assert MEMORY in variables(made)["b"]


def test_koordinators_own_scheduler_cannot_share_one_holding() -> None:
    policy = TranslationPolicy("koordinator.sh", split=True)
    two = [container(name, limits={"koordinator.sh/gpu": "30"}) for name in "ab"]
    assert "Koordinator's scheduler reads the sum of the Pod's requests only" in refused(sharing(*two), policy)
    assert translate(sharing(*two, regions="GroupEach"), policy, None).problems == ()


# --- changed


@pytest.mark.parametrize("text", [None, "{}", json.dumps({"gpu": {**EXAMPLE, "slot": 60}})])
def test_how_containers_share_is_decided_when_the_pod_is_created(text: str | None) -> None:
    old = created(example())
    new = copy.deepcopy(old)
    del new["metadata"]["annotations"][DEVICE_SHARING]
    new["metadata"]["annotations"] |= {DEVICE_SHARING: text} if text else {}
    assert "is decided when the Pod is created; leave it unchanged" in changed(old, new).message
    plain = created(pod(uses("a", 50)))
    more = copy.deepcopy(plain)
    more["metadata"]["annotations"][DEVICE_SHARING] = "{}"
    assert not changed(plain, more).allowed


@pytest.mark.parametrize("key", [DEVICE_QUOTAS, "gpu-memory.device-quotas.koordgate.io/trainer"])
def test_nobody_states_what_containers_may_use_but_the_bind(key: str) -> None:
    obj = example()
    obj["metadata"]["annotations"][key] = "{}"
    assert "is written by koordgate when the Pod is bound" in webhooks().validate(asks(obj)).message
    old = created(example())
    new = copy.deepcopy(old)
    new["metadata"]["annotations"][key] = "{}"
    assert "only the bind may write it" in changed(old, new).message


# --- bound


async def bound(world: World, obj: Raw) -> Raw:
    made = created(obj)
    made["metadata"] |= {"name": "p", "uid": "uid-p"}
    world.show(made)
    response = await world.bind("p")
    assert response.allowed, response.message
    return world.pod("p")


async def test_the_bind_tells_each_container_its_quota_in_bytes_and_percent(world: World) -> None:
    found = await bound(world, example())
    told = variables(found)
    assert told["trainer"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-n1-0", MEMORY: str(30 * GIB), CORE: "38"}
    assert told["loader"] == {"NVIDIA_VISIBLE_DEVICES": "GPU-n1-0", MEMORY: str(10 * GIB), CORE: "12"}
    assert told["proxy"] == {"NVIDIA_VISIBLE_DEVICES": "void"}
    quotas = json.loads(found["metadata"]["annotations"][DEVICE_QUOTAS])
    resources = {
        "kubernetes.io/gpu-core": "12",
        "kubernetes.io/gpu-memory": "10Gi",
        "kubernetes.io/gpu-memory-ratio": "12",
    }
    fractions = dict.fromkeys(resources, "1/4")
    assert quotas["loader"] == {"gpu": [{"id": "GPU-n1-0", "resources": resources, "fractions": fractions}]}
    (share,) = world.holdings()["uid-p"].shares
    assert dict(share.amounts) == {"gpu-core": 50, "gpu-memory": 40 * GIB, "gpu-memory-ratio": 50}
    world.audit()


async def test_entries_come_in_the_order_of_the_visible_devices(world: World) -> None:
    world.add_node("n1", device_entry(1, "40Gi"), device_entry(0, "80Gi"))
    told = variables(await bound(world, sharing(uses("a", 100), uses("b", 100))))
    assert told["a"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-n1-0,GPU-n1-1"
    assert told["a"][MEMORY] == told["b"][MEMORY] == f"{40 * GIB},{20 * GIB}"
    assert told["a"][CORE] == "50,50"


async def test_nothing_is_never_told_as_a_number(world: World) -> None:
    told = variables(await bound(world, sharing(uses("a"), uses("b"), users=["a", "b"], weights={"a": 1000}, slot=50)))
    assert told["b"][CORE] == "none"
    assert variables(created(sharing(uses("c", ratio=10))))["c"][CORE] == ""


@pytest.mark.parametrize(("types", "core"), [({"gpu": {}}, "none"), ({}, "unlimited")])
async def test_what_a_container_of_a_group_does_not_state_is_nothing_and_otherwise_nobody_counts_it(
    world: World, types: dict[str, Any], core: str
) -> None:
    told = variables(await bound(world, sharing(uses("a", ratio=10), uses("b", 20), types=types)))
    assert (told["a"][CORE], told["b"][CORE]) == (core, "20")


async def test_a_repeated_bind_tells_the_same(world: World) -> None:
    made = created(example())
    made["metadata"] |= {"name": "p", "uid": "uid-p"}
    world.show(made)
    first, second = [await world.mutate(binds(binding("p", "n1"))) for _ in range(2)]
    assert first.patch == second.patch
    judged = await world.validate(binds(patch.apply(binding("p", "n1"), second.patch)))
    assert judged.allowed


async def test_a_binding_that_tells_other_quotas_than_follow_from_the_ledger_is_refused(world: World) -> None:
    made = created(example())
    made["metadata"] |= {"name": "p", "uid": "uid-p"}
    world.show(made)
    response = await world.mutate(binds(binding("p", "n1")))
    forged = patch.apply(binding("p", "n1"), response.patch)
    forged["metadata"]["annotations"]["gpu-memory.device-quotas.koordgate.io/loader"] = str(80 * GIB)
    judged = await world.validate(binds(forged))
    assert not judged.allowed
    assert "carries another allocation than the ledger holds" in judged.message


async def test_a_pod_that_shares_nothing_is_told_nothing(world: World) -> None:
    found = await bound(world, pod(uses("a", 50)))
    assert not [key for key in found["metadata"]["annotations"] if "quota" in key]


def test_a_pod_that_only_names_users_may_be_bound_by_nobody_else() -> None:
    info = read_pod_info(example())
    assert info is not None
    assert info.canonical
    assert info.in_scope(SchedulerNames("another-scheduler"))


# --- settings, simulate


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{types: {gpu: 1/0}}", "defaultSlotResourceFraction"),
        ("{types: {gpu: 2/3}}", "defaultSlotResourceFraction"),
        ("{types: {gpu: 1/101}}", "defaultSlotResourceFraction"),
        ("{types: {tpu: 50}}", "names tpu: the types that are given in percent are gpu, rdma, fpga"),
        ("{namespaces: {team: {queue: 50}}}", "names queue"),
        ("{types: {gpu: 0}}", "defaultSlotResourceFraction"),
        ("{types: {gpu: 101}}", "defaultSlotResourceFraction"),
    ],
)
def test_default_slots_are_of_known_types_and_of_one_device(text: str, told: str) -> None:
    queue = "{name: queue, resource: a/queue, unit: units}"
    with pytest.raises(ValueError, match=told):
        parse(f"devices: {{types: [{queue}], defaultSlotResourceFraction: {text}}}")


async def test_the_settings_reach_admission(fake: FakeKube, kube: KubeClient) -> None:
    text = "devices: {quotaEnvironment: true, defaultSlotResourceFraction: {namespaces: {default: {gpu: 1/3}}}}"
    parts = World(fake, kube, parse(text)).parts
    response = parts.pods.mutate(asks(sharing(uses("a"), users=["a"])))
    assert response.allowed
    plain = patch.apply(pod(uses("a", 50)), parts.pods.mutate(asks(pod(uses("a", 50)))).patch)
    assert MEMORY in variables(plain)["a"]
    assert WebhookSettings().devices.quota_environment is False


async def test_users_may_state_none_of_a_device_plugins_resource_as_a_limit_range_wants(
    fake: FakeKube, kube: KubeClient
) -> None:
    parts = World(fake, kube, parse("devices: {defaultSlotResourceFraction: {types: {gpu: 50}}}")).parts
    obj = sharing(uses("a"), uses("b"), users=["a", "b"])
    done = patch.apply(obj, parts.pods.mutate(asks(obj)).patch)
    for one in done["spec"]["containers"]:
        for amounts in one["resources"].values():
            amounts["nvidia.com/gpu"] = "0"
    assert parts.pods.validate(asks(done)).allowed


async def test_simulate_tells_what_each_container_may_use(world: World) -> None:
    found = await bound(world, sharing(uses("a", ratio=10), uses("b", 20)))
    assert devicewords.quotas(found, world.parts.types) == [
        "a may use of gpu GPU-n1-0: core none, memory 8 GiB (10 %)",
        "b may use of gpu GPU-n1-0: core 20 %, memory 16 GiB (20 %)",
    ]
    assert devicewords.quotas(created(example()), world.parts.types) == []
