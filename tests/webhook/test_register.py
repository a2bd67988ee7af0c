"""The CA in the webhook configurations: published, kept, never replaced by an older one."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from fake_kube import FakeKube, answer, drop, hold, hold_answer
from waiting import Waits

from koordgate.kube.client import KubeClient
from webhook.settings import Certificate, CertificateFiles, Identity
from webhook.tls import pki
from webhook.tls.certs import FileSource, SecretSource, Source
from webhook.tls.register import Registration, publish
from webhook.tls.timing import Timing

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations"
SECRET = "/api/v1/namespaces/koordgate-system/secrets/koordgate-tls"
IDENTITY = Identity(mutating="ours", validating="ours")


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def timing(clock: Clock, waits: Waits) -> Timing:
    return Timing(clock, waits, lambda: 1.0)


@pytest.fixture
def source(kube: KubeClient, timing: Timing) -> SecretSource:
    return SecretSource(kube, IDENTITY.namespace, Certificate(dns_names=("a.test",)), timing)


@pytest.fixture
def registration(kube: KubeClient, source: SecretSource, timing: Timing) -> Registration:
    return Registration(kube, IDENTITY, source, timing)


def webhook(name: str, **client_config: Any) -> dict[str, Any]:
    service = {"name": "koordgate", "namespace": "koordgate-system", "path": f"/{name}"}
    return {"name": name, "clientConfig": {"service": service, **client_config}, "fieldOfTomorrow": 1}


def configure(fake: FakeKube, *names: str, **about: Any) -> None:
    for path in (MUTATING, VALIDATING):
        fake.put(path, {"metadata": {"name": "ours", **about}, "webhooks": [webhook(name) for name in names]})


def carried(fake: FakeKube, path: str = MUTATING) -> list[bytes]:
    webhooks = fake.get(f"{path}/ours")["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in webhooks]


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


# --- one check


async def test_both_configurations_get_the_bundle_and_nothing_else_in_them_changes(
    fake: FakeKube, registration: Registration, source: SecretSource
) -> None:
    configure(fake, "a", "b")
    before = fake.get(f"{MUTATING}/ours")["webhooks"]
    assert await registration.check()
    assert registration.published
    for path in (MUTATING, VALIDATING):
        assert carried(fake, path) == [source.ca_bundle] * 2
    for one in before:
        one["clientConfig"]["caBundle"] = encoded(source.ca_bundle)
    assert fake.get(f"{MUTATING}/ours")["webhooks"] == before


@pytest.mark.parametrize("stale", ["Cg==", "zg=="])
async def test_only_the_webhooks_that_lack_it_are_written(
    fake: FakeKube, registration: Registration, source: SecretSource, stale: str
) -> None:
    await source.start()
    good = webhook("good", caBundle=encoded(source.ca_bundle))
    fake.put(MUTATING, {"metadata": {"name": "ours"}, "webhooks": [good, webhook("bad", caBundle=stale)]})
    fake.put(VALIDATING, {"metadata": {"name": "ours"}, "webhooks": [good]})
    assert await registration.check()
    (sent,) = fake.seen("patch", "mutatingwebhookconfigurations")
    assert [(change["op"], change["path"]) for change in orjson.loads(sent.body)] == [
        ("test", "/metadata/resourceVersion"),
        ("test", "/webhooks/1/name"),
        ("add", "/webhooks/1/clientConfig/caBundle"),
    ]
    assert not fake.seen("patch", "validatingwebhookconfigurations")


async def test_what_is_published_is_not_written_again(fake: FakeKube, registration: Registration) -> None:
    configure(fake, "a")
    await registration.check()
    revision = fake.revision
    assert await registration.check()
    assert fake.revision == revision


async def test_a_configuration_changed_meanwhile_is_read_and_written_again(
    fake: FakeKube, registration: Registration, source: SecretSource
) -> None:
    configure(fake, "a", "b")
    fake.faults.add("patch", "mutatingwebhookconfigurations", held := hold())
    check = asyncio.create_task(registration.check())
    await held.reached.wait()
    configure(fake, "b", "new", "a")
    assert held.gate
    held.gate.set()
    assert await check
    assert carried(fake) == [source.ca_bundle] * 3
    assert [one["name"] for one in fake.get(f"{MUTATING}/ours")["webhooks"]] == ["b", "new", "a"]


async def test_a_configuration_that_never_rests_is_a_problem_and_no_endless_loop(
    fake: FakeKube, registration: Registration
) -> None:
    configure(fake, "a")
    fake.faults.always("patch", "mutatingwebhookconfigurations", answer(409, "modified"))
    assert not await registration.check()
    assert registration.problems == (
        "the webhook configurations could not be written in 5 attempts; the last error: modified",
    )


async def test_a_replica_that_read_the_old_authority_cannot_put_it_back(
    fake: FakeKube, kube: KubeClient, timing: Timing, source: SecretSource, registration: Registration
) -> None:
    configure(fake, "a")
    await registration.check()
    other = SecretSource(kube, IDENTITY.namespace, Certificate(dns_names=("a.test",)), timing)
    await other.start()
    configure(fake, "a")  # both find something to write
    fake.faults.add("get", "secrets", slow_read := hold_answer())
    slow = asyncio.create_task(Registration(kube, IDENTITY, other, timing).check())
    await slow_read.performed.wait()  # it holds the old Secret, and the configurations that go with it
    fake.remove(SECRET)
    assert await registration.check()
    assert slow_read.answer_gate
    slow_read.answer_gate.set()
    assert await slow
    for path in (MUTATING, VALIDATING):
        assert carried(fake, path) == [source.ca_bundle]
    assert source.ca_bundle.count(b"BEGIN") == 2


async def test_a_configuration_that_does_not_exist_is_named(fake: FakeKube, registration: Registration) -> None:
    configure(fake, "a")
    fake.remove(f"{VALIDATING}/ours")
    assert not await registration.check()
    assert not registration.published
    (problem,) = registration.problems
    assert problem.startswith("validatingwebhookconfigurations/ours does not exist (yet)")
    assert carried(fake) != [b""], "the other one is published all the same"


@pytest.mark.parametrize("verb", ["get", "patch"])
async def test_a_missing_right_is_named_as_the_rule_to_add(
    fake: FakeKube, registration: Registration, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    configure(fake, "a")
    words = (
        f'mutatingwebhookconfigurations.admissionregistration.k8s.io "ours" is forbidden: User "u" cannot {verb} '
        'resource "mutatingwebhookconfigurations" in API group "admissionregistration.k8s.io" at the cluster scope'
    )
    fake.faults.always(verb, "mutatingwebhookconfigurations", answer(403, words))
    assert not await registration.check()
    assert (
        f"mutatingwebhookconfigurations/ours: no right to {verb} it; add to the ClusterRole of u: "
        '{apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], '
        'resourceNames: ["ours"], verbs: ["get", "patch"]}'
    ) in registration.problems[0]
    for _ in range(2):
        await registration.check()
    assert caplog.text.count("CA not published") == 1, "a problem that stays is not logged each minute"


async def test_an_api_server_that_breaks_off_is_a_problem(fake: FakeKube, registration: Registration) -> None:
    configure(fake, "a")
    fake.faults.always("patch", "mutatingwebhookconfigurations", drop())
    assert not await registration.check()
    assert "connection broke" in registration.problems[0]


async def test_nothing_is_published_where_the_secret_cannot_be_read(fake: FakeKube, registration: Registration) -> None:
    configure(fake, "a")
    fake.faults.always("get", "secrets", answer(403, "no"))
    assert not await registration.check()
    assert registration.problems == ("there is no CA to publish: no",)
    assert carried(fake) == [b""]


async def test_published_stays_true_when_a_later_check_fails(fake: FakeKube, registration: Registration) -> None:
    configure(fake, "a")
    await registration.check()
    fake.faults.always("get", "mutatingwebhookconfigurations", answer(403))
    assert not await registration.check()
    assert registration.published


async def test_the_source_hears_of_it_once_both_carry_the_bundle(
    fake: FakeKube, registration: Registration, source: SecretSource
) -> None:
    configure(fake, "a")
    fake.remove(f"{MUTATING}/ours")
    await registration.check()
    assert not source._trusted_since
    configure(fake, "a")
    await registration.check()
    assert source._trusted_since == {source.ca_bundle: NOW}


# --- forever


@pytest.fixture
async def running(registration: Registration, source: SecretSource) -> AsyncIterator[None]:
    await source.start()
    task = asyncio.create_task(registration.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("running")
async def test_it_is_tried_again_with_back_off_until_the_configurations_are_there(
    fake: FakeKube, registration: Registration, waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(8):
        (await waits.fell_asleep()).set()
    await waits.fell_asleep()
    assert waits.seconds == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    configure(fake, "a")
    registration._source.changed.set()
    (await waits.fell_asleep()).set()
    await waits.fell_asleep()
    assert registration.published
    assert waits.seconds[9:] == [60, 60]
    assert caplog.messages.count("the CA is published") == 1


@pytest.mark.usefixtures("running")
async def test_a_bundle_that_was_overwritten_is_put_back_at_the_next_check(
    fake: FakeKube, waits: Waits, source: SecretSource
) -> None:
    configure(fake, "a")
    (await waits.fell_asleep()).set()
    woken = await waits.fell_asleep()
    assert waits.seconds[-1] == 60
    configure(fake, "a")  # as `kubectl replace` or a chart would
    assert carried(fake) == [b""]
    woken.set()
    await waits.fell_asleep()
    assert carried(fake) == [source.ca_bundle]


@pytest.mark.usefixtures("running")
async def test_a_bundle_that_changes_is_published_without_waiting(
    fake: FakeKube, waits: Waits, source: SecretSource
) -> None:
    configure(fake, "a")
    (await waits.fell_asleep()).set()
    await waits.fell_asleep()
    fake.remove(SECRET)
    bundle = await source.refresh()
    assert carried(fake) != [bundle]
    await waits.fell_asleep()
    assert carried(fake) == [bundle]


# --- files: each replica knows only its own


def from_files(folder: Path, timing: Timing, authority_days: float = 90) -> Source:
    authority = pki.new_authority("theirs", NOW, authority_days)
    leaf = pki.new_certificate(authority, ("a.test",), (), NOW, 30)
    files = CertificateFiles(**{name: str(folder / name) for name in ("certificate", "key", "authority")})
    folder.mkdir(exist_ok=True)
    for path, content in (
        (files.certificate, leaf.certificate),
        (files.key, leaf.key),
        (files.authority, authority.certificate),
    ):
        Path(path).write_bytes(content)
    return FileSource(files, timing)


async def test_replicas_with_different_files_publish_both_and_then_rest(
    fake: FakeKube, kube: KubeClient, timing: Timing, tmp_path: Path
) -> None:
    configure(fake, "a")
    one, two = from_files(tmp_path / "1", timing), from_files(tmp_path / "2", timing)
    for source in (one, two):
        assert await publish(kube, IDENTITY, source, NOW) == ()
    revision = fake.revision
    for source in (one, two):
        assert await publish(kube, IDENTITY, source, NOW) == ()
    assert fake.revision == revision
    assert set(pki.certificates_in(carried(fake)[0])) == {one.ca_bundle, two.ca_bundle}


async def test_what_is_no_bundle_is_replaced(fake: FakeKube, kube: KubeClient, timing: Timing, tmp_path: Path) -> None:
    for path in (MUTATING, VALIDATING):
        webhooks = [webhook("a", caBundle="abc"), webhook("b", caBundle=base64.b64encode(b"no PEM").decode())]
        fake.put(path, {"metadata": {"name": "ours"}, "webhooks": webhooks})
    source = from_files(tmp_path, timing)
    assert await publish(kube, IDENTITY, source, NOW) == ()
    assert carried(fake) == carried(fake, VALIDATING) == [source.ca_bundle] * 2


async def test_what_another_replica_published_is_dropped_when_it_has_expired(
    fake: FakeKube, kube: KubeClient, timing: Timing, tmp_path: Path
) -> None:
    configure(fake, "a")
    one, two = from_files(tmp_path / "1", timing, authority_days=1), from_files(tmp_path / "2", timing)
    for source in (one, two):
        assert await publish(kube, IDENTITY, source, NOW) == ()
    assert await publish(kube, IDENTITY, two, NOW + timedelta(days=1)) == ()
    assert carried(fake) == [two.ca_bundle]


async def test_where_cert_manager_publishes_it_is_waited_for_and_not_fought_with(
    fake: FakeKube, kube: KubeClient, timing: Timing, tmp_path: Path
) -> None:
    configure(fake, "a", annotations={"cert-manager.io/inject-ca-from": "koordgate-system/koordgate"})
    source = from_files(tmp_path, timing)
    problems = await publish(kube, IDENTITY, source, NOW)
    assert problems[0] == (
        "mutatingwebhookconfigurations/ours: cert-manager's cainjector has not published the CA of a (yet)"
    )
    other = pki.new_authority("other", NOW, 90).certificate
    for path in (MUTATING, VALIDATING):
        config = fake.get(f"{path}/ours")
        config["webhooks"][0]["clientConfig"]["caBundle"] = encoded(source.ca_bundle.replace(b"\n", b"\r\n") + other)
        fake.put(path, config)
    assert await publish(kube, IDENTITY, source, NOW) == ()
    assert not fake.seen("patch", "mutatingwebhookconfigurations")
