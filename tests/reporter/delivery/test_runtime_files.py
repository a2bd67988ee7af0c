"""The files about the container runtime: what is read of them, and what they cannot do."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runtimes import CONTAINERD, CRIO_NVIDIA, CRIO_PLAIN, K3S, NVIDIA_OPERATORS, OPERATORS_DROP_IN, PACKAGES, spec

from reporter import runtimefiles
from reporter.runtimefiles import CdiSpec, Engine, EngineFile, NvidiaConfiguration, RuntimeFiles

RUNC = "/usr/bin/runc"
NVIDIA = "/usr/bin/nvidia-container-runtime"


class Host:
    """A machine's folders below a folder of the test, each under the name that it has on the host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = ("etc/cdi", "run/cdi", "etc/containerd", "etc/crio", "etc/nvidia-container-runtime")
        for name in (*self.names, "cgroup", "dev"):
            (folder / name).mkdir(parents=True)

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode() if isinstance(text, str) else text
            path.write_bytes(data.replace(b'"/etc/', f'"{self.folder}/etc/'.encode()))

    def files(self, *, own: bool = False) -> RuntimeFiles:
        folders = [str(self.folder / name) for name in self.names]
        return RuntimeFiles(folders, self.folder / "cgroup", self.folder / "dev" if own else None)

    def at(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return Host(tmp_path)


# CDI specifications


def test_specifications_of_all_folders_are_read_as_yaml_and_as_json_with_their_names_and_the_hook_for_limits(
    machine: Host,
) -> None:
    by_json = {
        "cdiVersion": "0.5.0",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [{"name": "GPU-0", "containerEdits": {}}, {"name": "GPU-1", "containerEdits": {}}],
    }
    machine.write(
        {
            "etc/cdi/nvidia.yaml": spec("nvidia.com/gpu", "0", "GPU-0", "all"),
            "run/cdi/a.json": json.dumps(by_json),
            "run/cdi/b.yaml": spec("nvidia.com/gpu", "GPU-1", hook="apply-cuda-memory-limits"),
            "run/cdi/readme.txt": "no specification",
            "run/cdi/.spec123.json": "one that is being written",
        }
    )

    reading = machine.files().read()

    assert reading.specs == (
        CdiSpec("nvidia.com/gpu", frozenset({"0", "GPU-0", "all"})),
        CdiSpec("k8s.device-plugin.nvidia.com/gpu", frozenset({"GPU-0", "GPU-1"})),
        CdiSpec("nvidia.com/gpu", frozenset({"GPU-1"}), limits=True),
    )
    assert reading.problems == ()


def test_a_hook_in_the_edits_of_all_devices_counts_too() -> None:
    hook = {"hookName": "createRuntime", "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits"]}
    whole = {"kind": "nvidia.com/gpu", "devices": [], "containerEdits": {"hooks": [{"args": []}, hook]}}

    assert runtimefiles.cdi_spec(json.dumps(whole).encode()).limits


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"a: b: c: hunter2",
        b"\xff\xfe\x00hunter2",
        b"[" * 50_000,
        b"kind: nvidia.com/gpu",
        b"kind: 5\ndevices: []",
        b"kind: nvidia.com/gpu\ndevices: {hunter2: 1}",
        b"- hunter2",
        b"kind: " + b"x" * 300 + b"\ndevices: []",
        b'{"kind": "nvidia.com/gpu", "devices": [' + b"{}," * 4096 + b"{}]}",
        b"!!python/object/apply:os.system [hunter2]",
        b"2020-99-99: hunter2",
    ],
    ids=[
        "empty",
        "a beginning",
        "no YAML",
        "no text",
        "nested deeply",
        "no devices",
        "a kind that is no text",
        "devices that are no list",
        "a list",
        "a long kind",
        "a flood of devices",
        "a tag",
        "no date",
    ],
)
def test_what_is_no_specification_is_told_without_a_word_of_it(content: bytes, machine: Host) -> None:
    machine.write({"etc/cdi/a.yaml": content, "run/cdi/b.yaml": spec("nvidia.com/gpu", "GPU-0")})

    reading = machine.files().read()

    assert [one.names for one in reading.specs] == [{"GPU-0"}]
    (problem,) = reading.problems
    assert problem.startswith(f"{machine.at('etc/cdi/a.yaml')}: is n")
    assert "hunter2" not in problem


