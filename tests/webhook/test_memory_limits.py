"""Pods whose memory limits must be kept, through admission and binding: who must have them, and what is written."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from builders import container, pod
from sharings import uses
from world import POLICY, SCHEDULER, asks

from allocator.vocabulary.delivery import LimitProvider
from allocator.vocabulary.names import ISOLATION_PROVIDER, LIMITS
from webhook import patch
from webhook.admission.limits import LimitPolicy
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy, translate
from webhook.review import Response
from webhook.settings import LimitSettings, WebhookSettings, parse, types_of

Raw = dict[str, Any]
VARIABLES = {
    f"NVIDIA_GPU_MEMORY_{what}{ending}": f"nvidia-gpu-memory-{what.lower()}.koordgate.io/"
    for what in ("REQUEST", "LIMIT")
    for ending in ("", "S")
}
BY_TOOLKIT = replace(POLICY, limits=LimitPolicy(LimitProvider.NVIDIA_TOOLKIT))
BY_OPERATOR = replace(POLICY, limits=LimitPolicy(LimitProvider.NVIDIA_FRACTIONS))
EVERYWHERE = replace(POLICY, limits=LimitPolicy(LimitProvider.NVIDIA_TOOLKIT, frozenset({"*"})))
HERE = replace(POLICY, limits=LimitPolicy(LimitProvider.NVIDIA_TOOLKIT, frozenset({"team", "default"})))
ELSEWHERE = replace(POLICY, limits=LimitPolicy(LimitProvider.NVIDIA_TOOLKIT, frozenset({"team"})))


def webhooks(policy: TranslationPolicy) -> PodWebhooks:
    return PodWebhooks(policy, SCHEDULER, lambda _pod: (0, 0))


def created(obj: Raw, policy: TranslationPolicy) -> Raw:
    """The Pod as both reviews let it through; a second translation changes nothing."""
    reviewed = webhooks(policy)
    mutated = reviewed.mutate(asks(obj))
    assert mutated.allowed, mutated.message
    made = patch.apply(obj, mutated.patch)
    judged = reviewed.validate(asks(made))
    assert judged.allowed, judged.message
    assert translate(made, policy, None, namespace="default").operations == ()
    return made


def requiring(*containers: Raw, said: str = "require", **about: Any) -> Raw:
    return pod(*containers, annotations={LIMITS: said}, **about)


def demanding(provider: str, *containers: Raw) -> Raw:
    return pod(*containers, labels={ISOLATION_PROVIDER: provider})


def variables(obj: Raw, name: str) -> dict[str, str]:
    """The variables of a container about limits -> the annotation that each reads."""
    specs = [*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]]
    (spec,) = [one for one in specs if one["name"] == name]
    return {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in spec.get("env", ())
        if entry["name"].startswith("NVIDIA_GPU_MEMORY")
    }


def read_by(name: str) -> dict[str, str]:
    return {variable: f"metadata.annotations['{prefix}{name}']" for variable, prefix in VARIABLES.items()}


def marked(obj: Raw) -> bool:
    return (obj["metadata"].get("annotations") or {}).get(LIMITS) == "require"


# --- who must have limits

WHOLE = uses("a", 100)
NIC = container("a", limits={"kubernetes.io/rdma": "50"})
ALL_MEMORY = container("a", limits={"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "100"})
BYTES = container("a", limits={"kubernetes.io/gpu-memory": "80Gi"})
# the Pod, the installation, and whether the Pod's limits must be kept
WHO: dict[str, tuple[Raw, TranslationPolicy, bool]] = {
    "its author asks for it": (requiring(uses("a", 50)), BY_TOOLKIT, True),
    "its author asks for it for a whole card": (requiring(WHOLE), BY_TOOLKIT, True),
    "its author says nothing": (pod(uses("a", 50)), BY_TOOLKIT, False),
    "its author leaves it empty": (requiring(uses("a", 50), said=""), BY_TOOLKIT, False),
    "its namespace": (pod(uses("a", 50)), HERE, True),
    "its namespace, left empty by its author": (requiring(uses("a", 50), said=""), HERE, True),
    "another namespace": (pod(uses("a", 50)), ELSEWHERE, False),
    "all namespaces": (pod(uses("a", 50)), EVERYWHERE, True),
    "a part in bytes": (pod(BYTES), EVERYWHERE, True),
    "a whole card, which nobody shares": (pod(WHOLE), EVERYWHERE, False),
    "all memory of a card, which nobody shares": (pod(ALL_MEMORY), EVERYWHERE, False),
    "one container of two takes a part": (pod(WHOLE, uses("b", 50)), EVERYWHERE, True),
    "no GPU": (pod(NIC), EVERYWHERE, False),
    "nothing": (pod(container("a")), EVERYWHERE, False),
}


@pytest.mark.parametrize(("obj", "policy", "must"), WHO.values(), ids=WHO)
def test_limits_must_be_kept_where_the_author_or_the_installation_says_so(
    obj: Raw,
    policy: TranslationPolicy,
    must: bool,  # noqa: FBT001
) -> None:
    made = created(obj, policy)
    assert marked(made) == must
    assert variables(made, "a") == (read_by("a") if must else {})


BY_ENFORCER = ("cgroup", "HAMi-core", "mps")


@pytest.mark.parametrize("named", [*LimitProvider, "of-another-product"])
@pytest.mark.parametrize("provider", LimitProvider)
def test_a_label_that_names_a_provider_of_the_enforcers_requires_limits_where_the_enforcer_keeps_them(
    named: str, provider: LimitProvider
) -> None:
    policy = replace(POLICY, limits=LimitPolicy(provider))
    must = named in BY_ENFORCER and provider in BY_ENFORCER
    assert marked(created(demanding(named, uses("a", 50)), policy)) == must
    assert not marked(created(demanding(named, WHOLE), policy))  # which nobody shares


def test_containers_with_gpus_alone_get_the_variables_in_both_spellings() -> None:
    nic = container("nic", limits=NIC["resources"]["limits"])
    made = created(pod(uses("a", 50), container("proxy"), nic, init=[uses("first", 100)]), EVERYWHERE)
    assert {name: variables(made, name) for name in ("first", "a", "proxy", "nic")} == {
        "first": read_by("first"),
        "a": read_by("a"),
        "proxy": {},
        "nic": {},
    }


@pytest.mark.parametrize("policy", [BY_OPERATOR, BY_TOOLKIT, POLICY])
def test_a_pod_that_asks_the_operator_itself_must_have_limits_where_the_operator_keeps_them(
    policy: TranslationPolicy,
) -> None:
    types = types_of(parse("dialects: {kai: {enabled: true}}"))
    asked = {"nvidia.com/container.a.gpu-memory.limit": "2Gi", "nvidia.com/container.a.gpu-memory.request": "1Gi"}
    made = created(pod(container("a"), annotations=asked), replace(policy, types=types))
    assert marked(made) == (policy is BY_OPERATOR)
    assert not marked(created(pod(container("a"), annotations={"nvidia.com/container.a": "x"}), policy))


def test_the_fractioning_operator_is_told_by_annotations_alone() -> None:
    made = created(requiring(uses("a", 50)), BY_OPERATOR)
    assert marked(made)
    assert variables(made, "a") == {}


def test_an_author_who_sets_the_variables_is_warned_and_they_are_replaced() -> None:
    for variable in VARIABLES:
        obj = requiring(uses("a", 50) | {"env": [{"name": variable, "value": "81920"}] * 2})
        response = webhooks(BY_TOOLKIT).mutate(asks(obj))
        assert any(f"{variable} was set by the author" in warning for warning in response.warnings)
        made = patch.apply(obj, response.patch)
        assert variables(made, "a") == read_by("a")
        assert [entry["name"] for entry in made["spec"]["containers"][0]["env"]].count(variable) == 1


# --- what is refused

LONG = "a" * 35
# the Pod, the installation, and what it is told
REFUSED: dict[str, tuple[Raw, TranslationPolicy, str]] = {
    "an unknown value": (
        requiring(uses("a", 50), said="off"),
        EVERYWHERE,
        "metadata.annotations[koordgate.io/limits]: 'off' is not known; write require, or remove it",
    ),
    "nothing keeps limits": (
        requiring(uses("a", 50)),
        POLICY,
        "nothing keeps memory limits in this installation (limits.provider is none): let an administrator set it",
    ),
    "less than a MiB": (
        pod(container("a", limits={"kubernetes.io/gpu-memory": "1048575"})),
        EVERYWHERE,
        "spec.containers[0].resources: less than 1 MiB of a card is too little for a memory limit; ask for 1Mi or more",
    ),
    "a name that is too long for an annotation of the operator's": (
        requiring(container("b"), uses(LONG, 50)),
        BY_OPERATOR,
        f"spec.containers[1].name: the name of container {LONG} is too long for the annotations that state",
    ),
}


@pytest.mark.parametrize(("obj", "policy", "told"), REFUSED.values(), ids=REFUSED)
def test_a_pod_whose_limits_nothing_can_keep_is_refused_by_both_reviews(
    obj: Raw, policy: TranslationPolicy, told: str
) -> None:
    mutated = webhooks(policy).mutate(asks(obj))
    assert (mutated.allowed, mutated.code) == (False, 422)
    assert told in mutated.message
    assert told in webhooks(policy).validate(asks(obj)).message


def test_limits_of_other_vendors_gpus_are_refused_and_their_whole_gpus_need_none() -> None:
    policy = replace(EVERYWHERE, types=types_of(parse("dialects: {amd: {enabled: true}}")))
    amd = container("a", limits={"amd.com/gpu": "1"})
    told = "only NVIDIA's GPUs have memory limits, and the Pod asks for amd; remove it"
    assert webhooks(policy).mutate(asks(requiring(amd))).message.endswith(told)
    assert not marked(created(pod(amd), policy))


def test_at_least_a_mib_and_names_that_fit_are_let_through() -> None:
    assert marked(created(pod(container("a", limits={"kubernetes.io/gpu-memory": "1Mi"})), EVERYWHERE))
    assert marked(created(requiring(uses(LONG[1:], 50)), BY_OPERATOR))
    assert marked(created(requiring(uses("a" * 63, 50)), BY_TOOLKIT))
    created(requiring(uses("a", 50), container(LONG)), BY_OPERATOR)  # which has no GPU


@pytest.mark.parametrize("lost", [LIMITS, *VARIABLES])
def test_what_another_webhook_took_away_is_missed(lost: str) -> None:
    made = created(pod(uses("a", 50)), EVERYWHERE)
    made["metadata"]["annotations"].pop(lost, None)
    env = made["spec"]["containers"][0]["env"]
    made["spec"]["containers"][0]["env"] = [entry for entry in env if entry["name"] != lost]
    told = "[koordgate.io/limits]: is missing" if lost == LIMITS else f"does not hold koordgate's {lost}"
    response = webhooks(EVERYWHERE).validate(asks(made))
    assert f"{told}: koordgate's mutating webhook did not see this Pod" in response.message


# --- changed

STATED = tuple(dict.fromkeys(VARIABLES.values()))


def changed(old: Raw, key: str, text: str | None, policy: TranslationPolicy = BY_TOOLKIT) -> Response:
    new = copy.deepcopy(old)
    new["metadata"].setdefault("annotations", {}).pop(key, None)
    new["metadata"]["annotations"] |= {} if text is None else {key: text}
    return webhooks(policy).validate(asks(new, old=old, operation="UPDATE"))


def test_whether_limits_must_be_kept_is_decided_when_the_pod_is_created() -> None:
    old = created(requiring(uses("a", 50)), BY_TOOLKIT)
    assert "is decided when the Pod is created; leave it unchanged" in changed(old, LIMITS, None).message
    assert not changed(created(pod(uses("a", 50)), BY_TOOLKIT), LIMITS, "require").allowed
    assert changed(old, "example.com/note", "x").allowed


@pytest.mark.parametrize("prefix", STATED)
def test_nobody_states_a_limit_but_the_bind(prefix: str) -> None:
    forged = pod(uses("a", 50), annotations={f"{prefix}a": "81920"})
    told = webhooks(BY_TOOLKIT).validate(asks(forged)).message
    assert f"metadata.annotations[{prefix}a]: is written by koordgate when the Pod is bound; remove it" in told
    for obj in (pod(uses("a", 50)), requiring(uses("a", 50))):
        assert "only the bind may write it" in changed(created(obj, BY_TOOLKIT), f"{prefix}a", "81920").message


@pytest.mark.parametrize("key", ["gpu-memory.limit", "gpu-memory.request", "gpus.devices", "gpu-compute.mode"])
def test_nobody_changes_what_the_operator_was_told_of_a_pod_whose_limits_must_be_kept(key: str) -> None:
    old = created(requiring(uses("a", 50)), BY_OPERATOR)
    assert "only the bind may write it" in changed(old, f"nvidia.com/container.a.{key}", "80Gi", BY_OPERATOR).message


# --- settings


def test_the_settings_say_where_limits_are_required() -> None:
    assert WebhookSettings().limits == LimitSettings(LimitProvider.NONE, ())
    read = parse('limits: {provider: nvidia-fractions, require: [team-a, "*"]}').limits
    assert read == LimitSettings(LimitProvider.NVIDIA_FRACTIONS, ("team-a", "*"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{provider: hami-core}", "limits.provider"),
        ("{require: ['*']}", "require is set and provider is none: name what keeps limits, or leave require empty"),
        ("{provider: nvidia-toolkit, require: [Team]}", "limits.require"),
        ("{provider: nvidia-toolkit, require: ['**']}", "limits.require"),
    ],
)
def test_settings_that_cannot_hold_are_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(f"limits: {text}")
