"""What inputs are tried on, and what must hold of every answer.

The oracles are slim on purpose: they recount amounts from JSON, and compare what two parts of koordgate say of one
thing. An input that no API server and no kube-scheduler sends may be refused in any way; none may raise.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import cpu_states
import jsonpatch
import npus
import orjson
from fuzzing import shapes
from fuzzing.replica import NOW, SCHEDULER, SCHEDULER_NAME, SETTINGS, Replica
from fuzzing.trial import Case, Target, demand

from allocator.place import Placement, place
from allocator.quantity import QuantityError, format_bytes, format_int, parse, to_int, to_milli
from allocator.request.original import read_asks
from allocator.vocabulary.delivery import NodeRuntime
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import DOMAINS, GPU_MEMORY_RATIO
from allocator.wire.allocatehint import read_hints
from allocator.wire.classes import read_classes
from allocator.wire.deviceobject import read_links, read_partitions
from allocator.wire.gang import read_gang
from allocator.wire.nodeallocation import RecordError, read_spec, write_spec
from allocator.wire.noderuntime import read_runtime, write_runtime
from allocator.wire.nodetopology import read_node_topology, write_node_topology
from allocator.wire.podallocated import (
    AnnotationError,
    read_allocation,
    read_cpu_share,
    read_resource_status,
    write_allocation,
    write_resource_status,
)
from allocator.wire.podannotations import read_numa_topology_spec, read_resource_spec
from reporter import runtimefiles as formats
from reporter.delivery import CardsThere, node_runtime, operator_policy
from reporter.kubelet import configuration, cpustate, devicecheckpoint, podlist
from reporter.kubelet.checkpoint import CheckpointError
from reporter.runtimefiles import RuntimeReading
from webhook import review
from webhook.admission.additions import SlotDefaults
from webhook.scheduling.extender import BadExtenderArgsError
from webhook.settings import parse as parse_settings
from webhook.settings import without_gathering
from webhook.view.podinfo import annotated_holding, read_pod_info

_FORGED: Final = ("written by koordgate when the Pod is bound", "spec.nodeName: must be empty")
_NODES: Final = 4
_WHOLE: Final = ("nvidia.com/gpu",)  # names that count whole cards, for the oracle's own sums
_PERCENT: Final = ("kubernetes.io/gpu", "koordinator.sh/gpu")
_TRANSLATED: Final = {f"{domain}/{tail}" for domain in DOMAINS for tail in ("gpu-core", "gpu-memory-ratio")}
_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
_ORIGINAL: Final = "koordgate.io/original-request"
_SCOPE: Final = "koordgate.io/numa-scope"
_SHARING: Final = "koordgate.io/device-sharing"
_LIMITS: Final = "koordgate.io/limits"
_OURS: Final = (_ALLOCATED, "scheduling.koordinator.sh/resource-status", "koordgate.io/device-quotas")


def _body(question: Any) -> bytes | None:
    """The question as it goes over the wire; None if JSON cannot hold it."""
    try:
        return orjson.dumps(question)
    except (TypeError, ValueError, RecursionError):
        return None


def _review(case: Mapping[str, Any], **fields: Any) -> Any:
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "r", **case, **fields}}


def _unit(dialect: Dialect) -> str:
    """The unit of memory of a dialect that has no default."""
    return ", memoryUnit: 1Gi" if dialect.sized and not dialect.unit else ""


_SETTINGS: Final[Mapping[str, str]] = {
    "koordinator": "domain: koordinator.sh\nstateMemory: false\n",
    "gangs": "gangs: {allOrNothing: true}\nguard: {plainPods: warn}\n",
    "scope": "numa: {scope: {namespaces: [default]}}\nscheduler: {preference: mostBalanced, mostNodes: 0}\n",
    "slots": "devices: {quotaEnvironment: true, defaultSlotResourceFraction: {types: {gpu: 30}}}\n",
    "limits": "limits: {provider: nvidia-toolkit, require: ['*']}\n",
    "types": npus.TEXT,
    "dialects": f"dialects: {{{', '.join(f'{one.name}: {{enabled: true{_unit(one)}}}' for one in PEERS)}}}\n",
}


@cache
def _installed(settings: str) -> Replica:
    """A replica with these settings."""
    return Replica(without_gathering(parse_settings(_SETTINGS.get(settings, ""))))


def _replica(case: Any) -> Replica:
    """The replica with the settings that an input names; with those by default if it names none that are known."""
    named = case.get("settings") if isinstance(case, dict) else None
    return _installed(named if isinstance(named, str) and named in _SETTINGS else "")


# Reviews of Pods


def pods(case: Case) -> str:
    """A review of a Pod: {settings, operation, namespace, name, userInfo, object, oldObject}, or anything."""
    replica = _replica(case)
    body = _body(_review(case) if isinstance(case, dict) else case)
    if body is None:
        return "no JSON"
    try:
        question = review.decode(body)
    except review.BadReviewError:
        return "bad"
    shaped = shapes.is_shaped(question.object, shapes.Pod)
    if question.old_object:
        shaped = shaped and shapes.is_shaped(question.old_object, shapes.Pod)
    if not shaped:
        return _misshapen(replica, question, "mutate-pod", "validate-pod")
    answer = replica.answer("mutate-pod", question)
    judged = replica.answer("validate-pod", question)
    for one in (answer, judged):
        review.encode(question.uid, one)
        demand(one.allowed or 400 <= one.code < 500, f"a Pod's fault is told as ours: {one}")
    if question.operation == "UPDATE":
        if judged.allowed:
            _unchanged(question)
        return "updated" if judged.allowed else "update refused"
    if judged.allowed and not (question.object["metadata"].get("annotations") or {}).get("kubernetes.io/config.mirror"):
        _guarded(question.object)
    if not answer.allowed:
        return "refused"
    translated = _applied(question.object, answer.patch)
    again = review.decode(orjson.dumps(_review(case, object=translated)))
    repeated = replica.answer("mutate-pod", again)
    demand(repeated.allowed, f"a translated Pod is refused: {repeated.message}")
    demand(not repeated.patch, f"a translated Pod is translated again: {repeated.patch}")
    judged = replica.answer("validate-pod", again)
    reasons = [one for one in judged.message.partition(": ")[2].split("; ") if not judged.allowed]
    untold = [one for one in reasons if "did not see this Pod" in one]
    demand(not untold, f"a translated Pod counts as not translated: {untold}")
    _same_asks(question.object, translated, replica)
    return "translated" if answer.patch else "left alone"


def _misshapen(replica: Replica, question: review.Request, *paths: str) -> str:
    """What no API server sends: any answer will do that does not blame koordgate."""
    for path in paths:
        response = replica.answer_at_the_edge(path, question)
        review.encode(question.uid, response)
        demand(response.code < 500, f"a caller's nonsense counts as a bug of ours: {path} {response.message}")
    return "misshapen"


def _applied(obj: Mapping[str, Any], patch: Any) -> dict[str, Any]:
    """Apply a patch by the library alone."""
    patched: dict[str, Any] = jsonpatch.apply_patch(obj, list(patch), in_place=False)
    return patched


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from pod["spec"].get("initContainers") or ()
    yield from pod["spec"]["containers"]


def _amounts(container: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(key) or {}


def _is_foreign(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod names a share of an NPU, which leaves it to others as a whole where no type has it."""
    maps = (_amounts(container, key) for container in _containers(pod) for key in ("requests", "limits"))
    return any(name.startswith("huawei.com/npu-") for names in maps for name in names)


