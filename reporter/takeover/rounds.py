"""The take-over of the kubelet's CPU manager state, round by round, as the setting `cpus.takeOver` requires.

This module decides which CPUs of which containers go into the state; `takeover.plan` decides whether the kubelet would
start with them, and `takeover.file` writes the file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.cputopology import CpuTopology
from reporter.cgroup.layout import KubernetesQos
from reporter.kubelet.configuration import STATIC, STRICT_RESERVATION, KubeletConfiguration, reserved_cpus
from reporter.kubelet.cpustate import CpuState
from reporter.kubelet.watched import FileReading, WatchedFile
from reporter.pods import NodePod
from reporter.publish.events import Occurrence, about_node
from reporter.publish.identity import NodeIdentity
from reporter.reading import HostReading
from reporter.takeover.file import BACKUP_BYTES, Backup, backup_of, parse_backup, take_over, undo, waits
from reporter.takeover.plan import Cpus, TakeOverError, WantedState, propose

Mode = Literal["leave", "write", "undo"]
_STRICT_TOPOLOGY: Final = ("restricted", "single-numa-node")
_NAMED: Final = 5  # Pods in one message


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The result of the take-over in one round.

    Attributes:
        written: whether our CPUs were written.
        reason: `notice` in one word.
        notice: what happened, or what must happen next; "" if nothing.
        problems: what an administrator must attend to, a sentence each.
    """

    written: bool = False
    reason: str = ""
    notice: str = ""
    problems: tuple[str, ...] = ()


def events(node: NodeIdentity, taken: TakenOver) -> list[Occurrence]:
    """The Events of a round, about the Node."""
    found = [Occurrence(about_node(node), taken.reason, taken.notice, "Normal")] if taken.notice else []
    refusals = [problem for problem in taken.problems if problem != taken.notice]
    return [*found, *(Occurrence(about_node(node), "CpuStateNotTakenOver", problem) for problem in refusals)]


def wish(pods: Iterable[NodePod], host: HostReading, memory: CpuState) -> tuple[WantedState, tuple[str, ...]]:
    """Say what the kubelet's state should hold.

    All containers of a Pod but those in the shared pool have all of its CPUs, regardless of their requests. Init
    containers that have ended are included: the kubelet would look for CPUs for them when it restarts.

    Args:
        pods: all Pods of the node.
        host: the node's files.
        memory: the state in the kubelet's memory.

    Returns:
        The wanted state, and why Pods are left out, a sentence each.

    Raises:
        TakeOverError: the kubelet's reserved CPUs are uncertain; the kubelet would not start with a wrong guess.
    """
    configuration, topology = host.configuration.value, host.cpus.topology
    if configuration is None or topology is None or configuration.cpu_policy != STATIC:
        raise TakeOverError(
            "the kubelet's policy is static, but its configuration does not say so; correct kubelet.configuration, or"
            " set kubelet.configz"
        )
    reserved, unsure = reserved_cpus(configuration, topology)
    if unsure or not reserved:
        raise TakeOverError(unsure or "the kubelet's configuration reserves no CPUs; state them in reservedSystemCPUs")
    live = [pod for pod in pods if not pod.finished]
    ours, left_out = {}, []
    for pod in live:
        if not pod.cpus or pod.deleted:
            continue
        if reason := _not_again(pod, configuration, topology, memory):
            left_out.append(f"Pod {pod} {reason}")
        else:
            ours[pod.cgroup] = {name: pod.cpus for name in pod.asked if name not in pod.shared}
    strict = configuration.option(STRICT_RESERVATION)
    return WantedState(ours, frozenset(pod.cgroup for pod in live), reserved, strict), tuple(left_out)


def _not_again(pod: NodePod, configuration: KubeletConfiguration, topology: CpuTopology, memory: CpuState) -> str:
    """Say why a Pod that has its CPUs from us cannot have them in the kubelet's state; "" if it can.

    The kubelet must give none to a container in the shared pool. A restarting kubelet admits all Pods again. With a
    strict topology policy, each container's set must have as many CPUs as the container requests (Kubernetes v1.37,
    staticPolicy.GetTopologyHints), on the same NUMA nodes as before.
    """
    if pod.qos_class is not KubernetesQos.GUARANTEED or not pod.whole_cpus:
        return ""
    shared = next((name for name in sorted(pod.shared) if pod.asked.get(name)), None)
    if shared is not None:
        return (
            f"has container {shared}, which runs on shared CPUs and asks for whole ones, so that the kubelet gives it"
            " CPUs of its own; let it ask for less than one CPU, or for a limit above its request"
        )
    if configuration.topology_policy not in _STRICT_TOPOLOGY:
        return ""
    policy = configuration.topology_policy
    if {asked for name, asked in pod.asked.items() if name not in pod.shared} != {pod.cpus.bit_count()}:
        return (
            f"has containers that ask for less than all of its CPUs {format_cpuset(pod.cpus)}; under"
            f" topologyManagerPolicy {policy} the kubelet would reject it when it restarts"
        )
    had = memory.of_pod(pod.cgroup)
    if had and topology.nodes_of(had) != topology.nodes_of(pod.cpus):
        return (
            f"was given CPUs {format_cpuset(pod.cpus)}, on other NUMA nodes than the kubelet's {format_cpuset(had)};"
            f" under topologyManagerPolicy {policy} the kubelet might reject it when it restarts"
        )
    return ""


