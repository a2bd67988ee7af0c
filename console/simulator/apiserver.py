"""What the API server does before and after admission: defaults, LimitRanges, quotas, priorities and RuntimeClasses.

Defaults are written before koordgate's webhooks see the Pod, bounds are checked after them. Bounds on devices that
koordgate translates are the webhook's own business (`webhook.quotas.limits`).

Quotas that name devices have a mirror in a cluster (`webhook.quotas.mirror`), which counts translated Pods. What the
mirror would limit is computed here by the same functions, from what the Pods that are there request.

The source of the rules is Kubernetes, plugin/pkg/admission/priority.

The source of the rules is Kubernetes, plugin/pkg/admission/runtimeclass.
"""

import base64
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

import orjson

from allocator.amounts import CPU, PODS, BadQuantityError, amounts, pod_amounts, pod_charges
from allocator.quantity import QuantityError, parse
from allocator.vocabulary.names import DEFAULT_SCHEDULER, RESOURCE_MAPS, is_quota_resource
from allocator.wire import gang
from webhook import patch
from webhook.assembly import Parts
from webhook.quotas.limits import defaults_of
from webhook.quotas.mirror import mirror_name, mirrored, written_names
from webhook.quotas.table import LimitTable, QuotaFeed, RangeFeed
from webhook.review import API_VERSION
from webhook.view.cluster import ClusterView
from webhook.view.feed import Complain, RuntimeClassFeed
from webhook.view.namespaces import NamespaceFeed
from webhook.view.quotascopes import in_scopes, read_scope, scopes_of

Raw = dict[str, Any]

AUTHOR: Final = "offline-author"
_UIDS: Final = uuid.UUID("6b6f6f72-6467-5174-8065-6f66666c696e")  # any constant: the same name, the same UID
_NAMESPACED: Final = frozenset({"Pod", gang.KIND, "ResourceClaim", "LimitRange", "ResourceQuota"})
_RESOURCES: Final = {"Pod": ("pods", ""), "Binding": ("pods", "binding")}


