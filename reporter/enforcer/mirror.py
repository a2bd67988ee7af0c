"""The node's sandboxes and containers as the enforcer knows them, and what it decides about them (pure).

CPUs of a Pod's own leave the shared pools in the answer that gives them. What others have is only narrowed here: the
reporter widens, by its writes to cgroups, and tells in its facts. What a container has at most is therefore remembered:
the CPUs that it was given last, and all that the reporter's facts would have given it since.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reporter.cgroup.layout import KubernetesQos
from reporter.cgroup.plan import Pod, WantedCpusets
from reporter.enforcer import limits
from reporter.enforcer.cards import Held
from reporter.enforcer.cpus import NodeCpus, OwnCpus, own_of, read_facts, read_pod
from reporter.enforcer.decide import devices
from reporter.enforcer.limits import Rules
from reporter.enforcer.model import Answer, CardLimit, Container, Edits, Sandbox, Update
from reporter.exchange import CardState, Cpus, Facts, Remark

CPUSETS_BY_ANOTHER: Final = "CpusetsByAnother"
_BY_ANOTHER: Final = (
    "another NRI plugin sets cpusets (container {container} of {pod} had CPUs before the enforcer gave it any), and "
    "the runtime refuses a container that two plugins give CPUs: the enforcer sets none any more; turn that plugin off "
    "and restart the reporter's Pod, or set reporter.cpus.enforce to false"
)
_ALL: Final = -1  # every CPU


@dataclass(slots=True)
class _KnownSandbox:
    """A sandbox that has had a container."""

    told: Sandbox
    pod: Pod
    containers: dict[str, "_Known"] = field(default_factory=dict)  # by name: no two of a name exist at once
    # those that had CPUs for which the kubelet has not accounted, and that have not started, since: name to these CPUs
    doubted: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """A container."""

    id: str
    name: str
    sandbox: _KnownSandbox
    most: int  # the CPUs that it has at most; 0 if they are not ours to change, or if it runs no more
    started: bool = False
    ended: bool = False
    soft: tuple[CardLimit, ...] = ()  # its limits with a soft one
    narrowed: dict[str, int] = field(default_factory=dict)  # id of each container that made room, to what it had


class Mirror:
    """What is known, and decided.

    `facts` are None as long as the reporter has told none.
    """

    def __init__(self, rules: Rules) -> None:
        """Know nothing yet."""
        self._rules = rules
        self._sandboxes: dict[str, _KnownSandbox] = {}
        self._containers: dict[str, _Known] = {}
        self._own = OwnCpus()  # of all sandboxes
        self._told = self._node = read_facts(Cpus())  # the facts of the last decision, and the same without `_own`
        self._settled = False  # whether everybody has made room since these changed
        self._by_another = False

    @property
    def sets_cpus(self) -> bool:
        """Whether it sets cpusets; not beside another plugin that does."""
        return self._rules.cpus and not self._by_another

    @property
    def living(self) -> tuple[str, ...]:
        """The ids of the containers that have not ended."""
        return tuple(identity for identity, record in self._containers.items() if not record.ended)

    def synchronized(
        self, sandboxes: Iterable[Sandbox], containers: Iterable[Container], facts: Facts | None
    ) -> Answer:
        """Forget everything, and learn which containers run or are about to, and their sandboxes.

        Updates are the cpusets that differ; limits those of containers that run.
        """
        told = {one.id: one for one in sandboxes}
        existing = [(told[one.sandbox], one) for one in containers if one.sandbox in told]
        self._sandboxes, self._containers, self._settled = {}, {}, False
        for sandbox, container in existing:
            record = self._add(sandbox, container)
            record.most, record.started = container.cpus or _ALL, container.pid > 0
        self._own = own_of(one.pod for one in self._sandboxes.values())
        if facts is None:
            return Answer()
        self._settle(facts)
        updates: list[Update] = []
        set_now: list[CardLimit] = []
        kept: dict[str, Mapping[str, CardState]] = {}
        for sandbox, container in existing:
            record = self._containers[container.id]
            cpus, mems = self._wanted(record)
            if cpus and self.sets_cpus:
                record.most = cpus
                if container.cpus != cpus or (mems and container.mems != mems):
                    updates.append(Update(container.id, cpus, mems))
            if container.pid:
                limiter, own = limits.running(sandbox, container, facts, self._rules)
                set_now += [*limiter.limits, *own]
                record.soft = _with_soft(own)
                if limiter.kept:
                    kept[container.id] = limiter.kept
        return Answer(updates=tuple(updates), limits=tuple(dict.fromkeys(set_now)), kept=kept)

    def created(self, sandbox: Sandbox, container: Container, facts: Facts | None, held: Held | None = None) -> Answer:
        """Decide about a container that is created.

        `held`: who has cards of NVIDIA's device plugin; None if that is not known.

        If the answer is not a refusal and it is not created in the end, for whatever reason, `removed` must be told.
        """
        answer = devices(sandbox, container, facts, self._rules, held)
        if answer.refusal:
            return answer
        record = self._add(sandbox, container)
        own = self._own.with_pod(record.sandbox.pod)
        if own != self._own:
            self._own, self._settled = own, False
        if facts is None:
            record.most = container.cpus or _ALL
            return answer
        updates = self._settle(facts)
        if self.sets_cpus and self._foreign(record, container):
            self._by_another = True
            remark = Remark(CPUSETS_BY_ANOTHER, _BY_ANOTHER.format(container=container.name, pod=sandbox))
            answer = replace(answer, remarks=(*answer.remarks, remark))
        if not self.sets_cpus:
            return answer
        record.narrowed = {update.container: had for update, had in updates}
        answer = replace(answer, updates=tuple(update for update, _ in updates))
        if self._node.by_kubelet(container.cpus, record.sandbox.pod):
            return answer
        cpus, mems = self._wanted(record)
        record.most = cpus or container.cpus or _ALL
        if container.mems and not facts.cpus.static_memory:
            mems = 0  # They are another plugin's.
        return replace(answer, edits=replace(answer.edits, cpus=cpus, mems=mems))

    def started(self, container: Container, facts: Facts | None) -> Answer:
        """Decide about a container whose cgroup exists, before its program begins."""
        record = self._containers.get(container.id)
        if record is None:
            return Answer()
        record.started = True
        record.sandbox.doubted.pop(container.name, None)
        if facts is None:
            return Answer()
        limiter, own = limits.running(record.sandbox.told, container, facts, self._rules)
        record.soft = _with_soft(own)
        kept = {container.id: limiter.kept} if limiter.kept else {}
        return Answer(limits=own, required=limiter.required, kept=kept)

    def updated(self, container_id: str, cpus: int, mems: int, facts: Facts | None) -> Answer:
        """Decide about a change of a container's cpusets; 0 is what the change leaves alone."""
        record = self._containers.get(container_id)
        if record is None or facts is None or not self.sets_cpus or not (cpus or mems):
            return Answer()
        updates = tuple(update for update, _ in self._settle(facts) if update.container != container_id)
        ours, our_mems = self._wanted(record)
        if not ours or self._node.by_kubelet(cpus, record.sandbox.pod):
            return Answer(updates=updates)
        record.most = ours if cpus else record.most
        return Answer(Edits(cpus=ours if cpus else 0, mems=our_mems if mems else 0), updates=updates)

    def stopped(self, container_id: str) -> tuple[CardLimit, ...]:
        """The limits to be set of a container that has stopped: soft ones outlive their cgroups."""
        record = self._containers.get(container_id)
        if record is None:
            return ()
        soft, record.soft, record.most, record.ended = record.soft, (), 0, True
        return tuple(one._replace(soft=0) for one in soft)

    def removed(self, container_id: str) -> None:
        """Forget a container that was removed, or that was not created in the end."""
        record = self._containers.pop(container_id, None)
        if record is None:
            return
        del record.sandbox.containers[record.name]
        if record.narrowed and not record.started:  # The others may never have made room.
            for other in self._containers.values():
                other.most |= record.narrowed.get(other.id, 0) if other.most else 0
            self._settled = False

    def sandbox_removed(self, sandbox_id: str) -> None:
        """Forget a sandbox that was stopped or removed: its Pod's CPUs are no longer its own."""
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is None:
            return
        for record in tuple(sandbox.containers.values()):
            self.removed(record.id)
        if sandbox.pod.cpus:
            self._own, self._settled = own_of(one.pod for one in self._sandboxes.values()), False

    def _add(self, sandbox: Sandbox, container: Container) -> _Known:
        known = self._sandboxes.get(sandbox.id)
        if known is None:
            known = self._sandboxes[sandbox.id] = _KnownSandbox(sandbox, read_pod(sandbox))
        before = known.containers.get(container.name)
        if before is not None:
            self.removed(before.id)
        record = _Known(container.id, container.name, known, 0)
        known.containers[container.name] = self._containers[container.id] = record
        return record

    def _settle(self, facts: Facts) -> list[tuple[Update, int]]:
        """Take over the facts; returns who has to make room if anything has changed, and what it had."""
        if self._told.facts is not facts.cpus and self._told.facts != facts.cpus:
            self._told, self._settled = read_facts(facts.cpus), False
            for sandbox in self._sandboxes.values():
                for name, cpus in tuple(sandbox.doubted.items()):
                    if cpus == self._told.kubelet.default:
                        del sandbox.doubted[name]
            # That is what the reporter may have given them meanwhile.
            for record, cpus in self._each(self._told.without(self._own)):
                record.most |= cpus
        if self._settled:
            return []
        self._node, self._settled = self._told.without(self._own), True
        found = []
        for record, cpus in self._each(self._node):
            if record.most & ~cpus:
                had, record.most = record.most, record.most & cpus or cpus
                found.append((Update(record.id, record.most), had))
        return found

    def _each(self, node: NodeCpus) -> Iterator[tuple[_Known, int]]:
        """The containers whose CPUs are ours to change, each with those that it is to have."""
        for sandbox in self._sandboxes.values():
            wanted = node.want(sandbox.pod)
            for record in sandbox.containers.values():
                cpus = _cpus_of(wanted, record.name)
                if cpus and record.most:
                    yield record, cpus

    def _wanted(self, record: _Known) -> tuple[int, int]:
        """CPUs and NUMA nodes of a container; 0 if they are left alone."""
        wanted = self._node.want(record.sandbox.pod)
        return _cpus_of(wanted, record.name), wanted.mems

    def _foreign(self, record: _Known, container: Container) -> bool:
        """Whether another plugin gave a container that is created its CPUs.

        Under its static policy the kubelet gives each container CPUs, of which the facts may not tell yet. They do when
        the container is tried again, because its creation failed: the runtime lets no two plugins give it CPUs.
        """
        kubelet, doubted = self._node.kubelet, record.sandbox.doubted
        if not kubelet.static:
            return container.cpus != 0
        default = container.cpus in {0, kubelet.default}
        if default or record.sandbox.pod.qos_class is KubernetesQos.GUARANTEED or record.name in doubted:
            return doubted.pop(record.name, 0) != 0 and not default
        doubted[record.name] = container.cpus
        return False


def _cpus_of(wanted: WantedCpusets, name: str) -> int:
    return wanted.others.get(name, wanted.cpus)


def _with_soft(own: Iterable[CardLimit]) -> tuple[CardLimit, ...]:
    return tuple(one for one in own if one.soft)
