"""What the settings of both processes have in common: one YAML file, read once, validated as a whole, then frozen.

All faults are told at once and in words. msgspec ends at the first fault. Each fault is therefore taken out, and the
rest is read again.
"""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import yaml
from msgspec import Meta, inspect

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.device import Board, Partition, PartitionTable
from allocator.vocabulary.devicetype import (
    BUILT_IN,
    DeviceType,
    DeviceTypeError,
    DeviceTypes,
    Part,
    TemplateSpec,
    Unit,
    composed_type,
    own_type,
)
from allocator.vocabulary.outcome import did_you_mean, excerpt

MAX_FAULTS: Final = 20
"""Faults of one file that are told."""

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at (?:`(?P<key>key)` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_ENUM: Final = re.compile(r"Invalid enum value .*", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected (.*?)(?:, got `.*`)?", re.DOTALL)
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a section with keys",
    "null": "nothing",
}
_KINDS: Final = ((bool, "true or false"), (str, "text"), (dict, "a section with keys"), (list, "a list"))
_MAX_INT: Final = 2**63
_Path = tuple[str | int, ...]


class _Fault(NamedTuple):
    """A fault as msgspec tells it."""

    what: str
    path: _Path  # where, in keys and places of lists
    of_key: bool = False  # whether a key is wrong, and not its value


def faults(raw: Any, kind: type[msgspec.Struct]) -> list[str]:
    """Say what is wrong, a sentence each; at most `MAX_FAULTS`.

    What contradicts something else in its section is told where nothing else there is wrong.
    """
    left, found = copy.deepcopy(raw), list[str]()
    spoilt: set[_Path] = set()
    for _ in range(2 * MAX_FAULTS):
        fault = _first(left, kind)
        if fault is None or len(found) == MAX_FAULTS:
            break
        told = _told(left, kind, fault)
        stated = bool(_EXPECTED.match(fault.what) or _ENUM.fullmatch(fault.what) or _UNKNOWN.fullmatch(fault.what))
        follows = not stated and any(path[: len(fault.path)] == fault.path for path in spoilt)
        if not follows:
            found.append(told)
        spoilt.add(fault.path)
        if not _taken_out(left, fault):
            break
    return found


def _first(raw: Any, kind: type[msgspec.Struct]) -> _Fault | None:
    try:
        msgspec.convert(raw, kind)
    except (msgspec.ValidationError, DeviceTypeError) as error:
        match = _AT.match(str(error))
        if match is None:
            return _Fault(str(error), ())
        path: _Path = ()
        for name, place in _STEP.findall(match["path"] or ""):
            path += (_among(raw, kind, path, str(error)) if place == "..." else int(place) if place else name,)
        return _Fault(match["what"], path, bool(match["key"]))
    return None


def _among(raw: Any, kind: type[msgspec.Struct], path: _Path, told: str) -> str:
    """The key of a mapping whose value is wrong, which msgspec does not name: the fault is there with it alone."""
    values = _at(raw, path)
    for key in values if isinstance(values, dict) else ():
        alone = copy.deepcopy(raw)
        section = _at(alone, path)
        for other in [one for one in section if one != key]:
            del section[other]
        try:
            msgspec.convert(alone, kind)
        except (msgspec.ValidationError, DeviceTypeError) as error:
            if str(error) == told:
                return str(key)
    return "..."


def _at(raw: Any, path: _Path) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _taken_out(raw: Any, fault: _Fault) -> bool:
    """Take what is wrong out, of a list all, so that the places of the others stay; False if it cannot be."""
    path = fault.path
    unknown = _UNKNOWN.fullmatch(fault.what)
    if unknown:
        path += (unknown[1],)
    while path and not (isinstance(path[-1], str) and isinstance(_at(raw, path[:-1]), dict)):
        path = path[:-1]
    section = _at(raw, path[:-1])
    if not path or path[-1] not in section:
        return False
    del section[path[-1]]
    return True


def _told(raw: Any, kind: type[msgspec.Struct], fault: _Fault) -> str:
    where, value = _name(fault.path) or "the settings", _at(raw, fault.path)
    if unknown := _UNKNOWN.fullmatch(fault.what):
        keys = _keys(_type_at(kind, fault.path))
        near = did_you_mean(unknown[1], keys) or f"; the keys there are {', '.join(keys)}"
        return f"{_name((*fault.path, unknown[1]))}: there is no such key{near}"
    if missing := _MISSING.fullmatch(fault.what):
        return f"{where}: {missing[1]} is missing; write it"
    choices = [] if fault.of_key or isinstance(value, dict | list) else _choices(_type_at(kind, fault.path))
    if choices:
        return f"{where}: {_shown(value)} is none of {', '.join(choices)}{did_you_mean(excerpt(value), choices)}"
    if expected := _EXPECTED.fullmatch(fault.what):
        must = re.sub(r"`([^`]*)`", lambda one: _words(one[1]), expected[1])
        if fault.of_key:
            return f"{where}: one of the keys there is not {must}"
        return f"{where}: must be {must}, and is {_shown(value)}"
    return f"{where}: {fault.what}" if fault.path else fault.what


def _words(kinds: str) -> str:
    return " or ".join(_WORDS.get(one, one) for one in kinds.split(" | "))


def _shown(value: Any) -> str:
    """A value as its author finds it in the file."""
    if value is None:
        return "empty"
    if isinstance(value, bool):  # YAML 1.1 reads off, no, on and yes so
        return f"{str(value).lower()} (text needs quotes)"
    if isinstance(value, int) and abs(value) > _MAX_INT:
        return "a longer number"  # Python refuses to print very long ones
    if isinstance(value, dict | list):
        return next(words for kind, words in _KINDS if isinstance(value, kind))
    return f"the text {excerpt(value)!r}" if isinstance(value, str) else excerpt(value)


def _name(path: _Path) -> str:
    """A path as `devices.types[0].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _type_at(kind: type[msgspec.Struct], path: _Path) -> inspect.Type:
    found: inspect.Type = inspect.type_info(kind)
    for step in path:
        found = next(_below(found, step), inspect.AnyType())
    return found


def _below(of: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    for one in _options(of):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == step)
        elif isinstance(one, inspect.DictType):
            yield one.value_type
        elif isinstance(one, inspect.VarTupleType | inspect.ListType):
            yield one.item_type


def _options(of: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(of, inspect.Metadata):
        return _options(of.type)
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _keys(of: inspect.Type) -> list[str]:
    return [field.encode_name for one in _options(of) if isinstance(one, inspect.StructType) for field in one.fields]


def _choices(of: inspect.Type) -> list[str]:
    found: list[str] = []
    for one in _options(of):
        if isinstance(one, inspect.EnumType):
            found += [str(each.value) for each in one.cls]
        elif isinstance(one, inspect.LiteralType):
            found += map(str, one.values)
    return found


# The upper bound also excludes infinity.
Seconds = Annotated[float, Meta(gt=0, le=24 * 3600)]
Name = Annotated[str, Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
_MAX_BYTES = 1024 * 1024
_S = TypeVar("_S", bound=msgspec.Struct)


class SettingsError(ValueError):
    """A settings file that cannot be used; the message names the file, the key and what would be right."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of the file, with camelCase keys; unknown keys are refused."""


class DevicePool(Section, frozen=True):
    """Devices of a software class that nodes have without reporting them."""

    node_selector: dict[str, str] = {}  # labels that a node must have; if empty, all nodes
    devices: dict[Name, Annotated[int, Meta(ge=1)]] = {}  # id -> units


_Label = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")]
_RESOURCE = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_Resource = Annotated[str, Meta(pattern=rf"^{_RESOURCE}$")]
_MaybeResource = Annotated[str, Meta(pattern=rf"^({_RESOURCE})?$")]


class OwnAmount(Section, frozen=True):
    """One of the resources of which a device of an own type consists."""

    name: _Label  # its name in messages, records and templates
    resource: _Resource  # the full name under which Pods ask for it
    unit: Unit = Unit.PERCENT  # percent, bytes or units of a device
    # for bytes, the full name under which Pods ask for them in percent of a device; if empty, none
    ratio: _MaybeResource = ""


class OwnTemplate(Section, frozen=True):
    """A share into which a device can be cut."""

    # the maker's name for it; Pods ask for it by the type's resource, a dash and this name
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,30}[A-Za-z0-9])?$")]
    amounts: dict[Name, str | int]  # name of an amount -> quantity
    models: tuple[Name, ...] = ()  # models of the devices that have it; if empty, all


