"""Runs a Pod on each node with cards, through admission, scheduler and bind, and deletes it whatever happens."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from console.doctor.checks.delivery import CardNode, Chosen, card_nodes, chosen
from console.doctor.findings import Finding, unknown
from console.doctor.probe.outcome import LEFT_ALONE, Ending, Outcome, Verdict, compared, ending, given_to, late
from console.doctor.probe.pod import NAME, RUN, probe_pod
from console.doctor.probe.words import AREA
from console.doctor.proof import DELIVERY_PROVED, DeliveryProof
from console.doctor.snapshot import Snapshot
from console.doctor.trials import translated_by
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Forbidden, KubeError, NotFound, Unreachable
from koordgate.kube.resource import EVENTS, NODES, PODS

Raw = dict[str, Any]
Tell = Callable[[Outcome, int, int], None]
"""Is called with each outcome as it comes: which of how many it is."""

AT_ONCE: Final = 8
_MANAGER: Final = "koordgate-doctor"
_EVERY_S: Final = 1.0
_MOST_TRIES: Final = 3
_CALL_S: Final = 30.0  # the creation passes all webhooks of the cluster


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is run.

    Attributes:
        image: with a shell.
        namespace: that koordgate enforces.
        timeout: seconds for each node.
        every: seconds between two looks at a Pod.
    """

    image: str
    namespace: str
    timeout: float
    every: float = _EVERY_S


