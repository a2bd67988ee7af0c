"""How nodes show containers their cards: by which way, whether that is known, and when a Pod last proved it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from allocator.devices.delivery import classes_help
from allocator.devices.isolation import NOT_KNOWN
from allocator.vocabulary.delivery import (
    DELIVERY_LABEL,
    DELIVERY_PROVED,
    KEEPERS,
    Delivery,
    EnforcerTold,
    NodeDelivery,
    Way,
)
from allocator.vocabulary.names import NVIDIA, TYPE_GPU
from allocator.vocabulary.outcome import did_you_mean
from allocator.wire.noderuntime import NODE_RUNTIME
from allocator.wire.values import UNREADABLE, as_json, as_object, as_text
from console.doctor.findings import Finding, Level, failure, named_nodes, ok, warning
from console.doctor.snapshot import Snapshot
from console.terminal import counted
from webhook.view.cluster import ClusterView

_MAX_PROOF: Final = 4096  # characters of the annotation
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Result(StrEnum):
    """What a Pod showed about delivery."""

    RIGHT = "right"  # it saw the cards that it was given, and no others
    MISSING = "missing"  # it ran without a card that it was given
    OTHERS = "others"  # it saw cards that it was not given
    NOT_CREATED = "not-created"  # its container could not be created


@dataclass(frozen=True, slots=True)
class DeliveryProof:
    """One record."""

    at: datetime  # when the Pod ran
    way: str  # in which the cards came, a `Delivery`; "" where that was not known
    result: Result
    image: str

    @property
    def when(self) -> str:
        """The time, for people."""
        return f"{self.at:%Y-%m-%d %H:%M} UTC"

    def write(self) -> str:
        """Write the annotation."""
        stated = {"time": self.at.strftime(_TIME), "way": self.way, "result": str(self.result), "image": self.image}
        return json.dumps(stated, separators=(",", ":"))

    @classmethod
    def read(cls, text: object) -> Self | None:
        """Read the annotation; None if it is missing, or is no such record: it then proves nothing."""
        if not isinstance(text, str) or len(text) > _MAX_PROOF:
            return None
        try:
            found = as_object(as_json(text))
            at = datetime.strptime(as_text(found["time"]), _TIME).replace(tzinfo=UTC)
            return cls(at, str(found.get("way", "")), Result(as_text(found["result"])), str(found.get("image", "")))
        except UNREADABLE:
            return None


_PROBE: Final = "koordgate doctor --probe IMAGE"
_REPORTER: Final = (
    f"let koordgate's reporter of this version run there, or state the way by the Node's label {DELIVERY_LABEL}; "
    f"{_PROBE} shows whether cards arrive"
)
_OTHER_VERSION: Final = "let webhook and reporters have the same version"
_WAYS: Final = {
    Delivery.ENVIRONMENT: "environment (the default runtime reads the variable)",
    Delivery.RUNTIME_CLASS: "runtimeClass {} (its runtime reads the variable)",
    Delivery.NRI: "nri (koordgate's enforcer brings them)",
    Delivery.NVIDIA_NRI: "nvidia-nri (NVIDIA's NRI plugin reads the annotation)",
}
_RESULTS: Final = {
    Result.MISSING: "a container ran without a card that it was given",
    Result.OTHERS: "a container saw cards that it was not given",
    Result.NOT_CREATED: "a container could not be created",
}


@dataclass(frozen=True, slots=True)
class CardNode:
    """A node with NVIDIA's cards."""

    name: str
    delivery: NodeDelivery  # how it shows containers their cards
    told: bool = True  # whether its runtime is told of
    problem: str = ""  # why what is told of its runtime cannot be read; "" if it can
    label: str = ""  # what the Node's label says of delivery; "" if it has none
    proof: DeliveryProof | None = None  # what a Pod last showed there; None if that is not recorded
    enforcer: EnforcerTold | None = None  # what is told of the enforcer there; None if it is not at work


class Chosen(NamedTuple):
    """How Pods of koordgate's get their cards on a node."""

    way: Way  # the way; one without a delivery if there is none
    runtime_class: str = ""  # that Pods name for it; "" for none
    astray: bool = False  # whether there is a way, but not for the Pods as admission makes them


