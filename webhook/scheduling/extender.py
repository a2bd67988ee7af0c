"""`/scheduler/filter`, `prioritize`, `preempt`: which nodes can hold a Pod, how good each is, which Pods must go.

The wire format is kube-scheduler's (k8s.io/kube-scheduler/extender/v1); its keys are matched without regard to case.
Every verdict is `place()`'s, so the bind will decide the same.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.bind import GANG_WAITS, MAX_UNBOUND, may_take
from allocator.budget import Budget, Steps
from allocator.preempt import MAX_STEPS as VICTIM_STEPS
from allocator.preempt import LongRefusals, PodStanding, choose_victims
from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.breaks import at_once
from webhook.boundedcache import BoundedCache
from webhook.scheduling.fairness import Effort, SearchTime
from webhook.scheduling.nominate import Nominator
from webhook.scheduling.ranking import MAX_TOLD, Ranked, Ranking
from webhook.shapes import PodShape, misshapen
from webhook.view.cluster import ClusterView
from webhook.view.nodeselection import PREFERRED
from webhook.view.podinfo import PodInfo, read_pod_info

MAX_EXTENDER_SCORE: Final = 10
_PATIENCE_S: Final = 0.04  # how long an answer may wait for a change; kube-scheduler waits meanwhile
_NEXT_WAIT_S: Final = 0.4  # from the beginning of one such wait to that of the next
_MAX_ANSWER_BYTES: Final = 8 * 2**20  # of UIDs of Pods
_UID_BYTES: Final = 300  # of one, beside its characters
_MAX_LENGTH: Final = 200  # characters of the reason why a Pod fits nowhere


class _Asked(NamedTuple):
    """What ExtenderArgs ask."""

    pod: PodInfo | None  # the Pod; None if it is not ours
    names: Sequence[str]
    nodes: Mapping[str, Any] | None  # their NodeList if whole Nodes were sent
    spec: Mapping[str, Any]
    uid: str


class Answer(StrEnum):
    """What `filter` said of a Pod.

    FITS: a node was named. FULL: it fits nowhere as long as others hold what they hold. IMPOSSIBLE: nor if they left.
    UNFINISHED: the search ended before all nodes were judged. GANG: no room is held for its gang, which is bound as a
    whole. BOUND_ELSEWHERE: only nodes on which it holds something already are open to it, and none was a candidate.
    UNREADABLE: what it asks for cannot be read.
    """

    FITS = "fits"
    FULL = "full"
    IMPOSSIBLE = "impossible"
    UNFINISHED = "unfinished"
    GANG = "gang"
    BOUND_ELSEWHERE = "bound elsewhere"
    UNREADABLE = "unreadable"


_Proposed = Mapping[str, tuple[list[str], int]]  # node -> UIDs of victims, and disruption budgets that they violate


class BadExtenderArgsError(ValueError):
    """The body is not what kube-scheduler sends."""


class Extender:
    """Answers kube-scheduler.

    `most_nodes`: the most nodes that `filter` names for a Pod that prefers some nodes to others; None names all that
    fit. A Pod without preferences is sent to the best node alone: this spares kube-scheduler the scoring of hundreds of
    nodes, and the Pods that follow are decided with this one's devices taken. `all_or_nothing`: whether a Pod whose
    gang is bound as a whole may go only where room is held for it. `interrupted`: called for each search that ended
    before all nodes were judged, with "time", or "namespace" where the namespace's time is used up. `answered`: called
    with the answer of each `filter` for a Pod of ours. `uncounted`: whether the bind of a Pod may be refused for the
    sake of quotas.
    """

    # nominates nodes for the Pods that wait behind the one that is asked about; None where none are nominated
    nominator: Nominator | None = None

    def __init__(  # noqa: PLR0913 keyword-only, with defaults
        self,
        cluster: ClusterView,
        ranking: Ranking,
        types: DeviceTypes,
        most_nodes: int | None,
        *,
        all_or_nothing: bool = False,
        search_time: SearchTime | None = None,
        interrupted: Callable[[str], object] = lambda _why: None,
        answered: Callable[[Answer], object] = lambda _answer: None,
        uncounted: Callable[[PodInfo], object] = lambda _pod: False,
    ) -> None:
        self._uncounted = uncounted
        self._cluster = cluster
        self._search_time = SearchTime() if search_time is None else search_time
        self._interrupted = interrupted
        self._answered = answered
        self._all_or_nothing = all_or_nothing
        self._types = types
        self._ranking = ranking
        self._most_nodes = most_nodes
        self._answers: BoundedCache[str, Answer] = BoundedCache(_MAX_ANSWER_BYTES)  # UID -> the last one
        self._waited = -math.inf  # when an answer last waited for a change, in seconds of the event loop's clock

    def filter(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Name the nodes that can hold the Pod; where there are none, give the reason for each.

        Raises BadExtenderArgsError: `args` is not an ExtenderArgs object.
        """
        return at_once(self._filter(self._read(args), Effort()))

    def _filter(self, asked: _Asked, effort: Effort) -> Steps[dict[str, Any]]:
        pod, names, whole_nodes, spec, _ = asked
        if pod is None or not pod.asks:
            return _fitting(names, whole_nodes, {}, {})
        if problem := pod.problem or pod.annotation_problem:  # the bind would refuse it as well
            self._remember(pod, Answer.UNREADABLE)
            return _fitting([], whole_nodes, {}, _unreadable(names, problem))
        among, refused = self._among(pod, names)
        if refused:
            self._remember(pod, refused[0])
            return _fitting([], whole_nodes, dict.fromkeys(names, refused[1]), {})
        wants_several = self._most_nodes is None or _prefers(spec)
        most = self._most_nodes if wants_several and not self._is_held_for(pod) else 1
        ranked = yield from self._ranked(pod, among, most, spec.get("tolerations"), effort)
        if ranked.interrupted:
            self._interrupted("namespace" if effort.why else "time")
        # kube-scheduler evicts nobody from a node that is not in the answer: the Pod may fit there as it is.
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        written: dict[str, str] = {}  # thousands of nodes share a few reasons
        for name, permanent, reason in ranked.reasons():
            text = written.get(reason) or written.setdefault(reason, unformatted(reason))
            (never if permanent else failed)[name] = text
        self._remember(pod, _answer(ranked, failed))
        return _fitting(list(ranked.named), whole_nodes, failed, never)

    def _ranked(
        self, pod: PodInfo, names: Sequence[str], most: int | None, tolerations: object, effort: Effort
    ) -> Steps[Ranked]:
        if len(names) == 1 and most == 1 and self._ranking.keeps(pod, names[0], effort):  # it was nominated
            return Ranked(tuple(names), {})
        # With one node named, kube-scheduler's own scoring cannot avoid nodes tainted PreferNoSchedule.
        shunned = self._cluster.nodes.shunned(tolerations)
        ranked = yield from self._ranking.search(pod, names, most, shunned, effort)
        if not ranked.named and self.nominator is not None and self.nominator.gives_way(pod.priority):
            ranked = yield from self._ranking.search(pod, names, most, shunned, effort)
        if most == 1 and ranked.named and pod.uid and not self._cluster.pods.is_over(pod.uid):
            self._ranking.send(pod, ranked.named[0])
        return ranked

    def _is_held_for(self, pod: PodInfo) -> bool:
        """Whether a Pod may go only where room is held for its whole gang."""
        return self._all_or_nothing and pod.request.wishes.all_or_nothing

    def _among(self, pod: PodInfo, names: Sequence[str]) -> tuple[Sequence[str], tuple[Answer, str] | None]:
        """The candidates that what a Pod holds leaves open to it; or why there are none."""
        if self._is_held_for(pod):
            takes = self._takes(pod, names)
            return ((), (Answer.GANG, takes)) if isinstance(takes, str) else (takes, None)
        if len(held_on := self._cluster.held.nodes_of(pod.uid)) < MAX_UNBOUND:
            return names, None
        among = [name for name in names if name in held_on]  # the bind refuses other nodes
        waits = f"only the nodes that it was given room on are open to it: {', '.join(held_on)}"
        return among, None if among else (Answer.BOUND_ELSEWHERE, waits)

    def _takes(self, pod: PodInfo, names: Sequence[str]) -> list[str] | str:
        """The candidates where room is held for a Pod with its whole gang; why there are none where there are none."""
        held = self._cluster.held
        nodes = [node for node in held.nodes_of(pod.uid) if may_take(held.record(node).holdings.get(pod.uid))]
        if not nodes:
            return GANG_WAITS.message
        among = set(names)
        return [node for node in nodes if node in among] or f"room for its gang is held on {', '.join(nodes)}"

    async def filter_patiently(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Answer as `filter`; for a Pod that was refused before, wait a little for a change and try once more.

        kube-scheduler tries such a Pod again because it saw a Pod end or a Node change, and may have seen that some
        milliseconds before this replica did. If it is refused once more, it backs off for a second or longer.
        Raises BadExtenderArgsError: `args` is not an ExtenderArgs object.
        """
        asked = self._read(args)
        before = self.said_of(asked.uid)
        if asked.pod is not None and self.nominator is not None:
            self.nominator.asked(asked.pod, asked.names)
        answer = await self._filter_paced(asked)
        if self.nominator is not None:
            self.nominator.answered()
        again = Answer.FITS not in {before, self.said_of(asked.uid)} and before is not None
        return await self._filter_paced(asked) if again and await self._news() else answer

    async def _filter_paced(self, asked: _Asked) -> dict[str, Any]:
        return await self._search_time.within(_namespace(asked.pod), lambda effort: self._filter(asked, effort))

    def said_of(self, uid: str) -> Answer | None:
        """What `filter` said last of one of our Pods; None if it was not asked, or not lately."""
        return self._answers.get(uid)

    def _remember(self, pod: PodInfo, answer: Answer) -> None:
        self._answers.put(pod.uid, answer, len(pod.uid) + _UID_BYTES)
        self._answered(answer)

    async def _news(self) -> bool:
        """Wait a little for a change; returns whether there was one.

        If many Pods are tried one after another, only the first waits.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if began - self._waited < _NEXT_WAIT_S:
            return False
        self._waited = began
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._cluster.changes.news()
        except TimeoutError:
            return False
        return True

    def prioritize(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Score each node from 0 to 10 by the order in which `filter` names them.

        Only the best nodes have 10, and equally good ones have one score. With more than eleven levels of nodes several
        levels share a score. A node that cannot hold the Pod has 0.
        Raises BadExtenderArgsError: `args` is not an ExtenderArgs object.
        """
        return at_once(self._prioritize(self._read(args), Effort()))

    async def prioritize_patiently(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answer as `prioritize`, with breaks; a node that it had no time to judge has 0."""
        asked = self._read(args)
        return await self._search_time.within(_namespace(asked.pod), lambda effort: self._prioritize(asked, effort))

    def _prioritize(self, asked: _Asked, effort: Effort) -> Steps[list[dict[str, Any]]]:
        pod, names = asked.pod, asked.names
        if pod is None or not pod.request:
            return [{"Host": name, "Score": 0} for name in names]
        standing = yield from self._ranking.compare(pod, names, effort)
        last = max(standing.values(), default=0)
        return [{"Host": name, "Score": _score(standing[name], last) if name in standing else 0} for name in names]

    def preempt(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Choose the victims on each node that kube-scheduler proposes; leave out nodes where none would help.

        Raises BadExtenderArgsError: `args` is not an ExtenderPreemptionArgs object.
        """
        return at_once(self._preempt(*self._read_preemption(args), Effort()))

    async def preempt_patiently(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Answer as `preempt`, with breaks; a node that it had no time to judge is left out.

        Others run between two decisions. The victims on a node are chosen on what is known when its turn comes;
        kube-scheduler's own view may be as old.
        """
        pod, proposed = self._read_preemption(args)
        return await self._search_time.within(_namespace(pod), lambda effort: self._preempt(pod, proposed, effort))

    def _read_preemption(self, args: Mapping[str, Any]) -> tuple[PodInfo | None, _Proposed]:
        lower = _lower(args)
        spec_pod = lower.get("pod")
        proposed = _proposed(lower)
        if not isinstance(spec_pod, dict) or not isinstance(spec_pod.get("metadata"), dict):
            raise BadExtenderArgsError("ExtenderPreemptionArgs without a Pod")
        return self._known(spec_pod), proposed

    def _preempt(self, pod: PodInfo | None, proposed: _Proposed, effort: Effort) -> Steps[dict[str, Any]]:
        if pod is None or not pod.asks:
            return _victims(proposed)
        if pod.problem or pod.annotation_problem or (self._all_or_nothing and pod.request.wishes.all_or_nothing):
            return _victims({})  # nobody is evicted for one Pod of a gang that is bound as a whole
        if self._uncounted(pod):
            return _victims({})
        chosen: dict[str, tuple[list[str], int]] = {}
        yield from self._ranking.take_in()
        known = LongRefusals(pod.request)
        for node, (uids, violations) in proposed.items():
            if any((victim := self._cluster.pods.by_uid(uid)) and victim.node not in {"", node} for uid in uids):
                continue  # the rest of a PodGroup on other nodes: kube-scheduler refuses a whole answer that names it
            snapshot = self._ranking.snapshot(node).without([pod.uid])
            # kube-scheduler refuses a victim that is not bound to the node.
            there = (self._cluster.pods.by_uid(uid) for uid in snapshot.holdings)
            standing = {
                known.uid: PodStanding(known.priority, dict(known.requests))
                for known in there
                if known is not None and known.node == node
            }
            steps = effort.most_steps if effort.why else VICTIM_STEPS
            budget = Budget(steps)
            victims = yield from choose_victims(pod.request, snapshot, standing, pod.priority, uids, budget, known)
            effort.steps += int(steps - budget.left)
            if victims is not None:
                chosen[node] = (list(victims), violations)
            if (yield 0):
                self._interrupted("namespace" if effort.why else "time")
                break
        return _victims(chosen)

    def _known(self, pod: dict[str, Any]) -> PodInfo | None:
        uid = pod["metadata"].setdefault("uid", "")
        if not isinstance(uid, str):
            raise BadExtenderArgsError("a Pod with a uid that is not text")
        known = self._cluster.pods.by_uid(uid)
        if known is not None:
            return known
        _check_pod(pod)
        return read_pod_info(pod, types=self._types)

    def _read(self, args: Mapping[str, Any]) -> _Asked:
        lower = _lower(args)
        pod, names, nodes = lower.get("pod"), lower.get("nodenames"), lower.get("nodes")
        if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
            raise BadExtenderArgsError("ExtenderArgs without a Pod")
        if names is None and isinstance(nodes, dict):
            names = _names(nodes)
        elif isinstance(names, tuple):  # of this process, which knows them
            return _Asked(self._known(pod), names, None, _spec(pod), pod["metadata"]["uid"])
        elif isinstance(names, list):
            nodes = None
        else:
            raise BadExtenderArgsError("ExtenderArgs without NodeNames or Nodes")
        if not {str}.issuperset(map(type, names)):
            raise BadExtenderArgsError("ExtenderArgs with a node's name that is not text")
        return _Asked(self._known(pod), names, nodes, _spec(pod), pod["metadata"]["uid"])


def unformatted(text: str) -> str:
    """Write per cent signs as words: kube-scheduler uses the reason as the format string of its Event."""
    return text.replace(" %", " percent").replace("%", " percent")


def _spec(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = pod.get("spec")
    return spec if isinstance(spec, dict) else {}


def _namespace(pod: PodInfo | None) -> str:
    return "" if pod is None else pod.namespace


def _answer(ranked: Ranked, failed: Mapping[str, str]) -> Answer:
    if ranked.named:
        return Answer.FITS
    if ranked.interrupted:
        return Answer.UNFINISHED
    return Answer.FULL if failed else Answer.IMPOSSIBLE


def _unreadable(names: Sequence[str], problem: str) -> dict[str, str]:
    """Give the reason why a Pod fits nowhere for some nodes, and for the others, maybe thousands, refer to these."""
    why = unformatted(problem if len(problem) <= _MAX_LENGTH else f"{problem[:_MAX_LENGTH]} ...")
    reasons = dict.fromkeys(names, "the Pod cannot be read: see other nodes")
    return reasons | dict.fromkeys(names[:MAX_TOLD], why)


def _lower(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with their keys in lower case."""
    if not isinstance(args, dict):
        raise BadExtenderArgsError("the body is not an object")
    return {key.lower(): value for key, value in args.items()}


def _check_pod(pod: Mapping[str, Any]) -> None:
    """Refuse what the API server would not have stored: the functions that read Pods rely on its validation."""
    if problem := misshapen(pod, PodShape):
        raise BadExtenderArgsError(f"a Pod that no API server sends: {problem}")
    if not pod["metadata"].get("name"):
        raise BadExtenderArgsError("a Pod without a name")
    if not isinstance(pod["spec"].get("priority") or 0, int):
        raise BadExtenderArgsError("a Pod with a priority that is not a number")


def _score(level: int, last: int) -> int:
    """Map level 0 to the greatest score, the last level to 0, and those between evenly; none of them reaches level 0's.

    Where all are on one level, all have the greatest score.
    """
    below = -(-MAX_EXTENDER_SCORE * level // max(last, 1))  # rounded up
    return MAX_EXTENDER_SCORE - below


def _proposed(lower: Mapping[str, Any]) -> dict[str, tuple[list[str], int]]:
    """Read kube-scheduler's victims: node -> their UIDs, and the number of disruption budgets they violate."""
    nodes = lower.get("nodenametometavictims") or lower.get("nodenametovictims") or {}
    found: dict[str, tuple[list[str], int]] = {}
    try:
        for node, victims in nodes.items():
            lowered = _lower(victims)
            pods = lowered.get("pods") or []
            uids = [_lower(pod).get("uid") or pod["metadata"]["uid"] for pod in pods]
            if not {str}.issuperset(map(type, uids)):
                raise BadExtenderArgsError("ExtenderPreemptionArgs with a victim's uid that is not text")
            violations = lowered.get("numpdbviolations") or 0
            if type(violations) is not int:
                raise BadExtenderArgsError("ExtenderPreemptionArgs with a NumPDBViolations that is not a number")
            found[node] = (uids, violations)
    except (AttributeError, KeyError, TypeError) as error:
        raise BadExtenderArgsError("ExtenderPreemptionArgs with victims that cannot be read") from error
    return found


def _victims(chosen: Mapping[str, tuple[list[str], int]]) -> dict[str, Any]:
    by_node = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
        for node, (uids, violations) in chosen.items()
    }
    return {"NodeNameToMetaVictims": by_node}


def _prefers(spec: Mapping[str, Any]) -> bool:
    """Whether a Pod prefers some nodes to others, which only kube-scheduler's own scoring takes into account."""
    affinity = spec.get("affinity")
    parts = affinity.values() if isinstance(affinity, dict) else ()
    preferred = any(isinstance(part, dict) and part.get(PREFERRED) for part in parts)
    return preferred or bool(spec.get("topologySpreadConstraints"))


def _names(nodes: Mapping[str, Any]) -> list[Any]:
    try:
        return [item["metadata"]["name"] for item in nodes.get("items") or ()]
    except (KeyError, TypeError) as error:
        raise BadExtenderArgsError("ExtenderArgs with Nodes that have no name") from error


def _fitting(
    names: Sequence[str], whole_nodes: Mapping[str, Any] | None, failed: Mapping[str, str], never: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": never, "Error": ""}
    if whole_nodes is None:
        result["NodeNames"] = list(names)
    else:
        wanted = set(names)
        items = [item for item in whole_nodes.get("items") or () if item["metadata"]["name"] in wanted]
        result["Nodes"] = {**whole_nodes, "items": items}
    return result
