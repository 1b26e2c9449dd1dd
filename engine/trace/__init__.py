"""Traces: the wire form of records, and the files that hold them."""

from .codec import decode_record, encode_record, record_from_dict, record_to_dict
from .reader import Segment, TraceReader
from .writer import FORMAT, FORMAT_VERSION, TraceWriter

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "Segment",
    "TraceReader",
    "TraceWriter",
    "decode_record",
    "encode_record",
    "record_from_dict",
    "record_to_dict",
]
