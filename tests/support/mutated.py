"""Bytes of traces with something wrong in them, and what must hold of reading any bytes at all."""

from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from spanfold.engine.errors import TraceError
from spanfold.engine.events import Record, SessionDropped
from spanfold.engine.trace import TraceReader, TraceWriter, Unknown, encode_record
from spanfold.engine.trace.lines import parse_line
from spanfold.engine.trace.versions import UPCASTS, upcast

TRACES = Path(__file__).parents[1] / "trace"
#: Traces of every version of the format.
SEEDS = {
    f"{folder} {name}": (TRACES / folder / f"{name}.jsonl").read_bytes()
    for folder in ("golden", "golden-2", "golden-3")
    for name in ("accepted", "cut-stop-text", "failures-open", "torn", "redacted")
}

#: What a mutation puts in the place of a value, or between two bytes.
PIECES = (
    *(
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"-0.0",
        b"9007199254740992",
        b"9" * 400,
        b"NaN",
        b'"x"',
        b'""',
        b"[]",
        b"{}",
        b"[[[[[[[[]]]]]]]]",
    ),
    *(b"\0", b"\n", b"\r\n", b"\n\n", b" ", b",", b'"', b"\\", b"\xff", b"\xef\xbb\xbf", b"\\ud800", b"\xc3\xa9", b'{"kind":"header"}\n'),
)
END = Record(seq=0, session=2**40, event=SessionDropped(reason="the end"))


@st.composite
def mutated(draw):
    """A golden trace after a few mutations of its bytes, its lines, or its values."""
    content = SEEDS[draw(st.sampled_from(sorted(SEEDS)))]
    for _ in range(draw(st.integers(1, 4))):
        content = draw(st.sampled_from([_bytes, _slice, _piece, _value, _lines]))(draw, content)
    return content


def _place(draw, content):
    return draw(st.integers(0, len(content)))


def _bytes(draw, content):
    at = _place(draw, content)
    return content[:at] + draw(st.binary(max_size=3)) + content[at + draw(st.integers(0, 3)) :]


def _slice(draw, content):
    one, other = sorted((_place(draw, content), _place(draw, content)))
    kept = draw(st.sampled_from(["cut", "first", "again"]))
    if kept == "again":
        return content[:other] + content[one:]
    return content[:one] + content[other:] if kept == "cut" else content[:one]


def _piece(draw, content):
    at = _place(draw, content)
    return content[:at] + draw(st.sampled_from(PIECES)) + content[at:]


def _value(draw, content):
    """Replace what stands behind a colon, up to the next comma."""
    at = content.find(b":", _place(draw, content)) + 1
    end = content.find(b",", at)
    return content if end < 0 else content[:at] + draw(st.sampled_from(PIECES)) + content[end:]


def _lines(draw, content):
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    how = draw(st.sampled_from(["swap", "double", "drop", "join"]))
    if how == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    elif how == "double":
        lines.insert(other, lines[one])
    elif how == "drop":
        del lines[one]
    else:
        lines[one] = lines[one].rstrip(b"\n")
    return b"".join(lines)


def _said(line):
    """What a line says: as it stands, and as a line of an older version brought up to this one."""
    try:
        said = [parse_line(line)]
    except TraceError:
        return []
    for version in UPCASTS:  # a line of a later one is none of an older one
        with suppress(TraceError):
            said.append(upcast(said[0], version, UPCASTS))
    return said


def check_reading(content, path):
    """Whatever the bytes: records or a TraceError, nothing else; nothing made up; lenient reading shows at least as much."""
    path.write_bytes(content)
    reader = TraceReader(path)
    strict, refused = [], None
    try:
        for record in reader:
            strict.append(record)
    except TraceError as error:
        refused = error
        assert str(error).isprintable() or "\\" in repr(str(error))
        assert error.line is not None or not content
    lines = [said for line in content.split(b"\n") if (said := _said(line))]
    at = 0
    for record in strict:  # in order, each from a line of its own that says just that
        shown = parse_line(encode_record(record))
        at = next(place for place in range(at, len(lines)) if shown in lines[place]) + 1
    shown = []
    try:
        shown = list(reader.lenient())
    except TraceError as error:
        assert not shown or error.line is not None
    else:
        known = [one for one in shown if not isinstance(one, Unknown)]
        assert known[: len(strict)] == strict
        if refused is None:
            assert shown == strict
        else:
            assert len(shown) > len(strict) or reader.segments == [] or "not a trace" in str(refused) or reader.torn
    if refused is None:
        torn = reader.torn
        with TraceWriter(path) as writer:
            writer.write(END)
        again = TraceReader(path)
        assert list(again) == [*strict, END] and len(again.torn) == len(torn)
    path.unlink()
