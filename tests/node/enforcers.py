"""The enforcer on a real node, and Pods that are bound by hand, with the annotations that a bind writes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml
from node import images
from node.harness import Node

from localplane.admin import AdminClient, JsonObject
from localplane.process import Process
from localplane.replicas import this_koordgate
from localplane.waiting import until
from reporter import exchange
from reporter.enforced import EnforcerFiles, held
from reporter.exchange import Facts, State
from reporter.settings import Enforcement

CLASS = {"koordinator.sh/qosClass": "LSR"}
HELD_S = 60.0  # the kubelet tries again every 10 to 15 s
TELL = (
    "grep Cpus_allowed_list /proc/self/status; echo card=$(ls /dev/koordgate-card 2>/dev/null)"
    " limit=$CUDA_DEVICE_MEMORY_LIMIT_0 library=$(ls /usr/local/vgpu/libvgpu.so 2>/dev/null)"
    " visible=$NVIDIA_VISIBLE_DEVICES;"
)
SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def pod(name: str, script: str = TELL + SLEEP, **spec: Any) -> JsonObject:
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": VOID,
        "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}},
    }
    whole = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": CLASS}, "spec": whole}


class Enforcer:
    """The node's enforcer as a process of this machine; an async context manager."""

    def __init__(
        self,
        config: Path,
        state: Path,
        name: str = "enforcer",
        *,
        env: Mapping[str, str] = os.environ,
        within: Sequence[str] = (),
    ) -> None:
        """Describe it.

        Args:
            config: Its settings, those of the reporter.
            state: The folder of the reporter's state. Two with the same one are of one node.
            name: Of the process.
            env: Its environment.
            within: A command that becomes it.
        """
        self.folder = exchange.folder(str(state))
        command = (*within, *this_koordgate(), "serve", "enforcer", "--config", str(config))
        self.process = Process(name, command, config.parent / f"{name}.log", env=env)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.process.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.process.stop()

    async def start(self) -> None:
        """Start or restart it, and wait until it is registered."""
        self.process.start()
        await self.registered()

    async def registered(self) -> None:
        """Wait until it is registered, by what the reporter sees of it."""

        async def is_so() -> bool:
            return held(self.folder) and bool(self.state.runtime) and not self.state.problems

        await until(is_so, "the enforcer is registered", deadline_s=HELD_S, poll_s=0.05)

    @property
    def state(self) -> State:
        return EnforcerFiles(self.folder, Enforcement()).read().state

    def log_has(self, text: str) -> bool:
        return text in self.process.log.read_text()


class Told(Enforcer):
    """An enforcer to which a test tells the facts in place of a reporter."""

    def __init__(
        self, node: Node, workdir: Path, facts: Facts, enforcement: JsonObject, name: str = "enforcer", **process: Any
    ) -> None:
        """Describe it.

        Args:
            node: The node.
            workdir: A folder for its files.
            facts: What it is told at first.
            enforcement: Its settings.
            name: Of the process.
            process: How it runs, as `Enforcer`.
        """
        told = {
            "roots": {"state": str(workdir / "state")},
            "logFormat": "text",
            "enforcement": {"enabled": True, "socket": str(node.nri_socket), **enforcement},
        }
        config = workdir / f"{name}.yaml"
        config.write_text(yaml.safe_dump(told))
        self._facts = facts
        super().__init__(config, workdir / "state", name, **process)

    async def __aenter__(self) -> Self:
        self.tell()
        return await super().__aenter__()

    def tell(self, **facts: Any) -> None:
        """Tell it the node's facts, as the reporter does, with some changes."""
        told = msgspec.structs.replace(self._facts, **facts)
        assert EnforcerFiles(self.folder, Enforcement()).tell(told) == ""

    async def anew(self, **facts: Any) -> None:
        """Restart it with other facts, and wait until it has looked whether limits can be kept."""
        await self.process.stop()
        (self.folder / exchange.STATE).unlink()
        self.tell(**facts)
        await self.start()
        await self.looked()

    async def looked(self) -> None:
        """Wait until it has looked whether limits can be kept."""

        async def is_so() -> bool:
            return self.state.limits is not None

        await until(is_so, "it has looked whether limits can be kept", deadline_s=HELD_S)


class Bench:
    """One test's Pods; they are deleted at the end."""

    def __init__(self, node: Node, admin: AdminClient, namespace: str) -> None:
        self.node = node
        self.admin = admin
        self.namespace = namespace

    async def bind(self, one: JsonObject, *annotations: dict[str, str]) -> str:
        """Create and bind a Pod with annotations; returns its name."""
        made = await self.admin.create(f"/api/v1/namespaces/{self.namespace}/pods", one)
        await self.node.bind(made, {key: value for part in annotations for key, value in part.items()})
        name: str = made["metadata"]["name"]
        return name

    async def runs(self, name: str, deadline_s: float = HELD_S) -> str:
        """Wait until a Pod runs; returns what it said."""
        await self.node.phase(self.namespace, name, "Running", deadline_s=deadline_s)
        return await self.says(name)

    async def says(self, name: str, container: str = "main") -> str:
        said: list[str] = []

        async def something() -> bool:
            said[:] = [await self.node.logs(self.namespace, name, container)]
            return "visible=" in said[0]

        await until(something, f"{name} says something")
        return said[0]

    async def was_held(self, name: str) -> bool:
        """Whether the kubelet ever failed to create or start a container of a Pod, by its Events."""
        about = f"involvedObject.name={name},reason=Failed"
        return bool(await self.admin.items(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=about))

    async def waits(self, name: str) -> str:
        """Wait until the kubelet could not create or start a container; returns why."""
        why: list[str] = []

        async def waiting() -> bool:
            found = await self.admin.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
            for status in found["status"].get("containerStatuses") or ():
                state = status["state"].get("waiting") or {}
                if state.get("reason") in {"CreateContainerError", "RunContainerError"}:
                    why[:] = [state["message"]]
            return bool(why)

        await until(waiting, f"{name} is held", deadline_s=HELD_S, poll_s=0.1)
        return why[0]
