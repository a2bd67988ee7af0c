"""The ledger's store on a real API server, with no more rights than the chart gives the webhook."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import ALLOCATIONS
from store_contract import Kept, StoreContract, spoilt

from koordgate.kube.client import KubeClient
from localplane import chart
from localplane.admin import AdminClient
from localplane.plane import ControlPlane
from webhook.ledger.kube import KubeStore


@pytest.mark.usefixtures("installed")
class TestKubeStore(StoreContract):
    @pytest_asyncio.fixture(loop_scope="session")
    async def kept(self, plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[Kept]:
        names = [f"{namespace}-n1", f"{namespace}-n2"]

        async def delete(node: str) -> None:
            await admin.delete(f"{ALLOCATIONS}/{node}")

        async def spoil(node: str) -> None:
            await admin.delete(f"{ALLOCATIONS}/{node}")
            await admin.create(ALLOCATIONS, spoilt(node))

        kubeconfig = await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE)
        async with KubeClient.from_kubeconfig(kubeconfig) as kube:
            yield Kept(KubeStore(kube), delete, spoil, n1=names[0], n2=names[1])
        for name in names:
            if await admin.find(f"{ALLOCATIONS}/{name}") is not None:
                await admin.delete(f"{ALLOCATIONS}/{name}")
