"""Cpusets kept as planned: read after every change and on a timer, and written if they differ."""

from collections.abc import Iterable
from dataclasses import dataclass

from allocator.vocabulary.cpuset import format_cpuset
from reporter.cgroup.apply import Failure, Hierarchy, SeenCgroup, apply, observe
from reporter.cgroup.layout import CgroupLayout, KubernetesQos, LayoutError, Version
from reporter.cgroup.order import File, plan
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus, WantedCpusets, wants


@dataclass(frozen=True, slots=True)
class Findings:
    """What a round of enforcement found and did."""

    written: int  # files written
    # cgroups that somebody else had changed; they are right again unless a failure says otherwise
    reapplied: tuple[str, ...]
    # Pod and note, in the order of Pods: why a Pod is left alone, or which pool is empty
    notes: tuple[tuple[str, str], ...]
    absent: tuple[str, ...]  # names of Pods without a cgroup (not yet, or no longer)
    failures: tuple[Failure, ...]  # what could not be done


class Enforcer:
    """Applies plans to one node's cgroups; remembers what it wrote, and therefore detects what others changed.

    It has no clock and does not wait. `round` must not be called concurrently.
    """

    def __init__(self, hierarchy: Hierarchy, layout: CgroupLayout) -> None:
        """Enforce below `hierarchy`, with the kubelet's names for cgroups."""
        self._hierarchy = hierarchy
        self._layout = layout
        self._left_at: dict[tuple[str, File], int] = {}

    def round(self, pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules) -> Findings:
        """Set the cpusets of all Pods.

        A Pod that ends during the round is no failure. If containers appeared between reading and writing, what failed
        is read again and tried once more.
        """
        decided = wants(pods, pools, kubelet)
        placed, misnamed = self._place(decided)
        seen, done, failures, reapplied = self._pass(placed)
        written = done
        if any(failure.passing for failure in failures):
            seen, done, failures, _ = self._pass(placed)
            written += done
        self._left_at = {key: value for key, value in self._left_at.items() if key[0] in seen.tree}
        return Findings(
            written=written,
            reapplied=reapplied,
            notes=tuple((want.pod.uid, want.note) for want in decided if want.note),
            absent=tuple(want.pod.name for path, want in placed if path in seen.absent),
            failures=(*misnamed, *self._lost(seen), *failures, *self._cut(placed, seen)),
        )

    def _place(self, decided: tuple[WantedCpusets, ...]) -> tuple[list[tuple[str, WantedCpusets]], list[Failure]]:
        placed: list[tuple[str, WantedCpusets]] = []
        misnamed: list[Failure] = []
        for want in decided:
            try:
                placed.append((self._layout.pod(want.pod.qos_class, want.pod.uid), want))
            except LayoutError as error:
                misnamed.append(Failure("", "", 0, f"{want.pod.name}: {error}; it is left out"))
        return placed, misnamed

    def _pass(
        self, placed: list[tuple[str, WantedCpusets]]
    ) -> tuple[SeenCgroup, int, tuple[Failure, ...], tuple[str, ...]]:
        """Read everything and write what differs; the cgroups that others changed are among the results."""
        tiers = dict.fromkeys([self._layout.kubepods, *map(self._layout.tier, KubernetesQos)])
        seen = observe(self._hierarchy, tiers, dict.fromkeys(path for path, _ in placed))
        planned = plan(seen.tree, placed, self._hierarchy.version)
        final = {(write.path, write.file): write.value for write in planned.writes}  # the last of two steps
        reapplied = {path for (path, file), value in final.items() if self._left_at.get((path, file)) == value}
        done, failures = apply(self._hierarchy, planned.writes)
        self._left_at |= planned.right
        for write in done:
            self._left_at[write.path, write.file] = write.value
        return seen, len(done), (*seen.failures, *failures), tuple(sorted(reapplied))

    def _lost(self, seen: SeenCgroup) -> list[Failure]:
        path = self._layout.kubepods
        if path not in seen.absent:
            return []
        message = f"{path}: not below {self._hierarchy.root}; correct cgroupRoot or cgroupDriver, or start the kubelet"
        return [Failure(path, "", 0, message)]

    def _cut(self, placed: list[tuple[str, WantedCpusets]], seen: SeenCgroup) -> list[Failure]:
        """Compare effective CPUs: v2 accepts every write, but gives a cgroup only what the cgroups above it have."""
        if self._hierarchy.version is Version.V1:
            return []
        found = []
        for path, want in placed:
            has = seen.tree.get(path)
            missing = want.cpus & ~seen.effective.get(path, want.cpus)
            if has is not None and not want.cpus & ~has.cpus and missing:
                message = (
                    f"{path}: lacks CPUs {format_cpuset(missing)}: a cgroup above lacks them, or they are offline;"
                    " widen cpuset.cpus of the cgroups above"
                )
                found.append(Failure(path, f"{File.CPUS}.effective", 0, message))
        return found
