"""The auditor of a soak. It shares no code with koordgate and reads Pods alone, by its own watch.

The API server's order of events is the order in which devices were given and given back, so at no event may the sums
of a device exceed it.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter

from controlplane.gpu_cluster import DEVICE_ALLOCATED, pods_path

from localplane.admin import AdminClient, ApiError, JsonObject
from soaking.plan import ASKS, AWAY_S, LOST, NAMESPACE, Findings


class Auditor:
    """Follows the Pods, and adds up what the annotations of the bound ones state.

    Attributes:
        watching: set while it sees every Pod.
    """

    def __init__(self, admin: AdminClient, findings: Findings) -> None:
        self._admin = admin
        self._findings = findings
        self._held: dict[str, tuple[str, dict[str, int]]] = {}  # UID -> Pod, and GPU -> percent
        self._used: Counter[str] = Counter()
        self._seen: dict[str, float] = {}  # UID -> when it was first seen bound
        self.watching = asyncio.Event()

    @property
    def holders(self) -> int:
        """How many Pods hold something now."""
        return len(self._held)

    def seen_for(self, uid: str) -> float:
        """Seconds since this Pod was first seen bound; 0 where it holds nothing now."""
        return time.monotonic() - self._seen[uid] if uid in self._held else 0.0

    def has_seen(self, uid: str) -> bool:
        """Whether it has seen this Pod bound."""
        return uid in self._seen

    async def run(self) -> None:
        """Follow until cancelled; after a lost watch, from a new list on."""
        while True:
            with contextlib.suppress(ApiError, *LOST):
                listed = await self._admin.get(pods_path(NAMESPACE))
                found = {one["metadata"]["uid"]: one for one in listed["items"]}
                for uid in self._held.keys() - found.keys():
                    self.drop(uid)
                for one in found.values():
                    self.take(one)
                at = listed["metadata"]["resourceVersion"]
                self.watching.set()
                async for event in self._admin.watch(pods_path(NAMESPACE), resourceVersion=at):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        self.drop(event["object"]["metadata"]["uid"])
                    else:
                        self.take(event["object"])
            self.watching.clear()
            await asyncio.sleep(AWAY_S)

    def drop(self, uid: str) -> None:
        """Take in that a Pod is gone."""
        for gpu, percent in self._held.pop(uid, ("", {}))[1].items():
            self._used[gpu] -= percent

    def take(self, found: JsonObject) -> None:
        """Take in a Pod as it is now."""
        metadata, node = found["metadata"], found["spec"].get("nodeName")
        uid, name = metadata["uid"], metadata["name"]
        if not node:
            return
        shares = json.loads((metadata.get("annotations") or {}).get(DEVICE_ALLOCATED, "{}")).get("gpu", [])
        has = {share["id"]: int(share["resources"]["kubernetes.io/gpu-core"]) for share in shares}
        if uid in self._held and self._held[uid][1] == has:
            return
        self.drop(uid)
        self._held[uid] = name, has
        for gpu, percent in has.items():
            self._used[gpu] += percent
        if uid not in self._seen:
            self._seen[uid] = time.monotonic()
            self._findings.bound += 1
        asked = int(metadata["labels"][ASKS])
        if sum(has.values()) != asked or any(not gpu.startswith(f"GPU-{node}-") for gpu in has):
            self._findings.bare.append(f"{name} asks {asked} on {node} and has {has}")
        for gpu in has:
            if self._used[gpu] > 100:
                who = sorted(f"{pod} {share[gpu]}" for pod, share in self._held.values() if gpu in share)
                self._findings.twice.append(f"{gpu} has {self._used[gpu]} percent given: {', '.join(who)}")
