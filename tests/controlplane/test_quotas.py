"""Quotas and LimitRanges as a real API server and a real kube-controller-manager enforce and count them."""

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

import pytest
import pytest_asyncio
import yaml
from controlplane.gpu_cluster import add_gpu_node, ledger, pod, pods_path, remove

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

DOMAIN = "quota.koordgate.io"
FORBIDDEN, INVALID = 403, 422
HINT = "scheduling.koordinator.sh/device-allocate-hint"
NVIDIA = "requests.nvidia.com/gpu"
GPU = f"requests.{DOMAIN}/gpu"
CPUS = f"requests.{DOMAIN}/cpus"
PATIENCE = 10  # Pods that ended since
HONEST = 5
WAVES = 40
_NUMBERS = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[ControlPlane, Replicas]]:
    """A control plane with its controllers, the chart, and two webhook processes with the chart's rights.

    In the namespace `before`, quotas and Pods are older than koordgate.
    """
    workdir = tmp_path_factory.mktemp("quotas")
    async with ControlPlane(binaries, controller_manager=True, controllers="*,-node-lifecycle-controller") as plane:
        await plane.ensure_namespace("before")
        async with plane.admin() as root:
            await add_quota(root, "before", "team", {NVIDIA: "8"})
            for name in ("old-0", "old-1"):
                await root.create(pods_path("before"), pod(name, "before", {"nvidia.com/gpu": "2"}))
        objects = chart.render(binaries)
        await chart.install(plane, objects)
        replicas = await Replicas.installed(plane, objects, workdir)
        async with replicas:
            await start_koord_scheduler(plane, objects, replicas.extender)
            yield plane, replicas


@pytest.fixture(scope="module")
def limited(installed: tuple[ControlPlane, Replicas]) -> ControlPlane:
    return installed[0]


@pytest_asyncio.fixture(loop_scope="session")
async def root(limited: ControlPlane) -> AsyncIterator[AdminClient]:
    async with limited.admin() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def team(limited: ControlPlane, root: AdminClient) -> AsyncIterator[str]:
    """A namespace of this test's own, of which no Pod waits for cards afterwards."""
    name = f"team-{next(_NUMBERS)}"
    await limited.ensure_namespace(name)
    yield name
    await root.delete(pods_path(name), {"gracePeriodSeconds": 0})


