"""`koordgate doctor --probe`: a Pod on each node with cards writes down which it sees; what that shows, and cures."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from allocator.vocabulary.delivery import DELIVERY_LABEL, DELIVERY_PROVED, Delivery
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, GPU_MEMORY_RATIO, KUBERNETES_DOMAIN, TYPE_GPU
from allocator.wire.podallocated import read_allocation
from console.cluster import is_ready
from console.doctor.checks.delivery import (
    CardNode,
    Chosen,
    DeliveryProof,
    Result,
    card_nodes,
    chosen,
    way_of,
)
from console.doctor.findings import Finding, Level, named_nodes
from console.doctor.snapshot import Snapshot, taints_of
from console.doctor.trials import CONTAINER, translated_by, trial_pod
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Forbidden, KubeError, NotFound, Unreachable
from koordgate.kube.resource import EVENTS, NODES, PODS

Raw = dict[str, Any]

NAME: Final = "koordgate-probe"
RUN: Final = "koordgate.io/probe"
"""The label by which the Pods of one run are known."""
SHELL: Final = "/bin/sh"
_MAX_MESSAGE: Final = 4096  # characters of a container's message, as the kubelet cuts it
_LEAST: Final = {f"{KUBERNETES_DOMAIN}/{GPU_MEMORY_RATIO}": "1"}  # memory alone: a card whose compute is all taken does
_BEGIN, _MIDDLE, _END = "koordgate-probe-begin", "koordgate-probe-devices", "koordgate-probe-end"
# What busybox has suffices. `ls -ln` has the minor number in its sixth word; the message holds 4096 characters.
_SCRIPT: Final = f"""\
{{
echo {_BEGIN}
if command -v nvidia-smi >/dev/null 2>&1; then timeout 30 nvidia-smi -L 2>&1 | head -c 2000; echo; fi
echo {_MIDDLE}
for one in /dev/nvidia[0-9]*; do
  [ -c "$one" ] || continue
  set -- $(ls -ln "$one")
  echo "$one $6"
done
echo {_END}
}} >/dev/termination-log
cat /dev/termination-log
"""
_NODE: Final = re.compile(r"/dev/nvidia\d{1,9} (\d{1,9})")
_CARD: Final = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9A-Za-z-]{1,64})\)")


def probe_pod(name: str, node: Mapping[str, Any], image: str, run: str, seconds: float) -> Raw:
    """Write the Pod that probes a node.

    `node`: the Node, whose taints the Pod tolerates. `seconds`: after which the
    kubelet ends it, though nobody may be left who would delete it.
    """
    made = trial_pod(
        NAME,
        _LEAST,
        labels={"app.kubernetes.io/name": NAME, RUN: run},
        restartPolicy="Never",
        activeDeadlineSeconds=max(1, int(seconds)),
        terminationGracePeriodSeconds=1,
        enableServiceLinks=False,
        tolerations=list(_tolerations(taints_of(node))),
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _only(node["metadata"]["name"])}},
    )
    del made["metadata"]["generateName"]
    made["metadata"]["name"] = name
    made["spec"]["containers"][0] |= {"image": image, "command": [SHELL, "-c", _SCRIPT]}
    return made


def _only(node: str) -> Raw:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"nodeSelectorTerms": terms}


def _tolerations(taints: Iterable[Mapping[str, Any]]) -> Iterable[Raw]:
    for one in taints:
        yield {"key": one.get("key", ""), "operator": "Exists", "effect": one.get("effect", "")}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container saw."""

    minors: tuple[int, ...] = ()  # the minor numbers of the cards' device nodes, in order
    uuids: tuple[str, ...] = ()  # of the cards that nvidia-smi lists; none where the image has no nvidia-smi that works


def read_seen(message: str) -> Seen | None:
    """Read what the command wrote; None if it did not run to its end."""
    lines = message[:_MAX_MESSAGE].splitlines()
    if _MIDDLE not in lines or lines[-1:] != [_END]:
        return None
    middle = lines.index(_MIDDLE)
    minors = {int(found[1]) for line in lines[middle:] if (found := _NODE.fullmatch(line))}
    uuids = {found[1] for line in lines[:middle] if (found := _CARD.match(line))}
    return Seen(tuple(sorted(minors)), tuple(sorted(uuids)))


def container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of the Pod's only container; empty while the kubelet has written none."""
    listed = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in listed if one.get("name") == CONTAINER), {})


