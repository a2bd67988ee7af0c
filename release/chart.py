"""The chart as a package that names the image by its digest."""

import gzip
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from release import ReleaseError

_IMAGES = """\
  artifacthub.io/images: |
    - name: koordgate
      image: {image}
"""


def package(root: Path, repository: str, digest: str, when: int, out: Path) -> None:
    """Package the chart as `helm package` does, the same bytes each time.

    Args:
        root: The checkout.
        repository: The image's name, without a tag.
        digest: The image's digest, with `sha256:`.
        when: The time of all files in it, in seconds since 1970.
        out: The folder that gets the package, under Helm's name for it.

    Raises:
        ReleaseError: Helm refused the chart, or its values do not have the form that is expected here.
    """
    with tempfile.TemporaryDirectory() as folder:
        chart = shutil.copytree(root / "charts" / "koordgate", Path(folder, "koordgate"))
        _state(chart / "values.yaml", "repository", "koordgate", repository)
        _state(chart / "values.yaml", "digest", '""', digest)
        with (chart / "Chart.yaml").open("a", encoding="utf-8") as file:  # it ends with its annotations
            file.write(_IMAGES.format(image=f"{repository}@{digest}"))
        argv = ("helm", "package", str(chart), "--destination", folder)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"helm package failed: {done.stderr.strip()}")
        (made,) = Path(folder).glob("*.tgz")
        _repack(made, out / made.name, when)


def _state(values: Path, key: str, old: str, new: str) -> None:
    """Replace the value of a key of `image`, and leave the comments."""
    text = values.read_text(encoding="utf-8")
    stated, count = re.subn(rf"(?m)^  {key}: {re.escape(old)}$", f"  {key}: {new}", text)
    if count != 1:
        raise ReleaseError(f"charts/koordgate/values.yaml: image.{key} is not `{old}` (found {count} times)")
    values.write_text(stated, encoding="utf-8")


def _repack(package: Path, out: Path, when: int) -> None:
    """Copy a package with one time for all that is in it: Helm takes that of the clock."""
    with (
        tarfile.open(package) as read,
        out.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w") as written,
    ):
        for member in read:
            member.mtime = when
            written.addfile(member, read.extractfile(member))