def quotas_path(namespace: str, name: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/resourcequotas", name)))


async def add_quota(root: AdminClient, namespace: str, name: str, hard: Mapping[str, str], **spec: Any) -> None:
    """Create a quota, and wait until the API server enforces it: its controller has written its status."""
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": dict(hard), **spec}}
    await root.create(quotas_path(namespace), body)
    await enforced(root, namespace, name, hard)


async def enforced(root: AdminClient, namespace: str, name: str, hard: Mapping[str, str]) -> JsonObject:
    async def is_enforced() -> JsonObject | None:
        found = await root.find(quotas_path(namespace, name))
        return found if found and plain((found.get("status") or {}).get("hard") or {}) == plain(hard) else None

    found = await until(is_enforced, f"quota {namespace}/{name} limits {hard}")
    await counted(root, namespace, hard)
    return found


async def counted(root: AdminClient, namespace: str, hard: Mapping[str, str]) -> None:
    """Wait until the replicas have Pods state what quotas of a namespace limit."""
    cpus = {"koordinator.sh/qosClass": "LSR"}
    trials = {
        GPU: pod("trial", namespace, {"nvidia.com/gpu": "1"}),
        CPUS: pod("trial", namespace, {"cpu": "1", "memory": "1Gi"}),
    }
    trials[CPUS]["metadata"]["labels"] = cpus
    for key in trials.keys() & hard.keys():

        async def is_counted(key: str = key) -> bool:
            try:
                made = await root.create(pods_path(namespace), trials[key], dryRun="All")
            except ApiError as error:
                return "exceeded quota" in error.message
            return key.removeprefix("requests.") in made["spec"]["containers"][0]["resources"]["requests"]

        for _ in range(4):  # connections go to the replicas by turns
            await until(is_counted, f"Pods of {namespace} state {key}")


async def used(root: AdminClient, namespace: str, name: str, wanted: Mapping[str, int]) -> None:
    async def is_used() -> bool:
        found = (await root.get(quotas_path(namespace, name)))["status"]["used"]
        return plain(found) == plain(wanted)

    await until(is_used, f"quota {namespace}/{name} counts {wanted}")


def plain(amounts: Mapping[str, Any]) -> dict[str, int]:
    """Amounts as integers; the API server writes a thousand as 1k."""
    units = {"k": 1000, "Gi": 2**30}
    read = {}
    for name, text in amounts.items():
        number = str(text).rstrip("kGi")
        read[name] = int(number) * units.get(str(text)[len(number) :], 1)
    return read


async def refusal(root: AdminClient, namespace: str, body: JsonObject) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await root.create(pods_path(namespace), body)
    return refused.value


def hinted(name: str, namespace: str, asks: dict[str, str], **hint: str) -> JsonObject:
    made = pod(name, namespace, asks)
    made["metadata"]["annotations"] = {HINT: json.dumps({"gpu": hint})}
    return made


async def test_a_pod_beyond_a_quota_is_refused_in_the_api_servers_words_and_usage_is_counted_and_given_back(
    root: AdminClient, team: str
) -> None:
    await add_quota(root, team, "cards", {GPU: "150", f"requests.{DOMAIN}/rdma": "100"})
    await root.create(pods_path(team), pod("whole", team, {"nvidia.com/gpu": "1"}))

    refused = await refusal(root, team, pod("more", team, {"kubernetes.io/gpu": "60"}))
    assert refused.status == FORBIDDEN
    assert refused.message == (
        f'pods "more" is forbidden: exceeded quota: cards, requested: {GPU}=60, used: {GPU}=100, limited: {GPU}=150'
    )
    await root.create(pods_path(team), pod("half", team, {"koordinator.sh/gpu": "50"}))
    await used(root, team, "cards", {GPU: 150, f"requests.{DOMAIN}/rdma": 0})

    await root.patch(pods_path(team, "half", "status"), {"status": {"phase": "Succeeded"}})
    await used(root, team, "cards", {GPU: 100, f"requests.{DOMAIN}/rdma": 0})
    await root.delete(pods_path(team, "whole"), {"gracePeriodSeconds": 0})
    await used(root, team, "cards", {GPU: 0, f"requests.{DOMAIN}/rdma": 0})

    async def created() -> bool:
        """The API server's admission may still go by the usage before."""
        try:
            await root.create(pods_path(team), pod("more", team, {"kubernetes.io/gpu": "60"}))
        except ApiError as error:
            if "exceeded quota" not in error.message:
                raise
            return False
        return True

    await until(created, "what was given back may be requested")


async def test_forty_creations_at_once_get_exactly_what_the_quota_has(root: AdminClient, team: str) -> None:
    await add_quota(root, team, "cards", {GPU: "1000"})
    bodies = [pod(f"p{number}", team, {"nvidia.com/gpu": "1"}) for number in range(40)]
    said: list[str] = []

    async def created(body: JsonObject) -> bool:
        try:
            await root.create(pods_path(team), body)
        except ApiError as error:
            said.append(error.message)
            return False
        return True

    assert sum(await asyncio.gather(*map(created, bodies))) == 10
    assert [message for message in said if "exceeded quota: cards" not in message] == []
    await used(root, team, "cards", {GPU: 1000})


@pytest.mark.parametrize(
    ("asks", "counted"),
    [
        ({"nvidia.com/gpu": "2"}, 200),
        ({"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory-ratio": "70"}, 70),
    ],
    ids=["whole cards", "the larger share"],
)
async def test_a_quota_on_one_name_limits_pods_that_use_any_other(
    root: AdminClient, team: str, asks: dict[str, str], counted: int
) -> None:
    await add_quota(root, team, "team", {NVIDIA: "2", "pods": "50"})
    await enforced(root, team, "team.koordgate", {GPU: "200"})

    number = 0
    while (number + 1) * counted <= 200:
        await root.create(pods_path(team), pod(f"p{number}", team, asks))
        number += 1
    refused = await refusal(root, team, pod("beyond", team, asks))
    assert f"exceeded quota: team.koordgate, requested: {GPU}={counted}, used: {GPU}={number * counted}" in str(refused)
    assert refused.status == FORBIDDEN


async def test_pods_from_before_are_taken_off_what_a_quota_leaves_for_new_ones(root: AdminClient) -> None:
    await enforced(root, "before", "team.koordgate", {GPU: "400"})
    await root.create(pods_path("before"), pod("new", "before", {"nvidia.com/gpu": "4"}))
    refused = await refusal(root, "before", pod("beyond", "before", {"kubernetes.io/gpu": "1"}))
    assert "exceeded quota: team.koordgate" in refused.message

    await root.delete(pods_path("before", "old-0"), {"gracePeriodSeconds": 0})
    await enforced(root, "before", "team.koordgate", {GPU: "600"})
    await root.create(pods_path("before"), pod("beyond", "before", {"kubernetes.io/gpu": "1"}))


async def test_a_mirror_follows_its_quota_is_restored_and_ends_with_it(root: AdminClient, team: str) -> None:
    await add_quota(root, team, "team", {NVIDIA: "1"}, scopes=["NotTerminating"])
    found = await enforced(root, team, "team.koordgate", {GPU: "100"})
    assert found["spec"]["scopes"] == ["NotTerminating"]
    await root.patch(quotas_path(team, "team"), {"spec": {"hard": {NVIDIA: "3"}}})
    await enforced(root, team, "team.koordgate", {GPU: "300"})

    await root.patch(quotas_path(team, "team.koordgate"), {"spec": {"hard": {GPU: "9000"}}})
    await enforced(root, team, "team.koordgate", {GPU: "300"})
    await root.delete(quotas_path(team, "team.koordgate"))
    await enforced(root, team, "team.koordgate", {GPU: "300"})

    await root.patch(quotas_path(team, "team"), {"spec": {"hard": {NVIDIA: None, "pods": "5"}}})
    await until(lambda: gone(root, quotas_path(team, "team.koordgate")), "a quota without devices has no mirror")
    await add_quota(root, team, "other", {"requests.koordinator.sh/gpu-core": "50"})
    await enforced(root, team, "other.koordgate", {f"requests.{DOMAIN}/gpu-core": "50"})
    await root.delete(quotas_path(team, "other"))
    await until(lambda: gone(root, quotas_path(team, "other.koordgate")), "the mirror ends with its quota")


async def gone(root: AdminClient, path: str) -> bool:
    return await root.find(path) is None


async def test_a_waiting_pod_cannot_be_made_to_take_more_than_its_quota_counted(root: AdminClient, team: str) -> None:
    await add_quota(root, team, "team", {NVIDIA: "1"})
    await enforced(root, team, "team.koordgate", {GPU: "100"})
    gated = pod("later", team, {"kubernetes.io/gpu": "1"}, schedulingGates=[{"name": "example.com/later"}])
    await root.create(pods_path(team), gated)
    for policy in ("DeviceLevel", "PCIeLevel"):
        annotations = {HINT: json.dumps({"gpu": {"exclusivePolicy": policy}})}
        with pytest.raises(ApiError, match="quotas counted what the Pod takes when it was created"):
            await root.patch(pods_path(team, "later"), {"metadata": {"annotations": annotations}})
    await root.patch(pods_path(team, "later"), {"spec": {"schedulingGates": []}})


async def test_what_cannot_be_counted_is_refused_where_a_quota_limits_it_and_nowhere_else(
    root: AdminClient, team: str
) -> None:
    asks = {"kubernetes.io/gpu-memory-ratio": "1"}
    await root.create(pods_path(team), hinted("free", team, asks, exclusivePolicy="PCIeLevel"))
    await add_quota(root, team, "team", {NVIDIA: "8"})
    await enforced(root, team, "team.koordgate", {GPU: "800"})
    refused = await refusal(root, team, hinted("root", team, asks, exclusivePolicy="PCIeLevel"))
    assert refused.status == INVALID
    assert f"a quota of the namespace limits {DOMAIN}/gpu" in refused.message


async def test_what_quotas_count_cannot_be_understated_by_the_author(root: AdminClient, team: str) -> None:
    await add_quota(root, team, "cards", {GPU: "100"})
    forged = pod("forged", team, {"nvidia.com/gpu": "2", f"{DOMAIN}/gpu": "1"})
    refused = await refusal(root, team, forged)
    assert f"requested: {GPU}=200" in refused.message


async def test_cpus_of_a_pods_own_are_counted(root: AdminClient, team: str) -> None:
    cpus = CPUS
    await add_quota(root, team, "cpus", {cpus: "4"})
    own = pod("own", team, {"cpu": "3", "memory": "1Gi"})
    own["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"}
    await root.create(pods_path(team), own)
    await used(root, team, "cpus", {cpus: 3})
    own["metadata"]["name"] = "more"
    refused = await refusal(root, team, own)
    assert f"exceeded quota: cpus, requested: {cpus}=3, used: {cpus}=3, limited: {cpus}=4" in refused.message
    await root.create(pods_path(team), pod("shared", team, {"cpu": "3", "memory": "1Gi"}))


async def add_range(root: AdminClient, namespace: str, **limits: Any) -> None:
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": [limits]}}
    await root.create(f"/api/v1/namespaces/{namespace}/limitranges", body)


async def test_a_limit_ranges_maximum_holds_whatever_name_a_pod_uses(root: AdminClient, team: str) -> None:
    none = {"nvidia.com/gpu": "0"}
    await add_range(root, team, type="Container", max={"nvidia.com/gpu": "2"}, default=none, defaultRequest=none)

    async def seen() -> bool:
        """Whether the replica that is asked knows the LimitRange; one that does not stops the Pod."""
        try:
            await root.create(pods_path(team), pod("seen", team, {"nvidia.com/gpu": "1"}), dryRun="All")
        except ApiError:
            return False
        return True

    for _ in range(4):  # connections go to the replicas by turns
        await until(seen, "the replicas know the LimitRange")
    for name, asks in {"a": {"nvidia.com/gpu": "2"}, "b": {"kubernetes.io/gpu": "200"}}.items():
        created = await root.create(pods_path(team), pod(name, team, asks))
        resources = created["spec"]["containers"][0]["resources"]["limits"]
        assert resources["nvidia.com/gpu"] == "0"
        assert resources["kubernetes.io/gpu-core"] == "200"
    for asks in ({"nvidia.com/gpu": "3"}, {"koordinator.sh/gpu": "300"}):
        refused = await refusal(root, team, pod("more", team, asks))
        assert "maximum nvidia.com/gpu usage per Container is 2" in refused.message
    plain_pod = await root.create(pods_path(team), pod("plain", team, {"cpu": "1"}))
    assert plain_pod["spec"]["schedulerName"] == "default-scheduler"


async def test_a_limit_ranges_default_is_translated_once(root: AdminClient, team: str) -> None:
    one = {"nvidia.com/gpu": "1"}
    await add_range(root, team, type="Container", default=one, defaultRequest=one)

    async def translated() -> JsonObject | None:
        try:
            return await root.create(pods_path(team), pod("p", team, {}))
        except ApiError:
            return None  # the replica that was asked does not know the LimitRange yet

    created = await until(translated, "the replicas know the LimitRange")
    limits = created["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "0"
    assert limits["kubernetes.io/gpu-core"] == "100"
    assert f"{DOMAIN}/gpu" not in limits, "nothing limits it"


async def test_the_webhook_may_write_no_quota_but_mirrors(limited: ControlPlane, root: AdminClient, team: str) -> None:
    await add_quota(root, team, "team", {"pods": "5"})
    async with limited.admin(await limited.service_account_token(chart.NAMESPACE, chart.RELEASE)) as webhook:
        attempts = [
            webhook.delete(quotas_path(team, "team")),
            webhook.replace(quotas_path(team, "team"), await root.get(quotas_path(team, "team"))),
            webhook.create(
                quotas_path(team),
                {
                    "apiVersion": "v1",
                    "kind": "ResourceQuota",
                    "metadata": {"name": "none", "labels": {f"{DOMAIN}/mirror": "true"}},
                    "spec": {"hard": {"pods": "0"}},
                },
            ),
        ]
        for attempt in attempts:
            with pytest.raises(ApiError, match="koordgate may") as refused:
                await attempt
            assert refused.value.status in {FORBIDDEN, INVALID}


async def test_what_a_replica_without_quotas_translates_and_a_new_one_judges_is_created(
    installed: tuple[ControlPlane, Replicas], root: AdminClient, team: str
) -> None:
    replicas = installed[1]
    settings = replicas.settings_file(0)
    written = settings.read_text()
    await replicas.stop(0)
    try:
        settings.write_text(yaml.safe_dump({**yaml.safe_load(written), "quota": {"enabled": False}}))
        await replicas.start(0)  # as a release without the function: it states nothing for quotas
        await replicas.stop(1)
        # The API server connects for each webhook by itself. This Pod is refused before it is judged.
        await refusal(root, team, pod("two", team, {"nvidia.com/gpu": "1", "koordinator.sh/gpu": "50"}))
        await replicas.start(1)
        replicas.leave_out(0)
        created = await root.create(pods_path(team), pod("one", team, {"nvidia.com/gpu": "1"}))
        requests = created["spec"]["containers"][0]["resources"]["requests"]
        assert requests["kubernetes.io/gpu-core"] == "100"
        assert f"{DOMAIN}/gpu" not in requests
    finally:
        await replicas.stop(0)
        settings.write_text(written)
        await replicas.start(0)


async def bound(root: AdminClient, team: str) -> set[str]:
    """The names of the Pods of a namespace that are bound."""
    listed = (await root.get(pods_path(team)))["items"]
    return {one["metadata"]["name"] for one in listed if one["spec"].get("nodeName")}


class Storm:
    """Creates Pods of a card each, four at a time, and counts the cards that the namespace holds until it is over."""

    def __init__(self, root: AdminClient, team: str) -> None:
        self.made = 0
        self.held: list[int] = []  # at each look
        self._root, self._team = root, team
        self._over = False

    async def create(self) -> None:
        name = f"storm-{next(_NUMBERS)}"
        with contextlib.suppress(ApiError):  # the quota, for those that state what it limits
            await self._root.create(pods_path(self._team), pod(name, self._team, {"kubernetes.io/gpu": "100"}))
            self.made += 1

    async def blows(self) -> bool:
        return self.made >= 8

    async def rage(self) -> None:
        for _ in range(WAVES):
            await asyncio.gather(*(self.create() for _ in range(4)))

    async def watch(self) -> None:
        """Look at the ledger: each Pod that holds something holds a card."""
        while not self._over:
            holding = await holders(self._root)
            there = (await self._root.get(pods_path(self._team)))["items"]
            self.held.append(sum(one["metadata"]["uid"] in holding for one in there))

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self.rage()), asyncio.create_task(self.watch())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


async def running(root: AdminClient, team: str, count: int, *, without: str = "") -> None:
    async def is_running() -> bool:
        now = await bound(root, team)
        return len(now) == count and without not in now

    await until(is_running, f"{count} Pods of {team} run, not {without!r}", deadline_s=60)


@pytest.mark.parametrize(("key", "limit"), [(GPU, "400"), (NVIDIA, "4")], ids=["in what quotas count", "by name"])
async def test_a_storm_of_creations_while_a_quota_is_created_ends_at_its_limit_and_is_never_above_it(
    limited: ControlPlane, root: AdminClient, team: str, key: str, limit: str
) -> None:
    """Two Pods run before the quota; cards for all others come once it has been created."""
    await add_gpu_node(limited, root, f"{team}-early", gpus=2)
    for name in ("early-0", "early-1"):
        await root.create(pods_path(team), pod(name, team, {"nvidia.com/gpu": "1"}))
    await running(root, team, 2)
    async with Storm(root, team) as storm:
        await until(storm.blows, "eight Pods wait before the quota")
        metadata = {"name": "late", "namespace": team}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {key: limit}}}
        await root.create(quotas_path(team), quota)
        await add_gpu_node(limited, root, f"{team}-late", gpus=12)
        await running(root, team, 4)
        for name in ("early-0", "early-1"):
            await root.delete(pods_path(team, name), {"gracePeriodSeconds": 0})
            await running(root, team, 4, without=name)
    assert max(storm.held) == 4, "cards that are held at once"
    for name in [one["metadata"]["name"] for one in (await root.get(pods_path(team)))["items"]]:
        await root.delete(pods_path(team, name), {"gracePeriodSeconds": 0})
    if key == GPU:
        await until(lambda: gone(root, quotas_path(team, "late.koordgate")), "no Pod is left that does not state it")
    of = "late" if key == GPU else "late.koordgate"
    await enforced(root, team, of, {GPU: "400"})
    await root.create(pods_path(team), pod("counted", team, {"nvidia.com/gpu": "4"}))
    refused = await refusal(root, team, pod("beyond", team, {"nvidia.com/gpu": "1"}))
    assert f"exceeded quota: {of}, requested: {GPU}=100, used: {GPU}=400, limited: {GPU}=400" in refused.message
    await remove(root, team, [f"{team}-early", f"{team}-late"])


