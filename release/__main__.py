"""`make release`: builds the files of a version into `dist/VERSION`, all of them or none."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from release import ReleaseError, chart, client, stated

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Build them; returns the exit status: 2 if the tree or the call is wrong, 1 if a tool failed."""
    arguments = _arguments()
    wrong = stated.problems(ROOT, arguments.version, arguments.image, trial=arguments.trial)
    if wrong:
        sys.stderr.writelines(f"make release: {problem}\n" for problem in wrong)
        return 2
    out: Path = arguments.out or ROOT / "dist" / arguments.version
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".release-") as folder:
        made = Path(folder, "made")
        made.mkdir()
        try:
            _build(made, Path(folder), arguments)
        except ReleaseError as error:
            sys.stderr.write(f"make release: {error}\n")
            return 1
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    print(f"{out} has the release; nothing is published")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="as pyproject.toml states it")
    parser.add_argument("image", help="the repository from which the image will be pulled, without a tag")
    parser.add_argument("--trial", action="store_true", help="build from changes that are not committed, and undated")
    parser.add_argument(
        "--client", action="append", choices=client.PLATFORMS, help="may be repeated; all platforms without it"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="in place of dist/VERSION; it is replaced")
    return parser.parse_args()


def _build(made: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Build all files into `made`; `folder` is for what they are built from.

    The settings of `image/build.sh` come from the environment.
    """
    version, repository = arguments.version, arguments.image
    when = stated.commit_time(ROOT)
    archive = made / f"koordgate-{version}-image.tar"
    sbom = made / f"koordgate-{version}.cdx.json"
    _tell("image")
    of_image = {"IMAGE": f"{repository}:{version}", "ARCHIVE": str(archive), "SBOM": str(sbom), "PUSH": "no"}
    _run({**os.environ, **of_image}, str(ROOT / "image" / "build.sh"))
    _tell("wheel")
    wheel = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(made))
    _run({**os.environ, "SOURCE_DATE_EPOCH": str(when)}, *wheel)
    for platform in arguments.client or client.PLATFORMS:
        _tell(f"client for {platform}")
        wheels = folder / platform
        wheels.mkdir()
        one = made / f"koordgate-{version}-{platform}.pyz"
        client.build(ROOT, made / f"koordgate-{version}-py3-none-any.whl", platform, when, wheels, one)
        shutil.rmtree(wheels)
    _tell("chart, values, notes, checksums")
    digest = _digest(archive)
    chart.package(ROOT, repository, digest, when, made)
    shutil.copytree(ROOT / "examples" / "values", made / "values")
    shutil.copy(ROOT / "charts" / "artifacthub-repo.yml", made)
    head = f"# koordgate {version}\n\nThe image is `{repository}@{digest}`.\n\n"
    (made / "RELEASE-NOTES.md").write_text(head + stated.notes(ROOT, version), encoding="utf-8")
    (made / "SHA256SUMS").write_text(_sums(made), encoding="utf-8")


def _digest(archive: Path) -> str:
    """The digest by which a registry will know what an OCI archive holds: one image, or the list of several."""
    with tarfile.open(archive) as read:
        index = read.extractfile("index.json")
        described = json.loads(index.read() if index else "{}")
    (only,) = described["manifests"]
    return str(only["digest"])


def _sums(folder: Path) -> str:
    """The checksums of all files in a folder, as `sha256sum --check` reads them."""
    rows = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            rows.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder).as_posix()}\n")
    return "".join(rows)


def _tell(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", flush=True)


def _run(env: dict[str, str], *argv: str) -> None:
    status = subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode
    if status:
        raise ReleaseError(f"{' '.join(argv[:4])} ended with status {status}, as it says above; nothing was kept")


sys.exit(main())
