"""Sources of the serving certificate: made once, shared, changed at run time without a failed request."""

import asyncio
import base64
import logging
import random
import ssl
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import pytest
from fake_kube import FakeKube, answer, hold, hold_answer, lose_answer
from trials import examples
from waiting import Waits

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError, Unreachable
from webhook.settings import Certificate, CertificateFiles, Identity
from webhook.tls import certs, pki
from webhook.tls.certs import FileSource, MemorySource, SecretSource, Source
from webhook.tls.pki import CertificateError, Pair, Step
from webhook.tls.register import Registration
from webhook.tls.timing import Timing

NAME = "koordgate.test"
SPACE = "koordgate-system"
SECRETS = f"/api/v1/namespaces/{SPACE}/secrets"
SECRET = f"{SECRETS}/koordgate-tls"
WANTED = Certificate(dns_names=(NAME,))
OVERLAP = timedelta(hours=1)
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGS = (f"{ADMISSION}/mutatingwebhookconfigurations", f"{ADMISSION}/validatingwebhookconfigurations")


class Clock:
    """A clock that stands still until it is moved. It starts at the real time, which the TLS library uses."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **by: float) -> None:
        self.now += timedelta(**by)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def timing(clock: Clock, waits: Waits) -> Timing:
    return Timing(clock, waits, lambda: 0.5)


@pytest.fixture
def source(kube: KubeClient, timing: Timing) -> SecretSource:
    return SecretSource(kube, SPACE, WANTED, timing)


def shown(source: Source) -> bytes:
    """The certificate that a client sees, as PEM, by a handshake in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), source.context.wrap_bio(there, back, server_side=True))
    for end in ends * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ssl.DER_cert_to_PEM_cert(ends[0].getpeercert(binary_form=True) or b"").encode()


