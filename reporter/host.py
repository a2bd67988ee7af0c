"""The node's files, read and written: everything that may block, for one thread at a time."""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

from reporter import exchange, files
from reporter.cgroup.cpusets import CpusetKeeper, Findings, Hierarchy, HierarchyError, find_hierarchy, find_layout
from reporter.cgroup.layout import CgroupLayout, LayoutError, Version
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus
from reporter.enforced import EnforcerFiles
from reporter.exchange import Facts
from reporter.files import FileError, WatchedFile, read_bounded
from reporter.gpu import health
from reporter.gpu.health import NOTHING_KNOWN, NodeRecord
from reporter.inventory import CpuReader, read_devices, read_zones
from reporter.kubelet import configuration, cpustate, devicecheckpoint
from reporter.kubelet.checkpoint import MAX_BYTES
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import NodePod
from reporter.proof import evidence
from reporter.proof.agree import ContainerSeen
from reporter.reading import HostReading
from reporter.runtimefiles import RuntimeFiles
from reporter.settings import ReporterSettings, pci_matches

_NO_CGROUPS: Final = (HierarchyError, LayoutError, OSError)
_HEALTH: Final = "gpus.json"
_MAX_HEALTH: Final = 2**20
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03  # PCI base class
_MAX_PODS: Final = 4096
_HOST_CGROUPS: Final = "/sys/fs/cgroup"  # on the host, as the driver names cgroups, wherever this process sees them