def _is_anothers(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod names a resource of another product, which leaves it to that product where its dialect is off."""
    known = BUILT_IN.known.resources.keys() - BUILT_IN.resources.keys()
    maps = (_amounts(container, key) for container in _containers(pod) for key in ("requests", "limits"))
    return any(name in known and _counts(amount) for names in maps for name, amount in names.items())


def _guarded(pod: Mapping[str, Any]) -> None:
    """What is admitted and asks for cards is scheduled by us, is not bound, and states no holding of its own."""
    asks = any(
        name in {*_WHOLE, *_PERCENT} and _counts(amount)
        for container in _containers(pod)
        for key in ("requests", "limits")
        for name, amount in _amounts(container, key).items()
    )
    annotations = pod["metadata"].get("annotations") or {}
    forged = [key for key in annotations if key in _OURS or "visible-devices.koordgate.io/" in key]
    forged = [
        key for key in forged if key in _OURS or key.partition("visible-devices.koordgate.io/")[0] in {"", "rdma."}
    ]
    demand(not forged, f"forged annotations are admitted: {forged}")
    if asks and not _is_foreign(pod):
        spec = pod["spec"]
        ours = spec.get("schedulerName") == SCHEDULER_NAME or _is_anothers(pod)
        demand(ours, "a Pod of another scheduler that asks for cards is admitted")
        demand(not spec.get("nodeName"), "a Pod that is bound at birth is admitted")


def _counts(amount: object) -> bool:
    """Whether an amount is none, or another than 0 in any spelling."""
    try:
        return parse(amount) != 0
    except QuantityError:
        return True


def _unchanged(question: review.Request) -> None:
    """An update by a stranger that is admitted changes nothing that states a holding."""
    if question.username == SCHEDULER:
        return
    both = (question.old_object, question.object)
    old, new = ((obj.get("metadata") or {}).get("annotations") or {} for obj in both)
    for key in {*old, *new}:
        if key in _OURS:
            demand(old.get(key) == new.get(key), f"a holding is changed by a stranger: {key}")


def _believed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """The Pod without a forged annotation: one that admission wrote anew, since the resources are not translated."""
    annotations = before["metadata"].get("annotations") or {}
    if annotations.get(_ORIGINAL) in (None, (after["metadata"].get("annotations") or {}).get(_ORIGINAL)):
        return before
    kept = {key: text for key, text in annotations.items() if key != _ORIGINAL}
    return {**before, "metadata": {**before["metadata"], "annotations": kept}}


def _same_asks(before: Mapping[str, Any], after: Mapping[str, Any], replica: Replica) -> None:
    """A translated Pod asks for what its author wrote: by our reader, and by sums of our own for the plainest names."""
    if before == after and _is_anothers(before):
        return
    types = replica.parts.types
    slots = SlotDefaults(replica.parts.settings.devices.default_slot_resource_fraction.types).of("")
    was, now = (
        read_asks(_believed(before, after), types, implied=False, slots=slots),
        read_asks(after, types, implied=False),
    )
    demand(not now.problems, f"a translated Pod cannot be read: {now.problems}")
    asked_before, asked_now = was.request, now.request
    if _SCOPE not in (before["metadata"].get("annotations") or {}):  # admission may put it there, and CPUs count then
        asked_before, asked_now = replace(asked_before, cpu=None), replace(asked_now, cpu=None)
    if _SHARING not in (before["metadata"].get("annotations") or {}):  # admission may put it there
        asked_before, asked_now = replace(asked_before, states_quotas=False), replace(asked_now, states_quotas=False)
    if _LIMITS not in (before["metadata"].get("annotations") or {}):  # likewise
        asked_before, asked_now = (
            replace(one, wishes=replace(one.wishes, limits=False)) for one in (asked_before, asked_now)
        )
    demand(asked_before == asked_now, f"translation changes what is asked: {asked_before} became {asked_now}")
    if was.sharing or _is_foreign(before) or _is_anothers(before):
        return  # what users ask for is a part of the slot
    for old, new in zip(_containers(before), _containers(after), strict=True):
        asked = {name: amount for name, amount in _amounts(old, "limits").items() if name in types.resources}
        for names, each in ((_WHOLE, 100), (_PERCENT, 1)):
            if len(asked) == 1 and set(asked) <= set(names):
                wanted = int(parse(next(iter(asked.values()))) * each)
                stated = [to_int(amount) for name, amount in _amounts(new, "limits").items() if name in _TRANSLATED]
                demand(stated == [wanted] * 2 or not wanted, f"percent of cards differ: {wanted} became {stated}")


# Reviews of Bindings


def bindings(case: Case) -> str:
    """{pod, review}: a review of a Binding beside a stored Pod, over four nodes; or anything."""
    if not isinstance(case, dict) or not isinstance(case.get("review"), dict):
        return "bad"
    body = _body(_review(case["review"]))
    if body is None:
        return "no JSON"
    try:
        question = review.decode(body)
    except review.BadReviewError:
        return "bad"
    if not shapes.is_shaped(question.object, shapes.Binding):
        return _misshapen(_cluster(), question, "mutate-binding", "validate-binding")
    replica = _cluster()
    pod: Any = case.get("pod")
    with replica.passing():
        if _body(pod) is not None and shapes.is_shaped(pod, shapes.Pod):
            replica.feed(
                "pods", {**pod, "metadata": {"namespace": "default", "name": "p", "uid": "u", **pod["metadata"]}}
            )
        answer = replica.answer("mutate-binding", question)
        review.encode(question.uid, answer)
        demand(answer.code < 500, f"a bind fails by our fault: {answer.message}")
        if not answer.allowed:
            return "refused"
        bound = _applied(question.object, answer.patch)
        carried = [key for key in bound["metadata"].get("annotations") or {} if key in _OURS]
        again = review.decode(orjson.dumps(_review(case["review"], object=bound)))
        judged = replica.answer("validate-binding", again)
        review.encode(question.uid, judged)
        demand(judged.code < 500, f"a bind fails by our fault: {judged.message}")
        demand(judged.allowed or not answer.patch, f"our own choice is refused: {judged.message}")
        held = [record.node for record in replica.parts.ledger.records() if record.holdings]
        for node in held:
            replica.parts.cluster.snapshot(node).check_invariants()
        demand(question.username == SCHEDULER or not held, "a stranger's Binding has taken devices")
        return "bound" if held else f"{'carried' if carried else 'let'} {'pass' if judged.allowed else 'refused'}"


# The way of Pods to devices: admission, filter, bind, and what is read of it


def life(case: Case) -> str:
    """{settings, device, topology, node, pods}: Pods are created one by one, filtered, and bound to the node."""
    if not isinstance(case, dict) or not isinstance(case.get("pods"), list):
        return "bad"
    replica = _replica(case)
    with replica.passing():
        name = _add_node(replica, case)
        words = [_bind(replica, name, at, pod) for at, pod in enumerate(case["pods"][:6])]
    return " ".join(sorted(set(words)))


def _named(obj: Any, name: str) -> dict[str, Any] | None:
    """An object as the API server keeps it, under this name; None if it would not."""
    if not isinstance(obj, dict):
        return None
    metadata: Any = obj.get("metadata") if isinstance(obj.get("metadata"), dict) else {}
    made = {**obj, "metadata": {**metadata, "name": name, "uid": f"uid-{name}", "resourceVersion": "7"}}
    return made if _body(made) is not None and shapes.is_shaped(made, shapes.Held) else None


def _add_node(replica: Replica, case: Mapping[str, Any]) -> str:
    node = _named(case.get("node", {}), "n1")
    if node is None or not shapes.is_shaped(node, shapes.Node):
        node = {"metadata": {"name": "n1", "uid": "uid-n1"}}
    replica.feed("nodes", node)
    for resource, key in (("devices", "device"), ("topologies", "topology")):
        obj = _named(case.get(key), "n1")
        if obj is not None:
            replica.feed(resource, obj)
    return "n1"


def _bind(replica: Replica, node: str, at: int, pod: Any) -> str:
    made = _named(pod, f"p{at}")
    if made is None or not shapes.is_shaped(made, shapes.Pod):
        return "misshapen"
    made["metadata"]["namespace"] = "default"
    made.pop("status", None)
    where = {"operation": "CREATE", "namespace": "default", "name": f"p{at}", "userInfo": {"username": "alice"}}
    answer = replica.answer("mutate-pod", review.decode(orjson.dumps(_review({**where, "object": made}))))
    if not answer.allowed:
        return "refused"
    made = orjson.loads(orjson.dumps(_applied(made, answer.patch)))
    if not replica.answer("validate-pod", review.decode(orjson.dumps(_review({**where, "object": made})))).allowed:
        return "invalid"
    replica.feed("pods", made)
    info = replica.parts.cluster.pods.get("default", f"p{at}")
    if info is None:
        return "stranger"
    found = replica.parts.extender.filter({"Pod": made, "NodeNames": [node]})
    fits = found["NodeNames"] == [node]
    binding = {
        "metadata": {"name": f"p{at}", "namespace": "default", "uid": made["metadata"]["uid"]},
        "target": {"kind": "Node", "name": node},
    }
    asked = {
        **where,
        "resource": {"resource": "pods"},
        "subResource": "binding",
        "userInfo": {"username": SCHEDULER},
        "object": binding,
    }
    bound = replica.answer("mutate-binding", review.decode(orjson.dumps(_review(asked))))
    demand(bound.allowed == fits, f"filter and bind disagree: {found} but {bound}")
    if not bound.allowed:
        demand(400 <= bound.code < 500, f"a bind fails by our fault: {bound}")
        return "full"
    annotations = _applied(binding, bound.patch)["metadata"].get("annotations", {})
    made = json.loads(json.dumps(made))
    made["metadata"].setdefault("annotations", {}).update(annotations)
    made["spec"]["nodeName"] = node
    replica.feed("pods", made)
    _bound_well(replica, node, made)
    return "bound"


def _bound_well(replica: Replica, node: str, pod: Mapping[str, Any]) -> None:
    """The ledger and the annotations say the same, nothing is given twice, and the record can be read."""
    cluster, uid = replica.parts.cluster, pod["metadata"]["uid"]
    record = replica.parts.ledger.record(node).holdings
    held, info = record.get(uid), cluster.pods.by_uid(uid)
    demand(info is not None, "a bound Pod is not known")
    if held is None or info is None:
        return
    demand(not info.annotation_problem, f"annotations of a bind cannot be read: {info.annotation_problem}")
    snapshot = cluster.snapshot(node)
    snapshot.check_invariants()
    said = annotated_holding(info, snapshot.devices, NOW)
    demand(said is not None, "a bound Pod states no holding")
    told = {share.id: dict(share.amounts) for share in said.shares} if said else {}
    exact = {share.id: dict(share.amounts) for share in held.shares}
    for share in held.shares:
        # The percentage of bytes is rounded down for each container in the ledger, and once for all in the annotation.
        more = told.get(share.id, {}).pop(GPU_MEMORY_RATIO, 0) - exact[share.id].pop(GPU_MEMORY_RATIO, 0)
        demand(0 <= more < max(len(share.containers), 1), f"the annotation has {more} percent more than the ledger")
    demand(told == exact, f"annotations are not the ledger: {told}")


def _divided(pod: Mapping[str, Any]) -> None:
    """The apps of a Pod, which run together, may use no more of a device than the Pod holds."""
    annotations = pod["metadata"]["annotations"]
    quotas = json.loads(annotations.get("koordgate.io/device-quotas", "{}"))
    apps = [container["name"] for container in pod["spec"]["containers"]]
    for kind, entries in json.loads(annotations.get(_ALLOCATED, "{}")).items():
        for entry in entries:
            told = [one for name in apps for one in quotas.get(name, {}).get(kind, ()) if one["id"] == entry["id"]]
            for name, amount in entry["resources"].items():
                counted = [one["resources"][name] for one in told]
                used = sum(to_int(one) for one in counted if one not in {"none", "unlimited"})
                demand(used <= to_int(amount), f"containers may use {used} {name}, and the Pod holds {amount}")


def _recount(replica: Replica, node: str) -> None:
    """Add up the annotations of all bound Pods as JSON: no device has more given than it has."""
    capacity = {device.id: device.capacity for device in replica.parts.cluster.snapshot(node).devices}
    resources = replica.parts.types.resources
    sums: dict[tuple[str, str], int] = {}
    for pod in replica.pods.values():
        stated = (pod["metadata"].get("annotations") or {}).get(_ALLOCATED, "{}")
        for entries in json.loads(stated).values():
            for entry in entries:
                for name, amount in entry["resources"].items():
                    key = entry["id"], resources[name].tail
                    sums[key] = sums.get(key, 0) + to_int(amount)
    for (device, tail), total in sums.items():
        demand(total <= capacity[device].get(tail, 0), f"given twice: {total} {tail} of {device}")


# What the API server keeps


def objects(case: Case) -> str:
    """{settings, device, topology, node, group, record}: objects that others write, as a watch brings them."""
    if not isinstance(case, dict):
        return "bad"
    replica = _replica(case)
    with replica.passing():
        name = _add_node(replica, case)
        group = _named(case.get("group"), "g1")
        if group is not None:
            replica.feed("groups", group)
        record = _named(case.get("record"), name)
        if record is not None:
            replica.feed("records", record)
        cluster = replica.parts.cluster
        cluster.check_invariants()
        return _placed(cluster.snapshot(name))


def claims(case: Case) -> str:
    """{settings, device, slices, steps}: ResourceClaims are allocated and given up on a node where Pods are bound.

    A step is {pod}, {claim}: its new status is reviewed and, if it is allowed, performed; or {gone}, a claim's name.
    """
    if not isinstance(case, dict) or not isinstance(case.get("steps"), list):
        return "bad"
    replica = _replica(case)
    with replica.passing():
        node = _add_node(replica, case)
        listed = case.get("slices")
        for number, obj in enumerate(listed[:4] if isinstance(listed, list) else ()):
            made = _named(obj, f"slice-{number}")
            if made is not None:
                replica.feed("slices", made)
        stored: dict[str, dict[str, Any]] = {}
        steps = [step for step in case["steps"][:6] if isinstance(step, dict)]
        words = [_step(replica, node, at, step, stored) for at, step in enumerate(steps)]
    return " ".join(sorted(set(words)))


def _step(replica: Replica, node: str, at: int, step: Mapping[str, Any], stored: dict[str, dict[str, Any]]) -> str:
    cluster = replica.parts.cluster
    if "pod" in step:
        word = _bind(replica, node, at, step["pod"])
    elif isinstance(step.get("gone"), str) and step["gone"] in stored:
        gone = stored.pop(step["gone"])["metadata"]
        cluster.claims.drop(gone["uid"], deleted=False)
        word = "gone"
    else:
        word = _allocate(replica, step.get("claim"), stored)
    cluster.check_invariants()
    _apart(cluster.snapshot(node))
    return word


def _apart(snapshot: Any) -> None:
    """What Pods hold of a device and what any one claim holds of it are not more than it has."""
    sums: dict[tuple[str, str], int] = {}
    for holding in snapshot.holdings.values():
        for share in holding.shares:
            for tail, amount in share.amounts.items():
                sums[share.id, tail] = sums.get((share.id, tail), 0) + amount
    capacity = {device.id: device.capacity for device in snapshot.devices}
    for holding in snapshot.claims.values():
        for share in holding.shares:
            for tail, amount in share.amounts.items():
                total = sums.get((share.id, tail), 0) + amount
                demand(total <= capacity[share.id].get(tail, 0) or (share.id, tail) not in sums, f"twice: {share}")


def _allocate(replica: Replica, obj: Any, stored: dict[str, dict[str, Any]]) -> str:
    """Review the status of a claim, and store it if that is allowed."""
    metadata: Any = obj.get("metadata") if isinstance(obj, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    made = _named(obj, name if isinstance(name, str) else "c")
    if made is None or not shapes.is_shaped(made, shapes.Claim):
        return "misshapen"
    identity = {"namespace": "default", "name": made["metadata"]["name"], "uid": f"uid-{made['metadata']['name']}"}
    before = stored.get(identity["name"])
    if before is None:
        before = {**made, "metadata": {**made["metadata"], **identity, "resourceVersion": "7"}}
        before.pop("status", None)
        replica.feed("claims", before)
        stored[identity["name"]] = before
    where = {
        "operation": "UPDATE",
        "namespace": "default",
        "name": identity["name"],
        "resource": {"resource": "resourceclaims"},
        "subResource": "status",
        "userInfo": {"username": "system:kube-scheduler"},
    }
    question = review.decode(orjson.dumps(_review({**where, "object": made, "oldObject": before})))
    answer = replica.answer("validate-claim", question)
    review.encode(question.uid, answer)
    demand(answer.code < 500, f"a claim fails by our fault: {answer.message}")
    if not answer.allowed:
        demand(answer.message, "a refusal without a word")
        return "refused"
    revision = str(int(before["metadata"]["resourceVersion"]) + 1)
    after = {**made, "metadata": {**made["metadata"], **identity, "resourceVersion": revision}}
    replica.feed("claims", after)
    stored[identity["name"]] = after
    return "allocated" if any(one.shares for one in replica.parts.cluster.snapshot("n1").claims.values()) else "idle"


def _placed(snapshot: Any) -> str:
    """Place some Pods there, each beside those before it; whatever the node is, nothing is given twice."""
    word = "no room"
    try:
        snapshot.check_invariants()
    except AssertionError:
        return "overfull"  # a record of others may hold more than the devices have now
    for number, request in enumerate(_requests()):
        outcome = place(request, snapshot)
        if isinstance(outcome, Placement):
            word = "room"
            holding = Holding(f"new-{number}", "default", "p", NOW, outcome.shares, outcome.cpus)
            snapshot = snapshot.with_holding(holding)
            snapshot.check_invariants()
            write_allocation(holding, SETTINGS.domain)
            json.dumps(write_spec([holding]))
        else:
            demand(outcome.message, "a refusal without a word")
    return word


@cache
def _requests() -> tuple[Any, ...]:
    def asking(labels: Mapping[str, str], **limits: str) -> Any:
        amounts = {name.replace("__", "/").replace("_", "."): amount for name, amount in limits.items()}
        container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
        reading = read_asks({"metadata": {"labels": dict(labels)}, "spec": {"containers": [container]}})
        demand(not reading.problems, str(reading.problems))
        return reading.request

    own = {"koordinator.sh/qosClass": "LSR"}
    return (
        asking({}, kubernetes_io__gpu="30"),
        asking({}, nvidia_com__gpu="1"),
        asking({}, nvidia_com__gpu="2"),
        asking({}, kubernetes_io__rdma="40"),
        asking(own, cpu="2"),
        asking(own, cpu="3", kubernetes_io__gpu="50"),
    )


def records(case: Case) -> str:
    """A NodeAllocation's `spec`."""
    try:
        found = read_spec({"metadata": {"name": "n"}, "spec": case})
    except RecordError:
        return "unreadable"
    written = json.loads(json.dumps(write_spec(found.values())))
    demand(read_spec({"metadata": {"name": "n"}, "spec": written}) == found, "a record does not come back as read")
    return "read" if found else "empty"


def topologies(case: Case) -> str:
    """A NodeResourceTopology."""
    obj = _named(case, "n1")
    if obj is None:
        return "no object"
    found = read_node_topology(obj)
    again = read_node_topology(json.loads(json.dumps(write_node_topology(found))))
    demand(again.cpu == found.cpu, "CPUs do not come back as read")
    return "problems" if found.problems else "read"


def annotations(case: Case) -> str:
    """Annotations of a Pod or a Node: text by key. Every reader of annotations gets all of them."""
    if not isinstance(case, dict) or not all(isinstance(one, str) for one in case.values()):
        return "bad"
    if _body(case) is None:
        return "no JSON"
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": case},
        "spec": {"containers": []},
    }
    read_hints(case, ["gpu", "rdma"])
    read_gang(pod)
    read_resource_spec(case, [])
    read_numa_topology_spec(case, [])
    read_allocation(case)
    words = []
    for key, text in case.items():
        read_classes(text, BUILT_IN)
        read_links(text, ["GPU-0", "GPU-1", "NIC-0"])
        read_partitions(text)
        words.append(_status(text))
        words.append(_allocation({**case, _ALLOCATED: text} if key != _ALLOCATED else case))
    return " ".join(sorted(set(words)))