def uid(kind: str, namespace: str, name: str) -> str:
    """Make a UID for an object that has none; the same for the same kind, namespace and name."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{namespace}/{name}"))


def copied(obj: Mapping[str, Any]) -> Raw:
    """Copy an object, all of which is JSON: by JSON, ten times as fast as a copy of each part."""
    made: Raw = orjson.loads(orjson.dumps(obj, option=orjson.OPT_NON_STR_KEYS))
    return made


def with_defaults(obj: Mapping[str, Any]) -> Raw:
    """Copy an object, with those defaults of the API server that are read here."""
    made = copied(obj)
    metadata = made["metadata"]
    if made["kind"] in _NAMESPACED:
        metadata["namespace"] = metadata.get("namespace") or "default"
    if made["kind"] != "Pod":
        metadata["uid"] = metadata.get("uid") or uid(made["kind"], metadata.get("namespace", ""), metadata["name"])
        metadata["resourceVersion"] = metadata.get("resourceVersion") or "1"
        return made
    metadata["uid"] = metadata.get("uid") or uid("Pod", metadata["namespace"], metadata["name"])
    spec = made["spec"]
    spec["schedulerName"] = spec.get("schedulerName") or DEFAULT_SCHEDULER
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        for key in RESOURCE_MAPS:
            if resources.get(key):
                resources[key] = dict(sorted(resources[key].items()))  # as Go writes a map
    return made


def binding(pod: Mapping[str, Any], node: str) -> Raw:
    """Write the Binding that a scheduler creates for a Pod."""
    metadata = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def bound(pod: Mapping[str, Any], by: Mapping[str, Any]) -> Raw:
    """Apply a Binding to a Pod: its node, annotations and labels. The rest is shared with the Pod as it was."""
    metadata = pod["metadata"]
    for key in ("annotations", "labels"):
        carried = by["metadata"].get(key)
        if carried:
            metadata = {**metadata, key: {**(metadata.get(key) or {}), **carried}}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "nodeName": by["target"]["name"]}}


def review(obj: Mapping[str, Any], path: str, username: str, groups: Sequence[str] = ()) -> Raw:
    """Write the AdmissionReview that the API server sends when a Pod or Binding is created."""
    resource, subresource = _RESOURCES[obj["kind"]]
    metadata = obj["metadata"]
    kind = {"group": "", "version": "v1", "kind": obj["kind"]}
    request = {
        "uid": uid(path, metadata["namespace"], metadata["name"]),
        "kind": kind,
        "resource": {"group": "", "version": "v1", "resource": resource},
        "subResource": subresource,
        "requestKind": kind,
        "requestResource": {"group": "", "version": "v1", "resource": resource},
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "operation": "CREATE",
        "userInfo": {"username": username, "groups": [*groups, "system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """The answer to a review.

    `refusal` is "" if the object is admitted, and `object` is then patched.
    """

    refusal: str
    object: Raw
    warnings: tuple[str, ...] = ()


def verdict(obj: Mapping[str, Any], answer: Mapping[str, Any]) -> ReviewVerdict:
    """Read the answer to a review of this object, and apply its patch.

    Raises:
        ValueError: `answer` is not the answer to a review.
    """
    response = answer.get("response")
    if not isinstance(response, Mapping):
        raise ValueError(f"not the answer to an AdmissionReview: {str(answer)[:200]}")  # noqa: TRY004 - the other side's mistake
    warnings = tuple(response.get("warnings") or ())
    if not response.get("allowed"):
        refusal = (response.get("status") or {}).get("message") or "refused without a message"
        return ReviewVerdict(refusal, dict(obj), warnings)
    text = response.get("patch")
    operations = orjson.loads(base64.b64decode(text)) if text else ()
    return ReviewVerdict("", patch.apply(obj, operations), warnings)


Limit = Mapping[str, Any]
_MILLI: Final = 1000


class AddedDefault(NamedTuple):
    """An amount that a container has from a LimitRange.

    `by` is the name of the LimitRange.
    """

    container: str
    resource: str
    amount: str
    by: str


def write_defaults(pod: Raw, ranges: Mapping[str, Iterable[Limit]]) -> list[AddedDefault]:
    """Write the defaults of a namespace's LimitRanges into a Pod's containers.

    Args:
        pod: is changed.
        ranges: `spec.limits` of the LimitRanges by their names, in the order of these.

    Returns:
        What was written, each resource of a container once.
    """
    limit_of: dict[str, tuple[Any, str]] = {}  # resource -> amount and LimitRange
    request_of: dict[str, tuple[Any, str]] = {}  # a default limit is a default request too
    for by, limits in ranges.items():
        for limit in limits:
            of_limits, of_requests = defaults_of(limit)
            limit_of |= {name: (amount, by) for name, amount in of_limits.items()}
            request_of |= {name: (amount, by) for name, amount in of_requests.items()}
    added: list[AddedDefault] = []
    for container in _containers(pod["spec"]) if request_of else ():
        own = container.get("resources") or {}
        resources = container["resources"] = {**own}
        missing: dict[str, tuple[Any, str]] = {}
        for key, default in (("requests", request_of), ("limits", limit_of)):
            stated = resources.get(key) or {}
            given = {name: found for name, found in default.items() if name not in stated}
            if default:
                resources[key] = {**{name: amount for name, (amount, _) in given.items()}, **stated}
            missing |= given
        added += (AddedDefault(container["name"], name, str(amount), by) for name, (amount, by) in missing.items())
    return added


def beyond(pod: Mapping[str, Any], limits: Iterable[Limit]) -> Iterator[str]:
    """Find where a Pod is outside the bounds of its namespace, a sentence each, in Kubernetes' words.

    Raises:
        QuantityError: an amount is no quantity.
        BadQuantityError: likewise.
    """
    spec = pod["spec"]
    for limit in limits:
        match limit.get("type"):
            case "Container":
                for container in _containers(spec):
                    resources = container.get("resources") or {}
                    yield from _outside(limit, *(_read(resources.get(key)) for key in ("requests", "limits")))
            case "Pod":
                yield from _outside(limit, _sum(spec), _sum(limits_as_requests(spec)))
            case _:
                pass


def _outside(limit: Limit, requests: Mapping[str, Fraction], limits: Mapping[str, Fraction]) -> Iterator[str]:
    of = limit["type"]
    for name, quantity in sorted((limit.get("min") or {}).items()):
        if name not in requests:
            yield f"minimum {name} usage per {of} is {quantity}.  No request is specified"
        elif requests[name] < parse(quantity):
            yield f"minimum {name} usage per {of} is {quantity}, but request is {_told(requests[name])}"
    for name, quantity in sorted((limit.get("max") or {}).items()):
        if name not in limits:
            yield f"maximum {name} usage per {of} is {quantity}.  No limit is specified"
        elif limits[name] > parse(quantity):
            yield f"maximum {name} usage per {of} is {quantity}, but limit is {_told(limits[name])}"
    for name, quantity in sorted((limit.get("maxLimitRequestRatio") or {}).items()):
        asked, most = requests.get(name, Fraction()), limits.get(name, Fraction())
        if not asked or not most:
            yield f"{name} max limit to request ratio per {of} is {quantity}, but no request or no limit is specified"
        elif most / asked > parse(quantity):
            ratio = float(most / asked)
            yield f"{name} max limit to request ratio per {of} is {quantity}, but provided ratio is {ratio:.6f}"


def _sum(spec: Mapping[str, Any]) -> dict[str, Fraction]:
    """What all containers request in sum, as the scheduler counts it."""
    sums = {name: Fraction(amount) for name, amount in pod_amounts(spec).items()}
    if "cpu" in sums:
        sums["cpu"] /= _MILLI
    return sums


def limits_as_requests(spec: Mapping[str, Any]) -> Raw:
    """Copy the part of a Pod's spec that states amounts, with its limits in place of its requests."""

    def turned(holder: Mapping[str, Any]) -> Raw:
        limits = (holder.get("resources") or {}).get("limits")
        return {**holder, "resources": {"requests": limits or {}}}

    made = {key: [turned(one) for one in spec.get(key) or ()] for key in ("initContainers", "containers")}
    whole = {"resources": {"requests": spec["resources"].get("limits") or {}}} if spec.get("resources") else {}
    return {**made, **whole, "overhead": spec.get("overhead")}