class Host:
    """The node's files."""

    def __init__(self, settings: ReporterSettings) -> None:
        roots = settings.roots
        self._settings = settings
        self._sysfs = Path(roots.sysfs)
        self.proc = Path(roots.proc)  # procfs of the host's PID namespace
        self._matches = pci_matches(settings)
        self._cpus = CpuReader(self._sysfs, self.proc)
        kubelet = Path(roots.kubelet)
        self._configuration = WatchedFile(
            Path(settings.kubelet.configuration),
            configuration.parse,
            max_bytes=configuration.MAX_BYTES,
            absent=KubeletConfiguration,
        )
        self._cpu_state = WatchedFile(
            kubelet / cpustate.FILE, cpustate.parse, max_bytes=MAX_BYTES, absent=cpustate.absent
        )
        self._checkpoint = WatchedFile(
            Path(settings.kubelet.device_checkpoint),
            devicecheckpoint.parse,
            max_bytes=MAX_BYTES,
            absent=devicecheckpoint.absent,
        )
        own = settings.runtime.own_handler is not None
        self._runtime = RuntimeFiles(settings.runtime.directories, Path(roots.cgroup), Path(roots.dev) if own else None)
        enforcement = settings.enforcement
        self._enforcer = EnforcerFiles(exchange.folder(roots.state), enforcement) if enforcement.enabled else None
        # the kubelet's cgroup root, and what keeps cpusets below it
        self._cpuset_keeper: tuple[str, CpusetKeeper] | None = None

    def read(self, pods: Iterable[NodePod] = (), cgroup_root: str = "") -> HostReading:
        """Read everything; never raises.

        `cgroup_root`: the kubelet's, if it is known otherwise than from its configuration file.
        """
        cpus = self._cpus.read()
        nvidia = has_nvidia(self._sysfs)
        reading = HostReading(
            cpus=cpus,
            zones=read_zones(self._sysfs, cpus.topology),
            devices=read_devices(self._sysfs, self._matches),
            nvidia=nvidia,
            configuration=self._configuration.read(),
            cpu_state=self._cpu_state.read(),
            checkpoint=self._checkpoint.read(),
            enforcer=self._enforcer.read() if self._enforcer is not None else None,
            runtime=self._runtime.read() if nvidia and self._settings.gpus.enabled else None,
        )
        return replace(reading, cpusets=self._cpusets(pods, cgroup_root or reading.cgroup_root))

    def _cpusets(self, pods: Iterable[NodePod], cgroup_root: str) -> dict[str, int]:
        """Read the CPUs on which Pods run that have, or may have, CPUs of their own, but for containers in the pool.

        Pods whose resource-status can be read are included: it may be unreadable by the time the round decides.
        """
        wanted = [pod for pod in pods if (pod.cpus or pod.status_unreadable) and not pod.finished]
        if not wanted:
            return {}
        seen = self._inspected(wanted, cgroup_root, environment=False)
        found = {}
        for pod in wanted:
            own = [identity for identity, name in pod.containers.items() if name not in pod.shared]
            cpusets = [one.cpus for identity in own if (one := seen.get(identity)) is not None]
            found[pod.uid] = reduce(or_, filter(None, cpusets), 0)
        return found

    def enforce(
        self, pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules, cgroup_root: str
    ) -> tuple[Findings | None, str]:
        """Set cpusets to what they should be.

        Returns what was found and done, and why nothing could be done ("" if it could).
        """
        try:
            if self._cpuset_keeper is None or self._cpuset_keeper[0] != cgroup_root:
                self._cpuset_keeper = (cgroup_root, CpusetKeeper(*self._cgroups(cgroup_root)))
            return self._cpuset_keeper[1].round(pods, pools, kubelet), ""
        except _NO_CGROUPS as error:
            self._cpuset_keeper = None
            return None, str(error)

    def tell(self, facts: Facts) -> str:
        """Tell the enforcer; returns why that failed, "" if it did not."""
        return self._enforcer.tell(facts) if self._enforcer is not None else ""

    def containers(self, pods: Iterable[NodePod], cgroup_root: str) -> dict[str, ContainerSeen]:
        """Inspect what containers really have; empty if no cgroups are found."""
        return self._inspected(pods, cgroup_root, environment=self._settings.proof.environment)

    def cgroups(self, pods: Iterable[NodePod], cgroup_root: str) -> dict[str, str]:
        """Find the cgroups of the running containers of Pods: container id to its full path on the host.

        The path is "" with cgroup v1, which the driver keeps no limits by; nothing is found without any cgroups.
        """
        try:
            hierarchy, layout = self._cgroups(cgroup_root)
        except _NO_CGROUPS:
            return {}
        found = evidence.cgroups(hierarchy, layout, tuple(pods)[:_MAX_PODS])
        return {
            identity: f"{_HOST_CGROUPS}/{path}" if hierarchy.version is Version.V2 else ""
            for identity, path in found.items()
        }

    def _inspected(self, pods: Iterable[NodePod], cgroup_root: str, *, environment: bool) -> dict[str, ContainerSeen]:
        try:
            hierarchy, layout = self._cgroups(cgroup_root)
        except _NO_CGROUPS:
            return {}
        wanted = tuple(pods)[:_MAX_PODS]
        return evidence.containers(hierarchy, layout, wanted, self.proc, environment=environment)

    def load_health(self) -> tuple[NodeRecord, tuple[str, ...]]:
        """Read the saved record of the cards; returns also its unusable parts, a sentence each."""
        path = Path(self._settings.roots.state) / _HEALTH
        try:
            return health.decode(read_bounded(path, _MAX_HEALTH))
        except FileNotFoundError:
            return NOTHING_KNOWN, ()
        except FileError as error:
            return NOTHING_KNOWN, (str(error),)

    def save_health(self, node: NodeRecord) -> str:
        """Save the record of the cards, whole or not at all; returns why that failed, "" if it did not."""
        folder = Path(self._settings.roots.state)
        try:
            files.write_whole(folder / _HEALTH, health.encode(node))
        except OSError as error:
            return f"{folder}: the cards' health cannot be saved ({error.strerror}); mount it read-write"
        return ""

    def _cgroups(self, cgroup_root: str) -> tuple[Hierarchy, CgroupLayout]:
        hierarchy = find_hierarchy(Path(self._settings.roots.cgroup))
        stated = self._configuration.last.value
        return hierarchy, find_layout(hierarchy, cgroup_root, stated.cgroup_driver if stated is not None else "")


def has_nvidia(sysfs: Path) -> bool:
    """Whether the machine has an NVIDIA card, by PCI ids."""
    folder = sysfs / "bus" / "pci" / "devices"
    return any(
        files.number(folder / name / "vendor", 0) == _NVIDIA
        and (files.number(folder / name / "class", 0) or 0) >> 16 == _DISPLAY
        for name in files.names(folder)
    )
