"""The controller of mirrors on a fake API server: what it writes, whom it leaves alone, and what failures do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from fake_kube import FakeKube, Refused, answer
from waiting import until

from allocator.vocabulary.devicetype import BUILT_IN
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import RESOURCE_QUOTAS
from koordgate.kube.watch import Reflector
from webhook.quotas import controller as controller_module
from webhook.quotas.controller import QuotaController
from webhook.quotas.mirror import MIRROR_LABEL, Quota, mirror_body, written_names
from webhook.quotas.table import LimitTable, QuotaFeed
from webhook.quotas.unstated import Unstated
from webhook.view.changes import Changes
from webhook.view.loads import NodeLoads
from webhook.view.pods import PodTable

Raw = dict[str, Any]
NVIDIA, GPU = "requests.nvidia.com/gpu", "requests.quota.koordgate.io/gpu"
TEAM = RESOURCE_QUOTAS.path(namespace="team")


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        yield server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again at once."""
    monkeypatch.setattr(controller_module, "_FIRST_RETRY_S", 0.01)


class Kept:
    """A controller, and what it has complained about."""

    def __init__(self, kube: KubeClient, exempt: tuple[str, ...] = ()) -> None:
        self.problems: dict[str, tuple[str, ...]] = {}
        self.table = LimitTable(BUILT_IN)
        self.pods = PodTable(Changes(), NodeLoads())
        self.unstated = Unstated(
            self.table,
            self.pods,
            written_names(BUILT_IN, "kubernetes.io"),
            lambda namespace: namespace not in exempt,
            lambda: None,
            catch_up=0,
        )
        self.controller = QuotaController(
            kube, self.table, self.unstated, exempt.__contains__, self.problems.__setitem__
        )
        self.watch = Reflector(kube, RESOURCE_QUOTAS, QuotaFeed(self.table))


@asynccontextmanager
async def keeping(kube: KubeClient, replicas: int = 1, exempt: tuple[str, ...] = ()) -> AsyncIterator[list[Kept]]:
    kept = [Kept(kube, exempt) for _ in range(replicas)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.watch.run()) for one in kept]
        tasks += [group.create_task(one.controller.run(one.watch.synced)) for one in kept]
        for one in kept:
            await until(one.controller.settled.is_set)
        yield kept
        for task in tasks:
            task.cancel()


def put(fake: FakeKube, name: str = "q", namespace: str = "team", uid: str = "", **hard: str) -> None:
    spec = {"hard": {key.replace("nvidia", NVIDIA).replace("gpus", GPU): amount for key, amount in hard.items()}}
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}"}
    fake.put(RESOURCE_QUOTAS.path(namespace=namespace), {"metadata": metadata, "spec": spec})


def stored(fake: FakeKube, name: str = "q.koordgate", namespace: str = "team") -> Raw | None:
    with suppress(Refused):
        return fake.get(RESOURCE_QUOTAS.path(name, namespace))
    return None


def limit(fake: FakeKube, name: str = "q.koordgate") -> str | None:
    found = stored(fake, name)
    return None if found is None else found["spec"]["hard"].get(GPU)


def owner(fake: FakeKube) -> str:
    found = stored(fake)
    return "" if found is None else str(found["metadata"]["ownerReferences"][0]["uid"])


async def test_quotas_that_exist_have_mirrors_before_the_keeper_is_settled(fake: FakeKube, kube: KubeClient) -> None:
    for name in ("a", "b"):
        put(fake, name, nvidia="2", pods="9")
    put(fake, "c", pods="9")
    async with keeping(kube):
        assert [limit(fake, f"{name}.koordgate") for name in "abc"] == ["200", "200", None]


async def test_a_mirror_follows_its_quota_and_is_restored(fake: FakeKube, kube: KubeClient) -> None:
    async with keeping(kube):
        put(fake, nvidia="2")
        await until(lambda: limit(fake) == "200")
        put(fake, nvidia="3")
        await until(lambda: limit(fake) == "300")
        fake.remove(RESOURCE_QUOTAS.path("q.koordgate", "team"))
        await until(lambda: limit(fake) == "300")
        mirror = stored(fake)
        assert mirror is not None
        mirror["spec"]["hard"][GPU] = "9k"
        mirror["metadata"]["labels"] = {}
        fake.put(TEAM, mirror)
        await until(lambda: limit(fake) == "300")
        await until(lambda: (stored(fake) or mirror)["metadata"]["labels"] == {MIRROR_LABEL: "true"})


async def test_a_mirror_whose_quota_names_no_devices_any_more_is_deleted(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, nvidia="2")
    put(fake, "other", nvidia="2")
    async with keeping(kube):
        put(fake, pods="1")
        await until(lambda: stored(fake) is None)
        assert limit(fake, "other.koordgate") == "200"
    put(fake, "lost.koordgate", gpus="1")
    found = stored(fake, "lost.koordgate")
    assert found is not None
    found["metadata"]["labels"] = {MIRROR_LABEL: "true"}
    fake.put(TEAM, found)
    async with keeping(kube):
        assert stored(fake, "lost.koordgate") is None


async def test_a_quota_in_what_quotas_count_has_no_mirror(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, gpus="2")
    async with keeping(kube) as (one,):
        assert fake.seen("create", "resourcequotas") == []
        assert not any(one.problems.values())


