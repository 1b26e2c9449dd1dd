"""Writing a trace: JSON Lines in segments, each a header, records, and a footer with count and digest.

A trace holds the tokens of prompts and outputs: treat it as what it was made from, or write it redacted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from ..errors import ConfigError, TraceError
from ..events import Record
from ..sharing import engine_activity
from ..values import RuntimeInfo
from .codec import encode_record, unstructure
from .header import FORMAT, FORMAT_VERSION, Header, libraries
from .lines import MAX_LINE_BYTES, encode_line
from .redaction import Redactor
from .sinks import open_sink

__all__ = ["FORMAT", "FORMAT_VERSION", "Flush", "TraceWriter"]

Flush: TypeAlias = Literal["record", "round", "end"]

#: What is collected at most before it is handed over, whatever the policy.
_PIECE: Final = 256 * 1024


class TraceWriter:
    """A recorder that appends records to a file.

    Opening a file that holds a trace starts a new segment behind it, on a line of its own even if the last one was torn. Threads and
    sessions may share a writer; a second writer of the same file is refused (by a lock where the system has them, within one process
    everywhere). A process that was forked off cannot go on with its parent's writer.

    Args:
        path: the file; made if it is not there (its folder must be). Compressed if its name ends in ``.gz``.
        flush: when records reach the operating system, and so survive the death of the process: ``record``, each by one write before
            ``write`` returns; ``round``, all of a round by one write, before its tokens are delivered; ``end``, when some 256 KiB are
            together, or at the end: the fastest, and the one that loses most.
        fsync: whether ``flush`` (for ``end`` only ``close``) waits for the disk, so that records survive the death of the machine.
        runtime: the runtime that will be decoded on, for the header; every SessionOpened names its own as well.
        redact: permute token ids by a secret key and leave texts out; see :class:`Redactor`.
        key: the secret, at least 16 bytes; None: a random one that is kept nowhere. Needs ``redact``.

    Raises:
        TraceError: the file is being written by another writer, or holds something else than a trace.
        ConfigError: an argument is unusable.
        OSError: it cannot be opened or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: Flush = "record",
        fsync: bool = False,
        runtime: RuntimeInfo | None = None,
        redact: bool = False,
        key: bytes | None = None,
    ) -> None:
        if flush not in ("record", "round", "end"):
            raise ConfigError(f"flush must be one of record, round, end, not {flush!r}")
        if key is not None and not redact:
            raise ConfigError("key is the secret of redaction: give redact=True with it, or leave it out")
        self.path: Final = Path(path)
        self._flush: Final = flush
        self._fsync = fsync
        self._redactor = Redactor(key) if redact else None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._records = 0
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._collected = 0
        self._closed = False
        self._broken: str | None = None
        header = Header(
            created_unix_ns=time.time_ns(),
            runtime=self._redactor.runtime(runtime) if self._redactor and runtime else runtime,
            libraries=dict(libraries()),
            redacted=redact,
        )
        self._sink, before = open_sink(self.path)
        try:
            self._sink.put(before + encode_line({"kind": "header", **unstructure(header)}))
            if fsync:
                self._sink.sync()
                self._sink.sync_name()
        except BaseException:
            self._sink.close()
            raise

    def write(self, record: Record) -> None:
        """Append one record.

        Raises:
            TraceError: it does not fit the format, or the writer is closed or broken. Nothing was written.
            OSError: writing failed. The segment gets no footer: what is in it stays readable.
        """
        line = encode_record(record if self._redactor is None else self._redactor.record(record))
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"a record of {len(line)} bytes is longer than the {MAX_LINE_BYTES} that a trace may hold in one line")
        with engine_activity(), self._lock:
            self._refuse_unusable()
            try:
                self._records += 1
                self._digest.update(line)
                if self._flush == "record":
                    self._sink.put(line)
                else:
                    self._waiting.append(line)
                    self._collected += len(line)
                    if self._collected >= _PIECE:
                        self._hand_over()
            except BaseException as problem:
                self._broken = f"{type(problem).__name__}: {problem}"
                raise

    def _refuse_unusable(self) -> None:
        if self._closed:
            raise TraceError(f"the trace writer of {self.path} is closed")
        if self._broken is not None:
            raise TraceError(f"the trace writer of {self.path} is broken by an earlier write error ({self._broken})")
        if os.getpid() != self._process:
            raise TraceError(f"the trace writer of {self.path} belongs to the process that made it; open another file in this one")

    def _hand_over(self) -> None:
        if self._waiting:
            piece = b"".join(self._waiting)
            self._waiting.clear()
            self._collected = 0
            self._sink.put(piece)

    def flush(self) -> None:
        """A round is over: have the operating system, and with ``fsync`` the disk, keep its records, as the policy says.

        Raises:
            TraceError: the writer is broken by an earlier error.
            OSError: writing failed; the writer is broken from here on.
        """
        with engine_activity(), self._lock:
            if self._closed or self._flush == "end":
                return
            self._refuse_unusable()
            try:
                self._hand_over()
                if self._fsync:
                    self._sink.sync()
            except BaseException as problem:
                self._broken = f"{type(problem).__name__}: {problem}"
                raise

    def close(self) -> None:
        """Write what is waiting and the footer, and close the file. Closing again does nothing; a broken writer writes no footer.

        Raises:
            OSError: writing failed; the file is closed all the same.
        """
        with engine_activity(), self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.closing(self._sink):
                if self._broken is None and os.getpid() == self._process:
                    self._waiting.append(encode_line({"kind": "footer", "records": self._records, "sha256": self._digest.hexdigest()}))
                    self._hand_over()
                    self._sink.finish()
                    if self._fsync:
                        self._sink.sync()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        """Close it."""
        self.close()
