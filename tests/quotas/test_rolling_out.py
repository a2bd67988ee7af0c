"""How long a replica lets through what replicas of an earlier release may have translated."""

from typing import Any

import pytest
from builders import container, pod
from fake_kube import FakeKube
from world import asks

from allocator.vocabulary.devicetype import BUILT_IN
from koordgate.kube.client import KubeClient
from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.admission.translate import TranslationPolicy, translate
from webhook.assembly import Parts
from webhook.ledger.store import MemoryStore
from webhook.settings import WebhookSettings
from webhook.view.livepods import KubeLivePods

Raw = dict[str, Any]


def uncounted() -> Raw:
    """A Pod as a release without quotas translates it."""
    obj = pod(container(limits={"kubernetes.io/gpu": 50}))
    return patch.apply(obj, translate(obj, TranslationPolicy("kubernetes.io"), None).operations)


class Replica:
    def __init__(self, kube: KubeClient, *, offline: bool = False) -> None:
        self.now = 5000.0
        parts = Parts(
            WebhookSettings(),
            MemoryStore(),
            KubeLivePods(kube, BUILT_IN),
            kube=None if offline else kube,
            monotonic=lambda: self.now,
        )
        self.pods: PodWebhooks = parts.pods

    def lets_through(self) -> bool:
        return self.pods.validate(asks(uncounted())).allowed


@pytest.mark.usefixtures("fake")
async def test_a_replica_lets_through_what_states_nothing_for_ten_minutes_after_its_start(kube: KubeClient) -> None:
    replica = Replica(kube)
    assert replica.lets_through()
    replica.now += 599
    assert replica.lets_through()
    replica.now += 1
    assert not replica.lets_through()


async def test_offline_no_other_replica_serves(kube: KubeClient, fake: FakeKube) -> None:
    assert not Replica(kube, offline=True).lets_through()
    assert fake.requests == []
