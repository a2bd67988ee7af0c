"""Pods of the openb trace that come, run and end; some that are wrong, and a few events of a bad day."""

import asyncio
import contextlib
import gzip
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controlplane.gpu_cluster import DEVICE_ALLOCATED, bound, pod, pods_path

from console.simulator.trace import read_pods
from console.simulator.traceobjects import pod_object
from localplane.admin import AdminClient, ApiError, JsonObject
from watching.cards import HOST, IDLE, ReportedNode
from webhook.trialpod import UNCALLED

NAMESPACE: Final = "default"
TRACE: Final = Path(__file__).parents[1] / "openb" / "openb_pod_list_default.csv.gz"
_EVERY_S: Final = 5.0
_QUOTA: Final = {f"requests.quota.koordgate.io/{name}": "30000" for name in ("gpu", "gpu-memory-ratio")}


class PodLoad:
    """Creates Pods at a rate, each of which ends after a time of its own, and lets those that run use their cards.

    Args:
        admin: with all rights, as kubelets and controllers together.
        nodes: with reporters.
        rate: Pods in a second.
        lasts: mean life of a Pod, in seconds.
        seed: of the lives.
    """

    def __init__(
        self, admin: AdminClient, nodes: Sequence[ReportedNode], rate: float, lasts: float, seed: int = 1
    ) -> None:
        self._admin = admin
        self._nodes = nodes
        self._rate = rate
        self._lasts = lasts
        self._random = random.Random(seed)
        trace = read_pods(gzip.decompress(TRACE.read_bytes()).decode(), TRACE.name)
        self._pods = [pod for pod in trace if pod.ask.gpus]
        self._ends: dict[str, float] = {}
        self._began = time.monotonic()
        self.created = 0
        self.refused = 0

    async def fill(self, first: int) -> None:
        """Create a quota that is not reached, this many Pods, and two that hold a card each and use nothing.

        The two are forgotten notebooks.
        """
        about = {"name": "cards", "namespace": NAMESPACE}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": about, "spec": {"hard": _QUOTA}}
        await self._admin.apply(quota)
        for node in self._nodes[:2]:
            made = pod(f"{IDLE}{node.name}", NAMESPACE, {"nvidia.com/gpu": "1"}, nodeSelector={HOST: node.name})
            await self._admin.create(pods_path(NAMESPACE), made)
            await bound(self._admin, NAMESPACE, f"{IDLE}{node.name}")
            self._ends[f"{IDLE}{node.name}"] = math.inf
        for _ in range(first):
            await self._create()

    async def run(self, seconds: float) -> None:
        """Create Pods at the rate for this long."""
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            used = tasks.create_task(self._use())
            while (at := time.monotonic() - self._began) < seconds:
                await self._create()
                if self.created % 25 == 0:
                    await self._wrong()
                # It is a working day: twice as many come in the middle as at its ends.
                busy = 1.0 - abs(2 * at / seconds - 1) / 2
                await asyncio.sleep(self._random.expovariate(self._rate * busy))
            used.cancel()

    async def _create(self) -> None:
        made = pod_object(self._pods[self.created % len(self._pods)])
        name = f"openb-{self.created:05d}"
        self.created += 1
        made["metadata"] |= {"name": name, "namespace": NAMESPACE}
        made["spec"]["terminationGracePeriodSeconds"] = 0
        self._ends[name] = self._random.expovariate(1 / self._lasts)
        try:
            await self._admin.create(pods_path(NAMESPACE), made)
        except ApiError as error:  # as the replica is killed: a controller would come back with another Pod, as we do
            if UNCALLED not in error.message:
                raise
            self.refused += 1

    async def _wrong(self) -> None:
        """Somebody asks for one and a half cards, and somebody else states an allocation."""
        name = f"wrong-{self.created}"
        stated = pod(name, NAMESPACE, {"nvidia.com/gpu": "1"})
        stated["metadata"]["annotations"] = {DEVICE_ALLOCATED: '{"gpu": [{"minor": 0}]}'}
        for made in (pod(name, NAMESPACE, {"kubernetes.io/gpu": "150"}), stated):
            with contextlib.suppress(ApiError):
                await self._admin.create(pods_path(NAMESPACE), made)
                raise AssertionError(f"a Pod that is wrong was created: {made}")
            self.refused += 1

    async def _use(self) -> None:
        """Every few seconds: what was bound runs, what has run its time ends, and what runs uses its cards."""
        running: dict[str, float] = {}
        while True:
            now = time.monotonic() - self._began
            found = await self._admin.items(pods_path(NAMESPACE))
            bound = [one for one in found if one["spec"].get("nodeName")]
            for one in bound:
                name = one["metadata"]["name"]
                if name not in running:
                    running[name] = now
                    await self._runs(one)
                elif now - running[name] > self._ends.get(name, self._lasts):
                    await self._admin.delete(pods_path(NAMESPACE, name), {"gracePeriodSeconds": 0})
            for node in self._nodes:
                node.use((one for one in bound if one["spec"]["nodeName"] == node.name), now)
            await asyncio.sleep(_EVERY_S)

    async def _runs(self, pod: JsonObject) -> None:
        name = pod["metadata"]["name"]
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await self._admin.patch(pods_path(NAMESPACE, name, "status"), status)
