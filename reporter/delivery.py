"""What is told of the node's container runtime (pure): one answer from its files, the Node and the GPU Operator."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.delivery import NodeRuntime
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError, NotFound
from koordgate.kube.resource import CLUSTER_POLICIES
from reporter.runtimefiles import (
    OPERATORS,
    UNTOLD,
    Engine,
    NvidiaConfiguration,
    OperatorPolicy,
    RuntimeReading,
    is_name,
    table,
)

_VERSION: Final = re.compile(r"v?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?:[-+].*)?", re.ASCII)
_MAX_POLICIES: Final = "16"  # the operator heeds one, and marks the others as ignored


async def ask_operator(kube: KubeClient, before: OperatorPolicy = UNTOLD) -> OperatorPolicy:
    """Read the ClusterPolicy.

    `before`: what was read last, which is kept while the API server does not answer.
    """
    try:
        return operator_policy((await kube.get(CLUSTER_POLICIES.path(), params={"limit": _MAX_POLICIES})).get("items"))
    except (NotFound, Forbidden):
        return UNTOLD
    except KubeError:
        return before


def operator_policy(items: object) -> OperatorPolicy:
    """Read the ClusterPolicy that counts (pure), of a list of them; nothing is known of what makes no sense."""
    for one in items if isinstance(items, list) else ():
        if isinstance(one, dict) and table(one.get("status")).get("state") != "ignored":
            spec, metadata = table(one.get("spec")), table(one.get("metadata"))
            cdi, toolkit = table(spec.get("cdi")), table(spec.get("toolkit"))
            return OperatorPolicy(
                cdi=_flag(cdi.get("enabled")),
                nri=_flag(cdi.get("nriPluginEnabled", False)),  # operators before 26.3 do not have it
                brings_toolkit=_flag(toolkit.get("enabled", True)),
                toolkit=read_version(toolkit.get("version")),
                version=read_version(table(metadata.get("labels")).get("app.kubernetes.io/version")),
            )
    return UNTOLD


def read_version(text: object) -> tuple[int, ...]:
    """Read a version, as v1.18.1 or v1.18.1-ubi8; empty if it is none, for example a digest."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    return tuple(map(int, match[1].split("."))) if match else ()


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_PREFERRED: Final = ("k8s.device-plugin.nvidia.com/gpu", "nvidia.com/gpu")
_MANAGEMENT: Final = "management.nvidia.com/gpu"  # written by the GPU Operator; closed to most namespaces
_CDI_BY_DEFAULT: Final = (25, 10)  # the operator's version since which NVIDIA's runtime is not made the default
_CDI_BY_DEFAULT_TOOLKIT: Final = (1, 18)  # which that one brings
_LIMITS_SINCE: Final = (1, 20, 1)
_K3S: Final = "-k3s"  # in the version of the containerd that k3s and RKE2 bring
_RANCHER: Final = "/rancher/"
_FRACTIONS: Final = "gpu-sharing.nvidia.com/Ready"
_LIMITS_CURE: Final = "NVIDIA Container Toolkit 1.20.1 or later"
_MAX_LISTED: Final = 64  # of one list


@dataclass(frozen=True, slots=True)
class CardsThere:
    """What delivery must know of the node's cards."""

    names: frozenset[str] = frozenset()  # UUIDs of the cards that are not in MIG mode, and of all MIG devices
    mig: bool = False  # whether a card is in MIG mode
    limits: bool | None = None  # whether the driver keeps memory limits by cgroup; None if that is not known


def node_runtime(
    reading: RuntimeReading, node: Mapping[str, Any], policy: OperatorPolicy, cards: CardsThere, own_handler: str = ""
) -> NodeRuntime:
    """Tell what the node's container runtime can do; what does not follow from anything stays unknown.

    `node`: the Node object; empty if it is not known. `own_handler`: the runtime handler of the reporter's own
    container; "" for the default one.
    """
    status = table(node.get("status"))
    engine = _engine(reading.engines, status)
    found = _configuration(reading.nvidia, engine, policy)
    listed = (table(one).get("name") for one in _listed(status, "runtimeHandlers"))
    handlers = tuple(name for name in listed if is_name(name))
    kinds = _kinds(reading, cards.names)
    hooks = {spec.kind for spec in reading.specs if spec.limits}
    toolkit = policy.toolkit if policy.brings_toolkit else ()
    toolkit = toolkit or (_LIMITS_SINCE if hooks else ())
    showing = {*(engine.showing if engine else ()), *((own_handler,) if own_handler and reading.own else ())}
    unprivileged = found.unprivileged if found else True if reading.own else None
    mode = found.mode if found else "cdi" if _is_cdi(reading, policy) else ""
    return NodeRuntime(
        handlers=handlers[:_MAX_LISTED],
        showing=tuple(sorted(showing))[:_MAX_LISTED],
        default_shows=_default_shows(reading, engine, policy, own_handler, deaf=unprivileged is False),
        kinds=kinds,
        nri=policy.nri,
        toolkit=toolkit,
        mode=mode,
        unprivileged=unprivileged,
        fractions=any(
            table(one).get("type") == _FRACTIONS and table(one).get("status") == "True"
            for one in _listed(status, "conditions")
        ),
        no_limits=no_limits(
            cards,
            cgroup2=reading.cgroup2,
            mode=mode,
            toolkit=toolkit,
            hook=kinds[0] in hooks if kinds and policy.nri else None,
        ),
    )


