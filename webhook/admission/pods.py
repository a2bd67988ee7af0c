"""The reviews of Pods: mutate and validate, with what each records."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from allocator.quantity import in_gib
from allocator.request.cpus import below_one, names_cpus, not_aligned, not_guaranteed, without_effect
from allocator.request.devices import PodReading
from allocator.request.original import too_large
from allocator.request.unread import find_unread
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.outcome import Problem
from webhook.admission import validate
from webhook.admission.reapply import reapply
from webhook.admission.translate import TranslationPolicy, states_least, translate
from webhook.admission.unread import unread_warnings
from webhook.patch import apply
from webhook.quotas.limits import NO_LIMITS, NamespaceLimits, may_be_added
from webhook.review import RefusalReason, Request, Response, allowed, denied, patched

_MAX: Final = 1_000  # characters


def asked(reading: PodReading) -> str:
    """Write what a Pod asks for, as `main: 1 gpu (gpu-core=50 gpu-memory-ratio=50)`; in bounds, by whole containers."""
    parts = [f"{one.name}: {_written(ask)}" for one in reading.containers for ask in one.requests]
    if reading.cpu is not None:
        parts.append(f"CPUs as {reading.cpu.qos}")
    told: list[str] = []
    left = _MAX
    for number, part in enumerate(parts):
        left -= len(part) + 2
        if left < 0:
            return "; ".join([*told, f"and {len(parts) - number} more"])
        told.append(part)
    return "; ".join(told)


def _written(ask: DeviceAsk) -> str:
    stated = zip(ask.type.tails, ask.amounts, strict=True)
    amounts = " ".join([f"{tail}={amount}" for tail, amount in stated if amount is not None])
    return f"{ask.count} {ask.type.name}" + f" ({amounts})" * bool(amounts)


MemoryInReach = Callable[[Mapping[str, Any]], tuple[int, int]]
RuntimeClassOf = Callable[[Mapping[str, Any], PodReading], tuple[str, Sequence[str]]]


class PodWebhooks:
    """The two Pod reviews.

    `writer`: the exact user who may write allocation annotations on a Pod that exists. `memory_in_reach`: returns for a
    Pod the bytes of the smallest GPU that it could land on, and of the largest; 0 and 0 if none is known.
    `state_memory`: whether bytes of the smallest are stated beside a ratio, and an author is warned if none has enough.
    `limits`: returns what a namespace limits. `states`: returns what Pods of a namespace are to state for quotas; None
    for everything that quotas count. `peers`: the exact users of other products that bind Pods (`validate.updated`).
    `runtime_class`: returns the RuntimeClass that a Pod is to have, "" to leave it as it is, and warnings.
    """

    def __init__(
        self,
        policy: TranslationPolicy,
        writer: str,
        memory_in_reach: MemoryInReach,
        *,
        state_memory: bool = True,
        limits: Callable[[str], NamespaceLimits] = lambda _namespace: NO_LIMITS,
        states: Callable[[str], Collection[str] | None] = lambda _namespace: None,
        peers: Collection[str] = (),
        runtime_class: RuntimeClassOf = lambda _pod, _reading: ("", ()),
    ) -> None:
        self._policy = policy
        self._writer = writer
        self._memory_in_reach = memory_in_reach
        self._state_memory = state_memory
        self._limits = limits
        self._states = states
        self._peers = frozenset(peers)
        self._runtime_class = runtime_class

    def mutate(self, request: Request) -> Response:
        """Translate a Pod that is being created; of one that exists, put back what an update would undo."""
        if request.operation == "UPDATE":
            return self._reapply(request)
        pod = request.object
        if validate.is_mirror(pod, request.username, request.groups):
            return allowed()
        if large := too_large(pod):
            return denied(_refusal(request, [large]), RefusalReason.TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
        policy = self._policy.within(request.namespace)
        marks = policy.scope.marks(request.namespace, pod, policy.types)
        if marks:
            pod = apply(pod, marks)
        smallest, largest = self._memory_in_reach(pod)
        zeros = self._limits(request.namespace).zeros if self._policy.charges else ()
        translation = translate(
            pod,
            policy,
            smallest or None if self._state_memory else None,
            alike=smallest == largest,
            charged_memory=smallest or None if smallest == largest else None,
            states=self._states(request.namespace) if policy.charges else (),
            zeros=zeros,
            namespace=request.namespace,
            classed=partial(self._runtime_class, pod),
        )
        if translation.problems:
            said = "; ".join(map(str, translation.problems))
            added = may_be_added(self._limits(request.namespace), said)
            refusal = _refusal(request, (*translation.problems, *added))
            return denied(refusal, RefusalReason.TRANSLATION, HTTPStatus.UNPROCESSABLE_ENTITY)
        warnings = list(translation.warnings)
        if names_cpus(pod):
            small = below_one(pod, translation.reading.shared)
            warnings += filter(None, (without_effect(pod), not_aligned(pod), not_guaranteed(pod), small))
        if self._state_memory and largest:
            warnings += [
                f"{container.path}.resources: no known GPU has the requested memory; the largest has "
                f"{in_gib(largest)}, and the Pod waits until a larger one joins"
                for container in translation.reading.containers
                for ask in container.requests
                if ask.type.states_memory and (ask.amount(ask.type.restated) or 0) > largest
            ]
        if self._state_memory and smallest < largest and any(map(states_least, translation.reading.containers)):
            warnings.append(
                f"gpu-memory is stated for the smallest card that this Pod could get ({in_gib(smallest)}); "
                f"others have up to {in_gib(largest)}, and the Pod gets its percentage of the card that is chosen"
            )
        operations = (*marks, *translation.operations)
        audit = {"requested": asked(translation.reading)} if operations else {}
        return patched(operations, warnings=warnings, audit=audit)

    def _reapply(self, request: Request) -> Response:
        if (request.old_object.get("spec") or {}).get("schedulerName") not in self._policy.schedulers:
            return allowed()
        if large := too_large(request.object):
            return denied(_refusal(request, [large]), RefusalReason.TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
        answer = reapply(request.old_object, request.object, self._policy.within(request.namespace))
        if answer.problems:
            refusal = _refusal(request, answer.problems)
            return denied(refusal, RefusalReason.VALIDATION, HTTPStatus.UNPROCESSABLE_ENTITY)
        return patched(answer.operations, warnings=answer.warnings)

    def validate(self, request: Request) -> Response:
        """Refuse a Pod that can never work, that carries forged annotations, or that was not translated."""
        if validate.is_mirror(request.object, request.username, request.groups):
            return allowed()
        types = self._policy.types.within(request.namespace)
        if request.operation == "UPDATE":
            problems = validate.updated(request, self._writer, types, peers=self._peers, charged=self._policy.charges)
            return denied(_refusal(request, problems), RefusalReason.VALIDATION) if problems else allowed()
        limits = self._limits(request.namespace) if self._policy.charges else None
        if large := too_large(request.object):
            return denied(_refusal(request, [large]), RefusalReason.TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
        problems = validate.created(
            request,
            self._policy.schedulers.of(request.namespace),
            types,
            self._policy.scope,
            limits,
            self._policy.limits,
            self._states(request.namespace),
        )
        if problems:
            return denied(_refusal(request, problems), RefusalReason.VALIDATION, HTTPStatus.UNPROCESSABLE_ENTITY)
        # The Pod had no UID when it was translated. From here on its UID names it, in the bind too.
        uid = (request.object.get("metadata") or {}).get("uid")
        return allowed(audit={"pod-uid": uid} if isinstance(uid, str) and uid else {})

    def warn(self, request: Request) -> Response:
        """Tell the author of a Pod that is none of ours what it asks for in names that are not read here."""
        pod = request.object
        if too_large(pod):
            return allowed()
        types = self._policy.types.within(request.namespace)
        return allowed(warnings=list(unread_warnings(pod, types, find_unread(pod, types), ours=False)))


def _refusal(request: Request, problems: Sequence[Problem]) -> str:
    """Say what is wrong with a Pod; of several problems each has a line of its own."""
    name = request.name or (request.object.get("metadata") or {}).get("generateName", "")
    said = str(problems[0]) if len(problems) == 1 else f"{len(problems)} problems"
    return "\n- ".join([f"Pod {request.namespace}/{name}: {said}", *(map(str, problems) if len(problems) > 1 else ())])
