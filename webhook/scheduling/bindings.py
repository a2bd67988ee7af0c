"""`/mutate-binding` and `/validate-binding`: devices are chosen in the bind, and no other binder may bind the Pod."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from allocator.bind import ENDING, MAX_UNBOUND, PodToBind, bind
from allocator.budget import Steps
from allocator.memorylimits import device_quotas, limit_annotations
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import is_allocation_annotation, is_delivery_annotation
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.mirror import write_mirror
from allocator.wire.nodeallocation import RecordError
from allocator.wire.podallocated import in_any_form, write_allocation, write_quotas
from koordgate.breaks import with_breaks
from koordgate.kube.errors import KubeError
from webhook.ledger.ledger import BusyError, Change, Decided, Holdings, Ledger
from webhook.ledger.store import FullRecordError, new_mark
from webhook.patch import Operation, add, set_annotations
from webhook.quotas.gate import Admit, admit_all
from webhook.review import RefusalReason, Request, Response, allowed, denied, errored, patched
from webhook.scheduling.account import Occasion, account
from webhook.scheduling.extender import unformatted
from webhook.scheduling.fairness import SearchTime
from webhook.settings import WebhookSettings, adoption_of, mirror_of, types_of
from webhook.view.cluster import ClusterView
from webhook.view.livepods import LivePods
from webhook.view.podinfo import OtherPod, PodInfo, annotated_holding

# The annotations of a Pod may have 256 KiB in all (Kubernetes, k8s.io/apimachinery/pkg/api/validation): beyond that, no
# later update of the Pod is accepted, its status included.
_MAX_ANNOTATIONS: Final = 64 * 1024
_Deciding = Steps[Decided[Holding | Refusal]]  # an annotation within a function is evaluated at each of its calls


class BindingWebhooks:
    """The two Binding reviews.

    `live`: reads Pods that the view has not seen yet. `clock`: seconds since the epoch. `settled`: called with a Pod's
    UID when its bind has been decided, and with the node; "" if it was refused. `sent`: returns what the filter assumed
    for a Pod's UID on a node; None if that is not known. `search_time`: what each namespace has used for long
    decisions. A bind is decided whatever that is, and counts. `admit`: returns a Pod, with what quotas let it hold at
    most as part of its request, or why it must wait; given the deadline in seconds from now.
    """

    def __init__(  # noqa: PLR0913 collaborators, most with a default
        self,
        settings: WebhookSettings,
        cluster: ClusterView,
        ledger: Ledger,
        live: LivePods,
        clock: Callable[[], int],
        *,
        settled: Callable[[str, str], object] = lambda _uid, _node: None,
        sent: Callable[[str, str], Holding | None] = lambda _uid, _node: None,
        search_time: SearchTime | None = None,
        admit: Admit = admit_all,
    ) -> None:
        # called with a Pod, what it was given, and its node, once for each bind that is new
        self.bound: Callable[[PodInfo, Holding, str], object] = lambda _pod, _holding, _node: None
        self._search_time = SearchTime() if search_time is None else search_time
        self._settings = settings
        self._schedulers, self._username = settings.scheduler.names, settings.scheduler.username
        self._types, self._mirror = types_of(settings), mirror_of(settings)
        self._adoption = adoption_of(settings)  # whose Pods other schedulers may bind to koordgate's nodes
        self._cluster = cluster
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {}  # by Pod's UID: the nodes that it is being bound to
        self._settled = settled
        self._sent = sent
        self._admit = admit

    async def mutate(self, request: Request, deadline: float) -> Response:
        """Choose devices for a Binding of koord-scheduler, record them, and put them on the Binding."""
        if request.username != self._username or request.subresource != "binding":
            return allowed()  # `validate` judges the Bindings of others
        try:
            found = await self._find(request, deadline)
            if isinstance(found, Response):
                return found
            pod, node = found
            return allowed() if isinstance(pod, OtherPod) else await self._allocate(request, pod, node, deadline)
        except (KubeError, BusyError, RecordError, TimeoutError) as error:
            return errored(f"Binding of Pod {request.namespace}/{_name(request)}: {error}")

    async def _allocate(self, request: Request, pod: PodInfo, node: str, deadline: float) -> Response:
        """Give the Pod its devices on the node.

        `deadline`: in seconds from now.
        """
        if not pod.asks:
            return allowed()
        bindable = await self._bindable(pod, node, deadline)
        if isinstance(bindable, Response):
            return bindable
        pod = bindable
        sent = self._sent(pod.uid, node)
        claim = claim_of(pod, all_or_nothing=self._settings.gangs.all_or_nothing)
        decide = bind(
            claim, lambda holdings: self._cluster.snapshot_on(node, holdings), self._clock(), new_mark(), sent
        )
        annotations: dict[str, str] = {}
        reason = Occasion.NAMED
        new = False

        def change(holdings: Holdings) -> _Deciding:
            nonlocal reason, new
            changed, decided = yield from self._search_time.charging(pod.namespace, decide(holdings))
            new = changed is not None
            outcome, reason = decided.outcome, _reason(claim, sent, repeated=decided.repeated)
            if isinstance(outcome, Holding):
                written = self._bounded(pod, outcome, node)
                if isinstance(written, Refusal):
                    return None, written
                annotations.clear()
                annotations.update(written)
            return changed, outcome

        if request.dry_run:
            outcome = (await with_breaks(change((await self._ledger.read(node, deadline)).holdings)))[1]
        else:
            outcome = await self._decided(pod.uid, node, change, deadline)
            self._settled(pod.uid, "" if isinstance(outcome, Refusal) else node)
        if isinstance(outcome, Refusal):
            return denied(
                f"Pod {pod} is not bound: {unformatted(outcome.message)}", RefusalReason.NO_ROOM, HTTPStatus.CONFLICT
            )
        if new and not request.dry_run:
            self.bound(pod, outcome, node)
        # Called once more for the same Binding: the account of the first answer is in the audit event already.
        told = bool(annotations) and annotations.items() <= _annotations(request).items()
        annotations |= self._mirrored(pod, outcome, node)
        operations: list[Operation] = set_annotations(request.object, annotations)
        if not (request.object.get("metadata") or {}).get("uid"):
            operations.append(add("/metadata/uid", pod.uid))  # the bind then fails if another Pod has got the name
        recorded = not request.dry_run
        audit = {} if told else account(outcome, node, self._settings.scheduler.preference, reason, recorded=recorded)
        return patched(operations, audit=audit)

    def _bounded(self, pod: PodInfo, holding: Holding, node: str) -> dict[str, str] | Refusal:
        """Write as `_written`, unless that is too long for the Pod, or the Pod ended while its bind waited its turn."""
        if self._cluster.pods.is_over(pod.uid):
            return Refusal(f"{node}: the Pod has ended, or is being deleted; create it again if it should run")
        written = self._written(pod, holding, node)
        if isinstance(written, Refusal):
            return written
        size = sum(len(key) + len(value) for key, value in written.items())
        return _too_long(node, size) if size > _MAX_ANNOTATIONS else written

    def _written(self, pod: PodInfo, holding: Holding, node: str) -> dict[str, str] | Refusal:
        """Write what a Pod holds, and what each container may use of it if the Pod wants that stated."""
        snapshot = self._cluster.snapshot(node)
        wishes = pod.request.wishes
        way = snapshot.delivery.way(wishes.runtime_class, limits=wishes.limits)
        annotations = write_allocation(holding, self._settings.domain, self._types, way)
        limits = self._limits(pod, holding, snapshot)
        if isinstance(limits, Refusal):
            return limits
        annotations |= limits
        if not pod.request.states_quotas:
            return annotations
        quotas = device_quotas(pod.request, holding.shares, snapshot.devices)
        return annotations | write_quotas(quotas, self._settings.domain)

    def _limits(self, pod: PodInfo, holding: Holding, on: NodeSnapshot) -> dict[str, str] | Refusal:
        """Write the limits of a Pod that requires them, as what keeps them on the node reads it."""
        if not pod.request.wishes.limits:
            return {}
        written = limit_annotations(pod.request, holding.shares, on.devices, on.delivery.provider)
        return Refusal(f"{on.name}: {written}") if isinstance(written, str) else written

    def _mirrored(self, pod: PodInfo, holding: Holding, node: str) -> dict[str, str]:
        """What other products would have written. Nobody here reads it of such a Pod, and it decides nothing."""
        if not self._mirror.peers:
            return {}
        listed = self._cluster.nodes.devices(node)
        numberings = listed.numberings if listed is not None else ()
        devices = self._cluster.devices(node)
        return write_mirror(self._mirror, holding, node, devices, numberings, self._clock(), pod.containers)

    async def _decided(
        self, uid: str, node: str, change: Change[Holding | Refusal], deadline: float
    ) -> Holding | Refusal:
        """Decide in the ledger, unless the Pod holds something on as many other nodes as it may."""
        soon = f"is given back within {self._settings.ledger.given_back_seconds:g} s"
        others = self._others(uid, node)
        if len(others) >= MAX_UNBOUND:
            return Refusal(
                f"{node}: the Pod was given room on {' and '.join(others)}, and no bind to one of these nodes has been "
                f"performed yet; it can be bound to these only, until what it is not bound to {soon}"
            )
        try:
            with self._binding(uid, node):
                outcome = await self._ledger.change(node, change, deadline)
        except FullRecordError as error:
            return Refusal(str(error))
        return Refusal(f"{node}: {ENDING.message}; what is held here {soon}") if outcome == ENDING else outcome

    def _others(self, uid: str, node: str) -> list[str]:
        """The nodes on which a Pod holds something, or is about to; empty where this one is among them."""
        nodes = {*self._ledger.nodes_of(uid), *self._under_way.get(uid, ())}
        return [] if node in nodes else sorted(nodes)

    @contextmanager
    def _binding(self, uid: str, node: str) -> Iterator[None]:
        """Count a node as one that the Pod is about to hold something on."""
        under_way = self._under_way.setdefault(uid, Counter())
        under_way[node] += 1
        try:
            yield
        finally:
            under_way[node] -= 1
            if not under_way[node]:
                del under_way[node]
            if not under_way:
                self._under_way.pop(uid, None)

    async def validate(self, request: Request, deadline: float) -> Response:
        """Refuse Bindings by other binders, and koord-scheduler's own if they do not carry the ledger's allocation."""
        try:
            found = await self._find(request, deadline)
            if isinstance(found, Response):
                return found
            pod, node = found
            if isinstance(pod, OtherPod):
                judged = self._of_other(request)
                return self._taking(request, pod, node) if judged.allowed else judged
            if not pod.in_scope(self._schedulers):
                judged = self._of_other(request)
                return self._plain(request, pod, node) if judged.allowed else judged
            if request.username != self._username:
                return denied(self._foreign(request, pod), RefusalReason.OTHER_SCHEDULER)
            return await self._carries(request, pod, node, deadline)
        except (KubeError, BusyError, RecordError, TimeoutError) as error:
            return errored(f"Binding of Pod {request.namespace}/{_name(request)}: {error}")

    def _of_other(self, request: Request) -> Response:
        """Judge the Binding of a Pod that is not ours: it may not state that the Pod holds anything."""
        carried = _carried(request)
        if request.username in self._settings.adopt.writers:
            carried = {key: value for key, value in carried.items() if not is_delivery_annotation(key)}
        if request.username == self._username or not carried:
            return allowed()
        names = ", ".join(sorted(carried))
        return denied(
            f"Binding of Pod {request.namespace}/{_name(request)} carries the annotations {names}: they state "
            f"what a Pod holds, and only a bind by {self._username} may write them; remove them from the "
            "Binding",
            RefusalReason.FORGED,
        )

    def _plain(self, request: Request, pod: PodInfo, node: str) -> Response:
        """Judge the Binding of a device plugin's plain Pod, which was never translated.

        On a node whose devices koordgate gives, the kubelet would choose one for it that another Pod may hold. The
        device proposal refuses such a Binding, at the end of its upgrade strategy.
        """
        if pod.takes:
            return self._taking(request, pod, node)
        asked = [(one.ask.type.name, one.ask.vendor) for one in pod.request.containers]
        if request.username == self._username or not self._gives(node, asked):
            return allowed()
        return self._kept_off(
            f"Pod {pod} was never translated by koordgate, which gives the devices of node {node}: the kubelet would "
            "choose a device for it that another Pod may hold. Delete the Pod and create it again; koordgate then "
            f"translates it, and {self._schedulers.of(pod.namespace)} binds it"
        )

    def _taking(self, request: Request, pod: PodInfo | OtherPod, node: str) -> Response:
        """Judge the Binding of a Pod that asks another product for devices, in a dialect that is off, say.

        That product gives them as the kubelet does, without knowing what koordgate gave. Where its Pods count, an
        administrator lets both give devices of the same nodes.
        """
        counts = self._adoption.counts
        taken = [one for one in pod.takes if not counts(one.dialect, pod.scheduler_name)]
        asked = [(one.type, one.vendor) for one in taken]
        if request.username == self._username or not self._gives(node, asked):
            return allowed()
        names = " and ".join(one.name for one in taken)
        on = " and ".join(f"dialects.{one.dialect}.enabled" for one in taken if one.dialect)
        return self._kept_off(
            f"Pod {request.namespace}/{_name(request)} asks for {names}, which koordgate does not read, and koordgate "
            f"gives the devices of node {node}: another product would choose a device for it that another Pod may "
            f"hold. Ask in koordgate's names, or let an administrator {f'set {on}, ' if on else ''}count the product's "
            "Pods (adopt.peers) or keep them off this node by a taint"
        )

    def _kept_off(self, message: str) -> Response:
        if self._settings.guard.plain_pods == "warn":
            return allowed(warnings=[message])
        return denied(message, RefusalReason.UNTRANSLATED)

    def _gives(self, node: str, wanted: Collection[tuple[str, str]]) -> bool:
        """Whether koordgate gives, or has given, devices of one of these types and vendors ("": any) on a node.

        Pods hold their devices although the Device object is gone. A record that cannot be read may state anything.
        """
        devices = self._cluster.devices(node)
        listed = {device.id for device in devices}
        if any(
            device.type == kind and (not vendor or device.is_of(vendor))
            for device in devices
            for kind, vendor in wanted
        ):
            return True
        held = self._cluster.snapshot(node).holdings.values() if wanted else ()
        gone = {share.type for one in held for share in one.shares if share.id not in listed}
        return any(kind in gone for kind, _ in wanted) or (bool(wanted) and bool(self._cluster.nodes.blocked(node)))

    def _foreign(self, request: Request, pod: PodInfo) -> str:
        return (
            f"Pod {pod} {pod.request.scope}, and {request.username} is not its scheduler: only "
            f"{self._username} may bind it, because that bind chooses its devices, CPUs and NUMA nodes. Leave "
            f"it to spec.schedulerName {self._schedulers.of(pod.namespace)}, or create a Pod that is not in "
            "koordgate's scope"
        )

    async def _carries(self, request: Request, pod: PodInfo, node: str, deadline: float) -> Response:
        """Compare the Binding's annotations with what the ledger holds for the Pod."""
        carried = _carried(request)
        if request.dry_run and carried:
            return allowed()  # nothing was recorded to compare with
        held = self._ledger.record(node).holdings.get(pod.uid)
        if held is None or not self._states(request, pod, held, node):
            # Another replica may have written since we last saw the record.
            held = (await self._ledger.read(node, deadline)).holdings.get(pod.uid)
        if held is not None and self._states(request, pod, held, node):
            return allowed()
        what = "carries no allocation" if not carried else "carries another allocation than the ledger holds"
        return denied(
            f"Binding of Pod {pod} to {node} {what}: koordgate's mutating webhook did not see it on pods/binding, or "
            "it was changed afterwards; bind through pods/binding, and let an administrator look at the "
            "MutatingWebhookConfigurations",
            RefusalReason.FORGED,
            HTTPStatus.CONFLICT,
        )

    def _states(self, request: Request, pod: PodInfo, held: Holding, node: str) -> bool:
        """Whether a Binding states what is written of a holding, in the form of any replica, and nothing else."""
        written = self._written(pod, held, node)
        if isinstance(written, Refusal):
            return False
        of_others = {key: value for key, value in _annotations(request).items() if key in written}
        return in_any_form(_carried(request) | of_others) == in_any_form(written)

    async def _find(self, request: Request, deadline: float) -> tuple[PodInfo | OtherPod, str] | Response:
        """Find the Pod of a Binding, by a live read if the view does not know it; a Response if there is none."""
        binding = request.object
        name = _name(request)
        node = (binding.get("target") or {}).get("name")
        if not name or not isinstance(node, str) or not node:
            return denied(
                "a Binding names its Pod in metadata.name and its node in target.name",
                RefusalReason.MALFORMED,
                HTTPStatus.BAD_REQUEST,
            )
        uid = (binding.get("metadata") or {}).get("uid") or ""
        pod = self._cluster.pods.get(request.namespace, name)
        if pod is not None and uid in {"", pod.uid} and not (pod.node or pod.terminating or not uid):
            return pod, node
        known = self._cluster.pods.other(request.namespace, name, uid) if uid else None
        if known is not None:
            return known, node
        live = await self._live.find(request.namespace, name, deadline)
        if live is None or (uid and live.uid != uid):
            return denied(
                f"Pod {request.namespace}/{name} of this Binding does not exist any more",
                RefusalReason.OUTDATED,
                HTTPStatus.CONFLICT,
            )
        return live, node

    async def _bindable(self, pod: PodInfo, node: str, deadline: float) -> PodInfo | Response:
        """The Pod, with all that quotas let it hold, or why it cannot be bound."""
        if pod.problem or pod.annotation_problem:
            problem = pod.problem or pod.annotation_problem
            what = f"Pod {pod} cannot be bound: {problem}; delete it and create a correct one"
            return denied(what, RefusalReason.UNREADABLE, HTTPStatus.UNPROCESSABLE_ENTITY)
        if pod.node or pod.terminating or pod.finished:
            ended = "is being deleted" if pod.terminating else "has finished"
            what = f"is bound to {pod.node} already" if pod.node else ended
            return denied(
                f"Pod {pod} {what}, it cannot be bound to {node}", RefusalReason.OUTDATED, HTTPStatus.CONFLICT
            )
        admitted = await self._admit(pod, deadline)
        if isinstance(admitted, str):
            self._settled(pod.uid, "")
            return denied(f"Pod {pod} is not bound: {admitted}", RefusalReason.QUOTA, HTTPStatus.CONFLICT)
        return admitted


