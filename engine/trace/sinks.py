"""Where the bytes of a trace go: one file, opened for appending by one writer, plain or compressed.

A sink gives every piece to the operating system with one write, and a piece of a compressed file ends at a point from which the file can
be read and mended (a sync point). So whatever a process had handed over survives its death, and what it had not is a torn tail.
"""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from ..errors import TraceError
from .header import HEADER_BEGINS
from .inflate import MARK, WINDOW
from .lines import MAX_LINE_BYTES

try:
    import fcntl
except ImportError:  # no advisory locks on this system
    fcntl = None

__all__ = ["GzipSink", "PlainSink", "open_sink"]

_GZIP: Final = b"\x1f\x8b"
_BLOCK: Final = 1 << 14  # compressed bytes read at once: they cannot become more than 16 MiB
_MOST_MARKS: Final = 64
_MOST_REST: Final = MAX_LINE_BYTES + (1 << 20)

#: (device, inode) of every file that this process writes a trace to: also where the system has no locks.
_mine: set[tuple[int, int]] = set()
_mine_lock: Final = threading.Lock()


def open_sink(path: Path) -> tuple[PlainSink, bytes]:
    """The sink of a file, and what must go before the next line so that it is a line of its own.

    Raises:
        TraceError: the file is being written by another writer, or holds something that is no trace.
        OSError: it cannot be opened or read.
    """
    sink = GzipSink(path) if path.suffix == ".gz" else PlainSink(path)
    try:
        return sink, sink.mend()
    except BaseException:
        sink.close()
        raise


class PlainSink:
    """An uncompressed file."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        # For reading too: the file's end tells whether the line before the next one is whole.
        self._file: BinaryIO = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        self._key: tuple[int, int] | None = None
        try:
            self._lock()
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        found = os.fstat(self._file.fileno())
        key = (found.st_dev, found.st_ino)
        taken = f"{self.path} is being written by another trace writer; give each its own file"
        with _mine_lock:
            if key in _mine:
                raise TraceError(taken)
            if fcntl is not None:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as problem:
                    raise TraceError(taken) from problem
            _mine.add(key)
        self._key = key

    def put(self, piece: bytes) -> None:
        """Hand a piece to the operating system, whole.

        Raises:
            OSError: it was not taken, or only a part of it.
        """
        self._write(piece)

    def _write(self, piece: bytes) -> None:
        written = self._file.write(piece)
        if written != len(piece):
            raise OSError(f"wrote {written} of {len(piece)} bytes to {self.path}; is the disk full?")

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._file.fileno())

    def sync_name(self) -> None:
        """Wait until the disk has the file's name too, where folders can be waited for: a new file is lost without it."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
        except PermissionError:  # Windows opens no folders, and keeps names by itself
            return
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def finish(self) -> None:
        """What a file needs at its end."""

    def close(self) -> None:
        """Close the file, as it is."""
        self._file.close()
        if self._key is not None:
            with _mine_lock:
                _mine.discard(self._key)
            self._key = None

    def mend(self) -> bytes:
        """Look at what the file holds; returns a newline if its last line lacks one."""
        end = self._file.seek(0, os.SEEK_END)
        if end == 0:
            return b""
        self._file.seek(0)
        self._check_start(self._file.read(len(HEADER_BEGINS)))
        self._file.seek(end - 1)
        return b"" if self._file.read(1) == b"\n" else b"\n"

    def _check_start(self, start: bytes) -> None:
        if not HEADER_BEGINS.startswith(start[: len(HEADER_BEGINS)]):
            raise TraceError(f"{self.path} holds something that is no trace; nothing is appended to it, name another file")


