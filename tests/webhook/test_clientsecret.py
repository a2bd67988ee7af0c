"""The scheduler's certificate: made once, shared, renewed before it expires, never signed by a dropped authority."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from fake_kube import FakeKube, answer, hold, hold_answer

from koordgate.kube.client import KubeClient
from webhook.settings import Certificate, Scheduler, WebhookSettings
from webhook.tls.certs import ClientSecret, SecretSource
from webhook.tls.timing import Timing

SECRETS = "/api/v1/namespaces/koordgate-system/secrets"
OURS = f"{SECRETS}/koordgate-tls"
THEIRS = f"{SECRETS}/koordgate-scheduler-tls"
SETTINGS = WebhookSettings(certificate=Certificate(dns_names=("koordgate.test",), authority_days=90))
DAY = timedelta(days=1)


class World:
    """A replica's two keepers and their clock."""

    def __init__(self, kube: KubeClient, settings: WebhookSettings = SETTINGS, now: datetime | None = None) -> None:
        self.now = now or datetime.now(UTC).replace(microsecond=0)
        self.slept: list[float] = []
        timing = Timing(lambda: self.now, self._sleep, lambda: 0.0, timedelta())
        self.source = SecretSource(kube, "koordgate-system", settings.certificate, timing)
        self.kept = ClientSecret(kube, settings, self.source, timing)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 4:
            raise asyncio.CancelledError


@pytest.fixture
def world(kube: KubeClient) -> World:
    return World(kube)


def stored(fake: FakeKube, path: str = THEIRS) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in fake.get(path)["data"].items()}


def certificate(fake: FakeKube) -> x509.Certificate:
    return x509.load_pem_x509_certificate(stored(fake)["tls.crt"])


def authority(fake: FakeKube) -> x509.Certificate:
    return x509.load_pem_x509_certificate(stored(fake, OURS)["ca.crt"])


async def test_it_is_made_by_our_authority_for_the_scheduler_and_lives_as_long(world: World, fake: FakeKube) -> None:
    assert await world.kept.check()
    assert world.kept.made
    assert fake.get(THEIRS)["type"] == "kubernetes.io/tls"
    assert set(stored(fake)) == {"tls.crt", "tls.key", "ca.crt", "extender-ca.crt"}, "and so not our authority's key"
    made = certificate(fake)
    made.verify_directly_issued_by(authority(fake))
    assert made.subject.rfc4514_string() == "CN=koord-scheduler"
    assert made.not_valid_after_utc == authority(fake).not_valid_after_utc
    assert stored(fake)["ca.crt"] == stored(fake)["extender-ca.crt"] == stored(fake, OURS)["ca.crt"]


async def test_one_that_is_good_is_left_alone(world: World, fake: FakeKube, kube: KubeClient) -> None:
    await world.kept.check()
    made = fake.get(THEIRS)
    assert await World(kube, now=world.now).kept.check()
    world.now += 60 * DAY - timedelta(seconds=1)
    assert await world.kept.check()
    assert fake.get(THEIRS) == made


async def test_by_a_new_authority_it_is_made_once_all_replicas_know_that_and_at_once_it_is_to_be_trusted(
    world: World, fake: FakeKube
) -> None:
    await world.kept.check()
    old, old_authority = stored(fake), stored(fake, OURS)["ca.crt"]
    world.now += 60 * DAY  # two thirds of the authority's life
    assert await world.kept.check()
    assert stored(fake, OURS)["ca.crt"] != old_authority
    assert stored(fake)["tls.crt"] == old["tls.crt"]
    assert stored(fake)["ca.crt"] == stored(fake, OURS)["ca.crt"] + old_authority
    world.now += timedelta(minutes=30)
    assert await world.kept.check()
    certificate(fake).verify_directly_issued_by(authority(fake))


async def test_a_replica_that_is_late_does_not_bring_the_old_authority_back(
    world: World, fake: FakeKube, kube: KubeClient
) -> None:
    await world.kept.check()
    world.now += 60 * DAY + timedelta(minutes=30)
    late = World(kube, now=world.now)
    fake.faults.add("get", "secrets", reading := hold_answer())
    checking = asyncio.create_task(late.kept.check())
    await reading.performed.wait()
    fake.remove(OURS)
    await world.kept.check()
    assert reading.answer_gate
    reading.answer_gate.set()
    assert await checking
    certificate(fake).verify_directly_issued_by(authority(fake))


async def test_of_two_that_make_it_at_once_one_does(fake: FakeKube) -> None:
    async with KubeClient(fake.url) as one, KubeClient(fake.url) as two:
        worlds = [World(client) for client in (one, two)]
        await worlds[0].source.current()
        holds = hold(), hold()
        fake.faults.add("create", "secrets", *holds)
        checks = [asyncio.create_task(world.kept.check()) for world in worlds]
        for each in holds:
            await each.reached.wait()
        for each in holds:
            assert each.gate
            each.gate.set()
        assert await asyncio.gather(*checks) == [True, True]
    assert len(fake.seen("update", "secrets")) == 0


