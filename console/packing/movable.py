"""Which Pods may be moved: those that somebody makes again, in a place that koordgate alone decides."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.evictions import stays
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.mode import Mode
from allocator.vocabulary.names import MIRROR_POD
from webhook.view.nodeselection import label_selects
from webhook.view.podinfo import PodInfo

Raw = Mapping[str, Any]

_HIGHEST_OF_USERS: Final = 1_000_000_000  # the priorities above are Kubernetes' own, as system-node-critical
_LATE: Final = frozenset({"StatefulSet"})  # make the next Pod when the last one is gone
_AFFINITIES: Final = ("podAffinity", "podAntiAffinity")
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a Pod.

    Attributes:
        kind: its kind.
        name: its name.
        uid: its identity; "" where that is not known.
    """

    kind: str
    name: str
    uid: str

    @property
    def late(self) -> bool:
        """Whether it makes the next Pod only when the last one is gone."""
        return self.kind in _LATE

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owner_of(pod: Raw) -> Owner | None:
    """The controller of a Pod; None if it has none."""
    for one in pod["metadata"].get("ownerReferences") or ():
        if one.get("controller"):
            return Owner(str(one.get("kind")), str(one.get("name")), str(one.get("uid") or ""))
    return None


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What decides beside the Pod itself.

    Attributes:
        scheduler: the name of koordgate's scheduler.
        jobs: whether Pods of Jobs may be moved.
        budgets: namespace -> its PodDisruptionBudgets; None if they could not be read.
    """

    scheduler: str
    jobs: bool = False
    budgets: Mapping[str, Sequence[Raw]] | None = None


def budgets_by_namespace(budgets: Iterable[Raw]) -> dict[str, list[Raw]]:
    """Sort PodDisruptionBudgets by their namespace."""
    found: dict[str, list[Raw]] = {}
    for one in budgets:
        found.setdefault(one["metadata"].get("namespace") or "default", []).append(one)
    return found


def why_stays(pod: Raw, info: PodInfo, holding: Holding, mode: Mode, rules: MoveRules) -> str:
    """Why a Pod that holds devices is not moved, in a few words; "" if it may be."""
    return (
        _uncertain(info, holding)
        or _not_ours(info, mode, rules.scheduler)
        or _not_made_again(pod, jobs=rules.jobs)
        or _forbidden(pod, info)
        or _elsewhere(pod["spec"])
        or _budgeted(pod, rules.budgets)
    )


def _uncertain(info: PodInfo, holding: Holding) -> str:
    if info.terminating or info.finished:
        return "it is ending"
    if not info.node:
        return "it is not bound yet"
    unread = holding.unread or info.problem or info.annotation_problem
    return "what it holds is not certain" if holding.until or holding.ending or unread else ""


def _not_ours(info: PodInfo, mode: Mode, scheduler: str) -> str:
    if mode is not Mode.ENFORCE:
        return f"koordgate does not place Pods of its namespace (mode {mode})"
    return f"it is not placed by {scheduler}" if info.scheduler_name != scheduler else ""


def _not_made_again(pod: Raw, *, jobs: bool) -> str:
    """Why nobody would make the Pod again, or make it on another node."""
    owner = owner_of(pod)
    if MIRROR_POD in (pod["metadata"].get("annotations") or {}) or (owner is not None and owner.kind == "Node"):
        return "it is a static Pod"
    if owner is None:
        return "it has no controller that would make it again"
    if owner.kind == "DaemonSet":
        return "it belongs to a DaemonSet"
    return "it belongs to a Job, whose work would be lost (--jobs)" if owner.kind == "Job" and not jobs else ""


def _forbidden(pod: Raw, info: PodInfo) -> str:
    if info.request.wishes.gang:
        return f"it belongs to the gang {info.request.wishes.gang}"
    if kept := stays(pod["metadata"].get("annotations") or {}):
        return f"its annotation forbids it ({kept})"
    if info.priority > _HIGHEST_OF_USERS:
        return f"its priority {info.priority} is critical to the system"
    return "it has ResourceClaims, which koordgate does not place" if pod["spec"].get("resourceClaims") else ""


def _elsewhere(spec: Raw) -> str:
    """Why not koordgate alone decides where a Pod goes."""
    affinity = spec.get("affinity") or {}
    if any((affinity.get(name) or {}) for name in _AFFINITIES):
        return "its Pod affinity also decides where it goes"
    if spec.get("topologySpreadConstraints"):
        return "its topologySpreadConstraints also decide where it goes"
    if (affinity.get("nodeAffinity") or {}).get(_PREFERRED):
        return "it prefers some nodes, which kube-scheduler weighs"
    return ""


def _budgeted(pod: Raw, budgets: Mapping[str, Sequence[Raw]] | None) -> str:
    """Why its PodDisruptionBudgets do not allow it now."""
    if budgets is None:
        return "PodDisruptionBudgets could not be read"
    metadata = pod["metadata"]
    found = budgets_of(pod, budgets.get(metadata.get("namespace") or "default", ()))
    if len(found) > 1:
        names = ", ".join(one["metadata"]["name"] for one in found)
        return f"it has several PodDisruptionBudgets ({names}), with which the API server evicts nobody"
    for one in found:
        allowed = (one.get("status") or {}).get("disruptionsAllowed")
        if not allowed or allowed < 0:
            told = "its state is not known" if allowed is None else "it allows no disruption now"
            return f"PodDisruptionBudget {one['metadata']['name']}: {told}"
    return ""


def budgets_of(pod: Raw, budgets: Iterable[Raw]) -> list[Raw]:
    """The PodDisruptionBudgets that select a Pod, of those of its namespace."""
    labels = pod["metadata"].get("labels") or {}
    return [one for one in budgets if label_selects((one.get("spec") or {}).get("selector"), labels)]
