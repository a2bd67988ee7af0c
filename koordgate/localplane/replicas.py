"""Several webhook processes behind one address, as a Deployment and its Service are in a cluster."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from koordgate.localplane.balancer import Balancer
from koordgate.localplane.process import Process, free_port

_HOST = "127.0.0.1"
_PROBE_S = 5.0


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees as one: where both have a mapping it is merged, else `above` wins."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = laid_over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def console_script() -> tuple[str, ...]:
    """How to call `koordgate` of this very Python."""
    script = Path(sys.executable).with_name("koordgate")
    return (str(script),) if script.exists() else (sys.executable, "-m", "koordgate.cli")


class Replicas:
    """Webhook processes by number, each on a port of its own, with a balancer in front; an async context manager.

    Attributes:
        balancer: What listens on the one address.
    """

    def __init__(
        self,
        settings: str,
        *,
        kubeconfig: Path,
        workdir: Path,
        listen: tuple[str, int] = (_HOST, 0),
        count: int = 2,
        overrides: Mapping[str, Any] | None = None,
        direct: bool = False,
    ) -> None:
        """Describe them; `async with` starts all of them and waits until each is ready.

        Args:
            settings: The settings file's YAML, such as `chart.settings_text` gives.
            kubeconfig: Whose rights they have.
            workdir: For settings files and logs.
            listen: The balancer's address, such as `ControlPlane.service_address` gives.
            count: How many processes.
            overrides: Laid over the settings.
            direct: The one process listens on the address itself, without a balancer: for measurements.
        """
        if direct and count != 1:
            raise ValueError("only one process can listen on the address itself")
        self.balancer = Balancer(_HOST, 0) if direct else Balancer(*listen)
        self._direct = listen if direct else None
        self._settings = laid_over(yaml.safe_load(settings) or {}, overrides or {})
        self._kubeconfig = kubeconfig
        self._workdir = workdir
        self._count = count
        self._processes: list[Process] = []
        self._places: list[tuple[str, int]] = []
        self._serving: set[int] = set()

    async def __aenter__(self) -> Self:
        await self.balancer.__aenter__()
        try:
            for number in range(self._count):
                self._add(number)
            await asyncio.gather(*(self.start(number) for number in range(self._count)))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))
        await self.balancer.__aexit__(*exc)

    @property
    def address(self) -> tuple[str, int]:
        """Where the webhook is reached."""
        return self._direct or (self.balancer.host, self.balancer.port)

    @property
    def urls(self) -> Sequence[str]:
        """The base URL of each process, past the balancer."""
        return tuple(f"https://{host}:{port}" for host, port in self._places)

    def process(self, number: int) -> Process:
        """One of the processes, for its log or a signal."""
        return self._processes[number]

    async def start(self, number: int) -> None:
        """Start a process (again); once it is ready, connections go to it."""
        process = self._processes[number]
        process.start()

        async def ready() -> bool:
            return await self._ready(number)

        await process.ready(ready)
        self._route(self._serving | {number})

    async def stop(self, number: int) -> None:
        """End a process as a rollout does: new connections go elsewhere first, then it is asked to end."""
        self._route(self._serving - {number})
        await self._processes[number].stop()

    def kill(self, number: int) -> None:
        """End a process as a crash does: the balancer learns it from the refused connection."""
        self._processes[number].kill()

    def _route(self, numbers: set[int]) -> None:
        self._serving = numbers
        self.balancer.set_backends([self._places[number] for number in sorted(numbers)])

    def _add(self, number: int) -> None:
        host, port = self._direct or (_HOST, free_port(_HOST))
        # No endpoint controller needs time to notice that it ends.
        serve = {"host": host, "port": port, "shutdownDelaySeconds": 0}
        path = self._workdir / f"webhook-{number}.yaml"
        self._workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(laid_over(self._settings, {"serve": serve})))
        argv = (*console_script(), "webhook", "--config", str(path))
        env = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        self._places.append((host, port))
        self._processes.append(Process(f"webhook-{number}", argv, path.with_suffix(".log"), env=env))

    async def _ready(self, number: int) -> bool:
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        url = f"{self.urls[number]}/readyz"
        try:
            # As the kubelet probes: without verifying, for the certificate is the Service's.
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=False) as answer:
                return answer.status == 200  # noqa: PLR2004 - HTTP's OK
        except (aiohttp.ClientError, TimeoutError):
            return False