LEFT_ALONE: Final = "koordgate leaves Pods of this namespace alone"
_MAX_SAID: Final = 400  # characters of another's message
NO_IMAGE: Final = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NOT_MADE: Final = frozenset({"CreateContainerError", "RunContainerError"})
_NOT_BEGUN: Final = frozenset({"StartError", "ContainerCannotRun"})
_UNSCHEDULABLE: Final = "Unschedulable"


class Verdict(StrEnum):
    """What is to be thought of it; those that are also a `Result` say something of delivery."""

    RIGHT = "right"
    MISSING = "without its card"
    OTHERS = "other cards too"
    NOT_CREATED = "not created"
    NOT_GIVEN = "given no card"
    NOT_PLACED = "not placed"
    NOT_RUN = "not run"

    @property
    def result(self) -> Result | None:
        """What it proves of delivery; None for nothing."""
        return Result[self.name] if self.name in Result.__members__ else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a node's probe."""

    node: str
    found: Chosen  # how Pods get their cards there
    verdict: Verdict  # what is to be thought of it
    why: str = ""  # what happened, a part of a sentence; "" if all is right
    given: tuple[Share, ...] = ()  # the cards that the bind gave
    seen: Seen | None = None  # what the container saw; None if it did not run
    proof: DeliveryProof | None = None  # the record of it; None if it proves nothing


@dataclass(frozen=True, slots=True)
class Ending:
    """How a Pod ended: with what it saw, or why it saw nothing."""

    verdict: Verdict  # RIGHT if it saw something, which is yet to be compared
    why: str = ""  # why not, as somebody else says it
    seen: Seen | None = None


def given_to(pod: Mapping[str, Any]) -> tuple[Share, ...]:
    """The cards that the bind gave a Pod."""
    shares = read_allocation(pod["metadata"].get("annotations") or {}).shares
    return tuple(one for one in shares if one.type == TYPE_GPU)


def ending(pod: Mapping[str, Any]) -> Ending | None:
    """How a Pod ended, or will not get any further; None while it is on its way."""
    status, state = pod.get("status") or {}, container_status(pod).get("state") or {}
    if ended := state.get("terminated"):
        return _ended(ended)
    if status.get("phase") in {"Failed", "Succeeded"}:
        return Ending(Verdict.NOT_RUN, _said(status.get("reason"), status.get("message")))
    waiting = state.get("waiting") or {}
    reason, why = waiting.get("reason", ""), _said(waiting.get("reason"), waiting.get("message"))
    if reason in _NOT_MADE:
        return _not_made(why)
    if reason in NO_IMAGE or reason == "CreateContainerConfigError":
        return Ending(Verdict.NOT_RUN, why)
    scheduled = _condition(pod)
    if not (pod.get("spec") or {}).get("nodeName") and scheduled.get("reason") == _UNSCHEDULABLE:
        return Ending(Verdict.NOT_PLACED, _said("", scheduled.get("message")))
    return None


def _ended(ended: Mapping[str, Any]) -> Ending:
    message, reason = str(ended.get("message") or ""), ended.get("reason")
    seen = read_seen(message)
    if seen is not None:
        return Ending(Verdict.RIGHT, seen=seen)
    if reason in _NOT_BEGUN:
        return _not_made(_said(reason, message))
    return Ending(Verdict.NOT_RUN, f"its command ended with {ended.get('exitCode')} ({_said(reason, message)})")


def _not_made(why: str) -> Ending:
    """The container could not be created; that the image has no shell says nothing of cards."""
    return Ending(Verdict.NOT_RUN if f'exec: "{SHELL}"' in why else Verdict.NOT_CREATED, why)


def late(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]], seconds: float) -> Ending:
    """Why a Pod has come no further after so many seconds."""
    waited = f"after {seconds:.0f} s"
    warned = [one for one in events if one.get("type") == "Warning"]
    said = _said(warned[-1].get("reason"), warned[-1].get("message")) if warned else ""
    if not (pod.get("spec") or {}).get("nodeName"):
        why = said or _said("", _condition(pod).get("message")) or "koord-scheduler has said nothing of it: see its log"
        return Ending(Verdict.NOT_PLACED, f"it waits for its node {waited}: {why}")
    state = container_status(pod).get("state") or {}
    if "running" in state:
        return Ending(Verdict.NOT_RUN, f"its command still runs {waited}")
    if warned and warned[-1].get("reason") == "FailedCreatePodSandBox":
        return Ending(Verdict.NOT_CREATED, said)
    waiting = state.get("waiting") or {}
    why = said or _said(waiting.get("reason"), waiting.get("message")) or "the kubelet has said nothing of it"
    return Ending(Verdict.NOT_RUN, f"its container does not run {waited}: {why}")


