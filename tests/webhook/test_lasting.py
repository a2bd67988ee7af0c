"""The extender's CA: whoever read it once, when it started, trusts the extender for as long as that says."""

import asyncio
import base64
import itertools
import random
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from fake_kube import FakeKube
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from koordgate.kube.client import KubeClient
from webhook.settings import Certificate, WebhookSettings
from webhook.tls import pki
from webhook.tls.certs import ClientSecret, LastingSource, SecretSource, Source
from webhook.tls.pki import Bundle, CertificateError, Pair, Step
from webhook.tls.timing import Timing

NAME = "koordgate.test"
SPACE = "koordgate-system"
SECRETS = f"/api/v1/namespaces/{SPACE}/secrets"
OWN, WEBHOOKS, CLIENT = (f"{SECRETS}/koordgate-{name}tls" for name in ("extender-", "", "scheduler-"))
WANTED = Certificate(dns_names=(NAME,))
SETTINGS = WebhookSettings(certificate=WANTED)
DAY = timedelta(days=1)


class Replica:
    """Both sources of a replica and its keeper of the scheduler's certificate, with a clock of its own."""

    def __init__(self, kube: KubeClient, *, ahead: timedelta = timedelta()) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.ahead = ahead  # of the API server's clock
        timing = Timing(
            lambda: self.now + self.ahead,
            jitter=lambda: 0.5,
            settle=timedelta(),
            offset=lambda: -self.ahead.total_seconds(),
        )
        self.extender = LastingSource(kube, SPACE, WANTED.of_extender, WANTED.secret, timing)
        self.webhooks = SecretSource(kube, SPACE, WANTED, timing)
        self.client = ClientSecret(kube, SETTINGS, self.extender, timing)


def data(fake: FakeKube, path: str = OWN) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in fake.get(path)["data"].items()}


def write(fake: FakeKube, path: str, **changes: bytes | None) -> None:
    """Change values of a Secret, or remove them."""
    secret = fake.get(path)
    for key, value in changes.items():
        name = key.replace("__", "-").replace("_", ".")
        secret["data"].pop(name, None)
        if value is not None:
            secret["data"][name] = base64.b64encode(value).decode()
    fake.put(SECRETS, secret)


def expires(fake: FakeKube) -> datetime:
    return x509.load_pem_x509_certificate(data(fake)["ca.crt"]).not_valid_after_utc


def accepted(source: Source, trusted: bytes, caller: Pair, folder: Path) -> bool:
    """Whether a scheduler that trusts this CA and shows this certificate connects, by a handshake in memory."""
    client = ssl.create_default_context(cadata=trusted.decode())
    (file := folder / "caller.pem").write_bytes(caller.key + caller.certificate)
    client.load_cert_chain(file)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname=NAME),
        source.entrance.wrap_bio(there, back, server_side=True),
    )
    try:
        for end in ends * 2:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError:
        return False
    return ends[1].getpeercert(True) is not None


@pytest.fixture
async def replica(kube: KubeClient) -> Replica:
    made = Replica(kube)
    await made.extender.start()
    await made.webhooks.start()
    assert await made.client.check()
    return made


def scheduler(fake: FakeKube) -> Pair:
    return Pair(data(fake, CLIENT)["tls.crt"], data(fake, CLIENT)["tls.key"])


async def test_it_lasts_for_ten_years_and_is_none_of_the_webhooks(replica: Replica, fake: FakeKube) -> None:
    assert expires(fake) == replica.now + 3650 * DAY
    assert replica.extender.authority_expires == expires(fake)
    assert data(fake)["ca.key"] != data(fake, WEBHOOKS)["ca.key"]
    assert data(fake, CLIENT)["extender-ca.crt"] == data(fake)["ca.crt"]
    x509.load_pem_x509_certificate(data(fake, CLIENT)["tls.crt"]).verify_directly_issued_by(
        x509.load_pem_x509_certificate(data(fake)["ca.crt"])
    )


async def test_the_certificate_under_it_is_renewed_and_it_is_not(replica: Replica, fake: FakeKube) -> None:
    trusted, served = data(fake)["ca.crt"], data(fake)["tls.crt"]
    replica.now += 20 * DAY
    await replica.extender.refresh()
    assert data(fake)["ca.crt"] == trusted
    assert data(fake)["tls.crt"] != served
    later = x509.load_pem_x509_certificate(data(fake)["tls.crt"])
    later.verify_directly_issued_by(x509.load_pem_x509_certificate(trusted))


