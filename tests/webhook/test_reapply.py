"""A manifest that is applied again: what equals the record is put back, and what differs is refused with words."""

import copy
import json
from typing import Any

import pytest
from builders import container, pod, sidecar_container
from world import SCHEDULER, applied_again, asks

from allocator.vocabulary.delivery import LimitProvider
from allocator.vocabulary.names import DEVICE_SHARING, ORIGINAL_REQUEST
from webhook import patch
from webhook.admission.additions import SlotDefaults
from webhook.admission.limits import LimitPolicy
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy
from webhook.review import Response

POLICY = TranslationPolicy(
    "kubernetes.io",
    charges=True,
    quota_environment=True,
    slots=SlotDefaults({"gpu": 40}),
    limits=LimitPolicy(LimitProvider.NVIDIA_TOOLKIT, frozenset({"limited"})),
)
WEBHOOKS = PodWebhooks(POLICY, SCHEDULER, lambda _pod: (80 * 2**30, 80 * 2**30))
Raw = dict[str, Any]


def stored(manifest: Raw) -> Raw:
    """The Pod as the API server stores it once it was created."""
    filled = applied_again(copy.deepcopy(manifest), {"spec": {}} | copy.deepcopy(manifest))
    response = WEBHOOKS.mutate(asks(filled))
    assert response.allowed, response.message
    return patch.apply(filled, response.patch)


def update(old: Raw, new: Raw) -> Response:
    return WEBHOOKS.mutate(asks(new, old=old, operation="UPDATE"))


def ends_as(old: Raw, new: Raw) -> Raw:
    response = update(old, new)
    assert response.allowed, response.message
    return patch.apply(new, response.patch)


def gpus(count: Any, **fields: Any) -> Raw:
    return container(limits={"cpu": "1", "nvidia.com/gpu": count}, **fields)


