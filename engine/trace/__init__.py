"""Traces: the wire form of records, and the files that hold them."""
