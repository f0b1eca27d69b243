"""The Open Inference Protocol, version 2, over HTTP: messages and tensors, for servers and clients."""

from fluid.serving.protocol.messages import (
    HEADER_LENGTH,
    LONG,
    InferRequest,
    InferResponse,
    Turns,
    Wanted,
    check_lists,
    finished,
    read_json,
    read_request,
    read_response,
    write_request,
    write_response,
)
from fluid.serving.protocol.signature import ModelOutput, Signature, from_tensors, padded_as_before, to_tensors
from fluid.serving.protocol.tensors import MessageTensor, count_numbers, json_size

__all__ = [
    "HEADER_LENGTH",
    "LONG",
    "InferRequest",
    "InferResponse",
    "ModelOutput",
    "Signature",
    "MessageTensor",
    "Turns",
    "Wanted",
    "check_lists",
    "count_numbers",
    "finished",
    "from_tensors",
    "json_size",
    "padded_as_before",
    "read_json",
    "read_request",
    "read_response",
    "to_tensors",
    "write_request",
    "write_response",
]
