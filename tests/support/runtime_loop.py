"""The decode loop at the level of the Runtime protocol, without the engine, for any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from spanfold.engine.runtime import Ask, Extras, Forward, Rows, Runtime, Settle
from spanfold.engine.values import Sampling

Drafts = Callable[[tuple[int, ...], int], Sequence[int]]


def forward(
    runtime: Runtime, session: int, base: int, tokens: Sequence[int], want: Any = "last", canonical: bool = True, **extras: bool
) -> Rows:
    call = Forward(session=session, base=base, tokens=tuple(tokens), want=want, canonical=canonical, extras=Extras(**extras))
    (rows,) = runtime.forward([call])
    assert isinstance(rows, Rows)
    return rows


def settle(runtime: Runtime, session: int, base: int, rows: int, position: int) -> int:
    (settled,) = runtime.settle([Settle(session=session, base=base, rows=rows, position=position)])
    assert settled.position == position  # pyright: ignore[reportAttributeAccessIssue]
    return position


def draft(runtime: Runtime, session: int, current: int, limit: int) -> tuple[int, ...]:
    (offered,) = runtime.draft([Ask(session=session, current=current, limit=limit)])
    return offered.tokens  # pyright: ignore[reportAttributeAccessIssue]


def numbers(runtime: Runtime, session: int) -> tuple[int, int | None]:
    """(position, head_position)."""
    view = runtime.view(session)
    assert view is not None
    return view.position, view.head_position


@define
class Run:
    canonical: list[int]
    prompt: int
    spans: list[tuple[int, int]] = field(factory=list)  # (drafted, matched) of each

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.canonical[self.prompt :])

    @property
    def per_verify(self) -> float:
        return 1 + sum(matched for _, matched in self.spans) / len(self.spans)


def start(runtime: Runtime, prompt: Sequence[int], session: int = 0, *, chunk: int = 512, drafting: bool = True) -> Run:
    """Open a session, prefill the prompt and commit the first token."""
    runtime.open_session(session, Sampling(), drafting)
    rows = None
    for base in range(0, len(prompt), chunk):
        part = prompt[base : base + chunk]
        rows = forward(runtime, session, base, part, "last" if base + len(part) == len(prompt) else "none")
    assert rows is not None
    return Run([*prompt, rows.predictions[0]], len(prompt))


def span(runtime: Runtime, run: Run, k: int, session: int = 0, drafts: Drafts | None = None) -> None:
    """One round: draft, verify, commit, settle. Asserts law 1 around it."""
    base = len(run.canonical) - 1
    current = run.canonical[-1]
    tokens: Sequence[int] = ()
    if k and drafts is None:
        tokens = draft(runtime, session, current, k)
        assert numbers(runtime, session) == (base, base)
    elif k:
        tokens = drafts(tuple(run.canonical), k)  # pyright: ignore[reportOptionalCall]
    rows = forward(runtime, session, base, [current, *tokens], "all", canonical=False)
    matched = 0
    while matched < len(tokens) and tokens[matched] == rows.predictions[matched]:
        matched += 1
    settle(runtime, session, base, len(tokens) + 1, base + matched + 1)
    run.canonical.extend(rows.predictions[: matched + 1])
    run.spans.append((len(tokens), matched))


def decode(runtime: Runtime, prompt: Sequence[int], k: int, count: int, **options: Any) -> Run:
    """Commit at least ``count`` tokens in spans of ``k`` drafts; the session is dropped."""
    drafts: Drafts | None = options.pop("drafts", None)
    run = start(runtime, prompt, **options)
    session = options.get("session", 0)
    while len(run.tokens) < count:
        span(runtime, run, k, session, drafts)
    runtime.drop_session(session)
    del run.canonical[run.prompt + count :]
    return run
