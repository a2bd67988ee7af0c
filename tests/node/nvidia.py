"""NVIDIA's container toolkit on a node without cards: the real programs, over a stand-in of the driver's library.

The driver's root has the stand-in in place of the driver's libraries, and device nodes of which no driver knows. What a
container gets, and is kept from, is decided by NVIDIA's programs, containerd and runc alone.
"""

import contextlib
import os
import shlex
import stat
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nvml_standin

from localplane.binaries import Binaries
from localplane.process import Process

CgroupVersion = Literal["v1", "v2"]
HANDLER = "nvidia"
# The kinds of CDI specs that are found on nodes: of NVIDIA's device plugin, of nvidia-cdi-refresh, of its GPU operator.
PLUGIN_KIND = "k8s.device-plugin.nvidia.com/gpu"
REFRESHED_KIND = "nvidia.com/gpu"
MANAGEMENT_KIND = "management.nvidia.com/gpu"

# The recorded node `mig`, with a third card and a driver that keeps memory limits.
_CHANGES = {
    "driver": "615.43.02",
    "nvml": "13.615.43.02",
    "cuda": "13040",
    "count": "3",
    "gpu.2.uuid": "GPU-b1600000-0000-4000-8000-000000000002",
    "gpu.2.minor": "2",
    "gpu.2.bus": "00000000:86:00.0",
    "gpu.2.mig_mode": "0",
}
_ANSWERS = {**nvml_standin.recorded("mig"), **_CHANGES}
CARDS = tuple(_ANSWERS[f"gpu.{card}.uuid"] for card in range(3))  # the first is in MIG mode
BUSES = tuple(_ANSWERS[f"gpu.{card}.bus"].removeprefix("0000").lower() for card in range(3))
_INSTANCES = (0, 1, 3)
MIGS = tuple(_ANSWERS[f"gpu.0.mig.{mig}.uuid"] for mig in _INSTANCES)
CONTROL = frozenset({"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"})  # every container that has a card has these
_MAJORS = {"card": 195, "uvm": 510, "capability": 511}
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")  # of the driver's root; the toolkit looks there on every architecture

_CGROUP = "koordgate-nvidia"
# Called as the hook; its input is the state of a container that waits for its first instruction. Limits are kept in
# cgroup v2. A machine with v1 has the other hierarchy as well, only not mounted: the hook gets a view of the machine in
# which it is, and the container a cgroup there.
_ANOTHER_CGROUP_VERSION = """
if [ "$1" = apply-cuda-memory-limits ] && [ "$(stat -f -c %T /sys/fs/cgroup)" != "$(cat {version})" ]; then
    state=$(cat)
    exec unshare --mount sh -e -c '
        state=$1 hook=$2; shift 2
        case $(cat {version}) in
        cgroup2fs)
            mount -t cgroup2 none /sys/fs/cgroup
            own=/sys/fs/cgroup/{cgroup}/$(printf %s "$state" | sed "s/.*\\"id\\":\\"\\([^\\"]*\\)\\".*/\\1/")
            mkdir -p "$own"
            printf %s "$state" | sed "s/.*\\"pid\\":\\([0-9]*\\).*/\\1/" > "$own/cgroup.procs" ;;
        *) mount -t tmpfs none /sys/fs/cgroup ;;
        esac
        printf %s "$state" | "$hook" "$@"' sh "$state" {hook} "$@"
fi
"""
_REMOVE_CGROUPS = """
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || mount -t cgroup2 none /sys/fs/cgroup
cd /sys/fs/cgroup && [ ! -d {cgroup} ] || find {cgroup} -depth -type d -exec rmdir {{}} +
"""
# Called as nvidia-container-cli, with options of its own first: `configure --device=... --pid=... ROOTFS`.
_RECORD = """
for word; do case $word in --device=*) echo "${{word#--device=}}" >> {file} ;; esac; done
"""


@dataclass(frozen=True)
class Limit:
    """What NVIDIA's hook told the driver of a cgroup: the index of a card, bytes, and the cgroup's folder."""

    card: int
    soft: int
    hard: int
    cgroup: str


