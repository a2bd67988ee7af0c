"""Effects turned into I/O, and results into events: every part of the round that may wait, block or fail."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.settings import device_types
from reporter.delivery import ask_operator
from reporter.gpu.facts import CgroupMemory, GpuProcess
from reporter.gpu.guarded import GuardedNvml, NvmlRefusedError, NvmlUnavailableError
from reporter.host import Host
from reporter.kubelet.configuration import ask_configz
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.proof import evidence, memory
from reporter.publish.events import EventWriter
from reporter.publish.keep import apply
from reporter.round.decide import Rules
from reporter.round.messages import (
    Apply,
    AskKubelet,
    CardsAway,
    CardsRead,
    CpusWritten,
    EventsSent,
    HealthSaved,
    HearXids,
    HostRead,
    KubeletAnswered,
    PolicyRead,
    Prove,
    Proved,
    ReadCards,
    ReadHost,
    ReadPolicy,
    RoundEffect,
    RoundEvent,
    SaveHealth,
    SendEvents,
    WriteCpus,
    WriteRefused,
    Written,
    XidsHeard,
)
from reporter.round.state import RoundPace, RoundPlan
from reporter.settings import ReporterSettings

_T = TypeVar("_T")
_AT_ONCE: Final = 128  # cgroups of one question to the driver


def plan_of(settings: ReporterSettings, node: str, *, gpus: bool, pace: RoundPace | None = None) -> RoundPlan:
    """The plan that follows from the settings."""
    rules = Rules(
        types=device_types(settings.devices.types),
        policy=settings.gpus.policy,
        outage_seconds=settings.gpus.outage_seconds,
        mems=settings.cpus.memory,
        domain=settings.domain,
        discovery=settings.gpus.discovery_labels,
        delivery=settings.runtime.rules,
        own_handler=settings.runtime.own_handler or "",
        enforcement=settings.enforcement,
        volcano_unit=settings.mirror.unit,
    )
    return RoundPlan(
        name=node,
        rules=rules,
        pace=pace or RoundPace(every=settings.round_seconds),
        gpus=gpus,
        enforce=settings.cpus.enforce,
        configz=settings.kubelet.configz,
        policies=gpus and settings.runtime.policies,
        proof=settings.proof.enabled,
        settle_seconds=settings.gpus.outage_seconds,
    )


class Performer:
    """Performs the effects of lanes.

    Files are read and written in one thread, one piece of work after another.
    """

    def __init__(
        self,
        host: Host,
        pod_resources: PodResourcesSocket,
        nvml: GuardedNvml | None,
        kube: tuple[KubeClient, EventWriter] | None,
        node: str,
        *,
        dry: bool = False,
    ) -> None:
        self._host = host
        self._pod_resources = pod_resources
        self._nvml = nvml
        self._kube = kube
        self._node = node
        self._dry = dry
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="files")

    def close(self) -> None:
        """Begin no more work; does not wait for a file that does not answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Run work that may block."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def perform(self, effect: RoundEffect) -> RoundEvent:  # noqa: PLR0911 one answer for each effect
        """Perform an effect of a lane; anything that it raises is a bug."""
        match effect:
            case ReadCards():
                return await self._read_cards(effect)
            case HearXids():
                return XidsHeard(await self._open_nvml().xids())
            case SaveHealth(node):
                return HealthSaved(await self.in_thread(partial(self._host.save_health, node)))
            case ReadHost(pods, cgroup_root):
                host = await self.in_thread(partial(self._host.read, pods, cgroup_root))
                return HostRead(replace(host, pod_resources=await self._pod_resources.read(pods)))
            case WriteCpus():
                return await self.in_thread(partial(self._write_cpus, effect))
            case Prove():
                return await self._prove(effect)
            case _:
                return await self._ask_cluster(effect)

    async def _ask_cluster(self, effect: RoundEffect) -> RoundEvent:
        if self._kube is None:
            raise RuntimeError(f"{type(effect).__name__} needs a cluster")
        kube, events = self._kube
        match effect:
            case AskKubelet(before):
                return KubeletAnswered(await ask_configz(kube, self._node, before))
            case ReadPolicy(before):
                return PolicyRead(await ask_operator(kube, before))
            case SendEvents():
                await events.write()
                return EventsSent()
            case Apply(target, body):
                try:
                    return Written(target, await apply(kube, target, body))
                except KubeError as error:
                    return WriteRefused(target, f"{target}: {error}")
            case _:
                raise AssertionError(f"{type(effect).__name__} is no effect of a lane")

    async def _read_cards(self, effect: ReadCards) -> RoundEvent:
        nvml = self._open_nvml()
        try:
            reading = await nvml.read(effect.expected)
        except NvmlUnavailableError as error:
            return CardsAway(error.outage, error.retry_seconds)
        return CardsRead(reading, nvml.take_xids())

    def _write_cpus(self, effect: WriteCpus) -> CpusWritten:
        if self._dry:
            return CpusWritten()
        decided = effect.decided
        untold = self._host.tell(effect.facts) if effect.facts is not None else ""
        if not effect.enforce:
            return CpusWritten(untold=untold)
        topology = decided.topology
        done = self._host.enforce(decided.pods, topology.pools, topology.kubelet, decided.cgroup_root)
        return CpusWritten(*done, untold=untold)

    async def _prove(self, effect: Prove) -> Proved:
        seen = await self.in_thread(partial(self._host.containers, effect.pods, effect.cgroup_root))
        processes = await self._processes(effect)
        uses = await self.in_thread(partial(evidence.card_uses, processes, self._host.proc))
        cgroups = await self.in_thread(partial(self._host.cgroups, memory.with_cards(effect.pods), effect.cgroup_root))
        asked = memory.questions(effect.pods, cgroups, frozenset(effect.ask)) if effect.memory else ()
        return Proved(seen, uses, processes, frozenset(cgroups), await self._memory(asked))

    async def _processes(self, effect: Prove) -> Mapping[str, tuple[GpuProcess, ...]]:
        """List the processes on each card; for a card that does not answer now, those last listed.

        A card must not seem unused because NVML is out of reach. procfs shows whether a process has ended since.
        """
        found = dict(effect.known)
        for uuid in effect.ask:
            try:
                found[uuid] = await self._open_nvml().processes(uuid)
            except NvmlRefusedError:
                continue
            except NvmlUnavailableError:
                break
        return found

    async def _memory(self, asked: tuple[memory.Question, ...]) -> dict[tuple[str, str], CgroupMemory]:
        """Ask the driver for containers' memory; what it does not tell now is left out."""
        found: dict[tuple[str, str], CgroupMemory] = {}
        for at in range(0, len(asked), _AT_ONCE):
            part = asked[at : at + _AT_ONCE]
            try:
                told = await self._open_nvml().memory(tuple((one.card, one.cgroup) for one in part))
            except (NvmlRefusedError, NvmlUnavailableError):
                break
            found.update(((one.card, one.container), answer) for one, answer in zip(part, told, strict=True))
        return found

    def _open_nvml(self) -> GuardedNvml:
        if self._nvml is None:
            raise RuntimeError("GPUs are switched off")
        return self._nvml