def _condition(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    stated = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in stated if one.get("type") == "PodScheduled"), {})


def _said(reason: object, message: object) -> str:
    text = " ".join(str(message or "").split())
    text = text if len(text) <= _MAX_SAID else f"{text[: _MAX_SAID - 4]} ..."
    return ": ".join(filter(None, [str(reason or ""), text]))


def compared(node: str, found: Chosen, given: tuple[Share, ...], end: Ending) -> Outcome:
    """Compare what a Pod was given with what it saw."""
    seen = end.seen
    if seen is None:
        return Outcome(node, found, end.verdict, end.why, given)
    if not given:
        why = f"it was bound without a card: its annotation {DEVICE_ALLOCATED} names none"
        return Outcome(node, found, Verdict.NOT_GIVEN, why, given, seen)
    lacks = _lacks(given, seen)
    if lacks:
        instead = f", and sees {_cards(seen)}" if seen.minors or seen.uuids else ""
        return Outcome(node, found, Verdict.MISSING, f"the container lacks {', '.join(lacks)}{instead}", given, seen)
    if len(seen.minors) > len(given) or set(seen.uuids) - {one.id for one in given}:
        why = f"the container was given {_named(given)}, and sees {_cards(seen)}"
        return Outcome(node, found, Verdict.OTHERS, why, given, seen)
    return Outcome(node, found, Verdict.RIGHT, "", given, seen)


def _lacks(given: Iterable[Share], seen: Seen) -> list[str]:
    """The cards that are not seen: by UUID where nvidia-smi lists any, otherwise by their device nodes."""
    if seen.uuids:
        return [one.id for one in given if one.id not in seen.uuids]
    return [f"/dev/nvidia{one.minor}" for one in given if one.minor not in seen.minors]


def _cards(seen: Seen) -> str:
    nodes = [f"/dev/nvidia{minor}" for minor in seen.minors]
    return ", ".join(seen.uuids if len(seen.uuids) >= len(nodes) else nodes)


def _named(given: Iterable[Share]) -> str:
    return ", ".join(one.id for one in given)


AREA: Final = "probe"
_LET_REPORT: Final = "let koordgate's reporter of this version run there, which tells version and mode"
# What the messages of runtimes have, and what to do.
_NOT_CREATED: Final = {
    "management.nvidia.com/gpu=": f"the runtime is in mode cdi, and a bare UUID is no name there: {_LET_REPORT}",
    "unresolvable CDI devices": "no CDI specification there has this name: write it again (nvidia-ctk cdi generate, or "
    "restart NVIDIA's device plugin)",
    "no runtime for": "the node has no runtime handler of this name: configure NVIDIA's runtime there (nvidia-ctk "
    "runtime configure), and restart the container runtime",
    "unknown device": "the runtime does not know the card in this form, as in mode legacy and before NVIDIA Container "
    f"Toolkit 1.15: {_LET_REPORT}",
    "nvidia-container-cli": "run nvidia-smi on the node: its driver does not work, or does not fit the toolkit",
}
_WITHOUT: Final = {
    Delivery.ENVIRONMENT: "the node's default runtime does not heed NVIDIA_VISIBLE_DEVICES: create RuntimeClass nvidia "
    "for NVIDIA's runtime, or turn on NVIDIA's NRI plugin; koordgate's reporter then tells which, or the Node's label "
    f"{DELIVERY_LABEL} states it",
    Delivery.RUNTIME_CLASS: "the handler of that RuntimeClass is not NVIDIA's runtime, or its config.toml has "
    "accept-nvidia-visible-devices-envvar-when-unprivileged = false: correct it, or turn on NVIDIA's NRI plugin",
    Delivery.NRI: "the enforcer was not at work there, or its CDI specification is old: see the log of the container "
    f"enforcer of koordgate's reporter; or state another way by the Node's label {DELIVERY_LABEL}",
    Delivery.NVIDIA_NRI: "NVIDIA's NRI plugin is not at work there: see that its Pod runs, and that NRI is enabled in "
    f"the container runtime; or state another way by the Node's label {DELIVERY_LABEL}",
}
_OTHER_CARDS: Final = (
    "something else than koordgate shows containers cards there: look for a runtime that is configured to show them to "
    "everybody, for webhooks that make Pods privileged or mount /dev, and for another NRI plugin"
)
_SAID: Final = {  # how grave a verdict is, in words, and what to do if nothing more is known
    Verdict.RIGHT: (Level.OK, "a container got the card that it was given, and no other, on {}, by {}", ""),
    Verdict.MISSING: (Level.FAILURE, "a container runs without its card on {}, by {}", "see the lines about delivery"),
    Verdict.OTHERS: (Level.FAILURE, "a container sees other cards too on {}, by {}", _OTHER_CARDS),
    Verdict.NOT_CREATED: (
        Level.FAILURE,
        "a container could not be created on {}, by {}",
        "see the logs of kubelet and container runtime there",
    ),
    Verdict.NOT_GIVEN: (
        Level.FAILURE,
        "a Pod was bound without a card on {}",
        "see which scheduler bound it, and the log of deployment/koordgate",
    ),
    Verdict.NOT_PLACED: (
        Level.UNKNOWN,
        "no Pod could be placed on {}",
        "if the node is full or reserved, that is no fault; else do what the message says, and probe again",
    ),
    Verdict.NOT_RUN: (Level.UNKNOWN, "a Pod did not run on {}", "see kubectl describe node NAME, and probe again"),
}


