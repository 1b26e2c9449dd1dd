"""Traces: the wire form of records, and the files that hold them."""

from .codec import decode_record, encode_record, record_from_dict, record_to_dict
from .header import FORMAT, FORMAT_VERSION, Header
from .lines import MAX_LINE_BYTES
from .reader import Segment, TraceReader, Unknown
from .redaction import Redactor
from .writer import TraceWriter

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "MAX_LINE_BYTES",
    "Header",
    "Redactor",
    "Segment",
    "TraceReader",
    "TraceWriter",
    "Unknown",
    "decode_record",
    "encode_record",
    "record_from_dict",
    "record_to_dict",
]