async def holders(root: AdminClient) -> set[str]:
    """The UIDs of all who hold something by the ledger."""
    return {uid for held in (await ledger(root)).values() for uid in held}


async def create_and_delete(
    root: AdminClient, team: str, prefix: str, ended: list[str], over: asyncio.Event
) -> list[set[str]]:
    """Create Pods, and delete each before, while or after it is bound, until it is over.

    A bind takes as many looks at the Pod as it took lately; each Pod is deleted after another part of them.

    Args:
        root: the administrator.
        team: the namespace.
        prefix: of the Pods' names.
        ended: gets the UIDs of the Pods that ended.
        over: ends it.

    Returns:
        The Pods of which something was held although `PATIENCE` others had ended since, at each end of a Pod.
    """
    seen: list[set[str]] = []
    takes = 1
    for number in itertools.count():
        name = f"{prefix}-{number}"
        try:
            made = await root.create(pods_path(team), pod(name, team, {"nvidia.com/gpu": "1"}))
        except ApiError:
            continue  # the quota: the other's Pod is there
        looks = math.inf if number % 8 == 0 else number * 5 % (takes + 1)
        for look in itertools.count(1):
            if look > looks:
                break
            if (await root.get(pods_path(team, name)))["spec"].get("nodeName"):
                takes = look
                break
        await root.delete(pods_path(team, name), {"gracePeriodSeconds": 0})
        ended.append(made["metadata"]["uid"])
        before = set(ended[:-PATIENCE])
        seen.append(before & await holders(root))
        if over.is_set() and len(seen) >= 2 * PATIENCE:
            return seen
    raise AssertionError