def lets_in(source: Source, caller: Pair, folder: Path) -> bool:
    """Whether the extender's port accepts this caller, by a handshake in memory."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    (file := folder / "caller.pem").write_bytes(caller.key + caller.certificate)
    client.load_cert_chain(file)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), source.entrance.wrap_bio(there, back, server_side=True))
    for end in ends:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    with suppress(ssl.SSLWantReadError):
        ends[0].do_handshake()
    assert ends[0].getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(shown(source).decode())
    try:
        ends[1].do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True


def caller_of(authority: Pair, clock: Clock) -> Pair:
    return pki.new_client_certificate(authority, "koord-scheduler", clock(), 30)


def authority_in(fake: FakeKube) -> Pair:
    return Pair(stored(fake, "ca.crt"), stored(fake, "ca.key"))


def stored(fake: FakeKube, key: str = "tls.crt") -> bytes:
    return base64.b64decode(fake.get(SECRET)["data"].get(key, ""))


def damage(fake: FakeKube, **data: str | None) -> None:
    secret = fake.get(SECRET)
    changed = secret["data"] | {key.replace("_", "."): value for key, value in data.items()}
    secret["data"] = {key: value for key, value in changed.items() if value is not None}
    fake.put(SECRETS, secret)


# --- the Secret


async def test_a_missing_secret_is_made(source: SecretSource, fake: FakeKube) -> None:
    await source.start()
    secret = fake.get(SECRET)
    assert secret["type"] == "kubernetes.io/tls"
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert shown(source) == stored(fake)
    assert source.ca_bundle == stored(fake, "ca.crt")
    assert source.changed.is_set()


async def test_a_secret_that_is_good_is_used_and_not_written(
    source: SecretSource, fake: FakeKube, kube: KubeClient, timing: Timing
) -> None:
    await source.start()
    revision = fake.revision
    other = SecretSource(kube, SPACE, WANTED, timing)
    await other.start()
    await other.refresh()
    assert fake.revision == revision
    assert shown(other) == shown(source)


async def test_of_two_that_create_at_once_both_serve_what_the_first_wrote(fake: FakeKube, timing: Timing) -> None:
    first, second = hold(), hold()
    fake.faults.add("create", "secrets", first, second)
    async with KubeClient(fake.url) as one, KubeClient(fake.url) as two:
        sources = [SecretSource(client, SPACE, WANTED, timing) for client in (one, two)]
        starts = [asyncio.create_task(source.start()) for source in sources]
        await first.reached.wait()
        await second.reached.wait()
        for gate in (first.gate, second.gate):
            assert gate
            gate.set()
        await asyncio.gather(*starts)
    assert shown(sources[0]) == shown(sources[1]) == stored(fake)


async def test_of_two_that_renew_at_once_both_serve_what_the_first_wrote(
    fake: FakeKube, timing: Timing, clock: Clock
) -> None:
    async with KubeClient(fake.url) as one, KubeClient(fake.url) as two:
        sources = [SecretSource(client, SPACE, WANTED, timing) for client in (one, two)]
        for source in sources:
            await source.start()
        clock.forward(days=20)
        first, second = hold(), hold()
        fake.faults.add("update", "secrets", first, second)
        polls = [asyncio.create_task(source.refresh()) for source in sources]
        await first.reached.wait()
        await second.reached.wait()
        for gate in (first.gate, second.gate):
            assert gate
            gate.set()
        await asyncio.gather(*polls)
    assert shown(sources[0]) == shown(sources[1]) == stored(fake)
    assert len(fake.seen("update", "secrets")) == 2


async def test_a_write_whose_answer_was_lost_is_found_and_used(
    source: SecretSource, fake: FakeKube, waits: Waits
) -> None:
    fake.faults.add("create", "secrets", lose_answer())
    start = asyncio.create_task(source.start())
    (await waits.fell_asleep()).set()
    await start
    assert shown(source) == stored(fake)
    assert len(fake.seen("create", "secrets")) == 1


async def test_a_secret_that_others_change_without_end_is_an_error(source: SecretSource, fake: FakeKube) -> None:
    fake.faults.always("create", "secrets", answer(409))
    with pytest.raises(KubeError, match="changed by others during each of 5 attempts"):
        await source.refresh()


async def test_an_older_read_that_comes_late_does_not_bring_the_old_certificate_back(
    source: SecretSource, fake: FakeKube, clock: Clock
) -> None:
    await source.start()
    fake.faults.add("get", "secrets", held := hold_answer())
    slow = asyncio.create_task(source.refresh())
    await held.performed.wait()
    clock.forward(days=20)
    await source.refresh()
    assert held.answer_gate
    clock.forward(days=-20)  # the slow one judges by the time of its read
    held.answer_gate.set()
    await slow
    assert shown(source) == stored(fake)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ({"tls_crt": None}, "certificate, because the certificate is empty"),
        ({"tls_crt": "?? no base64"}, "certificate, because the certificate is empty"),
        ({"tls_key": base64.b64encode(b"no key").decode()}, "certificate, because the key cannot be read"),
        ({"ca_key": None}, "authority, because the authority key is empty"),
        ({"ca_crt": "AAAA"}, "authority, because the authority certificate cannot be read"),
    ],
)
async def test_a_damaged_secret_is_renewed_and_the_log_says_why(
    source: SecretSource, fake: FakeKube, caplog: pytest.LogCaptureFixture, harm: dict[str, str | None], reason: str
) -> None:
    await source.start()
    authority = source.ca_bundle
    damage(fake, **harm)
    with caplog.at_level(logging.INFO):
        bundle = await source.refresh()
    assert f"Secret {SPACE}/koordgate-tls: made a new {reason}" in caplog.text
    assert authority in bundle
    assert set(fake.get(SECRET)["data"]) >= {"tls.crt", "tls.key", "ca.crt", "ca.key"}


async def test_a_deleted_secret_is_created_again_and_the_old_authority_stays_trusted(
    source: SecretSource, fake: FakeKube
) -> None:
    await source.start()
    old = source.ca_bundle
    fake.remove(SECRET)
    assert await source.refresh() == stored(fake, "ca.crt") + old
    assert stored(fake, "previous-ca.crt") == old


async def test_what_others_put_on_the_secret_stays(source: SecretSource, fake: FakeKube) -> None:
    fake.put(SECRETS, {"metadata": {"name": "koordgate-tls", "labels": {"a": "b"}}, "type": "Opaque"})
    await source.start()
    secret = fake.get(SECRET)
    assert (secret["type"], secret["metadata"]["labels"]) == ("Opaque", {"a": "b"})


async def test_a_secret_of_cert_manager_is_left_alone(source: SecretSource, fake: FakeKube) -> None:
    about = {"name": "koordgate-tls", "annotations": {"cert-manager.io/certificate-name": "x"}}
    fake.put(SECRETS, {"metadata": about})
    with pytest.raises(CertificateError, match=r"is managed by cert-manager: mount it and set certificate\.files"):
        await source.refresh()


async def test_a_source_without_names_is_refused_at_once(kube: KubeClient) -> None:
    with pytest.raises(CertificateError, match="needs a DNS name"):
        SecretSource(kube, SPACE, Certificate())


async def test_starting_tries_until_it_is_allowed_and_says_what_is_missing(
    source: SecretSource, fake: FakeKube, waits: Waits, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    words = 'secrets "koordgate-tls" is forbidden: User "u" cannot get resource "secrets" in API group ""'
    fake.faults.add("get", "secrets", *(answer(403, words) for _ in range(3)))
    start = asyncio.create_task(source.start())
    for _ in range(3):
        woken = await waits.fell_asleep()
        assert "u lacks the right to get secrets" in (source.healthy(clock()) or "")
        woken.set()
    await start
    assert waits.seconds == [0.375, 0.75, 1.5]
    assert "u lacks the right to get secrets" in caplog.text
    assert source.healthy(clock()) is None


async def test_an_api_server_that_is_unreachable_takes_nothing_from_a_certificate_that_is_good(
    source: SecretSource, fake: FakeKube, clock: Clock
) -> None:
    await source.start()
    fake.faults.always("get", "secrets", answer(403))
    with pytest.raises(Forbidden):
        await source.refresh()
    clock.forward(days=30, seconds=-1)
    assert source.healthy(clock()) is None
    for seconds in (1, 1, 3600):
        clock.forward(seconds=seconds)
        assert "the certificate expired" in (source.healthy(clock()) or "")


async def test_a_replica_that_starts_while_nothing_can_be_renewed_serves_what_is_valid_until_that_expires(
    source: SecretSource,
    fake: FakeKube,
    kube: KubeClient,
    timing: Timing,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await source.start()
    made = stored(fake)
    clock.forward(days=25)
    fake.faults.always("update", "secrets", answer(500))
    starting = SecretSource(kube, SPACE, WANTED, timing)
    assert await starting.attempt()
    assert await starting.attempt()
    assert shown(starting) == stored(fake) == made
    assert starting.healthy(clock()) is None
    assert sum("could not be renewed yet" in line for line in caplog.messages) == 1
    clock.forward(days=5)
    with pytest.raises(Unreachable):
        await starting.refresh()
    with pytest.raises(Unreachable):
        await SecretSource(kube, SPACE, WANTED, timing).refresh()
    assert "the certificate expired" in (starting.healthy(clock()) or "")


async def test_a_certificate_that_its_ca_did_not_sign_is_not_served_though_it_cannot_be_renewed(
    source: SecretSource, fake: FakeKube, kube: KubeClient, timing: Timing, clock: Clock
) -> None:
    await source.start()
    other = pki.new_authority("another", clock(), 30)
    damage(fake, ca_crt=base64.b64encode(other.certificate).decode(), ca_key=base64.b64encode(other.key).decode())
    fake.faults.always("update", "secrets", answer(500))
    assert not await SecretSource(kube, SPACE, WANTED, timing).attempt()


# --- time


@pytest.fixture
async def run(source: SecretSource) -> AsyncIterator[asyncio.Task[None]]:
    await source.start()
    task = asyncio.create_task(source.run())
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("run")
async def test_a_certificate_is_renewed_in_place_at_two_thirds_of_its_life(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits
) -> None:
    old, context = shown(source), source.context
    await waits.pass_once()
    assert shown(source) == old
    clock.forward(days=20)  # the wall clock shows how long it slept
    await waits.pass_once()
    assert shown(source) == stored(fake) != old
    assert source.context is context
    assert waits.seconds == [52.5, 52.5, 52.5]


@pytest.mark.usefixtures("run")
async def test_a_new_authority_is_published_first_and_serves_after_it_has_settled(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits
) -> None:
    old, old_authority = shown(source), source.ca_bundle
    source.published(source.ca_bundle)
    source.changed.clear()
    damage(fake, ca_key=None)
    await waits.pass_once()
    assert source.changed.is_set()
    assert source.ca_bundle == stored(fake, "ca.crt") + old_authority
    assert stored(fake) != old
    clock.forward(hours=1)
    await waits.pass_once()
    assert shown(source) == old, "not published yet"
    source.published(source.ca_bundle)
    clock.forward(seconds=29)
    await waits.pass_once()
    assert shown(source) == old, "not settled yet"
    clock.forward(seconds=1)
    await waits.pass_once()
    assert shown(source) == stored(fake) != old


@pytest.mark.usefixtures("run")
async def test_a_new_authority_serves_at_once_where_the_old_certificate_has_expired(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits
) -> None:
    clock.forward(days=365)
    await waits.pass_once()
    assert shown(source) == stored(fake)
    assert source.healthy(clock()) is None


@pytest.mark.usefixtures("run")
async def test_what_was_published_in_time_serves_though_the_api_server_is_unreachable(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits
) -> None:
    fake.remove(SECRET)
    await waits.pass_once()
    source.published(source.ca_bundle)
    fake.faults.always("get", "secrets", answer(403))
    clock.forward(seconds=30)
    await waits.pass_once()
    assert shown(source) == stored(fake)


async def test_the_old_authority_is_dropped_with_the_next_certificate_but_not_at_once(
    source: SecretSource, fake: FakeKube, clock: Clock
) -> None:
    await source.start()
    first = source.ca_bundle
    fake.remove(SECRET)
    await source.refresh()
    clock.forward(seconds=OVERLAP.total_seconds() - 1)
    damage(fake, tls_crt=None)
    assert first in await source.refresh()
    clock.forward(seconds=1)
    assert first in await source.refresh()
    damage(fake, tls_crt=None)
    assert await source.refresh() == stored(fake, "ca.crt")
    assert "previous-ca.crt" not in fake.get(SECRET)["data"]


# --- the extender's port


@pytest.mark.usefixtures("run")
async def test_the_extenders_port_shows_the_same_certificate_and_takes_callers_by_our_authority(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits, tmp_path: Path
) -> None:
    caller, entrance = caller_of(authority_in(fake), clock), source.entrance
    assert lets_in(source, caller, tmp_path)
    assert not lets_in(source, caller_of(pki.new_authority("koordgate", clock(), 30), clock), tmp_path)
    clock.forward(days=20)
    await waits.pass_once()
    assert lets_in(source, caller, tmp_path), "with the certificate that was renewed"
    assert source.entrance is entrance


@pytest.mark.usefixtures("run")
async def test_callers_by_a_new_authority_are_let_in_at_once_and_those_by_the_old_still(
    source: SecretSource, fake: FakeKube, clock: Clock, waits: Waits, tmp_path: Path
) -> None:
    old, serving = caller_of(authority_in(fake), clock), shown(source)
    source.published(source.ca_bundle)
    damage(fake, ca_key=None)
    await waits.pass_once()
    new = caller_of(authority_in(fake), clock)
    assert shown(source) == serving, "the new authority does not serve yet"
    assert lets_in(source, new, tmp_path)
    assert lets_in(source, old, tmp_path)
    source.published(source.ca_bundle)
    clock.forward(seconds=OVERLAP.total_seconds())
    await waits.pass_once()
    damage(fake, tls_crt=None)  # the next certificate; with it the old authority is dropped
    await waits.pass_once()
    assert lets_in(source, new, tmp_path)
    assert not lets_in(source, old, tmp_path)


# --- files


@dataclass
class Folder:
    path: Path
    files: CertificateFiles = field(init=False)

    def __post_init__(self) -> None:
        names = ("tls.crt", "tls.key", "ca.crt")
        self.files = CertificateFiles(
            **dict(zip(("certificate", "key", "authority"), map(self._at, names), strict=True))
        )

    def _at(self, name: str) -> str:
        return str(self.path / name)

    def write(self, leaf: Pair, authority: bytes) -> None:
        for name, content in (("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", authority)):
            (self.path / name).write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def leaf_of(authority: Pair, clock: Clock, days: float = 30) -> Pair:
    return pki.new_certificate(authority, (NAME,), (), clock(), days)


async def test_files_are_reloaded_when_they_change(folder: Folder, timing: Timing, clock: Clock) -> None:
    authority = pki.new_authority("theirs", clock(), 90)
    folder.write(one := leaf_of(authority, clock), authority.certificate)
    source = FileSource(folder.files, timing)
    await source.start()
    assert shown(source) == one.certificate
    folder.write(two := leaf_of(authority, clock), authority.certificate)
    assert await source.refresh() == authority.certificate
    assert shown(source) == two.certificate


async def test_files_of_another_authority_serve_once_both_are_published(
    folder: Folder, timing: Timing, clock: Clock
) -> None:
    old, new = (pki.new_authority("theirs", clock(), 90) for _ in range(2))
    folder.write(one := leaf_of(old, clock), old.certificate)
    source = FileSource(folder.files, timing)
    await source.start()
    folder.write(two := leaf_of(new, clock), new.certificate)
    bundle = await source.refresh()
    assert bundle == new.certificate + old.certificate
    source.published(bundle)
    await source.refresh()
    assert shown(source) == one.certificate
    clock.forward(seconds=30)
    await source.refresh()
    assert shown(source) == two.certificate


async def test_files_that_do_not_fit_together_leave_the_old_pair(folder: Folder, timing: Timing, clock: Clock) -> None:
    authority = pki.new_authority("theirs", clock(), 90)
    good, other = leaf_of(authority, clock), leaf_of(authority, clock)
    expired = pki.new_certificate(authority, (NAME,), (), clock() - timedelta(days=2), 1)
    folder.write(good, authority.certificate)
    source = FileSource(folder.files, timing)
    await source.start()
    for leaf, ca, reason in (
        (Pair(other.certificate, good.key), authority.certificate, "key does not match"),
        (Pair(other.certificate[:50], other.key), authority.certificate, "cannot be read"),
        (other, b"", "no PEM certificate"),
        (expired, authority.certificate, "expired at"),
    ):
        folder.write(leaf, ca)
        with pytest.raises(CertificateError, match=reason):
            await source.refresh()
        assert shown(source) == good.certificate
        assert source.ca_bundle == authority.certificate
        assert source.healthy(clock()) is None


async def test_callers_are_by_the_authority_that_their_file_names_now(
    folder: Folder, timing: Timing, clock: Clock, tmp_path: Path
) -> None:
    serving, one, two = (pki.new_authority("theirs", clock(), 90) for _ in range(3))
    folder.write(leaf_of(serving, clock), serving.certificate)
    (file := tmp_path / "callers.crt").write_bytes(one.certificate)
    source = FileSource(folder.files, timing, str(file))
    await source.start()
    assert [lets_in(source, caller_of(each, clock), tmp_path) for each in (serving, one, two)] == [False, True, False]
    file.write_bytes(two.certificate)
    await source.refresh()
    assert [lets_in(source, caller_of(each, clock), tmp_path) for each in (serving, one, two)] == [False, False, True]
    file.write_bytes(b"")
    with pytest.raises(CertificateError, match="no PEM certificate"):
        await source.refresh()
    assert lets_in(source, caller_of(two, clock), tmp_path), "what was there stays"


async def test_without_such_a_file_callers_are_by_the_authority_of_the_serving_certificate(
    folder: Folder, timing: Timing, clock: Clock, tmp_path: Path
) -> None:
    serving = pki.new_authority("theirs", clock(), 90)
    folder.write(leaf_of(serving, clock), serving.certificate)
    source = FileSource(folder.files, timing)
    await source.start()
    assert lets_in(source, caller_of(serving, clock), tmp_path)


async def test_files_that_are_not_there_yet_are_waited_for(
    folder: Folder, timing: Timing, clock: Clock, waits: Waits
) -> None:
    source = FileSource(folder.files, timing)
    start = asyncio.create_task(source.start())
    woken = await waits.fell_asleep()
    assert source.healthy(clock()) == f"{folder.files.certificate}: cannot be read: No such file or directory"
    authority = pki.new_authority("theirs", clock(), 90)
    folder.write(leaf_of(authority, clock), authority.certificate)
    woken.set()
    await start
    assert source.healthy(clock()) is None


# --- memory, and what all sources have in common


async def test_a_certificate_in_memory_is_renewed_without_anybody(timing: Timing, clock: Clock) -> None:
    source = MemorySource(Certificate(dns_names=("localhost",), authority_days=3, certificate_days=3), timing)
    await source.start()
    old, first = source.ca_bundle, shown(source)
    clock.forward(days=2)
    assert (await source.refresh()).endswith(old)
    assert shown(source) == first
    clock.forward(seconds=30)
    await source.refresh()
    assert shown(source) != first


def test_no_key_stays_on_disk_and_none_is_open_to_others(
    timing: Timing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    kept = ssl.SSLContext.load_cert_chain

    def look(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        modes.append(stat.S_IMODE(key.parent.stat().st_mode))
        assert key.parent.parent == tmp_path
        kept(context, certificate, key)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    asyncio.run(MemorySource(WANTED, timing).start())
    assert set(modes) == {0o700}
    assert not list(tmp_path.iterdir())


async def test_old_tls_versions_are_refused(timing: Timing) -> None:
    assert MemorySource(WANTED, timing).context.minimum_version is ssl.TLSVersion.TLSv1_2


# --- the drill


@dataclass
class Callers:
    """API servers that call without pause, each time trusting the CA published at that moment."""

    fake: FakeKube
    ports: list[int]
    done: list[int] = field(default_factory=lambda: [0, 0])
    failed: list[str] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

    async def call_forever(self, number: int) -> None:
        while True:
            config = self.fake.get(f"{CONFIGS[number % 2]}/koordgate")
            bundle = base64.b64decode(config["webhooks"][0]["clientConfig"]["caBundle"]).decode()
            try:
                await self._call(_trusting(bundle), self.ports[(self.done[number] + number) % 2])
            except (OSError, asyncio.IncompleteReadError) as error:
                self.failed.append(f"{number}: {error}")
            self.done[number] += 1
            self.fake._tick.set()

    async def _call(self, context: ssl.SSLContext, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
        try:
            writer.write(b"ping\n")
            assert await reader.readexactly(5) == b"ping\n"
            self.seen.add(writer.get_extra_info("ssl_object").getpeercert(True))
        finally:
            writer.close()
            await writer.wait_closed()

    async def round(self) -> None:
        """Wait until each has ended a call that it begins from now on."""
        goals = [done + 2 for done in self.done]
        await self.fake.until(lambda: all(map(int.__ge__, self.done, goals)))


@lru_cache(maxsize=4)
def _trusting(bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=bundle)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.IncompleteReadError):
        writer.write(await reader.readexactly(5))
        await reader.read()
    writer.close()


@asynccontextmanager
async def _replica(
    fake: FakeKube, timing: Timing, wanted: Certificate
) -> AsyncIterator[tuple[Source, Registration, int]]:
    async with KubeClient(fake.url) as client:
        source = SecretSource(client, SPACE, wanted, timing)
        await source.start()
        server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=source.context)
        async with server:
            registration = Registration(client, Identity(), source, timing)
            yield source, registration, server.sockets[0].getsockname()[1]


async def test_changes_of_authority_fail_no_request(fake: FakeKube, clock: Clock, waits: Waits) -> None:
    changes = examples(30)
    seconds = 1 / 86400
    wanted = Certificate(dns_names=(NAME,), authority_days=30 * seconds, certificate_days=30 * seconds)
    timing = Timing(clock, waits, lambda: 0.5, timedelta(seconds=2))
    for path in CONFIGS:
        webhooks = [{"name": "a.koordgate.io", "clientConfig": {}}]
        fake.put(path, {"metadata": {"name": "koordgate"}, "webhooks": webhooks})
    chance = random.Random(7)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(_replica(fake, timing, wanted)) for _ in range(2)]
        callers = Callers(fake, [port for _, _, port in replicas])
        for _, registration, _ in replicas:
            assert await registration.check()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(callers.call_forever(number)) for number in range(len(callers.done))]
            for _ in range(changes):
                clock.forward(seconds=20)
                steps = [source.refresh for source, _, _ in replicas] + [one.check for _, one, _ in replicas]
                for step in chance.sample(steps, k=4):
                    await step()
                await callers.round()  # the API servers' watches have delivered the bundle: it is settled
                clock.forward(seconds=2)
                for source, _, _ in chance.sample(replicas, k=2):
                    await source.refresh()
                await callers.round()
                assert {shown(source) for source, _, _ in replicas} == {stored(fake)}
            for task in tasks:
                task.cancel()
    assert callers.failed == []
    assert len(callers.seen) == changes + 1


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 45.0), (0.5, 52.5), (1.0, 60.0)])
def test_an_interval_is_shortened_by_chance_by_up_to_a_quarter(chance: float, seconds: float) -> None:
    assert Timing(jitter=lambda: chance).about(60.0) == seconds


@pytest.mark.parametrize(
    ("offset", "apart"), [(None, 0), (0.0, 0), (1800.0, 0), (1801.0, 1801), (-1800.0, 0), (-1801.0, -1801)]
)
def test_clocks_are_apart_by_more_than_half_an_hour(offset: float | None, apart: float) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    timing = Timing(lambda: now, offset=lambda: offset)
    assert timing.apart == timedelta(seconds=apart)
    assert timing.earliest == now + timedelta(seconds=min(apart, 0))


async def test_callers_cas_that_the_tls_library_rejects_are_told_and_renewal_goes_on(
    source: SecretSource, fake: FakeKube, waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    await source.start()
    source._callers = b"no PEM"
    with pytest.raises(CertificateError, match="the TLS library rejects the callers' CAs"):
        source._advance()
    fake.faults.always("get", "secrets", answer(403))
    running = asyncio.create_task(source.run())
    for _ in range(3):
        await waits.pass_once()
    running.cancel()
    assert caplog.text.count("the new certificate is not served yet: the TLS library rejects the callers' CAs") == 3


def test_the_last_three_authorities_are_kept_beside_the_present_one() -> None:
    now, bundle, made = datetime.now(UTC), certs.NO_BUNDLE, list[bytes]()
    for _ in range(6):
        bundle = certs.renewed(bundle, Step.AUTHORITY, WANTED, now)
        assert set(pki.still_trusted(bundle.previous, now)) == set(made[-3:])
        made.append(bundle.authority.certificate)
    assert pki.certificates_in(bundle.previous) == (made[4], made[3], made[2])
