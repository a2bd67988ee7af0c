"""CPUs as the enforcer plans them (pure): `reporter.cgroup.plan`, by what a sandbox and the reporter's facts say.

The facts may lag behind: CPUs of Pods whose sandboxes are known are in no pool, whatever the facts say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.cputopology import parse
from allocator.wire.podallocated import AnnotationError
from reporter import exchange
from reporter.cgroup.layout import KubernetesQos, LayoutError, from_runtime, qos_of
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus, WantedCpusets, wants
from reporter.enforcer.model import Sandbox
from reporter.pods import planned, read_status


def read_pod(sandbox: Sandbox) -> Pod:
    """The Pod of a sandbox as the cpuset plan takes it; its memory follows its NUMA nodes."""
    try:
        qos_class = qos_of(from_runtime(sandbox.cgroup))
    except LayoutError:
        qos_class = KubernetesQos.BURSTABLE  # which gets the shared pool, as most do
    qos = sandbox.labels.get(QOS_LABEL, "")
    pod = Pod(sandbox.uid, str(sandbox), qos_class, qos)
    try:
        return planned(pod, read_status(sandbox.annotations, qos), mems=True)
    except AnnotationError:
        return replace(pod, unreadable=True)


@dataclass(frozen=True, slots=True)
class OwnCpus:
    """The CPUs that Pods have for themselves."""

    cpus: int = 0  # of all of them, which are in no shared pool
    exclusive: int = 0  # of those that do not share them with BE Pods either

    def with_pod(self, pod: Pod) -> "OwnCpus":
        """The same, with those of one more Pod."""
        if not pod.cpus:
            return self
        exclusive = pod.cpus if pod.qos == QosClass.LSE else 0
        return OwnCpus(self.cpus | pod.cpus, self.exclusive | exclusive)


@dataclass(frozen=True, slots=True)
class NodeCpus:
    """The reporter's facts, read."""

    pools: SharedCpus
    kubelet: KubeletRules  # `reserved` are the CPUs that BE Pods use first
    facts: exchange.Cpus

    def without(self, own: OwnCpus) -> "NodeCpus":
        """The same, with these CPUs in no pool."""
        pools = SharedCpus(
            self.pools.shared & ~own.cpus,
            self.pools.best_effort & ~own.exclusive,
            {node: cpus & ~own.cpus for node, cpus in self.pools.shared_by_node.items()},
            {node: cpus & ~own.exclusive for node, cpus in self.pools.best_effort_by_node.items()},
            self.pools.system & ~own.cpus,
        )
        first = self.kubelet.reserved & ~own.exclusive
        return replace(self, pools=pools, kubelet=replace(self.kubelet, reserved=first))

    def want(self, pod: Pod) -> WantedCpusets:
        """What a Pod's containers are to have; `others` is by name."""
        beside = self.facts.beside.get(pod.uid)
        if beside or (pod.mems and not self.facts.mems):
            shared = {name: name for name in beside or ()}
            pod = replace(pod, mems=pod.mems if self.facts.mems else 0, shared=shared)
        (found,) = wants((pod,), self.pools, self.kubelet)
        return found

    def by_kubelet(self, cpus: int, pod: Pod) -> bool:
        """Whether these CPUs, which a container is to get, are those that the kubelet gives it alone.

        The facts may say so later.
        """
        guaranteed = pod.qos_class is KubernetesQos.GUARANTEED and not pod.cpus
        return guaranteed and self.kubelet.static and cpus not in {0, self.kubelet.default}


def read_facts(cpus: exchange.Cpus) -> NodeCpus:
    """Read the facts."""
    pools = SharedCpus(
        parse(cpus.shared),
        parse(cpus.best_effort),
        {node: parse(text) for node, text in cpus.shared_by_node.items()},
        {node: parse(text) for node, text in cpus.best_effort_by_node.items()},
        parse(cpus.system),
    )
    kubelet = KubeletRules(
        static=cpus.static,
        given={uid: {name: parse(text) for name, text in by.items()} for uid, by in cpus.given.items()},
        default=parse(cpus.default),
        static_memory=cpus.static_memory,
        reserved=parse(cpus.first),
        overruled=True,  # Each of its writes passes here.
    )
    return NodeCpus(pools, kubelet, cpus)


def own_of(pods: Iterable[Pod]) -> OwnCpus:
    """The CPUs that these Pods have for themselves."""
    own = OwnCpus()
    for pod in pods:
        own = own.with_pod(pod)
    return own