async def test_pods_that_are_deleted_while_they_are_bound_hold_nothing_and_others_are_bound_meanwhile(
    limited: ControlPlane, root: AdminClient, team: str
) -> None:
    """No reconciliation takes part: the replicas compare the ledger with Pods once a minute."""
    home, other = f"{team}-gpu", f"{team}-other"
    await limited.ensure_namespace(other)
    await add_gpu_node(limited, root, home, gpus=4)
    await add_quota(root, team, "card", {NVIDIA: "1"})

    async def mirrored() -> bool:
        mirror = await root.find(quotas_path(team, "card.koordgate"))
        return mirror is not None and bool((mirror.get("status") or {}).get("hard"))

    await until(mirrored, "the quota's mirror is enforced")
    ended: list[str] = []
    over = asyncio.Event()
    loops = [asyncio.create_task(create_and_delete(root, team, name, ended, over)) for name in ("a", "b")]
    for number in range(HONEST):
        name = f"honest-{number}"
        await root.create(pods_path(other), pod(name, other, {"nvidia.com/gpu": "2"}))

        async def is_bound(name: str = name) -> bool:
            return bool((await root.get(pods_path(other, name)))["spec"].get("nodeName"))

        await until(is_bound, f"{name} is bound", deadline_s=50)
        await root.delete(pods_path(other, name), {"gracePeriodSeconds": 0})
    over.set()
    for seen in await asyncio.gather(*loops):
        assert [held for held in seen if held] == [], f"held although {PATIENCE} others had ended since"

    async def released() -> bool:
        return not set(ended) & await holders(root)

    await until(released, "nothing is held for Pods that ended", deadline_s=50)
    await remove(root, other, [home])