def cure(one: Outcome) -> str:
    """What to do about an outcome; "" if it is right."""
    way = one.found.way
    known = ""
    if one.verdict is Verdict.MISSING and way.delivery is not None:
        known = _WITHOUT[way.delivery]
    elif one.verdict is Verdict.NOT_CREATED:
        known = next((todo for words, todo in _NOT_CREATED.items() if words in one.why), "")
    elif one.verdict is Verdict.NOT_PLACED and way.delivery is None:
        known = way.why_not.partition(": ")[2]
    elif one.verdict is Verdict.NOT_RUN and LEFT_ALONE in one.why:
        known = "name a namespace that koordgate enforces with --try-in (label koordgate.io/mode; exemptNamespaces)"
    elif one.verdict is Verdict.NOT_RUN and SHELL in one.why:
        known = f"name an image that has {SHELL}, such as busybox"
    elif one.verdict is Verdict.NOT_RUN and any(reason in one.why for reason in NO_IMAGE):
        known = "name an image that the node can pull with the rights of this namespace"
    return known or _SAID[one.verdict][2]


def probe_findings(outcomes: Sequence[Outcome]) -> list[Finding]:
    """Say what the probes showed, alike ones in one line, with what the first of them said."""
    lines: dict[tuple[Verdict, str, str], list[Outcome]] = {}
    for one in outcomes:
        lines.setdefault((one.verdict, way_of(one.found), cure(one)), []).append(one)
    found = []
    for (verdict, way, todo), alike in lines.items():
        level, text, _ = _SAID[verdict]
        what = text.format(named_nodes([one.node for one in alike]), way)
        found.append(Finding(AREA, level, f"{what}: {alike[0].why}" if alike[0].why else what, todo))
    return found


Tell = Callable[[Outcome, int, int], None]
"""Is called with each outcome as it comes: which of how many it is."""

AT_ONCE: Final = 8
_MANAGER: Final = "koordgate-doctor"
_EVERY_S: Final = 1.0
_MAX_TRIES: Final = 3
_CALL_S: Final = 30.0  # the creation passes all webhooks of the cluster


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is run."""

    image: str  # with a shell
    namespace: str
    timeout: float  # seconds for each node
    every: float = _EVERY_S  # seconds between two looks at a Pod


class Probes:
    """The probes of one run."""

    def __init__(self, kube: KubeClient, plan: ProbePlan, snapshot: Snapshot, tell: Tell) -> None:
        self._kube = kube
        self._plan = plan
        self._snapshot = snapshot
        self._tell = tell
        self._run = secrets.token_hex(4)
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._nodes = card_nodes(snapshot.of("nodes").items, snapshot.seen().view)
        self._outcomes: dict[str, Outcome] = {}
        self.problems: list[Finding] = []  # what could not be recorded or deleted

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
            if is_ready(node):
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
            if not translated_by(made, self._snapshot.settings.scheduler.names.of(self._plan.namespace)):
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
        for _ in range(_MAX_TRIES):
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
        self.problems.append(Finding(AREA, Level.UNKNOWN, f"Pod {name} could not be deleted: {problem}", todo))

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
            what = f"on {one.node} it could not be recorded: {error.message}"
            self.problems.append(Finding(AREA, Level.UNKNOWN, what, todo))
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