def delivery(snapshot: Snapshot) -> Iterator[Finding]:
    """Check how each node with NVIDIA's cards shows containers theirs."""
    found = card_nodes(snapshot.of("nodes").items, snapshot.seen().view)
    yield from shown(found)
    if (snapshot.reporter.get("enforcement") or {}).get("enabled"):
        yield from enforcing(found)
    everywhere = snapshot.settings.limits.provider in KEEPERS
    keeping = [one for one in found if everywhere or one.delivery.provider in KEEPERS]
    yield from kept(keeping, required=bool(snapshot.settings.limits.require))


def card_nodes(nodes: Iterable[Mapping[str, Any]], view: ClusterView) -> list[CardNode]:
    """The nodes that have NVIDIA's cards, by name; `nodes` are the Node objects of which the view was made."""
    found = []
    for obj in nodes:
        metadata = obj["metadata"]
        name, labels, noted = metadata["name"], metadata.get("labels") or {}, metadata.get("annotations") or {}
        listed = view.nodes.devices(name)
        if listed is None or not any(one.type == TYPE_GPU and one.is_of(NVIDIA) for one in listed.named(labels)):
            continue
        problem = next((one for one in listed.problems if one.startswith(f"annotation {NODE_RUNTIME}")), "")
        label, proof = labels.get(DELIVERY_LABEL, ""), DeliveryProof.read(noted.get(DELIVERY_PROVED))
        way, told = view.snapshot(name).delivery, listed.runtime is not None
        enforcer = listed.runtime.enforcer if listed.runtime is not None else None
        found.append(CardNode(name, way, told, problem, label, proof, enforcer))
    return sorted(found, key=lambda one: one.name)


def chosen(nodes: Iterable[CardNode]) -> dict[str, Chosen]:
    """How Pods that name no RuntimeClass of their own get their cards on each node, as admission makes them."""
    nodes = list(nodes)
    name = next((one.delivery.runtime_class for one in nodes), "")  # the cluster's: all have the same
    if not name:
        return {one.name: Chosen(one.delivery.plain) for one in nodes}
    classed = classes_help(Counter(one.delivery for one in nodes))
    found = {}
    for node in nodes:
        ways = [Chosen(node.delivery.plain), Chosen(node.delivery.classed, name)]
        usual, other = reversed(ways) if classed else ways
        found[node.name] = usual._replace(astray=usual.way.delivery is None and other.way.delivery is not None)
    return found


def shown(nodes: Iterable[CardNode]) -> Iterator[Finding]:
    """Say how nodes show containers their cards, alike ones in one line."""
    nodes = list(nodes)
    ways = chosen(nodes)
    yield from _labels(nodes)
    lines: dict[_Line, list[str]] = {}
    for node in nodes:
        lines.setdefault(_judge(node, ways[node.name]), []).append(node.name)
    for line, names in sorted(lines.items(), key=lambda item: item[1]):
        yield Finding("", line.level, f"{line.before} {named_nodes(names)}{line.after}", line.todo)
    yield from _proofs(nodes, ways)


class _Line(NamedTuple):
    """What is said of nodes: a finding, without the nodes between two parts of its text."""

    level: Level
    before: str
    after: str
    todo: str = ""


def _judge(node: CardNode, found: Chosen) -> _Line:
    way = found.way
    if way.delivery is None:
        why, _, cure = way.why_not.partition(": ")
        level = Level.WARNING if found.astray else Level.FAILURE
        return _Line(level, "Pods get no cards on", f": each {why}", cure)
    if way.known or proved(node, found):
        return _Line(Level.OK, "containers get their cards on", f" by {way_of(found)}")
    if node.told:
        why, todo = "what is told of its runtime does not show it", f"prove it: {_PROBE}"
    else:
        why, todo = node.problem or "no reporter tells of its runtime", _REPORTER
    before = "it is not known whether containers get their cards on"
    return _Line(Level.WARNING, before, f"; {way.delivery} is taken for granted: {why}", todo)


