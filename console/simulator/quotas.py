"""Which ResourceQuota does not let a Pod be created, as the API server's plugin ResourceQuota decides (pure).

Quotas that name devices have a mirror in a cluster (`webhook.quotas.mirror`), which counts translated Pods. What the
mirror would limit is computed here by the same functions, from what the Pods that are there request.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allocator.amounts import CPU, PODS, amounts, pod_amounts, pod_charges
from allocator.vocabulary.names import is_quota_resource
from console.simulator.limitranges import limits_as_requests
from webhook.quotas.mirror import mirror_name, mirrored
from webhook.quotas.table import LimitTable

Raw = dict[str, Any]
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_PLAIN: Final = (CPU, "memory", "ephemeral-storage")
_MUST_STATE: Final = ("cpu", "memory")
_COUNTS: Final = ("pods", "count/pods")
_NOT_READ: Final = ("CrossNamespacePodAffinity", "VolumeAttributesClass")


@dataclass(slots=True)
class _Standing:
    """A Pod that counts.

    Attributes:
        pod: as it is.
        uses: what quotas count of it, by key of `spec.hard`, CPU in thousandths.
        quotas: in whose scope it is, and which count it.
    """

    pod: Mapping[str, Any]
    uses: Mapping[str, int]
    quotas: "list[_Quota]" = field(default_factory=list)


@dataclass(slots=True)
class _Quota:
    """A quota.

    Attributes:
        name: its name in its namespace.
        hard: what it limits, by key, CPU in thousandths.
        spec: as it is.
        used: what the Pods in its scope use, by key.
    """

    name: str
    hard: Mapping[str, int]
    spec: Mapping[str, Any]
    used: Counter[str] = field(default_factory=Counter)

    def count(self, pod: _Standing) -> None:
        """Count a Pod, if it is in scope."""
        if _matches(pod.pod, self.spec):
            self.used.update(pod.uses)
            pod.quotas.append(self)


@dataclass(slots=True)
class QuotaPlugin:
    """The quotas of all namespaces, and what Pods use of them.

    Attributes:
        table: the quotas that name devices, and the mirrors of an installation.
        written: device resources that translated Pods still state (`webhook.quotas.mirror.written_names`).
        mirrors: whether quotas that name devices get a mirror.
    """

    table: LimitTable
    written: frozenset[str]
    mirrors: bool
    _quotas: dict[str, dict[str, _Quota]] = field(default_factory=dict)
    _pods: dict[str, dict[str, _Standing]] = field(default_factory=dict)

    def put_quota(self, obj: Mapping[str, Any]) -> Iterator[str]:
        """A ResourceQuota is there, before all Pods that it counts; says what of it is not read, a sentence each.

        Raises:
            BadQuantityError: a limit is no quantity.
        """
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        name = f"{metadata['namespace']}/{metadata['name']}"
        hard: dict[str, int] = {}
        for key, quantity in (spec.get("hard") or {}).items():
            of = _resource(key)
            if of or key in _COUNTS:
                hard[key] = amounts({of or PODS: quantity}, f"ResourceQuota {name}: spec.hard")[of or PODS]
        unread = sorted({scope for scope, _, _ in _scopes(spec)}.intersection(_NOT_READ))
        if unread:
            yield f"ResourceQuota {name} is not used: its scope {unread[0]} is not read here"
            return
        self._quotas.setdefault(metadata["namespace"], {})[metadata["name"]] = _Quota(metadata["name"], hard, spec)

    def put(self, pod: Mapping[str, Any], *, ended: bool) -> None:
        """A Pod is there; one that has ended uses nothing."""
        metadata = pod["metadata"]
        quotas = self._quotas.get(metadata["namespace"])
        if not quotas:
            return
        self.drop(pod)
        if not ended:
            new = _Standing(pod, _uses(pod["spec"]))
            self._pods.setdefault(metadata["namespace"], {})[metadata["uid"]] = new
            for quota in quotas.values():
                quota.count(new)

    def drop(self, pod: Mapping[str, Any]) -> None:
        """A Pod is gone."""
        known = self._pods.get(pod["metadata"]["namespace"], {}).pop(pod["metadata"]["uid"], None)
        if known is not None:
            for quota in known.quotas:
                quota.used.subtract(known.uses)

    def refusal(self, pod: Mapping[str, Any]) -> str:
        """Why a Pod, as translated, cannot be created; "" if it can.

        Raises:
            BadQuantityError: an amount is no quantity.
        """
        namespace = pod["metadata"]["namespace"]
        quotas = self._quotas.get(namespace)
        if not quotas:
            return ""
        asks = _uses(pod["spec"])
        for name, quota in sorted(quotas.items()):
            if not _matches(pod, quota.spec):
                continue
            used = quota.used
            missing = _unstated(pod["spec"], quota.hard)
            if missing:
                return f"failed quota: {name}: must specify {','.join(missing)}"
            limits = [(name, key, most) for key, most in sorted(quota.hard.items())]
            mirror = self._mirror(namespace, quota, used)
            limits += [(mirror_name(name), key, most) for key, most in sorted(mirror.items())]
            for of, key, most in limits:
                ask = asks.get(key, 0)
                if ask and used[key] + ask > most:
                    return (
                        f"exceeded quota: {of}, requested: {key}={_told(key, ask)}, used: "
                        f"{key}={_told(key, used[key])}, limited: {key}={_told(key, most)}"
                    )
        return ""

    def _mirror(self, namespace: str, quota: _Quota, used: Counter[str]) -> dict[str, int]:
        """What the mirror of a quota limits, given what the quota itself counts of Pods that are not translated."""
        known = self.table.quota((namespace, quota.name))
        if known is None or known.mirror or not self.mirrors:
            return {}
        counted = {key: str(used[key]) for key in known.hard}
        limits = mirrored(replace(known, used=counted), self.table.within(namespace), self.written)
        return {f"{_REQUESTS}{resource}": most for resource, most in limits.items()}


def _uses(spec: Mapping[str, Any]) -> dict[str, int]:
    requests, limits = pod_amounts(spec), pod_amounts(limits_as_requests(spec))
    uses = dict.fromkeys(_COUNTS, 1)
    for name, amount in {**requests, **pod_charges(spec)}.items():
        if name != PODS:
            uses[_REQUESTS + name] = amount
            if name in _PLAIN or name.startswith("hugepages-"):
                uses[name] = amount
    uses |= {_LIMITS + name: amount for name, amount in limits.items() if name != PODS}
    return uses


def _resource(key: str) -> str:
    """The resource that a key of `spec.hard` limits; "" if it is none that Pods use."""
    for prefix in (_REQUESTS, _LIMITS):
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return key if key in _PLAIN or key.startswith("hugepages-") else ""


def _unstated(spec: Mapping[str, Any], hard: Mapping[str, int]) -> list[str]:
    """What each container must state because a quota limits it."""
    found = []
    for key in sorted(hard):
        name, of = _resource(key), "limits" if key.startswith(_LIMITS) else "requests"
        if name not in _MUST_STATE or name in ((spec.get("resources") or {}).get(of) or {}):
            continue
        if any(not ((one.get("resources") or {}).get(of) or {}).get(name) for one in spec["containers"]):
            found.append(key)
    return found


def _scopes(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The scopes of a quota: name, operator and values."""
    for scope in spec.get("scopes") or ():
        yield str(scope), "Exists", ()
    for one in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        yield str(one["scopeName"]), str(one["operator"]), tuple(one.get("values") or ())


def _matches(pod: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    return all(_in_scope(pod["spec"], *scope) for scope in _scopes(spec))


def _in_scope(spec: Mapping[str, Any], scope: str, operator: str, values: tuple[str, ...]) -> bool:
    match scope:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _best_effort(spec)
        case "NotBestEffort":
            return not _best_effort(spec)
        case "PriorityClass":
            return _has_class(spec.get("priorityClassName") or "", operator, values)
        case _:
            return False


def _has_class(name: str, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
        case _:
            return False


def _best_effort(spec: Mapping[str, Any]) -> bool:
    """Whether no container requests or limits CPU or memory."""
    for one in (*(spec.get("initContainers") or ()), *spec["containers"], spec):
        resources = one.get("resources") or {}
        if any(name in _MUST_STATE for key in ("requests", "limits") for name in resources.get(key) or {}):
            return False
    return True


def _told(key: str, amount: int) -> str:
    if _resource(key) == CPU and not is_quota_resource(key):
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return str(amount)