async def test_a_quota_that_was_created_again_owns_its_mirror(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, nvidia="2", uid="first")
    async with keeping(kube):
        fake.remove(RESOURCE_QUOTAS.path("q", "team"))
        put(fake, nvidia="2", uid="second")
        await until(lambda: owner(fake) == "second")


async def test_scopes_that_changed_make_a_new_mirror(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, nvidia="2")
    async with keeping(kube):
        first = stored(fake)
        assert first is not None
        changed = fake.get(RESOURCE_QUOTAS.path("q", "team"))
        changed["spec"]["scopes"] = ["NotTerminating"]
        fake.put(TEAM, changed)
        await until(lambda: (stored(fake) or first)["spec"].get("scopes") == ["NotTerminating"])
        assert (stored(fake) or first)["metadata"]["uid"] != first["metadata"]["uid"]


async def test_several_replicas_keep_one_mirror(fake: FakeKube, kube: KubeClient) -> None:
    for name in ("a", "b", "c"):
        put(fake, name, nvidia="2")
    async with keeping(kube, replicas=3) as replicas:
        for name in ("a", "b", "c"):
            put(fake, name, nvidia="5")
        await until(lambda: [limit(fake, f"{name}.koordgate") for name in "abc"] == ["500"] * 3)
        assert all(not problems for one in replicas for problems in one.problems.values())


@pytest.mark.parametrize("hard", [{"pods": "1"}, {"nvidia": "1", "pods": "1"}], ids=["unseen", "seen"])
async def test_a_quota_that_has_the_mirrors_name_is_left_alone_and_reported_until_it_is_gone(
    fake: FakeKube, kube: KubeClient, hard: dict[str, str]
) -> None:
    put(fake, nvidia="2")
    put(fake, "q.koordgate", **hard)
    async with keeping(kube) as (one,):
        await until(lambda: one.problems.get("team/q"))
        assert one.problems["team/q"] == (
            (
                "another quota has the name of its mirror, q.koordgate, so it limits no new Pod; give that one "
                "another name"
            ),
        )
        assert limit(fake) is None
        fake.remove(RESOURCE_QUOTAS.path("q.koordgate", "team"))
        await until(lambda: limit(fake) == "200")
        await until(lambda: one.problems["team/q"] == ())


async def test_exempt_namespaces_have_no_mirrors(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, namespace="kube-system", nvidia="2")
    put(fake, nvidia="2")
    async with keeping(kube, exempt=("kube-system",)):
        assert limit(fake) == "200"
        assert stored(fake, namespace="kube-system") is None


async def test_a_mirror_that_cannot_be_written_holds_up_no_other_and_is_tried_again(
    fake: FakeKube, kube: KubeClient
) -> None:
    refused = [answer(403, "no right") for _ in range(3)]
    fake.faults.add("create", "resourcequotas", *refused)
    put(fake, "a", nvidia="2")
    put(fake, "b", nvidia="3")
    async with keeping(kube) as (one,):
        assert [told[0].partition(": ")[0] for name, told in sorted(one.problems.items())] == [
            f"its mirror {name}.koordgate cannot be written, so it may limit no new Pod" for name in "ab"
        ]
        assert all("no right" in told[0] for told in one.problems.values())
        await until(lambda: (limit(fake, "a.koordgate"), limit(fake, "b.koordgate")) == ("200", "300"))
        await until(lambda: not any(one.problems.values()))


async def test_a_quota_that_is_gone_before_its_mirror_is_written_is_forgotten(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.always("create", "resourcequotas", answer(404))
    put(fake, nvidia="2")
    async with keeping(kube) as (one,):
        fake.remove(RESOURCE_QUOTAS.path("q", "team"))
        await until(lambda: one.table.quota(("team", "q")) is None)
        await until(lambda: one.problems.get("team/q") == ())


@pytest.mark.parametrize("left", [{"pods": "1"}, None], ids=["names no devices any more", "is gone"])
async def test_a_mirror_that_cannot_be_deleted_is_reported_and_tried_again_until_it_is(
    fake: FakeKube, kube: KubeClient, left: dict[str, str] | None
) -> None:
    put(fake, nvidia="2")
    async with keeping(kube) as (one,):
        fake.faults.always("delete", "resourcequotas", answer(403, "no right"))
        if left is None:
            fake.remove(RESOURCE_QUOTAS.path("q", "team"))
        else:
            put(fake, **left)
        await until(lambda: "no right" in "".join(one.problems.get("team/q", ())))
        fake.faults.always("delete", "resourcequotas", None)
        await until(lambda: stored(fake) is None)
        await until(lambda: not any(one.problems.values()))


async def test_a_bug_about_one_quota_is_reported_holds_up_no_other_and_is_tried_again(
    fake: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = mirror_body

    def written(quota: Quota, *about: Any) -> Raw:
        if quota.name == "a":
            raise LookupError("what nobody expected")
        return write(quota, *about)

    monkeypatch.setattr(controller_module, "mirror_body", written)
    put(fake, "a", nvidia="2")
    put(fake, "b", nvidia="3")
    async with keeping(kube) as (one,):
        assert one.problems["team/a"] == ("its mirror a.koordgate cannot be written: LookupError",)
        assert limit(fake, "b.koordgate") == "300"
        assert "quota team/a cannot be mirrored" in caplog.text
        monkeypatch.setattr(controller_module, "mirror_body", write)
        await until(lambda: limit(fake, "a.koordgate") == "200" and not one.problems["team/a"])
