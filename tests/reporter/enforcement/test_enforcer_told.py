"""What reporter and enforcer tell each other, and what the cluster is told of the enforcer."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from round_driver import Driven, cluster_node, host, node_pod, reading, uid

from allocator.vocabulary.delivery import Bringing, EnforcerTold, Keeping, LimitProvider, NodeRuntime
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import ISOLATION_PROVIDER, REPORTER_MANAGER
from allocator.wire.podallocated import ResourceStatus
from reporter import enforcement, exchange
from reporter.cgroup.plan import KubeletRules, SharedCpus
from reporter.delivery import CardsThere
from reporter.enforced import EnforcerFiles
from reporter.enforcer.exchanged import FactsReader
from reporter.exchange import CardPlace, CardState, Facts, Remark, State
from reporter.gpu.facts import CgroupMemory
from reporter.gpu.health import NOTHING_KNOWN
from reporter.proof.agree import Evidence
from reporter.proof.memory import judged, missing_message
from reporter.reading import EnforcerReading
from reporter.round.decide import Rules
from reporter.round.messages import (
    CardsRead,
    CpusWritten,
    HealthSaved,
    HostRead,
    Lane,
    Listed,
    Note,
    ObjectStands,
    PodsChanged,
    Restored,
    WatchedKind,
    WriteCpus,
)
from reporter.settings import Enforcement, HamiCore

HAMI = Enforcement(enabled=True, provider=LimitProvider.HAMI_CORE, hami_core=HamiCore("/opt/libvgpu.so"))
READY = EnforcerReading(
    registered=True, state=State(runtime="containerd 2.2", provider="HAMi-core", limits=""), library=True
)
KINDS = Facts(kinds={"gpu": "nvidia.com/gpu"})


def labelled(value: str, manager: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{ISOLATION_PROVIDER}": {}}}}
    owner = {"manager": manager, "fieldsV1": fields}
    return {"metadata": {"labels": {ISOLATION_PROVIDER: value}, "managedFields": [owner]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "enforcer"


@pytest.fixture
def exchanged(folder: Path) -> EnforcerFiles:
    return EnforcerFiles(folder, HAMI)


# The files


def test_facts_are_written_when_they_change_and_when_they_have_gone(exchanged: EnforcerFiles, folder: Path) -> None:
    assert exchanged.tell(KINDS) == ""
    path = folder / exchange.FACTS
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    first = path.stat().st_ino, path.stat().st_mtime_ns

    assert exchanged.tell(KINDS) == ""
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == first
    path.unlink()
    assert exchanged.tell(KINDS) == ""
    assert msgspec.json.decode(path.read_bytes(), type=Facts) == KINDS


def test_facts_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in EnforcerFiles(tmp_path / "file" / "enforcer", HAMI).tell(Facts())


def test_a_bug_in_what_is_told_is_told_itself_and_logged_once(
    exchanged: EnforcerFiles, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Facts(cpus=object())  # type: ignore[arg-type]
    told = {exchanged.tell(broken) for _ in range(3)}
    (why,) = told
    assert "TypeError" in why
    assert why.endswith("; see the log")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert exchanged.tell(KINDS) == ""


def test_an_enforcer_is_registered_while_its_lock_is_held(exchanged: EnforcerFiles, folder: Path) -> None:
    assert not exchanged.read().registered
    folder.mkdir()
    (folder / exchange.STATE).write_bytes(msgspec.json.encode(READY.state))
    handle = os.open(folder / exchange.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        assert not exchanged.read().registered
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert exchanged.read().registered
    finally:
        os.close(handle)
    assert not exchanged.read().registered


def test_an_enforcer_that_hangs_keeps_its_lock_and_is_away_until_it_gives_its_file_a_new_time(folder: Path) -> None:
    now = [1000.0]
    files = EnforcerFiles(folder, HAMI, lambda: now[0])
    folder.mkdir()
    path = folder / exchange.STATE
    path.write_bytes(msgspec.json.encode(READY.state))
    handle = os.open(folder / exchange.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for later in (0.0, 39.0):
            now[0] = 1000.0 + later
            assert files.read().registered
        now[0] = 1040.0
        seen = files.read()
        assert not seen.registered
        assert "it has not answered for 40 s" in enforcement.away_message(seen)
        os.utime(path, ns=(1, 1))  # whatever the clock says
        assert files.read() == replace(READY, library=False)
    finally:
        os.close(handle)


def hostile(folder: Path) -> Iterator[tuple[str, bool]]:
    path = folder / exchange.STATE
    deep = b"[" * 100_000
    for words, data in {"garbage": b"\xff\x00{", "another type": b'{"containers": 5}', "deep": deep}.items():
        path.write_bytes(data)
        yield words, True
    with path.open("wb") as file:
        file.truncate(exchange.MAX_BYTES + 1)
    yield "huge", True
    path.unlink()
    path.symlink_to("/dev/zero")
    yield "a link", True
    path.unlink()
    os.mkfifo(path)
    yield "a pipe", True


def test_a_hostile_state_is_told_and_what_it_said_before_counts(exchanged: EnforcerFiles, folder: Path) -> None:
    folder.mkdir()
    (folder / exchange.STATE).write_bytes(msgspec.json.encode(READY.state))
    assert exchanged.read().state == READY.state
    for words, told in hostile(folder):
        seen = exchanged.read()
        assert (seen.state, bool(seen.problem)) == (READY.state, told), words


SETS = st.integers(0, 2**16 - 1)


@given(SETS, SETS, SETS, st.dictionaries(st.integers(0, 3), SETS), st.dictionaries(st.text(), st.just({"main": 3})))
def test_the_facts_of_a_round_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    shared: int,
    best_effort: int,
    reserved: int,
    parts: dict[int, int],
    given_: dict[str, dict[str, int]],
) -> None:
    pools = SharedCpus(shared, best_effort, parts, parts, shared & 1)
    kubelet = KubeletRules(static=True, given=given_, default=shared, reserved=reserved)
    pods = (replace(node_pod(1), status=ResourceStatus(cpus=3), shared=frozenset({"proxy"})), node_pod(2))
    cpus = enforcement.cpu_facts(pods, pools, kubelet, mems=True)
    facts = enforcement.facts(
        cpus, {"GPU-0": CardPlace("b", 5)}, None, HAMI, mounts=True, provider=LimitProvider.MPS, why_not="it is so"
    )
    folder = tmp_path_factory.mktemp("told")
    assert EnforcerFiles(folder, HAMI).tell(facts) == ""
    assert FactsReader(folder, None).read() == facts
    assert cpus.beside == {uid(1): ("proxy",)}  # before it has a container


# What is decided


PROVIDERS: dict[str, tuple[dict[str, Any] | None, LimitProvider]] = {
    "no Node": (None, LimitProvider.HAMI_CORE),
    "no label": ({"metadata": {}}, LimitProvider.HAMI_CORE),
    "somebody's label": (labelled("mps", "kubectl"), LimitProvider.MPS),
    "our label of earlier settings": (labelled("cgroup", REPORTER_MANAGER), LimitProvider.HAMI_CORE),
    "a label that is no provider": (labelled("other", "kubectl"), LimitProvider.HAMI_CORE),
}


@pytest.mark.parametrize(("node", "provider"), PROVIDERS.values(), ids=PROVIDERS)
def test_somebody_elses_label_precedes_the_settings(node: dict[str, Any] | None, provider: LimitProvider) -> None:
    assert enforcement.provider_of(node, HAMI) is provider


WHY_NOT: dict[str, tuple[LimitProvider, CardsThere, EnforcerReading, bool, str]] = {
    "cgroup v1": (LimitProvider.CGROUP, CardsThere(limits=True), READY, False, "cgroup v1"),
    "MIG": (LimitProvider.CGROUP, CardsThere(mig=True, limits=True), READY, True, "MIG mode"),
    "an old driver": (LimitProvider.CGROUP, CardsThere(limits=False), READY, True, "R615"),
    "a new driver": (LimitProvider.CGROUP, CardsThere(limits=True), READY, True, ""),
    "the library": (LimitProvider.HAMI_CORE, CardsThere(), READY, True, ""),
    "no library": (LimitProvider.HAMI_CORE, CardsThere(), EnforcerReading(), True, "libvgpu.so"),
    "no daemon": (LimitProvider.MPS, CardsThere(), READY, True, "MPS daemon"),
    "no provider": (LimitProvider.NONE, CardsThere(), READY, True, ""),
}


@pytest.mark.parametrize(("provider", "cards", "seen", "cgroup2", "why"), WHY_NOT.values(), ids=WHY_NOT)
def test_why_limits_are_not_kept_is_told(
    provider: LimitProvider,
    cards: CardsThere,
    seen: EnforcerReading,
    cgroup2: bool,  # noqa: FBT001 a row of the table
    why: str,
) -> None:
    told = enforcement.no_limits(provider, None, cards, seen, cgroup2=cgroup2)
    assert (why in told) if why else told == ""


BRINGS: dict[str, tuple[NodeRuntime, bool, Bringing | None]] = {
    "a kind": (NodeRuntime(kinds=("nvidia.com/gpu",), default_shows=True), False, Bringing.CDI),
    "the default runtime": (NodeRuntime(default_shows=True), False, Bringing.ENVIRONMENT),
    "a handler": (NodeRuntime(showing=("nvidia",)), False, Bringing.ENVIRONMENT),
    "mounts": (NodeRuntime(default_shows=True, unprivileged=False), True, Bringing.MOUNTS),
    "a runtime that heeds no variable": (NodeRuntime(default_shows=True, unprivileged=False), False, None),
    "nothing known": (NodeRuntime(), False, None),
}


@pytest.mark.parametrize(("runtime", "mounts", "brings"), BRINGS.values(), ids=BRINGS)
def test_by_what_cards_come_is_told(
    runtime: NodeRuntime,
    mounts: bool,  # noqa: FBT001 a row of the table
    brings: Bringing | None,
) -> None:
    provider = LimitProvider.HAMI_CORE
    facts = enforcement.facts(exchange.Cpus(), {}, runtime, HAMI, mounts=mounts, provider=provider, why_not="")
    told = enforcement.told(facts, READY, provider, "")
    assert told == EnforcerTold(brings, enforcement._NO_WAY if brings is None else "", provider, "")


def test_a_look_for_another_provider_says_nothing_of_this_one() -> None:
    told = enforcement.told(KINDS, READY, LimitProvider.MPS, "")
    assert told is not None
    assert told.no_limits is None
    assert enforcement.label(told, {"metadata": {}}) == {}


@pytest.mark.parametrize("seen", [replace(READY, gone=True), EnforcerReading()], ids=["gone", "never there"])
def test_nothing_is_told_of_an_enforcer_that_is_not_there(seen: EnforcerReading) -> None:
    assert enforcement.told(KINDS, seen, LimitProvider.HAMI_CORE, "") is None


TOLD = EnforcerTold(Bringing.CDI, "", LimitProvider.HAMI_CORE, "")
WRITTEN = {ISOLATION_PROVIDER: "HAMi-core"}
LABELS: dict[str, tuple[EnforcerTold | None, dict[str, Any], dict[str, str]]] = {
    "ready": (TOLD, {"metadata": {}}, WRITTEN),
    "ready, with our label": (TOLD, labelled("HAMi-core", REPORTER_MANAGER), WRITTEN),
    "ready, with somebody else's": (TOLD, labelled("mps", "kubectl"), {}),
    "away": (None, labelled("HAMi-core", REPORTER_MANAGER), {}),
    "not ready": (replace(TOLD, no_limits="it lacks"), {"metadata": {}}, {}),
    "not known to be ready": (replace(TOLD, no_limits=None), {"metadata": {}}, {}),
    "no cards come": (replace(TOLD, brings=None), {"metadata": {}}, {}),
    "not a provider of the enforcer": (replace(TOLD, provider=LimitProvider.NVIDIA_TOOLKIT), {"metadata": {}}, {}),
}


@pytest.mark.parametrize(("told", "node", "label"), LABELS.values(), ids=LABELS)
def test_the_node_is_labelled_while_its_provider_is_ready(
    told: EnforcerTold | None, node: dict[str, Any], label: dict[str, str]
) -> None:
    assert enforcement.label(told, node) == label


# The rounds


def a_round(driven: Driven, seen: EnforcerReading) -> None:
    if Lane.ROUND not in driven.waiting:
        driven.pass_time(max(driven.state.lanes[Lane.ROUND].due - driven.now.steady, 0.0))
    driven.feed(HostRead(replace(host(), enforcer=seen)))
    if Lane.ROUND in driven.waiting:
        driven.feed(CpusWritten())


def started() -> Driven:
    driven = Driven.of(rules=Rules(BUILT_IN, enforcement=HAMI))
    driven.feed(ObjectStands(WatchedKind.NODE, cluster_node()), PodsChanged((node_pod(1),)))
    driven.feed(Restored(NOTHING_KNOWN))
    return driven


def reasons(driven: Driven) -> list[str]:
    return [one.reason for effect in driven.asked(Note) for one in effect.occurrences]


def test_the_enforcer_is_told_once_pods_and_cards_are_known() -> None:
    driven = started()
    a_round(driven, READY)
    assert driven.asked(WriteCpus) == []

    driven.feed(*map(Listed, WatchedKind))
    a_round(driven, READY)
    assert [effect.facts for effect in driven.asked(WriteCpus)] == [None]

    driven.feed(CardsRead(reading()), HealthSaved())
    a_round(driven, READY)
    facts = driven.asked(WriteCpus)[-1].facts
    assert facts is not None
    assert facts.cards["GPU-1"] == CardPlace("0000:01:00.0", 2**30)


def test_an_enforcer_that_is_away_for_a_minute_is_told_once() -> None:
    driven = started()
    driven.feed(*map(Listed, WatchedKind), CardsRead(reading()), HealthSaved())
    away = replace(READY, registered=False)
    a_round(driven, away)
    assert "EnforcerAway" not in reasons(driven)

    driven.pass_time(60.0)
    for _ in range(2):
        a_round(driven, away)
    assert reasons(driven).count("EnforcerAway") == 1
    a_round(driven, READY)
    assert driven.state.enforcer_away is None


def test_remarks_become_events_of_pods_of_the_node_once_each() -> None:
    driven = started()
    driven.feed(*map(Listed, WatchedKind), CardsRead(reading()), HealthSaved())
    remarks = (
        Remark("ContainerRefused", "no card", uid(1)),
        Remark("ContainerRefused", "no card", uid(1)),
        Remark("CpusetsByAnother", "balloons"),
        Remark("LimitMissing", "of a Pod of another node", uid(9)),
        Remark("no reason", "at all", uid(1)),
    )
    for _ in range(2):
        a_round(driven, replace(READY, state=State(runtime="r", remarks=remarks)))
    told = [one for one in reasons(driven) if not one.startswith("Gpu")]
    assert told == ["ContainerRefused", "CpusetsByAnother"]


# What keeps memory

BOX = "a" * 64
GIB = 2**30
HOLDER = replace(
    node_pod(1),
    containers={BOX: "main"},
    limits={"main": GIB},
    shares=(Share("gpu", "GPU-0", 0, {"gpu-memory": GIB}, ("main",)),),
)
KEPT: dict[str, tuple[LimitProvider, CardState | None, CgroupMemory, Keeping]] = {
    "the library came": (
        LimitProvider.HAMI_CORE,
        CardState("HAMi-core", "injected", GIB),
        CgroupMemory(),
        Keeping.INJECTED,
    ),
    "the library is missing": (
        LimitProvider.HAMI_CORE,
        CardState("HAMi-core", "missing", GIB),
        CgroupMemory(),
        Keeping.MISSING,
    ),
    "nothing is said of the library": (LimitProvider.HAMI_CORE, None, CgroupMemory(problem="no"), Keeping.MISSING),
    "the daemon came": (LimitProvider.MPS, CardState("mps", "injected"), CgroupMemory(), Keeping.INJECTED),
    "the driver has it": (LimitProvider.CGROUP, None, CgroupMemory(GIB), Keeping.ENFORCED),
    "the driver lacks it, whatever is said": (
        LimitProvider.CGROUP,
        CardState("cgroup", "enforced", GIB),
        CgroupMemory(),
        Keeping.MISSING,
    ),
}


@pytest.mark.parametrize(("provider", "state", "answer", "keeping"), KEPT.values(), ids=KEPT)
def test_a_container_is_judged_by_its_provider(
    provider: LimitProvider, state: CardState | None, answer: CgroupMemory, keeping: Keeping
) -> None:
    seen = Evidence(cards={0: "GPU-0"}, running=frozenset({BOX}), memory={("GPU-0", BOX): answer})
    injected = {BOX: {"GPU-0": state}} if state is not None else {}
    (found,) = judged([HOLDER], seen, keeps=True, provider=provider, injected=injected)
    assert (found.use.keeping, found.use.provider) == (keeping, provider)
    if keeping is Keeping.MISSING:
        assert ("driver" in missing_message(found.use)) == (provider is LimitProvider.CGROUP)
