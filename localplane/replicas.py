"""Several webhook processes behind one address, like a Deployment and its Service in a cluster."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from localplane import chart
from localplane.admin import JsonObject
from localplane.balancer import Balancer
from localplane.plane import ControlPlane
from localplane.process import Process, free_port

_HOST = "127.0.0.1"
_PROBE_S = 5.0


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees: mappings are merged, anything else of `above` replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = laid_over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


def this_koordgate() -> tuple[str, ...]:
    """The command that runs `koordgate` with the present Python."""
    return sys.executable, "-P", "-m", "koordgate"  # -P: nothing is imported from the working directory


class Routing(Enum):
    """How requests reach the replicas."""

    BY_TURNS = "each connection to the next one; the hardest case"
    STICKY = "reviews to one and extender calls to another, as the affinity of the chart's Service may do"
    DIRECT = "a single process listens on the addresses itself, without a balancer: for measurements"


class Replicas:
    """Numbered webhook processes, each on ports of its own behind balancers; an async context manager.

    Attributes:
        balancer: Listens on the one address of the webhooks.
        extender_balancer: Listens on the one address of the extender.
    """

    def __init__(  # noqa: PLR0913 keyword-only, most with a default
        self,
        settings: str,
        *,
        kubeconfig: Path,
        workdir: Path,
        listen: tuple[str, int] = (_HOST, 0),
        listen_extender: tuple[str, int] | None = None,
        count: int = 2,
        overrides: Mapping[str, Any] | None = None,
        routing: Routing = Routing.BY_TURNS,
        command: Callable[[int], Sequence[str]] = lambda _number: this_koordgate(),
        process: Callable[..., Process] = Process,
    ) -> None:
        """Describe the processes; `async with` starts all of them and waits until each is ready.

        Args:
            settings: The settings file's YAML, as from `chart.settings_text`.
            kubeconfig: The processes' credentials.
            workdir: Folder for settings files and logs.
            listen: The balancer's address, as from `ControlPlane.service_address`.
            listen_extender: The extender's address; by default a free port on the host of `listen`.
            count: The number of processes.
            overrides: Merged over the settings.
            routing: How requests reach them.
            command: Runs `koordgate` as the process of a number.
            process: Makes a process, with the arguments of `Process`.
        """
        direct, sticky = routing is Routing.DIRECT, routing is Routing.STICKY
        if direct and count != 1:
            raise ValueError("only one process can listen on the address itself")
        beside = listen_extender or (listen[0], free_port(listen[0]))
        self.balancer = Balancer(_HOST, 0) if direct else Balancer(*listen, sticky=sticky)
        self.extender_balancer = Balancer(_HOST, 0) if direct else Balancer(*beside, sticky=sticky)
        self._direct = (listen, beside) if direct else None
        self._settings = laid_over(yaml.safe_load(settings) or {}, overrides or {})
        self._kubeconfig = kubeconfig
        self._workdir = workdir
        self._count = count
        self._command = command
        self._process = process
        self._processes: list[Process] = []
        self._places: list[tuple[str, int, int]] = []
        self._serving: set[int] = set()

    @classmethod
    async def installed(
        cls,
        plane: ControlPlane,
        objects: Iterable[JsonObject],
        workdir: Path,
        *,
        count: int = 2,
        overrides: Mapping[str, Any] | None = None,
        routing: Routing = Routing.BY_TURNS,
        command: Callable[[int], Sequence[str]] = lambda _number: this_koordgate(),
    ) -> Self:
        """Describe the processes of an installed chart: its settings, its ServiceAccount, behind its Service.

        Args:
            plane: The control plane on which it is installed.
            objects: The rendered chart.
            workdir: Folder for settings files and logs.
            count: The number of processes.
            overrides: Merged over the settings.
            routing: How requests reach them.
            command: Runs `koordgate` as the process of a number.
        """
        return cls(
            chart.settings_text(objects),
            kubeconfig=await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
            workdir=workdir,
            listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
            count=count,
            overrides=overrides,
            routing=routing,
            command=command,
        )

    async def __aenter__(self) -> Self:
        await self.balancer.__aenter__()
        try:
            await self.extender_balancer.__aenter__()
            for number in range(self._count):
                self._add(number)
            await asyncio.gather(*(self.start(number) for number in range(self._count)))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(process.stop() for process in self._processes))
        await self.extender_balancer.__aexit__(*exc)
        await self.balancer.__aexit__(*exc)

    @property
    def extender(self) -> tuple[str, int]:
        """Where the scheduler extender is reached."""
        return self._direct[1] if self._direct else (self.extender_balancer.host, self.extender_balancer.port)

    @property
    def urls(self) -> Sequence[str]:
        """The base URL of each process, not through the balancer."""
        return tuple(f"https://{host}:{port}" for host, port, _ in self._places)

    def process(self, number: int) -> Process:
        """One of the processes, for its log or a signal."""
        return self._processes[number]

    def settings_file(self, number: int) -> Path:
        """The settings of one of the processes, which it reads when it starts."""
        return self._workdir / f"webhook-{number}.yaml"

    async def start(self, number: int) -> None:
        """Start or restart a process; when it is ready, connections go to it."""
        process = self._processes[number]
        process.start()

        async def ready() -> bool:
            return await self._ready(number)

        await process.ready(ready)
        self._route(self._serving | {number})

    async def stop(self, number: int) -> None:
        """Stop a process as a rollout does: new connections go to others first, then it is asked to end."""
        self._route(self._serving - {number})
        await self._processes[number].stop()

    def kill(self, number: int) -> None:
        """Stop a process as a crash does: the balancer notices the refused connection."""
        self._processes[number].kill()

    def leave_out(self, number: int) -> None:
        """Send new connections to the other processes until this one is started, as for a Pod that is not ready."""
        self._route(self._serving - {number})

    def take_in(self, number: int) -> None:
        """Send new connections to a process that was left out and still runs."""
        self._route(self._serving | {number})

    def _route(self, numbers: set[int]) -> None:
        self._serving = numbers
        places = [self._places[number] for number in sorted(numbers)]
        self.balancer.set_backends([(host, port) for host, port, _ in places])
        self.extender_balancer.set_backends([(host, port) for host, _, port in reversed(places)])

    def _add(self, number: int) -> None:
        listen, beside = self._direct or ((_HOST, free_port(_HOST)), (_HOST, free_port(_HOST)))
        host, port, extender = *listen, beside[1]
        # No endpoint controller needs time here to notice the end.
        serve = {"host": host, "port": port, "extenderPort": extender, "shutdownDelaySeconds": 0}
        path = self.settings_file(number)
        self._workdir.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(laid_over(self._settings, {"serve": serve})))
        argv = (*self._command(number), "serve", "webhook", "--config", str(path))
        env = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        self._places.append((host, port, extender))
        self._processes.append(self._process(f"webhook-{number}", argv, path.with_suffix(".log"), env=env))

    async def _ready(self, number: int) -> bool:
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        url = f"{self.urls[number]}/readyz"
        try:
            # As the kubelet probes: unverified, because the certificate is the Service's.
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=False) as answer:
                return answer.status == 200  # noqa: PLR2004 - HTTP's OK
        except (aiohttp.ClientError, TimeoutError):
            return False