def takes_mounts(reading: RuntimeReading, node: Mapping[str, Any], policy: OperatorPolicy) -> bool:
    """Whether NVIDIA's runtime is known to show the cards of mounts below /var/run/nvidia-container-devices."""
    found = _configuration(reading.nvidia, _engine(reading.engines, table(node.get("status"))), policy)
    return found is not None and found.mounts


def shown_nothing(reading: RuntimeReading, own_handler: str) -> str:
    """Why the reporter itself sees no card, and the cure; "" if it does, or if nothing follows from that."""
    if reading.own is not False:
        return ""
    if own_handler:
        return (
            f"the runtime handler {own_handler} shows the reporter's container no card: correct "
            "reporter.gpus.runtimeClassName, or configure NVIDIA's runtime on this node"
        )
    return (
        "the node's default runtime shows the reporter's container no card: set reporter.gpus.runtimeClassName to a "
        "RuntimeClass that does; if NVIDIA's runtime became the default since, delete this Pod"
    )


def no_limits(
    cards: CardsThere, *, cgroup2: bool, mode: str, toolkit: tuple[int, ...], hook: bool | None
) -> str | None:
    """Why memory limits are not kept on a node, and the cure, as a part of a sentence about it.

    `mode`: of NVIDIA's runtime; "" if that is not known. `toolkit`: version of the NVIDIA Container Toolkit; empty if
    that is not known. `hook`: whether the CDI specification, from which cards come, has the hook that sets limits; None
    if they come from no file. Returns "" if they are kept, None if that is not known.
    """
    reasons = {
        "it has NVIDIA's runtime in mode legacy, which sets no memory limits: set its mode to auto": mode == "legacy",
        f"it has NVIDIA Container Toolkit {'.'.join(map(str, toolkit))}, which sets no memory limits: install "
        f"{_LIMITS_CURE}": bool(toolkit) and toolkit < _LIMITS_SINCE,
        f"it has a CDI specification without the hook that sets memory limits: have it written by {_LIMITS_CURE}": hook
        is False,
    }
    why = of_driver(cards, cgroup2=cgroup2) or next((reason for reason, holds in reasons.items() if holds), "")
    return why or ("" if cards.limits and (toolkit or hook) else None)


def of_driver(cards: CardsThere, *, cgroup2: bool) -> str:
    """Why a node's driver keeps no memory limits, and the cure; "" if it does, or if nothing speaks against it."""
    reasons = {
        "it has cgroup v1, with which the driver keeps no memory limits: start it with cgroup v2": not cgroup2,
        "it has a card in MIG mode, whose memory the driver does not limit further: turn MIG mode off there": cards.mig,
        "it has a driver that keeps no memory limits: install R615 or later": cards.limits is False,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _engine(engines: Mapping[str, Engine | None], status: Mapping[str, Any]) -> Engine | None:
    """The configuration of the runtime that the kubelet names; None if there is none, or several that differ."""
    version = _text(table(status.get("nodeInfo")).get("containerRuntimeVersion"))
    wanted = "/crio" if version.startswith("cri-o") else "/containerd"
    found = [
        engine
        for folder, engine in engines.items()
        if folder.endswith(wanted) and (_RANCHER in folder) == (_K3S in version)
    ]
    return found[0] if found and all(one == found[0] for one in found) else None


def _configuration(
    found: Mapping[str, NvidiaConfiguration], engine: Engine | None, policy: OperatorPolicy
) -> NvidiaConfiguration | None:
    """The configuration of the NVIDIA runtime in use: the operator's own, or that of packages."""
    operators = engine.operators if engine else None
    if operators is None:
        operators = policy.brings_toolkit
    fitting = [one for folder, one in found.items() if operators is None or folder.startswith(OPERATORS) == operators]
    return fitting[0] if fitting and all(one == fitting[0] for one in fitting) else None


def _default_shows(
    reading: RuntimeReading, engine: Engine | None, policy: OperatorPolicy, own_handler: str, *, deaf: bool
) -> bool | None:
    """Whether the default runtime is NVIDIA's: by what our container was shown, its configuration, the operator.

    A runtime that is NVIDIA's and ignores the variable of unprivileged containers shows our container nothing either.
    """
    if reading.own is not None and not own_handler and not (deaf and not reading.own):
        return reading.own
    stated = engine.default_shows if engine else None
    if stated is None and policy.brings_toolkit and policy.cdi and _is_new(policy):
        return False
    return stated


def _is_new(policy: OperatorPolicy) -> bool:
    """Whether the operator leaves the default runtime alone."""
    if policy.version:
        return policy.version >= _CDI_BY_DEFAULT
    return policy.toolkit >= _CDI_BY_DEFAULT_TOOLKIT


def _is_cdi(reading: RuntimeReading, policy: OperatorPolicy) -> bool:
    """Whether the operator runs NVIDIA's runtime in mode cdi: it does with CDI on, and writes a kind of its own."""
    by_policy = policy.brings_toolkit and policy.cdi and _is_new(policy)
    return bool(by_policy) or any(spec.kind == _MANAGEMENT for spec in reading.specs)


def _kinds(reading: RuntimeReading, names: frozenset[str]) -> tuple[str, ...]:
    """The kinds that have all of these names, the preferred one first."""
    known: dict[str, frozenset[str]] = {}
    for spec in reading.specs:
        known[spec.kind] = known.get(spec.kind, frozenset()) | spec.names
    whole = [kind for kind, has in known.items() if names and names <= has and kind != _MANAGEMENT]
    return tuple(sorted(whole, key=lambda kind: (kind not in _PREFERRED, kind != _PREFERRED[0], kind)))[:_MAX_LISTED]


def _listed(holder: Mapping[str, Any], key: str) -> Iterable[object]:
    value = holder.get(key)
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