def _status(text: str) -> str:
    try:
        status = read_resource_status({_OURS[1]: text})
        read_cpu_share({_OURS[1]: text}, None)
    except AnnotationError:
        return "no-status"
    demand(status is not None, "a resource-status is not seen")
    if status is not None:
        again = read_resource_status({_OURS[1]: write_resource_status(status)})
        demand(again is not None and again.cpus == status.cpus, "CPUs of a status do not come back as read")
    return "status"


def _allocation(found: Mapping[str, str]) -> str:
    """A bound Pod with these annotations holds something, or everything that it may hold; never nothing unsaid."""
    amounts = {"kubernetes.io/gpu": "50"}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}
    metadata = {"name": "p", "namespace": "default", "uid": "u", "annotations": dict(found)}
    info = read_pod_info({"metadata": metadata, "spec": spec})
    demand(info is not None and info.asks, "a Pod that asks is not seen")
    demand(info is not None and info.holds, "a bound Pod's devices count as free")
    if info is None or info.annotation_problem:
        return "closed"
    holding = Holding("u", "default", "p", NOW, info.shares, info.cpus)
    written = write_allocation(holding, SETTINGS.domain)
    again = read_allocation(written)
    demand(not again.problem, f"annotations of ours cannot be read: {again.problem}")
    told = sorted((one.type, one.minor, one.id, sorted(one.amounts.items())) for one in again.shares)
    demand(told == sorted((o.type, o.minor, o.id, sorted(o.amounts.items())) for o in info.shares), "shares change")
    return "held"