def _containers(spec: Mapping[str, Any]) -> Iterator[Raw]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _read(amounts: Mapping[str, Any] | None) -> dict[str, Fraction]:
    return {name: parse(quantity) for name, quantity in (amounts or {}).items()}


def _told(amount: Fraction) -> str:
    whole, rest = divmod(amount.numerator, amount.denominator)
    return f"{math.floor(amount * _MILLI)}m" if rest else str(whole)


_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_PLAIN: Final = (CPU, "memory", "ephemeral-storage")
_MUST_STATE: Final = ("cpu", "memory")
_COUNTS: Final = ("pods", "count/pods")
_NOT_READ: Final = ("CrossNamespacePodAffinity", "VolumeAttributesClass")


@dataclass(frozen=True, slots=True)
class _Quota:
    """A quota.

    `hard` and `used` are amounts by key of `spec.hard`, CPU in thousandths.
    """

    name: str
    hard: Mapping[str, int]
    spec: Mapping[str, Any]
    used: Counter[str] = field(default_factory=Counter)


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
    # UID of a Pod -> what it uses by key of `spec.hard`, CPU in thousandths, and the quotas that count it.
    _counted: dict[str, tuple[Mapping[str, int], Sequence[_Quota]]] = field(default_factory=dict)

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
        unread = sorted({scope for scope, _, _ in scopes_of(spec)}.intersection(_NOT_READ))
        if unread:
            yield f"ResourceQuota {name} is not used: its scope {unread[0]} is not read here"
            return
        self._quotas.setdefault(metadata["namespace"], {})[metadata["name"]] = _Quota(metadata["name"], hard, spec)

    def put(self, pod: Mapping[str, Any], *, ended: bool) -> None:
        """A Pod is there; one that has ended uses nothing."""
        quotas = self._quotas.get(pod["metadata"]["namespace"])
        if not quotas:
            return
        self.drop(pod)
        if not ended:
            scope = read_scope(pod["spec"])
            uses, counting = _uses(pod["spec"]), [one for one in quotas.values() if in_scopes(scope, one.spec)]
            self._counted[pod["metadata"]["uid"]] = uses, counting
            for quota in counting:
                quota.used.update(uses)

    def drop(self, pod: Mapping[str, Any]) -> None:
        """A Pod is gone."""
        uses, counting = self._counted.pop(pod["metadata"]["uid"], ({}, ()))
        for quota in counting:
            quota.used.subtract(uses)

    def refusal(self, pod: Mapping[str, Any]) -> str:
        """Why a Pod, as translated, cannot be created; "" if it can.

        Raises:
            BadQuantityError: an amount is no quantity.
        """
        namespace = pod["metadata"]["namespace"]
        quotas = self._quotas.get(namespace)
        if not quotas:
            return ""
        asks, scope = _uses(pod["spec"]), read_scope(pod["spec"])
        for name, quota in sorted(quotas.items()):
            if not in_scopes(scope, quota.spec):
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
                        f"exceeded quota: {of}, requested: {key}={_amount_in_words(key, ask)}, used: "
                        f"{key}={_amount_in_words(key, used[key])}, limited: {key}={_amount_in_words(key, most)}"
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


