"""Protobuf: message classes for file formats that use protobuf."""

from collections.abc import Mapping, Sequence
from typing import Any


def classes(package: str, messages: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return message classes in a separate descriptor pool, so that names cannot collide with another library.

    Args:
      messages: for each message a list of fields, each written as "name number type". A "*" after the type marks a
        repeated field. A type is a type of protobuf or another message of `messages`.

    Raises:
      ImportError: the `protobuf` library is not installed.

    Example:
      >>> point = classes("fluid.example", {"Point": ["x 1 int32", "tags 2 string*"]})["Point"]
      >>> point.FromString(point(x=3, tags=["a", "b"]).SerializeToString()).tags
      ['a', 'b']
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    name = f"{package.replace('.', '_')}.proto"
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto2")
    for message, fields in messages.items():
        declared = file.message_type.add(name=message)
        for field in fields:
            label, number, type_ = field.split()
            many = kind.LABEL_REPEATED if type_.endswith("*") else kind.LABEL_OPTIONAL
            added = declared.field.add(name=label, number=int(number), label=many)
            type_ = type_.removesuffix("*")
            if type_ in messages:
                added.type = kind.TYPE_MESSAGE
                added.type_name = f".{package}.{type_}"
            else:
                added.type = kind.Type.Value(f"TYPE_{type_.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {message: pool.FindMessageTypeByName(f"{package}.{message}") for message in messages}
    return {message: message_factory.GetMessageClass(descriptor) for message, descriptor in found.items()}