def test_a_devices_name_that_is_no_text_is_none() -> None:
    found = runtimefiles.cdi_spec(b"kind: k/g\ndevices: [{name: 0}, {name: 'a'}, 7, {name: ''}, {}]")

    assert found.names == {"a"}


# Bounds


def test_a_huge_file_is_not_read_and_of_a_flood_of_files_only_the_first_are(machine: Host) -> None:
    machine.write({f"run/cdi/{number:03d}.yaml": spec("nvidia.com/gpu", f"GPU-{number}") for number in range(66)})
    machine.write({"etc/cdi/a.yaml": spec("nvidia.com/gpu", "GPU-x") + "#" * 2**18})

    reading = machine.files().read()

    assert [one.names for one in reading.specs] == [{f"GPU-{number}"} for number in range(64)]
    assert reading.problems == (
        f"{machine.at('etc/cdi/a.yaml')}: larger than 262144 bytes; it is not read",
        f"{machine.at('run/cdi')}: more than 64 files; the others are not read",
    )


def test_imports_that_name_one_another_end(machine: Host) -> None:
    round_about = (
        'version = 2\nimports = ["/etc/containerd/conf.d/*.toml", "config.toml", "../containerd/config.toml"]\n'
    )
    machine.write({"etc/containerd/config.toml": round_about, "etc/containerd/conf.d/a.toml": round_about})

    assert machine.files().read().engines == {machine.at("etc/containerd"): Engine("runc", {})}


def test_a_flood_of_imports_is_not_followed_to_its_end_and_the_default_is_unknown(machine: Host) -> None:
    machine.write({"etc/containerd/config.toml": PACKAGES})
    machine.write({f"etc/containerd/conf.d/{number:03d}.toml": "version = 2" for number in range(64)})

    assert machine.files().read().engines == {machine.at("etc/containerd"): Engine(None, {"nvidia": NVIDIA})}


# Over time


def test_nothing_else_of_a_file_stays_in_memory(machine: Host) -> None:
    machine.write({"etc/containerd/config.toml": CONTAINERD, "etc/containerd/conf.d/a.toml": PACKAGES})
    files = machine.files()
    files.read()

    assert b"hunter2" not in pickle.dumps(vars(files))


def test_what_is_corrupt_at_first_is_not_known_and_later_keeps_what_it_said(machine: Host) -> None:
    files = machine.files()
    path = "etc/nvidia-container-runtime/config.toml"

    machine.write({path: "mode ="})
    first = files.read()
    machine.write({path: NVIDIA_OPERATORS})
    good = files.read()
    machine.write({path: "mode ="})
    again = files.read()
    Path(machine.at(path)).unlink()
    gone = files.read()

    said = {machine.at("etc/nvidia-container-runtime"): NvidiaConfiguration("cdi")}
    assert [one.nvidia for one in (first, good, again, gone)] == [{}, said, said, {}]
    assert [one.problems for one in (first, good, again, gone)] == [
        (f"{machine.at(path)}: is no TOML; no earlier content was usable",),
        (),
        (f"{machine.at(path)}: is no TOML; its previous content is kept",),
        (),
    ]


def test_a_specification_that_is_removed_is_gone(machine: Host) -> None:
    files = machine.files()
    machine.write({"run/cdi/a.yaml": spec("nvidia.com/gpu", "GPU-0"), "run/cdi/b.yaml": spec("k/g", "GPU-0")})
    files.read()
    Path(machine.at("run/cdi/a.yaml")).unlink()

    assert [one.kind for one in files.read().specs] == ["k/g"]