def way_of(found: Chosen) -> str:
    """The way of a node in words."""
    if found.way.delivery is None:
        return "none"
    kind = f", as {found.way.kind}=UUID" if found.way.kind else ""
    return f"{_WAYS[found.way.delivery].format(found.runtime_class)}{kind}"


def proved(node: CardNode, found: Chosen) -> bool:
    """Whether a Pod showed that the node's present way works."""
    proof = node.proof
    return proof is not None and proof.result is Result.RIGHT and proof.way == found.way.delivery


def kept(nodes: Iterable[CardNode], *, required: bool) -> Iterator[Finding]:
    """Say which nodes keep memory limits, where something is to keep them.

    `required`: whether the installation requires limits of Pods that do not ask for them.
    """
    nodes = list(nodes)
    ways = chosen(nodes)
    found: dict[str | None, list[str]] = {}
    for node in nodes:
        if (way := ways[node.name].way).delivery is not None:
            found.setdefault(way.no_limits, []).append(node.name)
    keeping = found.pop("", [])
    if keeping:
        yield ok(f"memory limits are kept on {named_nodes(keeping)}")
    level = Level.FAILURE if required and not keeping else Level.WARNING
    for why, names in sorted(found.items(), key=lambda item: item[1]):
        reason, _, todo = (why or NOT_KNOWN).partition(": ")
        what = f"no Pod that requires memory limits is placed on {named_nodes(names)}: {reason}"
        yield Finding("", level, what, todo)


def enforcing(nodes: Iterable[CardNode]) -> Iterator[Finding]:
    """Say on which nodes the enforcer, which is to run on all, is at work, and on which it can bring no cards."""
    away: list[str] = []
    at_work: list[str] = []
    idle: dict[str, list[str]] = {}
    for node in nodes:
        told = node.enforcer
        if told is not None and told.brings is None:
            idle.setdefault(told.why_not, []).append(node.name)
        else:
            (away if told is None else at_work).append(node.name)
    if at_work:
        yield ok(f"the enforcer is at work on {named_nodes(at_work)}")
    if away:
        todo = "see the Events EnforcerAway on these Nodes, and the log of the container enforcer of their reporters"
        yield failure(f"the enforcer is not at work on {named_nodes(away)}", todo)
    for why, names in sorted(idle.items(), key=lambda item: item[1]):
        reason, _, todo = why.partition(": ")
        because = f": each {reason}" if reason else ", and does not say why in words that this version knows"
        yield warning(f"the enforcer can bring no cards on {named_nodes(names)}{because}", todo or _OTHER_VERSION)


def _labels(nodes: Iterable[CardNode]) -> Iterator[Finding]:
    """Labels that say what is no way, and count for nothing."""
    strange: dict[str, list[str]] = {}
    for node in nodes:
        if node.label and node.label not in list(Delivery):
            strange.setdefault(node.label, []).append(node.name)
    for label, names in sorted(strange.items()):
        what = f"label {DELIVERY_LABEL} is {label!r}, which is no way and counts for nothing, on {named_nodes(names)}"
        yield warning(what, f"write one of {', '.join(Delivery)}, or remove it{did_you_mean(label, Delivery)}")


def _proofs(nodes: list[CardNode], ways: Mapping[str, Chosen]) -> Iterator[Finding]:
    """When Pods last proved it, where there is a way."""
    able = [node for node in nodes if ways[node.name].way.delivery is not None]
    for result, words in _RESULTS.items():
        wrong = [node for node in able if node.proof is not None and node.proof.result is result]
        if wrong:
            last = max(node.proof.when for node in wrong if node.proof is not None)
            what = f"a probe showed that {words}, on {named_nodes([node.name for node in wrong])}, last at {last}"
            yield failure(what, f"{_PROBE} shows whether that is still so, and what to do")
    right = [node for node in able if proved(node, ways[node.name])]
    if right:
        first = min(node.proof.when for node in right if node.proof is not None)
        yield ok(f"Pods proved it on {len(right)} of {counted(len(able), 'node')}, each at {first} or later")
    elif able:
        yield ok(f"no Pod has proved it yet on {named_nodes([node.name for node in able])}: {_PROBE} does")
