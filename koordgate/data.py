"""Files that come with the package but are no code: in a checkout they stand beside it, in a wheel inside it."""

from pathlib import Path


class MissingDataError(FileNotFoundError):
    """The installation is not whole; the message says what was looked for, and where."""


def data_folder(name: str) -> Path:
    """Find a folder of data, as `examples`.

    Raises:
        MissingDataError: it is in neither place.
    """
    package = Path(__file__).resolve().parent
    places = (package.parent / name, package / "data" / name)
    for place in places:
        if place.is_dir():
            return place
    raise MissingDataError(f"no folder {name} in {' or '.join(str(place.parent) for place in places)}; install again")
