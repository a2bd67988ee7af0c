"""Messages of Protocol Buffers, described by tables: no compiler, and no generated code."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

MessageType: TypeAlias = type[Message]

TEXT: Final = int(FieldDescriptorProto.TYPE_STRING)
BYTES: Final = int(FieldDescriptorProto.TYPE_BYTES)
BOOL: Final = int(FieldDescriptorProto.TYPE_BOOL)
INT32: Final = int(FieldDescriptorProto.TYPE_INT32)  # enumerations too
INT64: Final = int(FieldDescriptorProto.TYPE_INT64)
UINT32: Final = int(FieldDescriptorProto.TYPE_UINT32)
TEXTS: Final = 0
"""A map of texts."""


class Field(NamedTuple):
    """A field of a message."""

    name: str
    number: int
    kind: int | str = TEXT  # one of the above, or another message's name
    many: bool = False


def messages(package: str, table: Mapping[str, tuple[Field, ...]]) -> dict[str, MessageType]:
    """Make the messages of a table, which is their names to their fields; fields that it leaves out are skipped."""
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    file.message_type.extend(_described(package, name, fields) for name, fields in table.items())
    pool = DescriptorPool()  # a pool of its own: another library may use the package's name in the common one
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def parse(kind: MessageType, data: bytes) -> Any:
    """Read a serialised message.

    Raises ValueError: it is truncated or malformed.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError) as error:  # the latter for text that is not UTF-8, by protobuf's slow half
        raise ValueError(f"no {kind.DESCRIPTOR.name}: truncated or malformed") from error
    return message


def _described(package: str, name: str, fields: Iterable[Field]) -> DescriptorProto:
    described = DescriptorProto(name=name)
    for field in fields:
        many = field.many or field.kind == TEXTS
        label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
        one = described.field.add(name=field.name, number=field.number, label=label)
        if isinstance(field.kind, str):
            one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{field.kind}"
        elif field.kind == TEXTS:
            # A map is a repeated message of key and value, by a name that protobuf demands.
            entry = f"{field.name.title().replace('_', '')}Entry"
            nested = _described(package, entry, (Field("key", 1), Field("value", 2)))
            nested.options.map_entry = True
            described.nested_type.append(nested)
            one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{name}.{entry}"
        else:
            one.type = field.kind  # type: ignore[assignment]
    return described