SHARED = json.dumps({"gpu": {"users": ["a", "b"]}})
MANIFESTS: dict[str, Raw] = {
    "a whole card": pod(gpus("1")),
    "a number that is no text": pod(gpus(2)),
    "a card for one of two containers": pod(gpus("1"), container("other", limits={"nvidia.com/gpu": "0"})),
    "amounts in koordgate's own names": pod(container(limits={"kubernetes.io/gpu": "50"})),
    "bytes of memory": pod(container(limits={"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})),
    "init containers and sidecars": pod(
        gpus("2"), init=[container("first", limits={"nvidia.com/gpu": "4"}), sidecar_container("beside")]
    ),
    "an environment that is replaced": pod(
        gpus("1", env=[{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    ),
    "a variable that is removed": pod(
        gpus("1", env=[{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "1"}, {"name": "B", "value": "2"}])
    ),
    "a scheduler that is replaced": pod(gpus("1"), schedulerName="volcano"),
    "containers that share a card": pod(container("a"), container("b"), annotations={DEVICE_SHARING: SHARED}),
    "memory limits that the namespace requires": pod(
        container(limits={"kubernetes.io/gpu": "50"}), namespace="limited"
    ),
    "CPUs of its own": pod(
        container(limits={"cpu": "2", "memory": "1Gi"}), labels={"koordinator.sh/qosClass": "LSR"}, schedulerName="x"
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_applied_again_leaves_the_pod_as_it_is(name: str) -> None:
    manifest = MANIFESTS[name]
    old = stored(manifest)
    assert ends_as(old, applied_again(old, manifest)) == old
    assert update(old, old).patch == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_else_changes_in_a_manifest_is_stored(name: str) -> None:
    old = stored(MANIFESTS[name])
    new = applied_again(old, MANIFESTS[name])
    new["metadata"]["labels"] = {**new["metadata"].get("labels", {}), "team": "a"}
    new["spec"]["containers"][0]["image"] = "example.org/newer"
    wanted = copy.deepcopy(old)
    wanted["metadata"]["labels"] = new["metadata"]["labels"]
    wanted["spec"]["containers"][0]["image"] = "example.org/newer"
    assert ends_as(old, new) == wanted


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"nvidia.com/gpu": "3"}, "[nvidia.com/gpu]: 3, but the Pod asked for 2 when it was created"),
        ({"nvidia.com/gpu": None}, ""),  # the stored Pod lacks it as well: nothing is asked to change
        ({"nvidia.com/gpumem": "1"}, "[nvidia.com/gpumem]: 1, but the Pod asked for none when it was created"),
        ({"kubernetes.io/gpu-core": "100"}, "[kubernetes.io/gpu-core]: 100, but the Pod asked for 200"),
        ({"kubernetes.io/gpu-core": None}, "[kubernetes.io/gpu-core]: none, but the Pod asked for 200"),
        ({"quota.koordgate.io/gpu": "1"}, "[quota.koordgate.io/gpu]: 1, but the Pod asked for"),
        ({"nvidia.com/gpu": "x" * 500}, "[nvidia.com/gpu]: " + "x" * 80 + ", but the Pod asked for 2"),
    ],
    ids=str,
)
def test_other_devices_than_those_of_the_record_are_refused(changed: Raw, told: str) -> None:
    old = stored(pod(gpus("2"), container("other"), name="p"))
    new = copy.deepcopy(old)
    limits = {**new["spec"]["containers"][0]["resources"]["limits"], **changed}
    new["spec"]["containers"][0]["resources"]["limits"] = {n: one for n, one in limits.items() if one is not None}
    response = update(old, new)
    assert response.allowed is (told == "")
    if told:
        assert response.code == 422
        assert response.message.startswith("Pod default/p: spec.containers[0].resources.limits[")
        assert told in response.message
        assert response.message.endswith(
            "the devices of a Pod cannot be changed; write what it asked for, or delete the Pod and create it again"
        )


@pytest.mark.parametrize("gone", ["resources", "limits"])
def test_what_a_manifest_never_states_is_put_back_where_an_apply_takes_it_away(gone: str) -> None:
    old = stored(MANIFESTS["containers that share a card"])
    new = copy.deepcopy(old)
    for one in new["spec"]["containers"]:
        (one if gone == "resources" else one["resources"]).pop(gone)
    assert ends_as(old, new) == old
    own = stored(MANIFESTS["amounts in koordgate's own names"])
    del (new := copy.deepcopy(own))["spec"]["containers"][0]["resources"]
    assert "none, but the Pod asked for 50" in update(own, new).message


def test_a_refusal_of_many_differences_is_short() -> None:
    old = stored(pod(gpus("2")))
    new = copy.deepcopy(old)
    for key in ("requests", "limits"):
        new["spec"]["containers"][0]["resources"][key] |= {f"quota.koordgate.io/{n}": "1" for n in range(5000)}
    assert len(update(old, new).message) < 4000


def test_the_same_amount_may_be_written_in_another_way() -> None:
    manifest = MANIFESTS["bytes of memory"]
    old = stored(manifest)
    again = pod(container(limits={"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8192Mi"}))
    assert ends_as(old, applied_again(old, again)) == old


def test_a_change_of_what_the_author_decides_is_left_to_the_api_server() -> None:
    old = stored(MANIFESTS["an environment that is replaced"])
    new = copy.deepcopy(old)
    next(one for one in new["spec"]["containers"][0]["env"] if one["name"] == "A")["value"] = "2"
    assert update(old, new).patch == []
    own = stored(MANIFESTS["CPUs of its own"])
    shown = copy.deepcopy(own)
    shown["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert update(own, shown).patch == []


def test_a_changed_sharing_is_not_put_back() -> None:
    old = stored(MANIFESTS["containers that share a card"])
    for text in (json.dumps({"gpu": {"users": ["a", "b"], "slot": 30}}), json.dumps({"gpu": {"users": ["a"]}}), "{"):
        new = copy.deepcopy(old)
        new["metadata"]["annotations"][DEVICE_SHARING] = text
        assert update(old, new).patch == []
        assert not WEBHOOKS.validate(asks(new, old=old, operation="UPDATE")).allowed


def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    old = pod(gpus("1"), schedulerName="default-scheduler", annotations={ORIGINAL_REQUEST: "{}"})
    assert update(old, pod(gpus("2"))) == update(old, old)
    assert update(old, pod(gpus("2"))).patch == ()


def test_an_annotation_that_cannot_be_read_puts_nothing_back() -> None:
    for text in ("{", "[]", '{"main":1}', '{"main":{"limits":[]}}', '{"main":{"limits":{"nvidia.com/gpu":{}}}}'):
        old = stored(pod(gpus("1")))
        old["metadata"]["annotations"][ORIGINAL_REQUEST] = text
        new = applied_again(old, pod(gpus("1")))
        assert not update(old, new).allowed


def test_an_author_reads_again_that_another_scheduler_was_replaced() -> None:
    manifest = MANIFESTS["a scheduler that is replaced"]
    old = stored(manifest)
    (told,) = update(old, applied_again(old, manifest)).warnings
    assert told.startswith("spec.schedulerName: volcano replaced by koord-scheduler")