class OwnBoard(Section, frozen=True):
    """A partition table of nodes with boards of certain models."""

    # as the label node.koordinator.sh/gpu-model spells them, or their first words
    models: Annotated[tuple[Name, ...], Meta(min_length=1)]
    # the sets of minors that may be allocated together; among equals, the first is preferred
    partitions: tuple[Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=64)], ...]


class OwnType(Section, frozen=True):
    """A device type beyond GPU, RDMA and FPGA."""

    name: _Label  # as Device objects and annotations spell it: a DNS label
    resource: _Resource  # the full name under which Pods ask for it
    # percent of a device (above 100: whole devices), devices (whole ones only), or units of one device that holds many
    unit: Unit = Unit.PERCENT
    # variable in which a container finds the ids of its devices; if empty, none
    environment: Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    pools: tuple[DevicePool, ...] = ()  # devices that nodes have without reporting them
    amounts: tuple[OwnAmount, ...] = ()  # the resources of which a device consists, if Pods request them separately
    split: _MaybeResource = ""  # the full name that states over how many devices the amounts are split; if empty, none
    templates: tuple[OwnTemplate, ...] = ()  # the parts into which a device can be cut; if empty, any part
    partitioned: bool = False  # whether whole devices are allocated as sets of the node's partition table
    boards: tuple[OwnBoard, ...] = ()  # such tables by model, for nodes that state none

    @property
    def kind(self) -> DeviceType:
        """The type as the allocator uses it.

        Raises DeviceTypeError: its keys contradict one another.
        """
        if self.unit is Unit.BYTES:
            raise DeviceTypeError(f"device type {self.name}: bytes are a unit of amounts, not of the type")
        made = own_type(self.name, self.resource, self.unit, self.environment)
        boards = [Board(one.models, _table(self.name, one.partitions)) for one in self.boards]
        if not self.amounts:
            if self.split or self.templates:
                raise DeviceTypeError(f"device type {self.name}: split and templates are for a type with amounts")
            return replace(made, partitioned=self.partitioned or bool(boards), boards=tuple(boards))
        if self.pools:
            raise DeviceTypeError(f"device type {self.name}: pools hold one number, and are for a type without amounts")
        return composed_type(
            made,
            [Part(one.name, one.resource, one.unit, one.ratio) for one in self.amounts],
            split=self.split,
            templates=[TemplateSpec(one.name, _amounts(self.name, one), one.models) for one in self.templates],
            boards=boards,
            partitioned=self.partitioned,
        )