# Calls of kube-scheduler


@cache
def _cluster() -> Replica:
    replica = Replica()
    for number in range(_NODES):
        name = f"n{number}"
        replica.feed("nodes", {"metadata": {"name": name, "uid": name, "labels": {"zone": str(number % 2)}}})
        devices = [
            {
                "type": "gpu",
                "id": f"GPU-{name}-{minor}",
                "minor": minor,
                "health": minor < 3,
                "resources": {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "80Gi"},
            }
            for minor in range(number)
        ]
        replica.feed("devices", {"metadata": {"name": name}, "spec": {"devices": devices}})
    return replica


def extender(case: Case) -> str:
    """{verb, args}: a call of the scheduler extender, over four nodes."""
    if not isinstance(case, dict) or not isinstance(case.get("verb"), str):
        return "bad"
    body = _body(case.get("args"))
    if body is None:
        return "no JSON"
    args, sent = orjson.loads(body), orjson.loads(body)
    serving = _cluster().parts.extender
    with _cluster().passing():
        verbs: dict[str, Callable[[Any], Any]] = {
            "filter": serving.filter,
            "prioritize": serving.prioritize,
            "preempt": serving.preempt,
        }
        try:
            answer = verbs.get(case["verb"], serving.filter)(args)
        except BadExtenderArgsError:
            return "bad"
        orjson.dumps(answer)
        if case["verb"] == "prioritize":
            demand(all(0 <= one["Score"] <= 10 for one in answer), f"scores out of range: {answer}")
            return "scored"
        if case["verb"] == "preempt":
            return "preempted"
        return _filtered(sent, answer)


