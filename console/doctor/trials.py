"""Dry-run requests that show what koordgate does with Pods and Bindings: what is sent, and what must come back (pure).

The API server calls webhooks and policies for a dry run as for any request, and stores nothing. One answer therefore
shows that the configuration, its scope, the certificates, the network and a replica work together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from typing import Any, Final

from allocator.request.express import express
from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.names import (
    DEFAULT_SCHEDULER,
    DEVICE_ALLOCATED,
    DOMAINS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    KUBERNETES_DOMAIN,
    NVIDIA_GPU,
    ORIGINAL_REQUEST,
    VISIBLE_DEVICES_ENV,
)
from webhook.settings import WebhookSettings, types_of

CONTAINER: Final = "main"
_IMAGE: Final = "registry.k8s.io/pause:3.10"
UNCALLED: Final = "failed calling webhook"
"""In the answer where a webhook that is Fail was not reached (k8s.io/apiserver, admission/plugin/webhook/errors)."""


def trial_pod(
    name: str,
    resources: Mapping[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    env: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Write a Pod that the strictest Pod security standard admits; the API server completes its name."""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": _IMAGE,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if env:
        container["env"] = env
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{name}-", "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
        },
    }


Raw = dict[str, Any]

NAME: Final = "koordgate-doctor"
_pod = partial(trial_pod, NAME)
_FORGED: Final = '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"1"}}]}'
_QOS: Final = "koordinator.sh/qosClass"
_WHOLE: Final = {NVIDIA_GPU: "1"}
_DOMAIN: Final = KUBERNETES_DOMAIN
# What a dialect may be able to say, the plainest first.
_ASKS: Final = (
    {f"{_DOMAIN}/{GPU_CORE}": "50", f"{_DOMAIN}/{GPU_MEMORY_RATIO}": "50"},
    _WHOLE,
    {f"{_DOMAIN}/{GPU_CORE}": "100", f"{_DOMAIN}/{GPU_MEMORY_RATIO}": "100"},  # of any vendor
    {f"{_DOMAIN}/{GPU_CORE}": "100", f"{_DOMAIN}/{GPU_MEMORY}": "8Gi"},
    {f"{_DOMAIN}/{GPU_MEMORY}": "8Gi"},
    {f"{_DOMAIN}/{GPU_CORE}": "50", f"{_DOMAIN}/{GPU_MEMORY}": "8Gi"},
)


class Expect(StrEnum):
    """What must become of a request."""

    TRANSLATED = "translated"
    UNTOUCHED = "left alone"
    REFUSED = "refused"
    ANSWERED = "answered"


class Came(Enum):
    """What came back."""

    STORED = "it would be stored"
    REFUSED = "it is refused"
    NO_RIGHT = "the user may not make the request"
    WEBHOOK_FAILED = "a webhook could not be called"
    NOT_THERE = "the object that it is about does not exist"
    NO_ANSWER = "the API server gave no usable answer"