def _table(kind: str, sets: Iterable[tuple[int, ...]]) -> PartitionTable:
    ordered = [tuple(sorted(minors)) for minors in sets]
    if len(set(ordered)) != len(ordered) or any(len(set(minors)) != len(minors) for minors in ordered):
        raise DeviceTypeError(f"device type {kind}: boards: a partition, or a minor in one, is listed twice")
    return PartitionTable(tuple(Partition(minors) for minors in ordered))


def _amounts(kind: str, template: OwnTemplate) -> dict[str, int]:
    try:
        return {name: to_int(amount) for name, amount in template.amounts.items()}
    except QuantityError as error:
        raise DeviceTypeError(f"device type {kind}: template {template.name}: {error}") from error


def device_types(own: Iterable[OwnType]) -> DeviceTypes:
    """The table of device types: the built-in ones and those of the settings.

    Raises DeviceTypeError: a name or a resource is declared twice, or a type contradicts itself.
    """
    return BUILT_IN.with_types(one.kind for one in own)


def read_text(path: Path) -> str:
    """Read the settings file of a command, but no more of it than `decode` takes.

    Raises SettingsError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES + 1).decode()
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); give --config an existing YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from error


def decode(text: str, source: str, kind: type[_S]) -> _S:
    """Read the settings of a command from YAML text; empty text means all defaults.

    Raises SettingsError: it is too long, not YAML, a Kubernetes object, or has wrong or unknown keys, all of which it
    names.
    """
    raw = _yaml(text, source)
    if isinstance(raw, dict) and {"apiVersion", "kind"} <= raw.keys():
        raise SettingsError(f"{source}: {_object(raw)}")
    try:
        return msgspec.convert(raw if raw is not None else {}, kind)
    except (msgspec.ValidationError, DeviceTypeError) as error:
        told = "; ".join(faults(raw, kind)) or str(error)
        raise SettingsError(f"{source}: {told}") from error


def check(path: Path, kind: type[msgspec.Struct]) -> str:
    """Say that a settings file is all right, for commands that check one; the file must state something.

    Raises SettingsError: as for `decode`, or it is empty.
    """
    text = read_text(path)
    if _yaml(text, str(path)) is None:
        raise SettingsError(f"{path}: is empty; write {{}} if all settings are to be at their defaults")
    decode(text, str(path), kind)
    return f"{path}: all right"


class _Loader(yaml.SafeLoader):
    """PyYAML's, but a key that occurs twice is refused: the first would be dropped without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 as PyYAML has it
        """Make a mapping."""
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key, times in Counter(keys).items() if times > 1]:
            told = f"the key {excerpt(twice[0])!r} occurs twice; keep one"
            raise yaml.constructor.ConstructorError(None, None, told, node.start_mark)
        return super().construct_mapping(node, deep)


def _yaml(text: str, source: str) -> Any:
    if len(text) > _MAX_BYTES:
        raise SettingsError(f"{source}: longer than {_MAX_BYTES} bytes, which no settings file is")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except RecursionError as error:
        raise SettingsError(f"{source}: cannot be read as YAML: nested too deeply") from error
    except yaml.composer.ComposerError as error:
        several = "has several YAML documents; settings are one: keep that one" if "single" in str(error) else ""
        raise SettingsError(f"{source}: {several or f'not YAML: {error}'}") from error
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
    ) as error:  # the last three come of ill-formed scalars
        raise SettingsError(f"{source}: not YAML: {error}") from error


def _object(raw: dict[str, Any]) -> str:
    """Say that a Kubernetes object is no settings, and where an installation has them."""
    metadata, data = raw.get("metadata"), raw.get("data")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    told = f"a Kubernetes object ({excerpt(raw['kind'])}{f' {excerpt(name)}' if name else ''}) and no settings"
    keys = [str(key) for key in data if str(key).endswith((".yaml", ".yml"))] if isinstance(data, dict) else []
    where = f"the text of its data[{excerpt(keys[0])}]" if keys else "the settings themselves"
    return f"{told}; give a file with {where}"
