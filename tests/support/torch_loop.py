"""The decode loop at the level of the Runtime protocol, without the engine, and the comparison up to near ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field

from spanfold.backends.torch import TorchRuntime
from spanfold.engine.runtime import Ask, Extras, Forward, Rows, Settle
from spanfold.engine.values import Sampling

Drafts = Callable[[tuple[int, ...], int], Sequence[int]]


def forward(
    runtime: TorchRuntime, session: int, base: int, tokens: Sequence[int], want: Any = "last", canonical: bool = True, **extras: bool
) -> Rows:
    call = Forward(session=session, base=base, tokens=tuple(tokens), want=want, canonical=canonical, extras=Extras(**extras))
    (rows,) = runtime.forward([call])
    assert isinstance(rows, Rows)
    return rows


def settle(runtime: TorchRuntime, session: int, base: int, rows: int, position: int) -> int:
    (settled,) = runtime.settle([Settle(session=session, base=base, rows=rows, position=position)])
    assert settled.position == position  # pyright: ignore[reportAttributeAccessIssue]
    return position


def draft(runtime: TorchRuntime, session: int, current: int, limit: int) -> tuple[int, ...]:
    (offered,) = runtime.draft([Ask(session=session, current=current, limit=limit)])
    return offered.tokens  # pyright: ignore[reportAttributeAccessIssue]


def numbers(runtime: TorchRuntime, session: int) -> tuple[int, int | None]:
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


def start(runtime: TorchRuntime, prompt: Sequence[int], session: int = 0, *, chunk: int = 512, drafting: bool = True) -> Run:
    """Open a session, prefill the prompt and commit the first token."""
    runtime.open_session(session, Sampling(), drafting)
    rows = None
    for base in range(0, len(prompt), chunk):
        part = prompt[base : base + chunk]
        rows = forward(runtime, session, base, part, "last" if base + len(part) == len(prompt) else "none")
    assert rows is not None
    return Run([*prompt, rows.predictions[0]], len(prompt))


def span(runtime: TorchRuntime, run: Run, k: int, session: int = 0, drafts: Drafts | None = None) -> None:
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


def decode(runtime: TorchRuntime, prompt: Sequence[int], k: int, count: int, **options: Any) -> Run:
    """Commit at least ``count`` tokens in spans of ``k`` drafts; the session is dropped."""
    drafts: Drafts | None = options.pop("drafts", None)
    run = start(runtime, prompt, **options)
    session = options.get("session", 0)
    while len(run.tokens) < count:
        span(runtime, run, k, session, drafts)
    runtime.drop_session(session)
    del run.canonical[run.prompt + count :]
    return run


def greedy(model: Any, prompt: Sequence[int], count: int, **options: Any) -> tuple[int, ...]:
    """transformers' own greedy generation."""
    ids = torch.tensor([list(prompt)], device=model.device)
    options = {"eos_token_id": None, "pad_token_id": 0} | options
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **options)
    return tuple(out[0, len(prompt) :].tolist())


def margin_at(model: Any, tokens: Sequence[int]) -> float:
    """The difference of the two best scores after ``tokens``, all rows computed in one forward without a cache."""
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0, -1].float()
    best = scores.topk(2).values
    return float(best[0] - best[1])


def assert_same(model: Any, prompt: Sequence[int], got: Sequence[int], expected: Sequence[int], bound: float) -> None:
    """Equal, or first different where the target's two best scores lie closer than ``bound`` (a near tie)."""
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            margin = margin_at(model, [*prompt, *expected[:at]])
            assert margin < bound, f"token {at} is {one}, expected {other}, and the margin is {margin}, not a near tie (bound {bound})"
            return
    assert len(got) == len(expected)