# Our own container


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (("null", "nvidia0", "nvidiactl"), True),
        (("null", "nvidiactl", "nvidia-uvm", "nvidia-caps"), False),
        (("null",), False),
        ((), None),
    ],
    ids=["a card", "no card", "nothing of NVIDIA's", "not readable"],
)
def test_whether_our_own_container_was_shown_cards_is_seen_by_their_files(
    machine: Host, names: tuple[str, ...], seen: Any
) -> None:
    for name in names:
        (machine.folder / "dev" / name).touch()

    assert machine.files(own=True).read().own is seen
    assert machine.files(own=False).read().own is None


def test_what_our_own_container_was_shown_counts_until_the_runtime_is_configured_otherwise(machine: Host) -> None:
    (machine.folder / "dev" / "null").touch()
    machine.write({"etc/containerd/config.toml": CONTAINERD})
    files = machine.files(own=True)

    before = [files.read().own, files.read().own]
    machine.write({"etc/containerd/config.toml": PACKAGES})

    assert (before, files.read().own) == ([False, False], None)


@pytest.mark.parametrize("two", [True, False])
def test_cgroup_v2_is_known_by_its_controllers(machine: Host, two: Any) -> None:
    if two:
        (machine.folder / "cgroup" / "cgroup.controllers").touch()

    assert machine.files().read().cgroup2 is two


# containerd and CRI-O


@pytest.mark.parametrize(
    ("files", "engine"),
    [
        ({}, None),
        ({"config.toml": CONTAINERD}, Engine("runc")),
        ({"config.toml": PACKAGES}, Engine("nvidia", {"nvidia": NVIDIA})),
        ({"config.toml": K3S}, Engine("runc", {"nvidia": NVIDIA})),
        (
            {"config.toml": CONTAINERD, "conf.d/99-nvidia.toml": OPERATORS_DROP_IN},
            Engine(
                "runc",
                {
                    "nvidia": "/usr/local/nvidia/toolkit/nvidia-container-runtime",
                    "nvidia-cdi": "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi",
                },
            ),
        ),
        (
            {
                "config.toml": CONTAINERD,
                "conf.d/a.toml": '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"',
            },
            Engine("nvidia"),
        ),
        (
            {"config.toml": PACKAGES, "conf.d/a.toml": '[plugins."io.containerd.grpc.v1.cri".cni]\nbin_dir = "/x"'},
            Engine(None, {"nvidia": NVIDIA}),
        ),
        ({"config.toml": PACKAGES, "conf.d/a.toml": "version = 2"}, Engine("nvidia", {"nvidia": NVIDIA})),
        ({"config.toml": PACKAGES, "conf.d/a.toml": "version ="}, Engine(None, {"nvidia": NVIDIA})),
        ({"config.toml": CONTAINERD.replace("/etc/containerd/conf.d", "/opt/conf.d")}, Engine(None)),
        ({"config.toml": CONTAINERD.replace("conf.d/*.toml", "*/a.toml")}, Engine(None)),
        ({"config.toml": CONTAINERD.replace("conf.d/*.toml", "none.toml")}, Engine("runc")),
        ({"config.toml": 'imports = [5, "", []]\nplugins = 5'}, Engine("runc")),
        ({"config.toml": 'version = 1\n[plugins.cri.containerd]\ndefault_runtime_name = "x"'}, Engine("x")),
        ({"config.toml": "[plugins"}, None),
    ],
    ids=[
        "none",
        "plain",
        "packages",
        "k3s",
        "the operator's drop-in",
        "a drop-in that changes the default",
        "a drop-in that old versions take for the whole section",
        "a drop-in of nothing",
        "a corrupt drop-in",
        "an import from a folder that is not seen",
        "a pattern of folders",
        "an import that is not there",
        "values of wrong kinds",
        "version 1",
        "corrupt",
    ],
)
def test_containerds_default_and_handlers_are_read_from_all_its_files(
    machine: Host, files: dict[str, str], engine: Engine | None
) -> None:
    machine.write({f"etc/containerd/{name}": text for name, text in files.items()})

    reading = machine.files().read()

    assert reading.engines.get(machine.at("etc/containerd")) == engine
    assert not any("hunter2" in f"{reading!r}" for _ in (1,)), "what else is in these files is not kept"