@dataclass(frozen=True, slots=True)
class Trial:
    """One dry-run request."""

    about: str  # what it shows, for people
    expect: Expect  # what must become of it
    namespace: str  # where
    body: Raw  # the Pod or the Binding
    binding: bool = False  # the body is a Binding
    user: str = ""  # as whom it is sent; "" for the user of the command
    # words of which a refusal must have one, so that nobody else's refusal counts; none: any refusal
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What became of a trial."""

    trial: Trial
    came: Came
    message: str = ""  # of a refusal or a failure
    body: Mapping[str, Any] = field(default_factory=dict)  # the Pod as it would be stored


def plan(settings: WebhookSettings, namespace: str, actions: Mapping[str, str]) -> tuple[list[Trial], list[str]]:
    """List the trials of an installation, and the dialects that no trial can be written in.

    `namespace`: where Pods are tried that koordgate is to serve. `actions`: name of a ValidatingAdmissionPolicy of the
    chart -> its action.
    """
    types = types_of(settings)
    trials = list(_served(settings, namespace))
    untried = []
    for dialect in PEERS:
        chosen = settings.dialects.get(dialect.name)
        if chosen is None or not chosen.enabled:
            continue
        where = chosen.namespaces[0] if chosen.namespaces else namespace
        within = types.within(where)
        spoken = next((one for one in within.dialects if one.name == dialect.name), None)
        made = _in_dialect(spoken, within) if spoken is not None else None
        if made is None:
            untried.append(dialect.name)
        else:
            trials.append(Trial(f"a Pod in the dialect {dialect}", Expect.TRANSLATED, where, made))
    trials += _left_alone(settings, namespace)
    trials += _refused(settings, namespace, actions)
    return trials, untried


def _served(settings: WebhookSettings, namespace: str) -> Iterator[Trial]:
    yield Trial(f"a Pod that asks for {NVIDIA_GPU}", Expect.TRANSLATED, namespace, _pod(_WHOLE))
    for domain in DOMAINS:
        half = {f"{domain}/{GPU_CORE}": "50", f"{domain}/{GPU_MEMORY_RATIO}": "50"}
        yield Trial(f"a Pod that asks for {domain}/{GPU_CORE}", Expect.TRANSLATED, namespace, _pod(half))
    for own in settings.devices.types:
        amounts = {own.resource: "1"}
        yield Trial(f"a Pod that asks for {own.resource}", Expect.ANSWERED, namespace, _pod(amounts))
    pinned = _pod({"cpu": "1", "memory": "64Mi"}, labels={_QOS: "LSR"})
    yield Trial("a Pod with CPUs of its own", Expect.TRANSLATED, namespace, pinned)


def _left_alone(settings: WebhookSettings, namespace: str) -> Iterator[Trial]:
    yield Trial("a Pod that asks for nothing of koordgate's", Expect.UNTOUCHED, namespace, _pod({}))
    exempt = dict.fromkeys(("kube-system", settings.identity.namespace))
    for one in exempt:
        yield Trial(f"a Pod for a GPU in the exempt namespace {one}", Expect.UNTOUCHED, one, _pod(_WHOLE))


def _refused(settings: WebhookSettings, namespace: str, actions: Mapping[str, str]) -> Iterator[Trial]:
    forged = {DEVICE_ALLOCATED: _FORGED}
    body = _pod(_WHOLE, annotations=forged)
    words = ("koordgate", DEVICE_ALLOCATED)
    yield Trial("a Pod that claims to hold a device", Expect.REFUSED, namespace, body, by=words)
    if actions.get("koordgate-preset-node") == "Deny":
        body = _pod(_WHOLE, nodeName="koordgate-doctor")
        yield Trial(
            "a Pod for a GPU that names its node", Expect.REFUSED, namespace, body, by=("koordgate", "nodeName")
        )
    if actions.get("koordgate-visible-devices") == "Deny":
        body = _pod({}, env=[{"name": VISIBLE_DEVICES_ENV, "value": "all"}])
        words = ("koordgate", VISIBLE_DEVICES_ENV)
        yield Trial("a Pod that shows itself all cards", Expect.REFUSED, namespace, body, by=words)
    if actions.get("koordgate-bindings") == "Deny":
        about = "a Binding by another user that brings an allocation"
        words = ("koordgate", DEVICE_ALLOCATED)
        yield Trial(about, Expect.REFUSED, namespace, _binding(forged), binding=True, by=words)
    about = f"a Binding by {settings.scheduler.username}"
    yield Trial(about, Expect.ANSWERED, namespace, _binding(), binding=True, user=settings.scheduler.username)


def _in_dialect(dialect: Dialect, types: DeviceTypes) -> Raw | None:
    """Write a Pod in a dialect; None if it can say none of what is tried."""
    kind = types.by_name[dialect.type]
    for amounts in _ASKS:
        request = read_asks(_pod(dict(amounts)), types, implied=False).request
        made = express(request, dialect, kind, CONTAINER)
        if not made.missing and (made.resources or made.annotations):
            return _pod(made.resources.get(CONTAINER, {}), annotations=made.annotations)
    return None


def _binding(annotations: Mapping[str, str] | None = None) -> Raw:
    """A Binding of a Pod that does not exist, to a Node that does not exist."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": NAME, "annotations": dict(annotations or {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NAME},
    }


def translated_by(body: Mapping[str, Any], scheduler: str) -> bool:
    """Return whether a Pod, as it would be stored, is one of koordgate's."""
    return (body.get("spec") or {}).get("schedulerName") == scheduler


def untouched(body: Mapping[str, Any], scheduler: str) -> bool:
    """Return whether koordgate has changed nothing of a Pod."""
    noted = (body.get("metadata") or {}).get("annotations") or {}
    given = (body.get("spec") or {}).get("schedulerName", DEFAULT_SCHEDULER)
    return ORIGINAL_REQUEST not in noted and given != scheduler