class Toolkit:
    """An installed toolkit, in a folder of its own.

    Attributes:
        runtime: The program for containerd's handler.
        specs: The folder of CDI specs: those of a node with the GPU operator.
        hook: NVIDIA's hook program, with the stand-in.
        configuration: The folder of the runtime's configuration.
        told: The folder of the file `limits`: lines `card soft hard cgroup`, what the driver was told.
    """

    def __init__(self, folder: Path, binaries: Binaries) -> None:
        """Install it.

        Args:
            folder: An empty folder.
            binaries: Among them NVIDIA_TOOLKIT.
        """
        self._folder = folder
        self._binaries = binaries
        self._root = folder / "driver"
        self._config = folder / "etc" / "nvidia-container-runtime" / "config.toml"
        self._limits = folder / "told" / "limits"
        self._asked = folder / "nvidia-container-cli.asked"
        self._version = folder / "cgroup-version"
        self.specs = folder / "cdi"
        self.runtime = folder / "nvidia-container-runtime"
        self.hook = folder / "nvidia-cdi-hook"
        self.told = self._limits.parent
        self.configuration = self._config.parent
        for made in (self.specs, self.told, self.configuration):
            made.mkdir(parents=True)
        self._limits.touch()
        self._make_driver()
        self._make_programs()
        self.configure("auto")
        self.cgroups("v2")
        self._write_spec(PLUGIN_KIND, "uuid")
        self._write_spec(REFRESHED_KIND, "index", "uuid")
        self._write_spec(MANAGEMENT_KIND)

    def close(self) -> None:
        """Remove what is outside its folder; no container that it made may live."""
        _run("unshare", "--mount", "sh", "-c", _REMOVE_CGROUPS.format(cgroup=_CGROUP))

    @property
    def environment(self) -> dict[str, str]:
        """With these variables a program finds the stand-in in place of the driver's library."""
        answers = {"NVML_STANDIN_NODE": self._folder / "node.nvml", "NVML_STANDIN_LIMITS": self._limits}
        return {"LD_LIBRARY_PATH": str(self._folder), **{name: str(path) for name, path in answers.items()}}

    def cgroups(self, version: CgroupVersion) -> None:
        """Set which version of cgroups NVIDIA's hook finds on the machine, whichever it has."""
        self._version.write_text({"v1": "tmpfs", "v2": "cgroup2fs"}[version])

    def configure(self, mode: str, default_kind: str = REFRESHED_KIND, *, unprivileged: bool = True) -> None:
        """Write the runtime's configuration, for containers that are made later.

        Args:
            mode: Of the runtime.
            default_kind: The kind of a CDI device that is named without one.
            unprivileged: Whether the variable of an unprivileged container counts.
        """
        self._config.write_text(
            f"""
accept-nvidia-visible-devices-envvar-when-unprivileged = {str(unprivileged).lower()}
[nvidia-container-cli]
root = "{self._root}"
path = "{self._folder}/nvidia-container-cli"
[nvidia-ctk]
path = "{self._folder}/nvidia-cdi-hook"
[nvidia-container-runtime-hook]
path = "{self._folder}/nvidia-container-runtime-hook"
skip-mode-detection = true
[nvidia-container-runtime]
mode = "{mode}"
debug = "{self._folder}/runtime.log"
[nvidia-container-runtime.modes.cdi]
default-kind = "{default_kind}"
spec-dirs = ["{self.specs}"]
"""
        )

    @contextlib.asynccontextmanager
    async def nri_plugin(self, socket: Path) -> AsyncIterator[None]:
        """Run NVIDIA's NRI plugin, which its installer becomes when it has installed what it finds."""
        argv = (
            self._binaries["nvidia-ctk-installer"],
            "--enable-nri-plugin",
            f"--nri-socket={socket}",
            "--nri-plugin-index=10",
            "--nri-namespace=gpu-operator",
            "--runtime=containerd",
            "--ignore-errors",  # it finds nothing to install in an empty folder
            f"--toolkit-source-root={self._folder / 'nothing'}",
            f"--toolkit-install-dir={self._folder / 'installed'}",
            f"--pid-file={self._folder / 'toolkit.pid'}",
        )
        log = self._folder / "nri-plugin.log"
        log.unlink(missing_ok=True)
        process = Process("nvidia-nri-plugin", argv, log)
        process.start()

        async def connected() -> bool:
            return "Waiting for signal" in log.read_text()

        try:
            await process.ready(connected)
            yield
        finally:
            await process.stop()

    def asked(self) -> list[str]:
        """The devices that the prestart hook of mode legacy asked nvidia-container-cli for, a line a container."""
        return self._asked.read_text().splitlines() if self._asked.exists() else []

    def _write_spec(self, kind: str, *strategies: str) -> None:
        """Write the CDI spec of a kind with `nvidia-ctk cdi generate`, its devices named by the given strategies."""
        vendor, _, device_class = kind.partition("/")
        management = ("--mode=management",) if kind == MANAGEMENT_KIND else ()
        _run(
            self._folder / "nvidia-ctk",
            "cdi",
            "generate",
            *management,
            f"--vendor={vendor}",
            f"--class={device_class}",
            f"--driver-root={self._root}",
            f"--dev-root={self._root}",
            f"--nvidia-cdi-hook-path={self.hook}",
            *(f"--device-name-strategy={strategy}" for strategy in strategies),
            f"--output={self.specs / f'{vendor}.yaml'}",
        )

    def _make_driver(self) -> None:
        libraries = self._root / _LIBRARIES
        libraries.mkdir(parents=True)
        built = nvml_standin.build(self._folder) / "libnvidia-ml.so.1"
        for name in ("libnvidia-ml.so", "libcuda.so"):  # of libcuda, only the file is looked for
            versioned = libraries / f"{name}.{_ANSWERS['driver']}"
            versioned.write_bytes(built.read_bytes())
            (libraries / f"{name}.1").symlink_to(versioned.name)
        (self._folder / "node.nvml").write_text("".join(f"{key} = {value}\n" for key, value in _ANSWERS.items()))
        minors = self._folder / "proc-driver" / "nvidia-caps" / "mig-minors"
        minors.parent.mkdir(parents=True)
        minors.write_text("".join(f"{path} {minor}\n" for path, minor in _capabilities().items()))
        nodes = {
            **{f"nvidia{card}": (_MAJORS["card"], card) for card in range(len(CARDS))},
            "nvidiactl": (_MAJORS["card"], 255),
            "nvidia-uvm": (_MAJORS["uvm"], 0),
            "nvidia-uvm-tools": (_MAJORS["uvm"], 1),
            **{f"nvidia-caps/nvidia-cap{minor}": (_MAJORS["capability"], minor) for minor in _capabilities().values()},
        }
        (self._root / "dev" / "nvidia-caps").mkdir(parents=True)
        for name, (major, minor) in nodes.items():
            os.mknod(self._root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))

    def _make_programs(self) -> None:
        """Put a script before each program that containerd, the runtime or runc calls: they pass no variables on."""
        runtime, ctk, hook, legacy = (
            shlex.quote(str(self._binaries[name]))
            for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime-hook")
        )
        proc = shlex.quote(str(self._folder / "proc-driver"))
        in_proc = f'unshare --mount --propagation slave sh -c \'mount --bind "$0" /proc/driver && exec "$@"\' {proc}'
        create = f'case " $* " in *" create "*) exec {in_proc} {runtime} "$@" ;; esac'
        version = shlex.quote(str(self._version))
        another = _ANOTHER_CGROUP_VERSION.format(version=version, cgroup=_CGROUP, hook=hook)
        self._script("nvidia-container-runtime", create, runtime)
        self._script("nvidia-ctk", "", f"{in_proc} {ctk}")
        self._script("nvidia-cdi-hook", another, hook)
        self._script("nvidia-container-runtime-hook", "", legacy)
        self._script("nvidia-container-cli", _RECORD.format(file=shlex.quote(str(self._asked))), "true")

    def _script(self, name: str, before: str, program: str) -> None:
        environment = {"NVIDIA_CTK_CONFIG_FILE_PATH": str(self._config), **self.environment}
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in environment.items())
        path = self._folder / name
        path.write_text(f'#!/bin/sh\n{exports}\n{before}\nexec {program} "$@"\n')
        path.chmod(0o755)


