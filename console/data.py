"""Data files of the package (the chart, the examples): beside it in a checkout, inside it in a wheel."""

from pathlib import Path


class MissingDataError(FileNotFoundError):
    """The installation is incomplete; the message names what is missing, and where it was looked for."""


def data_folder(name: str) -> Path:
    """Find a folder of data files by its name, as `examples`.

    Raises:
        MissingDataError: it is in neither of the two places.
    """
    package = Path(__file__).resolve().parent
    places = (package.parent / name, package / "data" / name)
    for place in places:
        if place.is_dir():
            return place
    raise MissingDataError(f"no folder {name} in {' or '.join(str(place.parent) for place in places)}; install again")