@pytest.mark.parametrize(
    "harm",
    [{"tls.crt": ""}, {"tls.key": "AAAA"}, {"tls.crt": "no base64"}, {"ca.crt": ""}, {"extender-ca.crt": "AAAA"}],
    ids=str,
)
async def test_a_damaged_one_is_repaired_and_what_others_put_there_stays(
    world: World, fake: FakeKube, harm: dict[str, str]
) -> None:
    await world.kept.check()
    secret = fake.get(THEIRS)
    secret["data"] |= harm | {"other": "AAAA"}
    secret["metadata"]["labels"]["a"] = "b"
    fake.put(SECRETS, secret)
    assert await world.kept.check()
    certificate(fake).verify_directly_issued_by(authority(fake))
    assert stored(fake)["ca.crt"] == stored(fake)["extender-ca.crt"] == stored(fake, OURS)["ca.crt"]
    assert stored(fake)["other"] == b"\0\0\0"
    assert fake.get(THEIRS)["metadata"]["labels"]["a"] == "b"


async def test_another_name_is_another_certificate(world: World, fake: FakeKube, kube: KubeClient) -> None:
    await world.kept.check()
    settings = WebhookSettings(certificate=SETTINGS.certificate, scheduler=Scheduler(common_name="gpu-scheduler"))
    assert await World(kube, settings).kept.check()
    assert certificate(fake).subject.rfc4514_string() == "CN=gpu-scheduler"


async def test_a_secret_of_cert_manager_is_left_alone(world: World, fake: FakeKube) -> None:
    about = {"name": "koordgate-scheduler-tls", "annotations": {"cert-manager.io/certificate-name": "x"}}
    fake.put(SECRETS, {"metadata": about})
    assert not await world.kept.check()
    assert "is managed by cert-manager" in world.kept.problem


async def test_what_stands_in_the_way_is_reported_once_and_it_is_tried_again_soon(
    world: World, fake: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    await world.source.current()
    fake.faults.always("create", "secrets", answer(403, 'User "u" cannot create resource "secrets"'))
    with pytest.raises(asyncio.CancelledError):
        await world.kept.run()
    assert not world.kept.made
    assert world.slept == [0.25, 0.5, 1.0, 2.0]
    assert caplog.text.count("no certificate for the scheduler") == 1
    for number, words in enumerate(("z", "a"), 2):
        fake.faults.always("create", "secrets", answer(403, words))
        for _ in range(2):
            assert not await world.kept.check()
        assert caplog.text.count("no certificate for the scheduler") == number
    fake.faults.always("create", "secrets", None)
    assert await world.kept.check()
    assert world.kept.problem == ""


async def test_a_failure_later_does_not_take_back_that_there_is_one(world: World, fake: FakeKube) -> None:
    await world.kept.check()
    fake.faults.always("get", "secrets", answer(403))
    assert not await world.kept.check()
    assert world.kept.made


async def test_others_that_change_it_without_end_are_reported(world: World, fake: FakeKube) -> None:
    await world.source.current()
    fake.faults.always("create", "secrets", answer(409))
    assert not await world.kept.check()
    assert (
        world.kept.problem
        == "Secret koordgate-system/koordgate-scheduler-tls was changed by others during each of 5 attempts"
    )


async def test_a_replica_that_starts_counts_on_one_that_is_valid_though_it_cannot_be_renewed(
    fake: FakeKube, kube: KubeClient
) -> None:
    lasting = Certificate(dns_names=("koordgate.test",), authority_days=90, certificate_days=90)
    settings = WebhookSettings(certificate=lasting)
    world = World(kube, settings)
    await world.kept.check()
    world.now += 70 * DAY  # all of it is due
    fake.faults.always("update", "secrets", answer(500))
    starting = World(kube, settings, now=world.now)
    assert not await starting.kept.check()
    assert starting.kept.made
    late = World(kube, settings, now=world.now + 20 * DAY)
    assert not await late.kept.check()
    assert not late.kept.made


@pytest.mark.parametrize("harm", [{"tls.key": ""}, {"extender-ca.crt": ""}, {"extender-ca.crt": "AAAA"}], ids=str)
async def test_a_damaged_one_is_not_counted_on(
    world: World, fake: FakeKube, kube: KubeClient, harm: dict[str, str]
) -> None:
    await world.kept.check()
    secret = fake.get(THEIRS)
    fake.put(SECRETS, {**secret, "data": secret["data"] | harm})
    fake.faults.always("update", "secrets", answer(500))
    starting = World(kube, now=world.now)
    assert not await starting.kept.check()
    assert not starting.kept.made


async def test_one_for_another_name_is_not_counted_on(world: World, fake: FakeKube, kube: KubeClient) -> None:
    await world.kept.check()
    fake.faults.always("update", "secrets", answer(500))
    named = WebhookSettings(certificate=SETTINGS.certificate, scheduler=Scheduler(common_name="another"))
    starting = World(kube, named, now=world.now)
    assert not await starting.kept.check()
    assert not starting.kept.made