def _amount_in_words(key: str, amount: int) -> str:
    if _resource(key) == CPU and not is_quota_resource(key):
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return str(amount)


PRIORITY_CLASS: Final = "PriorityClass"
_SYSTEM: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Priorities:
    """The PriorityClasses of a cluster."""

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._classes: dict[str, Mapping[str, Any]] = {}
        self._unknown: set[str] = set()

    def put(self, obj: Mapping[str, Any]) -> None:
        """A PriorityClass is there."""
        self._classes[obj["metadata"]["name"]] = obj

    def write(self, pod: Raw) -> str:
        """Write the priority of its class, or of the default class, into a new Pod.

        Returns:
            Why the API server would refuse it; "" if it would not.
        """
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        if not name:
            default = [one for one in self._classes.values() if one.get("globalDefault")]
            if not default or spec.get("priority") is not None:
                return ""
            lowest = min(
                default, key=lambda one: (one.get("value", 0), one["metadata"]["name"])
            )  # as the API server does
            name = spec["priorityClassName"] = lowest["metadata"]["name"]
        known = self._classes.get(name)
        if known is not None:
            spec["priority"] = known.get("value", 0)
            spec["preemptionPolicy"] = known.get("preemptionPolicy") or "PreemptLowerPriority"
        elif name in _SYSTEM:
            spec["priority"] = _SYSTEM[name]
        elif spec.get("priority") is None:
            return self._without(name, pod)
        return ""

    def complete(self, pod: Raw) -> None:
        """Write the priority into a Pod of a file that states none; the API server always does, in Pods that exist."""
        if pod["spec"].get("priority") is None:
            self.write(pod)

    def _without(self, name: str, pod: Mapping[str, Any]) -> str:
        """What becomes of a Pod whose class is not known: it is refused, unless the input has no classes at all."""
        if self._classes:
            about = f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"
            return f"Pod {about} is forbidden: no PriorityClass with name {name} was found"
        if name not in self._unknown:
            self._unknown.add(name)
            self._note(f"PriorityClass {name} is not in the input: its Pods are given priority 0")
        return ""


RUNTIME_CLASS: Final = "RuntimeClass"


class RuntimeClassPlugin:
    """The RuntimeClasses of a cluster."""

    def __init__(self, cluster: ClusterView) -> None:
        self._feed = RuntimeClassFeed(cluster)
        self._classes: dict[str, Raw] = {}

    def put(self, obj: Raw) -> None:
        """A RuntimeClass is there."""
        self._feed.put(obj)
        self._classes[obj["metadata"]["name"]] = obj

    def write(self, pod: Raw) -> str:
        """Write overhead, nodeSelector and tolerations of its class into a new Pod.

        Returns:
            Why the API server would refuse it; "" if it would not. A class that is not in the input adds nothing.
        """
        found = self._classes.get(pod["spec"].get("runtimeClassName") or "")
        if found is None:
            return ""
        spec, name = pod["spec"], f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        overhead = (found.get("overhead") or {}).get("podFixed")
        if overhead:
            if spec.get("overhead") not in (None, {}, overhead):
                return f"{name} is rejected: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
            spec["overhead"] = dict(overhead)
        scheduling = found.get("scheduling") or {}
        selector = scheduling.get("nodeSelector") or {}
        stated = spec.get("nodeSelector") or {}
        if any(stated.get(key, value) != value for key, value in selector.items()):
            return f"{name} is rejected: conflict: runtimeClass.scheduling.nodeSelector and the Pod's"
        if selector:
            spec["nodeSelector"] = {**stated, **selector}
        for toleration in scheduling.get("tolerations") or ():
            if toleration not in (listed := spec.get("tolerations") or []):
                spec["tolerations"] = [*listed, toleration]
        return ""


