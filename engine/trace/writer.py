"""Writing a trace: JSON Lines in segments, each a header, records, and a footer with count and digest.

A trace holds the tokens of prompts and outputs: treat it as what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ..errors import TraceError
from ..events import Record
from .codec import encode_line, encode_record

try:
    import fcntl
except ImportError:  # no advisory locks on this system
    fcntl = None

__all__ = ["FORMAT", "FORMAT_VERSION", "TraceWriter"]

FORMAT: Final = "spanfold-trace"
FORMAT_VERSION: Final = 1


class TraceWriter:
    """A recorder that appends records to a file, each with one write.

    A record has reached the operating system when ``write`` returns; with ``fsync`` it has reached the disk when ``flush`` does.
    Opening a file that holds something starts a new segment behind it, on a line of its own even if the last one was torn.
    Threads may share a writer; a second writer of the same file is refused where the system has advisory locks.

    Args:
        path: the file; made if it is not there (its folder must be).
        fsync: whether ``flush`` waits for the disk.

    Raises:
        TraceError: the file is being written by another writer.
        OSError: it cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self.path: Final = Path(path)
        self._fsync = fsync
        self._lock = threading.Lock()
        self._records = 0
        self._digest = hashlib.sha256()
        self._broken = False
        # For reading too: the last byte tells whether the line before this segment is whole.
        self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            self._refuse_company()
            header = {"kind": "header", "format": FORMAT, "version": FORMAT_VERSION, "created_unix_ns": str(time.time_ns())}
            self._put((b"" if self._ends_whole() else b"\n") + encode_line(header))
        except BaseException:
            self._file.close()
            raise

    def _refuse_company(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as problem:
                raise TraceError(f"{self.path} is being written by another trace writer; give each its own file") from problem

    def _ends_whole(self) -> bool:
        end = self._file.seek(0, os.SEEK_END)
        if end == 0:
            return True
        self._file.seek(end - 1)
        return self._file.read(1) == b"\n"

    def _put(self, line: bytes) -> None:
        written = self._file.write(line)
        if written != len(line):
            raise OSError(f"wrote {written} of {len(line)} bytes to {self.path}; is the disk full?")

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            TraceError: it does not fit the format, or the writer is closed or broken. Nothing was written.
            OSError: writing failed. The segment gets no footer: what is in it stays readable.
        """
        line = encode_record(record)
        with self._lock:
            if self._file.closed or self._broken:
                raise TraceError(
                    f"the trace writer of {self.path} is {'closed' if self._file.closed else 'broken by an earlier write error'}"
                )
            try:
                self._put(line)
            except BaseException:
                self._broken = True
                raise
            self._records += 1
            self._digest.update(line)

    def flush(self) -> None:
        """Wait for the disk, where the writer was made with ``fsync``; otherwise there is nothing to wait for."""
        with self._lock:
            if self._fsync and not self._file.closed:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write the footer and close the file. Closing again does nothing."""
        with self._lock:
            if self._file.closed:
                return
            with contextlib.closing(self._file):
                if not self._broken:
                    self._put(encode_line({"kind": "footer", "records": self._records, "sha256": self._digest.hexdigest()}))
                    if self._fsync:
                        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        """Close it."""
        self.close()