def _filtered(args: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    lowered = {key.lower(): value for key, value in args.items()}
    names = lowered.get("nodenames")
    if names is None:
        names = [item["metadata"]["name"] for item in (lowered["nodes"].get("items") or ())]
        named = [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
    else:
        named = answer["NodeNames"]
    demand(set(named) <= set(names), f"nodes that nobody asked about: {named}")
    refused = {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]}
    demand(not refused & set(named), f"nodes named and refused: {refused}")
    return "named" if named else "nowhere"


# Quantities


def quantities(case: Case) -> str:
    """A quantity, as text or a number."""
    try:
        exact = parse(case)
    except QuantityError:
        for read in (to_int, to_milli):
            try:
                read(case)
            except QuantityError:
                continue
            demand(holds=False, what=f"no quantity, but an amount: {case!r}")
        return "none"
    try:
        whole = to_int(case)
    except QuantityError:
        return "not whole"
    demand(whole == exact, f"an amount differs from its quantity: {case!r}")
    demand(to_int(format_int(whole)) == to_int(format_bytes(whole)) == whole, f"does not come back: {whole}")
    return "whole"


# Files and answers of the kubelet


def _resummed(value: Any, key: str, read: Callable[[bytes], Any]) -> Any:
    """Read a file; if only its checksum is wrong, once more with the one that its data have. None if unreadable."""
    for _ in range(2):
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            return read(data)
        except CheckpointError as error:
            wanted = str(error).partition("its data have ")[2].partition(" ")[0].rstrip(":")
            if not isinstance(value, dict) or not wanted.isdecimal():
                return None
            value = {**value, key: int(wanted)}
    return None


def cpustates(case: Case) -> str:
    """The kubelet's cpu_manager_state; the data of layout v4, which are text there, may be an object here."""
    key = "checksum"
    if isinstance(case, dict) and "data" in case:
        key, inner = "dataChecksum", case["data"]
        case = {**case, "data": inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)}
    found = _resummed(case, key, cpustate.parse)
    if found is None:
        return "unreadable"
    again = cpustate.parse(cpu_states.render(found))
    demand(again.given == found.given and again.default == found.default, "CPUs do not come back as read")
    cpustate.by_pod(found)
    return "read"


