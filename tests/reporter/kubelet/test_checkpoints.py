"""The kubelet's checkpoint files: read as Kubernetes v1.37 reads them; nothing else is accepted.

The files of `checkpoints/` were written, or their checksums computed, by the kubelet's own packages (v1.36.3; those of
layout v4 of CPUs v1.37.2).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cpu_states
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.vocabulary.cputopology import parse as parse_cpuset
from reporter.files import FileError, FileReading, WatchedFile, read_bounded
from reporter.kubelet import cpustate, devicecheckpoint
from reporter.kubelet.checkpoint import CheckpointError, checksum, read_checksum
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import PodDevices

MAX_BYTES = 2 * 2**20

FILES = Path(__file__).parent / "checkpoints"
DEVICES = sorted(path.name for path in FILES.glob("devices-*.json"))
CPUS = sorted(path.name for path in FILES.glob("cpu-*.json"))
PARSERS = {"devices": devicecheckpoint.parse, "cpu": cpustate.parse}


def content(name: str) -> bytes:
    return (FILES / name).read_bytes()


def parser(name: str) -> Callable[[bytes], Any]:
    return PARSERS[name.partition("-")[0]]


# devices


def test_devices_by_numa_node_are_read_in_the_order_of_nodes() -> None:
    found = devicecheckpoint.parse(content("devices-v2.json"))
    assert found.entries == (
        PodDevices("u1", "cuda", "nvidia.com/gpu", ("GPU-z", "GPU-a", "GPU-c", "GPU-b"), b"\x0a\x02\xc8"),
        PodDevices("u2", "nic", "rdma/hca", ()),
        PodDevices("u3", "é<&>", "x", ()),
    )


@pytest.mark.parametrize("name", ["devices-v2-nothing.json", "devices-v2-empty.json"])
def test_a_node_without_devices_has_a_file_that_is_read(name) -> None:
    assert devicecheckpoint.parse(content(name)).entries == ()


def test_the_annotation_is_that_of_the_seed_document() -> None:
    entries = (
        PodDevices("u2", "nic", "rdma/hca", (), b""),
        PodDevices("fa8983dc", "cuda", "nvidia.com/gpu", ("GPU-36b2",), b"\x0a"),
    )
    assert json.loads(devicecheckpoint.annotation(entries)) == [
        {
            "podUID": "fa8983dc",
            "containerName": "cuda",
            "resourceName": "nvidia.com/gpu",
            "deviceIDs": ["GPU-36b2"],
            "allocResp": "Cg==",
        },
        {"podUID": "u2", "containerName": "nic", "resourceName": "rdma/hca"},
    ]
    assert devicecheckpoint.annotation(entries) == devicecheckpoint.annotation(entries[::-1])


def test_an_annotation_that_would_be_too_long_leaves_out_the_plugins_answers() -> None:
    entries = [PodDevices("u", f"c{number}", "nvidia.com/gpu", (f"GPU-{number}",), b"x" * 900) for number in range(9)]
    text = devicecheckpoint.annotation(entries, limit=2000)
    assert len(text) <= 2000
    assert all("allocResp" not in row for row in json.loads(text))


def test_an_annotation_that_would_be_too_long_even_so_has_the_ids_alone() -> None:
    entries = [PodDevices("u", f"c{number}", "nvidia.com/gpu", (f"GPU-{number % 2}::{number}",)) for number in range(9)]
    assert json.loads(devicecheckpoint.annotation(entries, limit=33)) == [{"deviceIDs": ["GPU-0", "GPU-1"]}]
    with pytest.raises(CheckpointError, match="do not fit"):
        devicecheckpoint.annotation(entries, limit=30)


# CPUs

ENTRIES = {
    "1a2b3c4d-0000-4000-8000-000000000001": {"web": parse_cpuset("1,9")},
    "9f0c2b1e-0000-4000-8000-000000000002": {"log": parse_cpuset("4"), "train": parse_cpuset("2-3,10")},
}
DEFAULT = parse_cpuset("0,5-8,11-15")

STATES = {
    "cpu-v2-none.json": CpuState(StateLayout.V2, "none", 0),
    "cpu-v2-null-pod.json": CpuState(StateLayout.V2, "static", 0xFF, entries={"u": {}, "v": {}}),
    "cpu-v2-null.json": CpuState(StateLayout.V2, "static", 0xFF),
    "cpu-v2-static-empty.json": CpuState(StateLayout.V2, "static", 0xFF),
    "cpu-v2-static.json": CpuState(StateLayout.V2, "static", DEFAULT, entries=ENTRIES),
    "cpu-v3-static.json": CpuState(StateLayout.V3, "static", DEFAULT, entries=ENTRIES),
    "cpu-v3-pod-level.json": CpuState(
        StateLayout.V3,
        "static",
        DEFAULT,
        entries=ENTRIES,
        pods={
            "0f0c2b1e-0000-4000-8000-000000000009": 0,
            "9f0c2b1e-0000-4000-8000-000000000002": parse_cpuset("2-4,10"),
        },
    ),
    "cpu-v4-static-empty.json": CpuState(StateLayout.V4, "static", 0xFF),
    "cpu-v4-static.json": CpuState(StateLayout.V4, "static", DEFAULT, entries=ENTRIES),
    "cpu-v4-pod-level.json": CpuState(
        StateLayout.V4,
        "static",
        DEFAULT,
        entries=ENTRIES,
        pods={
            "0f0c2b1e-0000-4000-8000-000000000009": 0,
            "9f0c2b1e-0000-4000-8000-000000000002": parse_cpuset("2-4,10"),
        },
        baselines={"9f0c2b1e-0000-4000-8000-000000000002": {"log": parse_cpuset("4"), "train": parse_cpuset("2-3")}},
    ),
}


@pytest.mark.parametrize("name", CPUS)
def test_every_layout_of_the_cpu_state_is_read(name) -> None:
    assert cpustate.parse(content(name)) == STATES[name]


@pytest.mark.parametrize("name", [name for name in CPUS if "null" not in name])
def test_a_state_is_written_byte_by_byte_as_the_kubelet_writes_it(name) -> None:
    assert cpu_states.render(cpustate.parse(content(name))) == content(name)


def with_data(text: str, **beside: object) -> bytes:
    """A file of layout v4 whose checksum is right: FNV-1a of the type and the text, as Go prints it."""
    return json.dumps({**beside, "data": text, "dataChecksum": checksum(f"(string){text}")}).encode()


def test_of_layout_v4_the_data_count_and_not_what_is_beside_them_for_older_kubelets() -> None:
    beside = {"policyName": "none", "defaultCpuSet": "9", "entries": {"u": {"c": "1"}}, "checksum": 1}
    found = cpustate.parse(with_data('{"policyName":"static","defaultCpuSet":"0-7"}', **beside))
    assert found == CpuState(StateLayout.V4, "static", 0xFF)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(with_data("{"), "data: not JSON", id="data that are truncated"),
        pytest.param(with_data("[]"), "data: not a JSON object", id="data that are no object"),
        pytest.param(with_data('{"x":"\\ud800"}'), "data: holds half a character", id="half a character"),
        pytest.param(with_data('{"defaultCpuSet":7}'), "defaultCpuSet", id="a set that is a number"),
        pytest.param(with_data('{"baselines":{"u":{"c":{"baseline":"x"}}}}'), "baselines", id="a baseline"),
        pytest.param(with_data('{"baselines":{"u":{"c":"1"}}}'), "baselines", id="a baseline without its name"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"0-7","dataChecksum":5}', "corrupt", id="no data"),
        pytest.param(b'{"data":7,"dataChecksum":5}', "data", id="data that are a number"),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0-7","checksum":0,"data":"{}"}', "corrupt", id="no checksum"
        ),
    ],
)
def test_data_of_layout_v4_that_cannot_be_read_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        cpustate.parse(data)


def test_what_each_pod_has_is_summed_up_over_containers() -> None:
    assert cpustate.by_pod(STATES["cpu-v3-pod-level.json"]) == {
        "1a2b3c4d-0000-4000-8000-000000000001": parse_cpuset("1,9"),
        "9f0c2b1e-0000-4000-8000-000000000002": parse_cpuset("2-4,10"),
    }


# files that cannot be used


@pytest.mark.parametrize("name", [*DEVICES, *CPUS])
def test_a_file_cut_off_at_any_byte_is_refused(name) -> None:
    data = content(name)
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            parser(name)(data[:length])


@pytest.mark.parametrize("name", [*DEVICES, *CPUS])
def test_a_wrong_checksum_is_refused(name) -> None:
    value = json.loads(content(name))
    key = next(one for one in ("Checksum", "dataChecksum", "checksum") if one in value)
    value[key] += 1
    with pytest.raises(CheckpointError, match="corrupt"):
        parser(name)(json.dumps(value).encode())


def test_a_changed_set_is_refused() -> None:
    data = content("cpu-v2-static.json")
    assert b'"1,9"' in data
    with pytest.raises(CheckpointError, match="corrupt"):
        cpustate.parse(data.replace(b'"1,9"', b'"1,8"'))


@pytest.mark.parametrize("name", [*DEVICES, *CPUS])
@given(data=st.data())
def test_a_file_with_a_changed_byte_is_refused_or_means_the_same(name, data) -> None:
    whole = bytearray(content(name))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parser(name)(bytes(whole))
    except CheckpointError:
        return
    assert found == parser(name)(content(name))  # only parts outside the checksum may differ


HOSTILE = {
    "empty": b"",
    "no JSON": b"\x00\x01",
    "a list": b"[]",
    "null": b"null",
    "no UTF-8": b'{"policyName":"\xff"}',
    "NaN": b'{"checksum":NaN,"Checksum":NaN}',
    "nested too deeply": b'{"Data":' + b"[" * 100_000,
    "an endless number": b'{"checksum":' + b"9" * 10_000 + b"}",
    "a checksum that is a text": b'{"checksum":"1","Checksum":"1"}',
    "a checksum that is negative": b'{"checksum":-1,"Checksum":-1}',
    "a checksum that is true": b'{"checksum":true,"Checksum":true}',
    "a set of a thousand million": b'{"defaultCpuSet":"0-999999999","Data":1}',
    "a set that is a number": b'{"defaultCpuSet":7,"Data":[]}',
    "entries that are a list": b'{"entries":[],"Data":{"PodDeviceEntries":{}}}',
    "a container that is a list": b'{"entries":{"u":[]},"Data":{"PodDeviceEntries":[1]}}',
    "layouts mixed": b'{"entries":{"u":"1","v":{"c":"2"}},"Data":{"PodDeviceEntries":[{"DeviceIDs":["a"]},'
    b'{"DeviceIDs":{"0":["a"]}}]}}',
    "a pod set that is null": b'{"podEntries":{"u":null},"Data":{"RegisteredDevices":[]}}',
    "a NUMA node that is none": b'{"checksum":1,"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":[]}}]}}',
    "no base64": b'{"checksum":1,"Data":{"PodDeviceEntries":[{"AllocResp":"?"}]}}',
    "half a character": b'{"policyName":"\\ud800","checksum":1,"Data":{"PodDeviceEntries":[{"PodUID":"\\ud800"}]}}',
    "half a character as a name": b'{"policyName":"static","defaultCpuSet":"0","entries":{"\\ud800":5},'
    b'"Data":{"RegisteredDevices":{"\\ud800":5}},"Checksum":0}',
    "half a character where nobody looks": b'{"policyName":"static","defaultCpuSet":"0","x":[[{"y":"\\udfff"}]]}',
    "too large": b'{"policyName":"' + b"x" * MAX_BYTES + b'"}',
}


@pytest.mark.parametrize("stated", [0, 2**64 - 1])
def test_a_checksum_is_any_unsigned_number_of_64_bits(stated: int) -> None:
    assert read_checksum(stated) == stated
    with pytest.raises(CheckpointError, match="not an unsigned integer"):
        read_checksum(2**64)


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
def test_a_hostile_file_is_refused_by_both_readers_with_a_message_that_can_be_written(parse, data) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(data)
    assert str(caught.value).encode()


def test_letters_of_every_script_are_written_as_they_are() -> None:
    entries = [PodDevices("u-1", "größe", "a/b", ("карта",)), PodDevices("u-2", "main", "a/b", ("0",))]
    state = CpuState(StateLayout.V2, "static", 0b1, {"u-1": {"größe": 0b10}, "u-2": {"main": 0b100}})

    assert all(word in devicecheckpoint.annotation(entries) for word in ("größe", "карта"))
    assert "карта" in devicecheckpoint.annotation(entries, limit=40)
    assert "größe" in cpu_states.render(state).decode()


def test_a_text_with_half_a_character_has_no_checksum() -> None:
    assert checksum("foobar") == 0xBF9CF968  # a test vector of FNV-1a
    with pytest.raises(CheckpointError, match="half a character"):
        checksum("a\ud83d")


def test_a_whole_character_of_two_halves_is_taken() -> None:
    data = '{"policyName":"\\ud83d\\ude00","defaultCpuSet":"0"}'
    assert cpustate.parse(with_data(data)).policy == "\U0001f600"


KEYS = (
    *("policyName", "defaultCpuSet", "entries", "podEntries", "cpuSet", "checksum", "Data", "Checksum", "0", "-1"),
    *("PodDeviceEntries", "RegisteredDevices", "PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"),
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "0-3", "static", "YQ==", "\ud800"])
)
NEAR = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=30
)


@given(st.dictionaries(st.sampled_from(KEYS), NEAR))
def test_no_json_raises_anything_else(value) -> None:
    data = json.dumps(value).encode()
    for parse in PARSERS.values():
        try:
            parse(data)
        except CheckpointError:
            continue


# the last good content is kept


def test_a_truncated_file_keeps_the_last_good_state(tmp_path) -> None:
    path = tmp_path / "cpu_manager_state"
    watched = WatchedFile(path, cpustate.parse, max_bytes=MAX_BYTES, absent=cpustate.absent)
    assert watched.read().value == cpustate.absent()
    path.write_bytes(content("cpu-v2-static.json"))
    good = watched.read()
    assert (good.value, good.problem) == (STATES["cpu-v2-static.json"], None)
    path.write_bytes(content("cpu-v2-static.json")[:50])
    kept = watched.read()
    assert kept.value == good.value
    assert "its previous content is kept" in (kept.problem or "")
    path.write_bytes(content("cpu-v2-none.json"))
    assert watched.read().value == STATES["cpu-v2-none.json"]


def test_a_bad_first_file_gives_nothing_and_says_so(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"{")
    reading = WatchedFile(path, devicecheckpoint.parse, max_bytes=MAX_BYTES).read()
    assert reading.value is None
    assert "no earlier content was usable" in (reading.problem or "")


def test_a_missing_file_is_a_problem_unless_it_has_a_meaning(tmp_path) -> None:
    parse, absent = devicecheckpoint.parse, devicecheckpoint.absent
    meant = WatchedFile(tmp_path / "gone", parse, max_bytes=MAX_BYTES, absent=absent).read()
    assert (meant.value, meant.problem) == (absent(), None)
    reading = WatchedFile(tmp_path / "gone", parse, max_bytes=MAX_BYTES).read()
    assert "does not exist" in (reading.problem or "")


def test_a_file_that_vanishes_keeps_what_it_said_until_it_is_there_again(tmp_path) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_bytes(content("cpu-v2-static.json"))
    watched = WatchedFile(path, cpustate.parse, max_bytes=MAX_BYTES, absent=cpustate.absent)
    good = watched.read().value
    path.unlink()
    gone = None
    for _ in range(2):
        gone = watched.read()
        assert gone.value == good
        assert "has disappeared" in (gone.problem or "")
    assert watched.last == gone
    path.write_bytes(content("cpu-v2-none.json"))
    assert (watched.read().value, watched.read().problem) == (STATES["cpu-v2-none.json"], None)
    path.write_bytes(b"{")
    watched.read()
    path.unlink()
    assert watched.read().value == STATES["cpu-v2-none.json"]


def test_a_file_that_was_never_good_may_go(tmp_path) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_bytes(b"{")
    watched = WatchedFile(path, cpustate.parse, max_bytes=MAX_BYTES, absent=cpustate.absent)
    watched.read()
    path.unlink()
    reading = watched.read()
    assert (reading.value, reading.problem) == (cpustate.absent(), None)


def test_a_file_may_have_as_many_bytes_as_allowed_and_no_more(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    watched = WatchedFile(path, bytes, max_bytes=5)
    assert watched.read() == FileReading(b"12345", None)
    path.write_bytes(b"123456")
    assert watched.read() == FileReading(b"12345", f"{path}: larger than 5 bytes; it is not read")


def _folder(path: Path) -> None:
    path.mkdir()


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_folder, os.mkfifo, _huge, _endless])
def test_what_is_no_plain_file_of_bounded_size_is_not_read(tmp_path, make) -> None:
    path = tmp_path / "file"
    path.write_bytes(content("cpu-v2-static.json"))
    watched = WatchedFile(path, cpustate.parse, max_bytes=MAX_BYTES)
    good = watched.read().value
    path.unlink()
    make(path)
    reading = watched.read()
    assert reading.value == good
    assert reading.problem is not None


def test_a_file_that_opens_and_cannot_be_read_says_why() -> None:
    with pytest.raises(FileError, match=r"/proc/self/mem: cannot be read \(Input/output error\)"):
        read_bounded(Path("/proc/self/mem"), 10)  # nothing is mapped at its beginning


def test_a_file_that_cannot_be_opened_says_why(tmp_path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(
        FileError, match=r"cannot be opened \(Too many levels of symbolic links\); the reporter must be"
    ):
        read_bounded(tmp_path / "loop", 10)