def sysfs_with_cards(folder: Path) -> Path:
    """This machine's sysfs, with NVIDIA's cards on its bus: on a machine without any the reporter reads no runtime."""
    for bus in BUSES:
        place = folder / "bus" / "pci" / "devices" / bus
        place.mkdir(parents=True)
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text("0x030200\n")
    (folder / "devices").symlink_to("/sys/devices")
    return folder


def limits_in(text: str) -> list[Limit]:
    """Read the file of the stand-in's memory limits."""
    rows = (line.split(" ", 3) for line in text.splitlines())
    return [Limit(int(card), int(soft), int(hard), cgroup) for card, soft, hard, cgroup in rows]


def _capabilities() -> dict[str, int]:
    """The MIG capabilities of the first card, as /proc/driver/nvidia-caps/mig-minors has them."""
    found = {"config": 1, "monitor": 2}
    for mig in _INSTANCES:
        instance, compute = (int(_ANSWERS[f"gpu.0.mig.{mig}.{kind}_instance"]) for kind in ("gpu", "compute"))
        path = f"gpu0/gi{instance}"
        found[f"{path}/access"] = minor = 3 + 9 * instance
        found[f"{path}/ci{compute}/access"] = minor + 1 + compute
    return found


def nodes_of_mig(index: int) -> frozenset[str]:
    """The device nodes of a MIG device, among MIGS: its card's, and those of its two capabilities."""
    instance, compute = (int(_ANSWERS[f"gpu.0.mig.{_INSTANCES[index]}.{kind}_instance"]) for kind in ("gpu", "compute"))
    paths = (f"gpu0/gi{instance}/access", f"gpu0/gi{instance}/ci{compute}/access")
    return frozenset({"nvidia0", *(f"nvidia-cap{_capabilities()[path]}" for path in paths)})


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stdout}{done.stderr}")