async def test_at_two_thirds_of_its_life_it_gets_another_certificate_for_the_same_key(
    replica: Replica, fake: FakeKube
) -> None:
    trusted, key = data(fake)["ca.crt"], data(fake)["ca.key"]
    replica.now += 3650 * DAY * 2 / 3
    await replica.extender.refresh()
    assert data(fake)["ca.key"] == key
    assert data(fake)["ca.crt"] != trusted
    assert expires(fake) == replica.now + 3650 * DAY
    assert await replica.client.check()
    assert data(fake, CLIENT)["extender-ca.crt"] == data(fake)["ca.crt"]
    later = x509.load_pem_x509_certificate(data(fake)["tls.crt"])
    later.verify_directly_issued_by(x509.load_pem_x509_certificate(trusted))


async def test_a_scheduler_that_trusts_the_ca_of_earlier_releases_is_served_on(
    kube: KubeClient, fake: FakeKube, tmp_path: Path
) -> None:
    """The upgrade: the webhooks' CA signed for the scheduler too, and is what a running scheduler knows."""
    replica = Replica(kube)
    await replica.webhooks.start()
    old = data(fake, WEBHOOKS)
    caller = pki.new_client_certificate(Pair(old["ca.crt"], old["ca.key"]), "koord-scheduler", replica.now, 365)
    await replica.extender.start()
    assert await replica.client.check()
    assert expires(fake) == replica.now + 3650 * DAY
    for trusted in (old["ca.crt"], data(fake, CLIENT)["extender-ca.crt"]):
        assert accepted(replica.extender, trusted, caller, tmp_path)
        assert accepted(replica.extender, trusted, scheduler(fake), tmp_path)


async def test_a_replica_of_an_earlier_release_leaves_the_schedulers_certificate_alone(
    kube: KubeClient, fake: FakeKube
) -> None:
    """During the roll-out both write the Secret: each must accept what the other signed."""
    replica = Replica(kube)
    await replica.webhooks.start()
    await replica.extender.start()
    assert await replica.client.check()
    signed = scheduler(fake)
    old = data(fake, WEBHOOKS)
    theirs = Bundle(Pair(b"", b""), Pair(old["ca.crt"], old["ca.key"]))
    assert pki.client_renewal(signed, theirs, "koord-scheduler", replica.now) == ""


@pytest.mark.parametrize(
    "harm",
    [
        {"ca_key": None},
        {"ca_key": b"-----BEGIN"},
        {"ca_crt": None},
        {"ca_crt": b"", "ca_key": b""},
        {"tls_crt": None, "tls_key": None, "ca_crt": None, "ca_key": None},
    ],
    ids=str,
)
async def test_what_of_it_was_damaged_is_restored_from_memory(
    replica: Replica, fake: FakeKube, tmp_path: Path, harm: dict[str, bytes | None]
) -> None:
    before = data(fake)
    write(fake, OWN, **harm)
    await replica.extender.refresh()
    assert {key: data(fake)[key] for key in ("ca.crt", "ca.key")} == {key: before[key] for key in ("ca.crt", "ca.key")}
    assert accepted(replica.extender, before["ca.crt"], scheduler(fake), tmp_path)


async def test_a_deleted_secret_is_restored_from_memory(replica: Replica, fake: FakeKube, tmp_path: Path) -> None:
    before = data(fake)
    fake.remove(OWN)
    await replica.extender.refresh()
    assert data(fake)["ca.key"] == before["ca.key"]
    assert accepted(replica.extender, before["ca.crt"], scheduler(fake), tmp_path)


async def test_a_key_of_another_ca_is_replaced_by_the_remembered_one(replica: Replica, fake: FakeKube) -> None:
    before, other = data(fake), pki.new_authority("other", replica.now, 10)
    write(fake, OWN, ca_key=other.key)
    await replica.extender.refresh()
    assert data(fake)["ca.key"] == before["ca.key"]


async def test_a_whole_ca_that_somebody_put_there_is_taken(replica: Replica, fake: FakeKube) -> None:
    """How an administrator replaces it."""
    other = pki.new_authority("other", replica.now, 3650)
    write(fake, OWN, ca_crt=other.certificate, ca_key=other.key)
    await replica.extender.refresh()
    assert data(fake)["ca.key"] == other.key
    assert await replica.client.check()
    assert data(fake, CLIENT)["extender-ca.crt"].startswith(other.certificate)


