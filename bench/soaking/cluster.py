"""A cluster that is never left alone: binds at volume while replicas, the API server and etcd are killed and paused."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from controlplane.gpu_cluster import add_gpu_node, ledger, pods_path

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.balancer import Balancer
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until
from soaking.auditor import Auditor
from soaking.chaos import Chaos
from soaking.forked import Nurseries
from soaking.load import Load
from soaking.plan import CARDS, NAMESPACE, Findings, Soak

_RECONCILE_S: Final = 2.0
_PATIENCE_S: Final = 240.0
_LEAKED_S: Final = 180.0  # on a busy machine what is released takes longer; what is leaked stays


async def soak_cluster(
    soak: Soak,
    binaries: Binaries,
    say: Callable[[str], None],
    workdir: Path | None = None,
    ended: asyncio.Event | None = None,
) -> Findings:
    """Bind, with everything that is done meanwhile; then give everything back, and hand out each card once more."""
    findings = Findings()
    began = time.monotonic()
    objects = chart.render(binaries)
    async with ControlPlane(binaries, workdir=workdir) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        await plane.ensure_namespace(NAMESPACE)
        await asyncio.gather(*(add_gpu_node(plane, admin, name, CARDS) for name in soak.names))
        async with _replicas(soak, plane, objects) as (running, between):
            token = await plane.service_account_token(chart.NAMESPACE, "koord-scheduler")
            async with plane.admin(token) as binder:
                auditor = Auditor(admin, findings)
                load = Load(soak, admin, binder, auditor, findings, ended or asyncio.Event())
                chaos = Chaos(soak, plane, running, between, auditor, admin, findings)
                async with asyncio.TaskGroup() as tasks:
                    beside = tasks.create_task(auditor.run()), tasks.create_task(_tell(findings, auditor, say))
                    await _raged(load, chaos)
                    say(f"{findings.bound} Pods bound; all is given back and handed out once more")
                    await _audited(auditor, admin)
                    await load.clear()
                    findings.unreachable += await hand_out(soak, load, admin)
                    await _audited(auditor, admin)
                    for task in beside:
                        task.cancel()
    findings.seconds = time.monotonic() - began
    return findings


@contextlib.asynccontextmanager
async def _replicas(
    soak: Soak, plane: ControlPlane, objects: list[JsonObject]
) -> AsyncIterator[tuple[Replicas, Balancer]]:
    """Replicas whose clocks are wrong, and what their connections to the API server pass."""
    host, port = plane.admin_url.removeprefix("https://").split(":")
    with Nurseries(soak.shifts, plane.workdir / "replicas") as nurseries:
        async with Balancer(host, 0, [(host, int(port))]) as between:
            token = await plane.service_account_token(chart.NAMESPACE, chart.RELEASE)
            kubeconfig = plane.kubeconfig(token, plane.workdir / "kubeconfig" / "between.yaml")
            kubeconfig.write_text(kubeconfig.read_text().replace(f":{port}", f":{between.port}"))
            overrides: Mapping[str, Any] = {"ledger": {"graceSeconds": soak.grace, "reconcileSeconds": _RECONCILE_S}}
            running = Replicas(
                chart.settings_text(objects),
                kubeconfig=kubeconfig,
                workdir=plane.workdir / "replicas",
                listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
                count=len(soak.shifts),
                overrides=overrides,
                command=lambda number: (str(number),),
                process=nurseries.process,
            )
            async with running:
                yield running, between


async def _raged(load: Load, chaos: Chaos) -> None:
    """Bind while the cluster is hurt; then let everything run again, and the last Pods be bound."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        raging = tasks.create_task(chaos.run())
        await load.over.wait()
        raging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await raging
        await chaos.mend()


async def _audited(auditor: Auditor, admin: AdminClient) -> None:
    """Wait until the auditor has seen all Pods that are bound now."""

    async def seen() -> bool:
        bound = [one for one in await admin.items(pods_path(NAMESPACE)) if one["spec"].get("nodeName")]
        return auditor.holders == len(bound)

    await until(seen, "the auditor has seen all Pods that are bound", deadline_s=_PATIENCE_S)


async def hand_out(soak: Soak, load: Load, admin: AdminClient) -> list[str]:
    """Bind a Pod of a whole card for each card; returns what nobody gets within the grace and some reconciliations."""

    async def one(node: str, number: int) -> str:
        name = f"last-{node}-{number}"
        uid = await load.create(name, 100)
        ends = time.monotonic() + max(4 * soak.grace + 10 * _RECONCILE_S, _LEAKED_S)
        while not await load.bind(name, uid, [node]):  # it is answered, however long that takes
            if time.monotonic() > ends:
                return f"{node}: a card that no Pod has"
            await asyncio.sleep(1)
        return ""

    missing = await asyncio.gather(*(one(node, number) for node in soak.names for number in range(CARDS)))
    found = sorted(filter(None, missing))
    if found:
        held = await ledger(admin)
        living = {one["metadata"]["uid"] for one in await admin.items(pods_path(NAMESPACE))}
        gone = [(node, uid, has) for node, holders in held.items() for uid, has in holders.items() if uid not in living]
        found += [f"{node}: the ledger holds {has} for {uid}" for node, uid, has in gone]
    return found


async def _tell(findings: Findings, auditor: Auditor, say: Callable[[str], None]) -> None:
    began, before = time.monotonic(), 0
    while True:
        await asyncio.sleep(10)
        took = time.monotonic() - began
        rate, before = (findings.bound - before) / 10, findings.bound
        wrong = f"{len(findings.twice)} twice, {len(findings.bare)} bare"
        say(f"{took:.0f} s: {findings.bound} bound ({rate:.0f}/s), {auditor.holders} hold devices, {wrong}")
