"""A release: its files are those that users get."""

import hashlib

from incluster import built


async def test_the_checksums_name_every_file_of_a_release(release: built.Release) -> None:
    listed = dict(line.split("  ", 1)[::-1] for line in (release.folder / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(release.folder).as_posix(): path for path in release.folder.rglob("*") if path.is_file()}
    del files["SHA256SUMS"]
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert {
        "RELEASE-NOTES.md",
        "artifacthub-repo.yml",
        release.chart.name,
        release.client.name,
        release.image.name,
        release.sbom.name,
        f"koordgate-{release.version}-py3-none-any.whl",
        *(f"values/{name}.yaml" for name in ("eks", "gke", "gpu-operator", "k3s")),
    } == set(files)


async def test_the_notes_begin_with_the_version_and_its_image(release: built.Release) -> None:
    notes = (release.folder / "RELEASE-NOTES.md").read_text()
    image = f"{release.repository}@{release.digest()}"
    assert notes.startswith(f"# koordgate {release.version}\n\nThe image is `{image}`.\n\n")