@pytest.mark.parametrize(
    ("files", "engine"),
    [
        ({"crio.conf": CRIO_PLAIN}, Engine("crun", {"crun": "/usr/libexec/crio/crun"})),
        ({"crio.conf.d/99-nvidia.conf": CRIO_NVIDIA}, Engine("nvidia", {"nvidia": NVIDIA})),
        (
            {"crio.conf.d/99-nvidia.conf": CRIO_NVIDIA, "crio.conf.d/10-crun.conf": CRIO_PLAIN},
            Engine("nvidia", {"crun": "/usr/libexec/crio/crun", "nvidia": NVIDIA}),
        ),
        ({"crio.conf.d/99-nvidia.conf": CRIO_NVIDIA.replace("default_runtime", "#")}, Engine("", {"nvidia": NVIDIA})),
        ({"crio.conf": CRIO_PLAIN, "crio.conf.d/a": "["}, Engine(None, {"crun": "/usr/libexec/crio/crun"})),
        ({"crio.conf": "["}, None),
    ],
    ids=["plain", "a drop-in alone", "in the order of their names", "no default", "a corrupt drop-in", "corrupt"],
)
def test_cri_os_default_and_handlers_are_read_from_all_its_files(
    machine: Host, files: dict[str, str], engine: Engine | None
) -> None:
    machine.write({f"etc/crio/{name}": text for name, text in files.items()})

    assert machine.files().read().engines.get(machine.at("etc/crio")) == engine


@pytest.mark.parametrize(
    ("programs", "default", "shows", "showing", "operators"),
    [
        ({}, "runc", False, (), None),
        ({"runc": RUNC}, None, None, (), None),
        ({"b": NVIDIA, "a": NVIDIA + ".cdi", "c": RUNC}, "b", True, ("a", "b"), False),
        ({"runc": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}, "runc", True, ("runc",), True),
        ({"x": NVIDIA, "y": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}, "z", False, ("x", "y"), None),
        ({"x": "/usr/bin/nvidia-container-runtime-wrapper"}, "x", False, (), None),
    ],
    ids=["nothing", "unknown", "packages", "the operator's in the place of runc", "two", "another program"],
)
def test_a_handler_shows_cards_if_its_program_is_nvidias(
    programs: dict[str, str], default: str | None, shows: Any, showing: tuple[str, ...], operators: Any
) -> None:
    engine = Engine(default, programs)

    assert (engine.default_shows, engine.showing, engine.operators) == (shows, showing, operators)


# NVIDIA's configuration


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", NvidiaConfiguration("auto", unprivileged=True)),
        (NVIDIA_OPERATORS, NvidiaConfiguration("cdi", unprivileged=True)),
        (
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
            NvidiaConfiguration("auto", unprivileged=False),
        ),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = 1", None),
        ("[nvidia-container-runtime]\nmode = 5", None),
        ("nvidia-container-runtime = 5", NvidiaConfiguration("auto")),
        ("a = " + "[" * 100_000, None),
    ],
    ids=["empty", "the operator's", "deaf", "no boolean", "no word", "no table", "nested deeply"],
)
def test_nvidias_configuration_is_read_with_its_defaults(text: str, read: NvidiaConfiguration | None) -> None:
    if read is None:
        with pytest.raises(ValueError, match="is no"):
            runtimefiles.nvidia_configuration(text.encode())
    else:
        assert runtimefiles.nvidia_configuration(text.encode()) == read


def test_names_and_paths_of_an_engine_are_kept_up_to_a_bound() -> None:
    runtimes = {f"h{number}": {"options": {"BinaryName": "/x"}} for number in range(4097)}
    lines = "".join(f'[plugins.cri.containerd.runtimes."{name}".options]\nBinaryName = "/x"\n' for name in runtimes)
    long = f'[plugins.cri.containerd.runtimes.x.options]\nBinaryName = "/{"x" * 256}"\n'

    assert len(runtimefiles.containerd_file(lines.encode()).programs) == 4096
    assert runtimefiles.containerd_file(long.encode()) == EngineFile(section=True)