KINDS: Final = frozenset({"Namespace", "LimitRange", "ResourceQuota", PRIORITY_CLASS, RUNTIME_CLASS})


class ApiPlugins:
    """What the API server itself writes into new Pods, and refuses of them.

    Attributes:
        quotas: count Pods until they end or go.
        priorities: complete Pods that are there already.
        runtimes: write what follows from a RuntimeClass that the webhooks chose.
    """

    def __init__(self, parts: Parts, complain: Complain, note: Callable[[str], object]) -> None:
        self._note = note
        self.quotas = QuotaPlugin(
            parts.limits, written_names(parts.types, parts.settings.domain), parts.settings.quota.enabled
        )
        self._ranges: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
        self.priorities = Priorities(note)
        self.runtimes = RuntimeClassPlugin(parts.cluster)
        self._told: set[tuple[str, str, str]] = set()  # namespace, LimitRange and resource
        self._device_names = parts.types.resources
        self._feeds = {
            "Namespace": NamespaceFeed(parts.modes),
            "LimitRange": RangeFeed(parts.limits, complain),
            "ResourceQuota": QuotaFeed(parts.limits),
        }

    def put(self, obj: Raw) -> None:
        """An object of one of `KINDS` is there.

        Raises:
            BadQuantityError: an amount of a quota is no quantity.
        """
        kind, metadata = obj["kind"], obj["metadata"]
        if kind in self._feeds:
            self._feeds[kind].put(obj)
        match kind:
            case "LimitRange":
                limits = (obj.get("spec") or {}).get("limits") or []
                self._ranges.setdefault(metadata["namespace"], {})[metadata["name"]] = limits
            case "ResourceQuota":
                for problem in self.quotas.put_quota(obj):
                    self._note(problem)
            case "PriorityClass":
                self.priorities.put(obj)
            case "RuntimeClass":
                self.runtimes.put(obj)
            case _:
                pass

    def before(self, pod: Raw) -> tuple[str, tuple[AddedDefault, ...]]:
        """Write priority and defaults into a new Pod, before webhooks see it.

        Returns:
            Why it is refused, "" if it is not; and the devices that LimitRanges have added.
        """
        metadata = pod["metadata"]
        found = write_defaults(pod, self._ranges_of(pod))
        added = tuple(one for one in found if one.resource in self._device_names and _is_some(one.amount))
        for one in added:
            about = metadata["namespace"], one.by, one.resource
            if about not in self._told:
                self._told.add(about)
                self._note(
                    f"LimitRange {metadata['namespace']}/{one.by} adds {one.resource} {one.amount} to containers that "
                    f"do not state it, such as {one.container} of Pod {metadata['name']} "
                    "(docs/use/quotas.md, LimitRanges)"
                )
        return self.priorities.write(pod), added

    def after(self, pod: Mapping[str, Any]) -> str:
        """Why a Pod, as the webhooks left it, is refused; "" if it is not."""
        name = f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        try:
            problem = "; ".join(beyond(pod, self._limits(pod))) or self.quotas.refusal(pod)
        except (QuantityError, BadQuantityError) as error:
            problem = str(error)
        return f"{name} is forbidden: {problem}" if problem else ""

    def _ranges_of(self, pod: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
        return dict(sorted(self._ranges.get(pod["metadata"]["namespace"], {}).items()))

    def _limits(self, pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [limit for limits in self._ranges_of(pod).values() for limit in limits]


def _is_some(amount: str) -> bool:
    """Whether an amount is not 0; one that cannot be read is what the Pod is then refused for."""
    try:
        return bool(parse(amount))
    except QuantityError:
        return True