class TakeOver:
    """The state file of one kubelet.

    Args:
        path: path of cpu_manager_state.
        mode: what to do with it.
    """

    def __init__(self, path: Path, mode: Mode) -> None:
        self._path = path
        self._mode = mode
        self._backup: WatchedFile[Backup | None] = WatchedFile(
            backup_of(path), parse_backup, most_bytes=BACKUP_BYTES, absent=lambda: None
        )
        self._file: FileReading[CpuState] = FileReading(None, None)
        self._kept: FileReading[Backup | None] = FileReading(None, None)
        self._memory: CpuState | None = None

    def in_memory(self, file: FileReading[CpuState]) -> FileReading[CpuState]:
        """The state in the kubelet's memory: the file's, unless the kubelet has not yet read what we wrote.

        Args:
            file: the file as read in this round.
        """
        self._file, self._kept = file, self._backup.read()
        backup = self._kept.value
        self._memory = backup.memory if backup is not None and waits(self._path) else file.value
        return FileReading(self._memory, file.problem)

    def round(self, pods: Iterable[NodePod], host: HostReading, *, dry: bool) -> TakenOver:
        """Do what the mode requires, with the file last given to `in_memory`; never raises because of its content.

        Args:
            pods: all Pods of the node.
            host: the node's files.
            dry: whether to write nothing and only report what would be written.
        """
        try:
            if self._mode == "write":
                return self._write(tuple(pods), host, dry=dry)
            if self._kept.problem is None and self._kept.value is None:
                return TakenOver()
            return self._undo(dry=dry) if self._mode == "undo" else self._leave()
        except TakeOverError as error:
            return TakenOver(problems=(f"cpus.takeOver: {error}",))

    def _leave(self) -> TakenOver:
        problem = f"{self._path}: was taken over, and is no longer kept so; set cpus.takeOver to undo, or back to write"
        return TakenOver(problems=(problem,))

    def _undo(self, *, dry: bool) -> TakenOver:
        if dry:
            return TakenOver(problems=(f"{self._path}: our CPUs would be taken out of it",))
        reason = "CpuStateGivenBack"
        if undo(self._path):
            notice = f"{self._path}: our CPUs were taken out of it; restart the kubelet, which still has them"
            return TakenOver(reason=reason, notice=notice, problems=(notice,))
        notice = f"{self._path}: neither it nor the kubelet has any of our CPUs any more; set cpus.takeOver to leave"
        return TakenOver(reason=reason, notice=notice)

    def _write(self, pods: tuple[NodePod, ...], host: HostReading, *, dry: bool) -> TakenOver:
        state, memory = self._file.value, self._memory
        if state is None or memory is None or state.policy != STATIC:
            return TakenOver()  # there is nothing to take over, or the file's problem is reported elsewhere
        if self._kept.problem is not None:
            raise TakeOverError(self._kept.problem)
        wanted, left_out = wish(pods, host, memory)
        made = propose(state, wanted, self._kept.value.ours if self._kept.value is not None else {})
        written = made.state != state and not dry
        if written:
            made = take_over(self._path, wanted)
        names = {pod.cgroup: str(pod) for pod in pods}
        planned = dry and made.state != state
        notice = self._notice([names[uid] for uid in _waiting(made.accepted, memory)], planned=planned)
        refused = (f"Pod {names[uid]} {reason}" for uid, reason in made.refused.items())
        problems = (*filter(None, (notice,)), *(f"cpus.takeOver: {problem}" for problem in (*refused, *left_out)))
        return TakenOver(written, "CpuStateTakenOver", notice, problems)

    def _notice(self, waiting: list[str], *, planned: bool) -> str:
        if not waiting:
            return ""
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        shown = f"the CPUs allocated to {', '.join(sorted(waiting)[:_NAMED])}{more}"
        if planned:
            return f"{self._path}: {shown} would be in it"
        return f"{self._path}: {shown} are in it; restart the kubelet, which still has others"


def _waiting(accepted: Cpus, memory: CpuState) -> list[str]:
    return [uid for uid, containers in accepted.items() if memory.entries.get(uid) != containers]
