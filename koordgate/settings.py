"""What the settings of both processes have in common: one YAML file, read once, validated as a whole, then frozen."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta

from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypeError, DeviceTypes, Unit, own_type

# The upper bound also excludes infinity.
Seconds = Annotated[float, Meta(gt=0, le=24 * 3600)]
Name = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
_MOST_BYTES = 1024 * 1024
_S = TypeVar("_S", bound=msgspec.Struct)


class SettingsError(ValueError):
    """A settings file that cannot be used; the message names the file, the key and what would be right."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A part of the file, with camelCase keys; unknown keys are refused."""


class DevicePool(Section, frozen=True):
    """Devices of a software class that nodes have without telling so.

    Attributes:
        node_selector: labels that a node must have; all nodes where empty.
        devices: id -> units.
    """

    node_selector: dict[str, str] = {}
    devices: dict[Name, Annotated[int, Meta(ge=1)]] = {}


class OwnType(Section, frozen=True):
    """A device type beyond GPU, RDMA and FPGA.

    Attributes:
        name: as Device objects and annotations spell it: a DNS label.
        resource: the full name under which Pods ask for it.
        unit: percent of a device (above 100: whole devices), devices (whole ones only), or units of one device that
            holds many.
        environment: variable in which a container finds the ids of its devices; none where empty.
        pools: devices that exist without being told by a node.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")]
    resource: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]
    unit: Unit = Unit.PERCENT
    environment: Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    pools: tuple[DevicePool, ...] = ()


def device_types(own: Iterable[OwnType]) -> DeviceTypes:
    """The table of device types: the built-in ones and those of the settings.

    Raises:
        DeviceTypeError: a name or a resource stands there twice.
    """
    return BUILT_IN.with_types(own_type(one.name, one.resource, one.unit, one.environment) for one in own)


def read_text(path: Path) -> str:
    """Read the settings file of a command, but no more of it than `decode` takes.

    Raises:
        SettingsError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES + 1).decode()
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); give --config an existing YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from error


def decode(text: str, source: str, kind: type[_S]) -> _S:
    """Read the settings of a command from YAML text; empty text means all defaults.

    Args:
        text: the YAML.
        source: named in messages.
        kind: the settings' structure.

    Raises:
        SettingsError: it is too long, not YAML, or has a wrong or unknown key.
    """
    if len(text) > _MOST_BYTES:
        raise SettingsError(f"{source}: longer than {_MOST_BYTES} bytes, which no settings file is")
    try:
        raw: Any = yaml.safe_load(text)
    except RecursionError as error:
        raise SettingsError(f"{source}: cannot be read as YAML: nested too deeply") from error
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
    ) as error:  # the last three come of ill-formed scalars
        raise SettingsError(f"{source}: not YAML: {error}") from error
    try:
        return msgspec.convert(raw if raw is not None else {}, kind)
    except (msgspec.ValidationError, DeviceTypeError) as error:
        raise SettingsError(f"{source}: {error}") from error