async def test_only_where_nobody_remembers_it_is_there_another_and_the_log_says_what_to_restart(
    replica: Replica, kube: KubeClient, fake: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    before = data(fake)["ca.key"]
    for path in (OWN, WEBHOOKS):
        fake.remove(path)
    caplog.set_level("INFO")
    await Replica(kube).extender.refresh()
    assert data(fake)["ca.key"] != before
    assert "schedulers that run already must be restarted to trust it" in caplog.text


# --- clocks that differ

APART = [-400 * DAY, -260 * DAY, -2 * DAY, timedelta(hours=-1), timedelta(hours=1), 21 * DAY, 260 * DAY, 4000 * DAY]


@pytest.mark.parametrize("ahead", APART, ids=str)
async def test_a_replica_whose_clock_is_wrong_replaces_nothing_and_serves_what_there_is(
    replica: Replica, kube: KubeClient, fake: FakeKube, ahead: timedelta
) -> None:
    before = [fake.get(path) for path in (OWN, WEBHOOKS, CLIENT)]
    wrong = Replica(kube, ahead=ahead)
    await wrong.extender.refresh()
    await wrong.webhooks.refresh()
    assert await wrong.client.check()
    assert [fake.get(path) for path in (OWN, WEBHOOKS, CLIENT)] == before
    for source in (wrong.extender, wrong.webhooks):
        assert source.healthy(source._timing.earliest) is None


@pytest.mark.parametrize("ahead", [-260 * DAY, 260 * DAY], ids=str)
async def test_a_replica_whose_clock_is_wrong_makes_nothing_and_says_by_how_much(
    kube: KubeClient, fake: FakeKube, ahead: timedelta
) -> None:
    wrong = Replica(kube, ahead=ahead)
    way = "ahead of" if ahead > timedelta() else "behind"
    for source in (wrong.extender, wrong.webhooks):
        with pytest.raises(CertificateError, match=rf"our clock is 6240\.0 hours {way} the API server's: correct"):
            await source.refresh()
    assert not await wrong.client.check()
    assert fake.objects(SECRETS) == []


async def test_clocks_within_half_an_hour_agree(kube: KubeClient, fake: FakeKube) -> None:
    near = Replica(kube, ahead=timedelta(minutes=30))
    await near.extender.refresh()
    assert near.extender.healthy(near.now) is None, "and what it made is valid by the API server's clock"
    made = x509.load_pem_x509_certificate(data(fake)["tls.crt"])
    assert made.not_valid_before_utc < near.now


async def test_the_scheduler_gets_no_new_certificate_from_a_replica_whose_clock_is_wrong(
    replica: Replica, kube: KubeClient, fake: FakeKube
) -> None:
    write(fake, CLIENT, tls_crt=None)
    before = fake.get(CLIENT)
    wrong = Replica(kube, ahead=260 * DAY)
    assert not await wrong.client.check()
    assert "our clock is 6240.0 hours ahead of" in wrong.client.problem
    assert fake.get(CLIENT) == before
    assert await replica.client.check()


async def test_replicas_with_different_clocks_agree_on_one_ca_for_a_year(kube: KubeClient, fake: FakeKube) -> None:
    """Two clocks are right, one is 260 days ahead; whoever looks, at any time, the CA changes when it is due."""
    replicas = [Replica(kube), Replica(kube), Replica(kube, ahead=260 * DAY)]
    chance = random.Random(11)
    seen: list[bytes] = []
    for _ in range(73):
        for one in chance.sample(replicas, k=3):
            with suppress(CertificateError):
                await one.webhooks.refresh()
            with suppress(CertificateError):
                await one.extender.refresh()
            one.now += 5 * DAY
        seen.append(data(fake, WEBHOOKS)["ca.crt"])
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes == 1, "at two thirds of 365 days"


# --- whatever is in the Secret

_VALUES = st.sampled_from(["kept", "gone", "empty", "noise", "other"])


@given(values=st.fixed_dictionaries(dict.fromkeys(("tls.crt", "tls.key", "ca.crt", "ca.key"), _VALUES)))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_a_secret_holds_one_step_makes_it_good_and_a_whole_ca_stays(
    values: dict[str, str],
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    async def check() -> None:
        async with FakeKube() as fake, KubeClient(fake.url) as kube:
            first = Replica(kube)
            first.now = now
            await first.extender.refresh()
            before, other = data(fake), pki.new_authority("other", now, 10)
            others = {
                "ca.crt": other.certificate,
                "ca.key": other.key,
                "tls.crt": other.certificate,
                "tls.key": other.key,
            }
            made: dict[str, Any] = {
                "kept": lambda key: before[key],
                "gone": lambda _key: None,
                "empty": lambda _key: b"",
                "noise": lambda _key: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "other": lambda key: others[key],
            }
            write(fake, OWN, **{key.replace(".", "_"): made[value](key) for key, value in values.items()})
            fresh = Replica(kube)  # remembers nothing
            fresh.now = now
            await fresh.extender.refresh()
            after = data(fake)
            if values["ca.crt"] == values["ca.key"] == "kept":
                assert after["ca.key"] == before["ca.key"]
            bundle = Bundle(Pair(after["tls.crt"], after["tls.key"]), Pair(after["ca.crt"], after["ca.key"]))
            assert pki.renewal(bundle, now, (NAME,), keep_key=True).step is Step.NONE
            settled = fake.get(OWN)
            await first.extender.refresh()
            await fresh.extender.refresh()
            assert fake.get(OWN) == settled, "replicas that remember and those that do not agree"

    asyncio.run(check())