class Probes:
    """The probes of one run.

    Args:
        kube: the open client.
        plan: what is run.
        snapshot: of the cluster, with settings.
        tell: is told each outcome.

    Attributes:
        problems: what could not be recorded or deleted.
    """

    def __init__(self, kube: KubeClient, plan: ProbePlan, snapshot: Snapshot, tell: Tell) -> None:
        self._kube = kube
        self._plan = plan
        self._snapshot = snapshot
        self._tell = tell
        self._run = secrets.token_hex(4)
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._nodes = card_nodes(snapshot)
        self._outcomes: dict[str, Outcome] = {}
        self.problems: list[Finding] = []

    @property
    def count(self) -> int:
        """How many nodes are probed."""
        return len(self._nodes)

    async def run(self) -> list[Outcome]:
        """Probe the nodes, some at a time; returns the outcomes by node. When it is cancelled, no Pod is left."""
        known = {one["metadata"]["name"]: one for one in self._snapshot.of("nodes").items}
        ways = chosen(self._nodes)
        async with asyncio.TaskGroup() as tasks:
            for at, node in enumerate(self._nodes):
                tasks.create_task(self._one(f"{NAME}-{self._run}-{at}", node, known[node.name], ways[node.name]))
        return [self._outcomes[node.name] for node in self._nodes]

    async def _one(self, name: str, card_node: CardNode, node: Raw, found: Chosen) -> None:
        async with self._gate:
            if node["ready"]:
                outcome = await self._probed(name, card_node, node, found)
            else:
                outcome = Outcome(card_node.name, found, Verdict.NOT_RUN, "the node is not ready")
            outcome = await self._recorded(outcome)
        self._outcomes[card_node.name] = outcome
        self._tell(outcome, len(self._outcomes), self.count)

    async def _probed(self, name: str, card_node: CardNode, node: Raw, found: Chosen) -> Outcome:
        body = probe_pod(name, node, self._plan.image, self._run, self._plan.timeout)
        uid = ""
        try:
            made = await self._kube.create(PODS.path(namespace=self._plan.namespace), body, deadline=_CALL_S)
            uid = made["metadata"]["uid"]
            if not translated_by(made, self._scheduler):
                return Outcome(card_node.name, found, Verdict.NOT_RUN, LEFT_ALONE)
            pod, end = await self._watched(name)
            named = (made.get("spec") or {}).get("runtimeClassName") or ""
            found = Chosen(card_node.delivery.way(named), named)
            return compared(card_node.name, found, given_to(pod), end)
        except NotFound:
            return Outcome(card_node.name, found, Verdict.NOT_RUN, "somebody deleted the Pod")
        except KubeError as error:
            verdict = Verdict.NOT_RUN if isinstance(error, Unreachable) else Verdict.NOT_PLACED
            return Outcome(card_node.name, found, verdict, error.message)
        finally:
            await self._delete(name, uid)

    @property
    def _scheduler(self) -> str:
        settings = self._snapshot.settings
        return settings.scheduler.name if settings is not None else ""

    async def _watched(self, name: str) -> tuple[Raw, Ending]:
        """Look at a Pod until it gets no further."""
        until = time.monotonic() + self._plan.timeout
        path = PODS.path(name, self._plan.namespace)
        while True:
            pod = await self._kube.get(path)
            end = ending(pod)
            if end is None and time.monotonic() >= until:
                end = late(pod, await self._events(pod["metadata"]["uid"]), self._plan.timeout)
            if end is not None:
                return pod, end
            await asyncio.sleep(self._plan.every)

    async def _events(self, uid: str) -> list[Raw]:
        """The Events about a Pod, the oldest first; none if they may not be read."""
        params = {"fieldSelector": f"involvedObject.uid={uid}"}
        try:
            listed = await self._kube.get(EVENTS.path(namespace=self._plan.namespace), params=params)
        except Forbidden:
            return []
        return sorted(
            listed.get("items") or [],
            key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "",
        )

    async def _delete(self, name: str, uid: str) -> None:
        """Delete a Pod of this run; whether it was created may not be known."""
        path = PODS.path(name, self._plan.namespace)
        problem = ""
        for _ in range(_MOST_TRIES):
            try:
                if not uid:
                    there = await self._kube.get(path)
                    if (there["metadata"].get("labels") or {}).get(RUN) != self._run:
                        return
                    uid = there["metadata"]["uid"]
                await self._kube.delete(path, uid=uid)
            except (NotFound, Conflict):
                return
            except KubeError as error:
                problem = error.message
            else:
                return
        todo = f"kubectl -n {self._plan.namespace} delete pod {name}"
        self.problems.append(unknown(AREA, f"Pod {name} could not be deleted: {problem}", todo))

    async def _recorded(self, one: Outcome) -> Outcome:
        """Write on the Node what was proved, if anything was; returns the outcome with it."""
        result = one.verdict.result
        if result is None:
            return one
        proof = DeliveryProof(datetime.now(UTC), str(one.found.way.delivery or ""), result, self._plan.image)
        change = {"metadata": {"annotations": {DELIVERY_PROVED: proof.write()}}}
        try:
            await self._kube.patch(NODES.path(one.node), change, "merge", field_manager=_MANAGER)
        except KubeError as error:
            todo = "run this as a user who may patch nodes"
            self.problems.append(unknown(AREA, f"on {one.node} it could not be recorded: {error.message}", todo))
        return replace(one, proof=proof)


def with_proofs(snapshot: Snapshot, outcomes: Sequence[Outcome]) -> Snapshot:
    """The snapshot with what was proved since; what is wrong is told by the probe's own findings alone."""
    proofs = {one.node: one for one in outcomes if one.proof is not None}
    nodes = snapshot.of("nodes")
    items = tuple(_with_proof(one, proofs.get(one["metadata"]["name"])) for one in nodes.items)
    return replace(snapshot, read={**snapshot.read, "nodes": replace(nodes, items=items)})


def _with_proof(node: Raw, tried: Outcome | None) -> Raw:
    if tried is None or tried.proof is None:
        return node
    annotations = {key: text for key, text in node["metadata"]["annotations"].items() if key != DELIVERY_PROVED}
    if tried.verdict is Verdict.RIGHT:
        annotations[DELIVERY_PROVED] = tried.proof.write()
    return {**node, "metadata": {**node["metadata"], "annotations": annotations}}