class GzipSink(PlainSink):
    """A compressed file: one gzip member per segment, a sync point at the end of every piece."""

    def __init__(self, path: Path) -> None:
        self._deflate = zlib.compressobj(wbits=WINDOW)
        super().__init__(path)

    def put(self, piece: bytes) -> None:
        """Compress a piece and hand it over, up to a sync point."""
        self._write(self._deflate.compress(piece) + self._deflate.flush(zlib.Z_SYNC_FLUSH))

    def finish(self) -> None:
        """End the member."""
        self._write(self._deflate.flush(zlib.Z_FINISH))

    def mend(self) -> bytes:
        """Look through what the file holds; close a member that was cut off, at its last sync point, so that another can follow.

        Returns:
            What could be read behind that point (a part of one piece), ended by a newline if it lacks one. It goes before the next
            line, so that the torn tail is reported by every later reader.
        """
        size = self._file.seek(0, os.SEEK_END)
        begin, last = 0, b""
        while begin < size:
            end, start, last = self._member(begin)
            if begin == 0:
                self._check_start(start)
            if end is None:
                return self._close_member(begin, size)
            begin = end
        return b"" if last in (b"\n", b"") else b"\n"

    def _member(self, begin: int) -> tuple[int | None, bytes, bytes]:
        """Where the member that begins here ends (None: it was cut off), its first bytes, and its last one."""
        inflate = zlib.decompressobj(wbits=WINDOW)
        self._file.seek(begin)
        at, start, last = begin, b"", b""
        while not inflate.eof:
            block = self._file.read(_BLOCK)
            if not block:
                return None, start, last
            if at == 0 and not _GZIP.startswith(block[: len(_GZIP)]):
                raise TraceError(f"{self.path} is not compressed by gzip; nothing is appended to it, name another file")
            at += len(block)
            try:
                out = inflate.decompress(block)
            except zlib.error as problem:
                raise TraceError(f"{self.path} is damaged ({problem}); nothing is appended to it, name another file") from problem
            start = start or out[: len(HEADER_BEGINS)]
            last = out[-1:] or last
        return at - len(inflate.unused_data), start, last

    def _close_member(self, begin: int, size: int) -> bytes:
        """Cut at the last sync point of the member and write a trailer behind it; returns what could be read beyond."""
        for cut in self._marks(begin):
            inflate, check, length = self._inflated(begin, cut)
            # An empty last block: after a true sync point it ends the stream; after four bytes that only look like one, hardly ever.
            trailer = b"\x03\x00" + check.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")
            if _ends(inflate.copy(), trailer):
                rest = self._rest(inflate, cut, size)
                os.truncate(self._file.fileno(), cut)
                self._write(trailer)
                return _ended(rest)
        rest = self._rest(zlib.decompressobj(wbits=WINDOW), begin, size)
        os.truncate(self._file.fileno(), begin)
        return _ended(rest)

    def _rest(self, inflate: Any, begin: int, size: int) -> bytes:
        """What can be read from here to the end: less than one piece, as nothing was ever handed over but whole pieces."""
        self._file.seek(begin)
        rest = inflate.decompress(self._file.read(size - begin), _MOST_REST)
        if len(rest) == _MOST_REST:
            raise TraceError(f"{self.path} ends in more than {_MOST_REST} bytes that no writer of traces handed over; name another file")
        return rest

    def _marks(self, begin: int) -> list[int]:
        """The places behind what looks like the end of a sync point, the last first, some sixty at most."""
        found: list[int] = []
        at, tail = begin, b""
        self._file.seek(begin)
        while block := self._file.read(_BLOCK):
            both = tail + block
            where = both.find(MARK)
            while where >= 0:
                found.append(at - len(tail) + where + len(MARK))
                where = both.find(MARK, where + 1)
            found = found[-_MOST_MARKS:]
            at += len(block)
            tail = both[-(len(MARK) - 1) :]
        return found[::-1]

    def _inflated(self, begin: int, end: int) -> tuple[Any, int, int]:
        """A decompressor that was fed the file's bytes, with CRC and length of what came out."""
        inflate = zlib.decompressobj(wbits=WINDOW)
        check = length = 0
        self._file.seek(begin)
        for at in range(begin, end, _BLOCK):
            out = inflate.decompress(self._file.read(min(_BLOCK, end - at)))
            check = zlib.crc32(out, check)
            length += len(out)
        return inflate, check, length


def _ends(inflate: Any, trailer: bytes) -> bool:
    try:
        inflate.decompress(trailer)
    except zlib.error:
        return False
    return inflate.eof and not inflate.unused_data


def _ended(rest: bytes) -> bytes:
    return rest if not rest or rest.endswith(b"\n") else rest + b"\n"