def checkpoints(case: Case) -> str:
    """The kubelet's checkpoint of devices."""
    found = _resummed(case, "Checksum", devicecheckpoint.parse)
    if found is None:
        return "unreadable"
    try:
        text = devicecheckpoint.annotation(found.entries)
    except CheckpointError:
        return "too long"
    told = {identity for row in json.loads(text) for identity in row.get("deviceIDs", [])}
    plain = {one for entry in found.entries for one in entry.device_ids}
    demand(told == plain or told == {one.partition("::")[0] for one in plain}, "devices of a checkpoint are lost")
    return "read"


def configz(case: Case) -> str:
    """The kubelet's /configz, or its configuration file."""
    body = case.encode("utf-8", "surrogatepass") if isinstance(case, str) else _body(case)
    if body is None:
        return "no JSON"
    try:
        configuration.parse(body)
    except configuration.ConfigurationError:
        return "unreadable"
    return "read"


def podresources(case: Case) -> str:
    """The kubelet's answer to List, as hexadecimal text."""
    try:
        data = bytes.fromhex(case)
    except (TypeError, ValueError):
        return "no bytes"
    try:
        found = podlist.parse(data)
    except podlist.PodListError:
        return "unreadable"
    return "read" if found else "empty"


# Files about the container runtime


def runtimes(case: Case) -> str:
    """The files about the container runtime, the Node and the GPU Operator's policy, and what is told from them."""
    case = case if isinstance(case, dict) else {}

    def files(key: str, parse: Callable[[bytes], Any]) -> Iterator[Any]:
        for text in listed(case.get(key)):
            try:
                yield parse(str(text).encode("utf-8", "surrogatepass"))
            except ValueError:
                continue

    node = case.get("node")
    specs = tuple(files("specs", formats.cdi_spec))
    nvidia = {
        f"/{at}/nvidia-container-runtime": one for at, one in enumerate(files("nvidia", formats.nvidia_configuration))
    }
    engines = {
        "/etc/containerd": formats.containerd(files("containerd", formats.containerd_file), whole=True),
        "/etc/crio": formats.crio(files("crio", formats.crio_file), whole=True),
    }
    cards = CardsThere(frozenset(one for one in listed(case.get("cards")) if isinstance(one, str)), limits=True)
    reading = RuntimeReading(specs, nvidia, engines, cgroup2=True)
    told = node_runtime(reading, node if isinstance(node, dict) else {}, operator_policy(case.get("policies")), cards)
    text = write_runtime(told)
    demand(read_runtime(text) == (told, ""), "what is told of a runtime does not come back")
    demand("hunter2" not in text, "what is told holds a password")
    return "told" if told == NodeRuntime() else "read"


def listed(value: object) -> list[Any]:
    """A list; empty for anything else."""
    return value if isinstance(value, list) else []


# What each target is, and its share of the inputs: those that go through most of the code in a call get fewer.
_SHARES: Final[Mapping[Target, int]] = {
    pods: 200,
    bindings: 120,
    life: 20,
    objects: 60,
    claims: 15,
    records: 100,
    topologies: 70,
    annotations: 90,
    extender: 90,
    quantities: 70,
    cpustates: 60,
    checkpoints: 60,
    configz: 50,
    podresources: 110,
    runtimes: 15,
}
TARGETS: Final[Mapping[str, Target]] = {target.__name__: target for target in _SHARES}
SHARES: Final[Mapping[str, int]] = {target.__name__: share for target, share in _SHARES.items()}


def left() -> dict[str, int]:
    """What inputs have left behind in the tables of the replicas, beyond what was there before the first one."""
    found: dict[str, int] = {}
    installed = [(_installed(settings), 0) for settings in ("", *_SETTINGS)]
    for replica, nodes in (*installed, (_cluster(), _NODES)):
        for table, kept in replica.kept().items():
            beyond = kept - (nodes if table == "nodes" else 0)
            if beyond:
                found[table] = found.get(table, 0) + beyond
    return found
