"""Container images built locally, as OCI layout archives: nothing is pulled."""

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

PAUSE = "koordgate.local/pause:1"
BUSYBOX = "koordgate.local/busybox:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# A sandbox's first process: it reaps the orphans of its Pod, and ends on a signal.
_PAUSE_C = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def make(folder: Path) -> list[Path]:
    """Make both images.

    Args:
        folder: The target folder; created if it does not exist.

    Returns:
        The archives, for `ctr images import`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "pause.c", folder / "pause"
    source.write_text(_PAUSE_C)
    subprocess.run(("gcc", "-static", "-O2", "-o", str(program), str(source)), check=True, capture_output=True)
    pause = _layer({"pause": program})
    busybox = Path(shutil.which("busybox") or "busybox")
    return [
        _archive(folder / "pause.tar", PAUSE, pause, ["/pause"]),
        _archive(folder / "busybox.tar", BUSYBOX, _layer({"bin/busybox": busybox}, _applets(busybox)), ["/bin/sh"]),
    ]


def around(name: str, program: Path, archive: Path) -> Path:
    """Make an image of one program and the libraries that it is linked to; its file is `/bin/` and the program's name.

    Args:
        name: The image's name and tag.
        program: The program; a link's name is kept.
        archive: The archive that is made.

    Returns:
        The archive.
    """
    linked = subprocess.run(("ldd", str(program)), check=False, capture_output=True, text=True).stdout.split()
    libraries = {word.removeprefix("/"): Path(word) for word in linked if word.startswith("/")}
    return _archive(archive, name, _layer({f"bin/{program.name}": program, **libraries}), [f"/bin/{program.name}"])


def _applets(busybox: Path) -> list[str]:
    listed = subprocess.run((str(busybox), "--list"), check=True, capture_output=True, text=True)
    return [f"bin/{name}" for name in listed.stdout.split() if name != "busybox"]


def _layer(files: dict[str, Path], links: list[str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, file in files.items():
            _add(archive, name, file.read_bytes(), mode=0o755)
        for name in links or ():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return buffer.getvalue()


def _archive(path: Path, name: str, layer: bytes, command: list[str]) -> Path:
    machine = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    run = {"Cmd": command, "Env": ["PATH=/bin"]}
    config = json.dumps({**machine, "config": run, "rootfs": rootfs}).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", config),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer)],
        }
    ).encode()
    named = {
        **_descriptor(f"{kind}.manifest.v1+json", manifest),
        "platform": machine,
        "annotations": {"io.containerd.image.name": name},
    }
    index = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", index)
        for blob in (layer, config, manifest):
            _add(archive, f"blobs/{_digest(blob).replace(':', '/')}", blob)
    return path


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