def _too_long(node: str, size: int) -> Refusal:
    return Refusal(
        f"{node}: the annotations that state its devices would have {size} bytes, and {_MAX_ANNOTATIONS} are allowed; "
        "ask for devices in fewer containers, or for fewer devices"
    )


def _reason(claim: PodToBind, sent: Holding | None, *, repeated: bool) -> Occasion:
    """Why a bind gives what it gives."""
    if claim.all_or_nothing:
        return Occasion.GANG
    if repeated:
        return Occasion.AGAIN
    if claim.annotated is not None:
        return Occasion.STATED
    return Occasion.NAMED if sent is None else Occasion.SENT


def claim_of(pod: PodInfo, *, all_or_nothing: bool) -> PodToBind:
    """What a bind decides on.

    `all_or_nothing`: whether gangs are bound as a whole where their Pods ask for it.
    """
    annotated = partial(annotated_holding, pod, since=0) if pod.holds else None
    whole = all_or_nothing and pod.request.wishes.all_or_nothing
    return PodToBind(pod.uid, pod.namespace, pod.name, pod.request, annotated, whole)


def _carried(request: Request) -> dict[str, str]:
    """The allocation annotations of a Binding, which the API server merges into the Pod."""
    return {key: value for key, value in _annotations(request).items() if is_allocation_annotation(key)}


def _annotations(request: Request) -> Mapping[str, str]:
    return (request.object.get("metadata") or {}).get("annotations") or {}


def _name(request: Request) -> str:
    metadata: Mapping[str, Any] = request.object.get("metadata") or {}
    name = request.name or metadata.get("name") or ""
    return name if isinstance(name, str) else ""
