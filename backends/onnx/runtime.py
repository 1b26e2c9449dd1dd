"""The Runtime protocol on ONNX Runtime: one InferenceSession, many sessions, each with a lane (bindings and caches) of its own.

What a call may do and when is that of every runtime over attention caches (``backends.cached``); here is what happens on the graphs.
A position is the number of rows (``caches.RowCache.rows``) that the next run's mask and past are bound to. Any thread may call;
sessions share nothing that is written, so calls on different sessions may also run at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from attrs import define

from ...engine.errors import ConfigError, NotStarted
from ...engine.runtime import Forward
from ...engine.values import DraftInfo, RuntimeInfo, Sampling
from ..cached import CachedRuntime, CachedSession, Computed, Open
from ..inputs import model_path
from ..smoke import warn_of_a_constant_draft
from .choice import choose, masked_scores
from .drafting import HeadSession
from .exact import rows_are_exact
from .graph import SLACK, Graph, Lane
from .loading import Loaded, load
from .memory import Array
from .models import Head, Target
from .providers import Device, parse_device
from .text import FileTokenizer, load_tokenizer

__all__ = ["DRAFT_DEPTH", "OnnxRuntime"]

#: Most tokens of one draft. The head's one layer is recycled for all steps beyond the first.
DRAFT_DEPTH: Final = 16


@define(kw_only=True)
class _Session(CachedSession):
    """With the lane on the target's graph that the cache belongs to."""

    lane: Lane


class OnnxRuntime(CachedRuntime[_Session]):
    """An exported causal LM, and its MTP head where it has one. Made by ``from_directory``.

    Args:
        loaded: the graphs' sessions and the facts beside them.
        device: where they run.
        name: what ``info.model`` says.
        tokenizer: handed on by the attribute of this name; the runtime itself works on ids.
        context_length: most tokens of a session; default and upper bound: the model's own.
        draft_context_length: most tokens up to which the head drafts; default and upper bound: ``context_length``.
        draft_depth: most tokens of one draft (the one layer is recycled).
        share_buffers: see ``from_directory``.
        row_width: see ``from_directory``.

    Raises:
        ConfigError: an argument, by name.
    """

    backend = "onnx"

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: Device,
        name: str,
        tokenizer: FileTokenizer | None = None,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        share_buffers: bool | None = None,
        row_width: int | None = None,
    ) -> None:
        if row_width is not None and (type(row_width) is not int or not 1 <= row_width <= SLACK):
            raise ConfigError(f"row_width must be an integer from 1 (no padding) to {SLACK}, not {row_width!r}")
        self.tokenizer = tokenizer
        share = loaded.share if share_buffers is None else share_buffers
        context = loaded.context_length
        graph = Graph(loaded.session, loaded.signature, loaded.sizes, device, context, share=share)
        if share_buffers and not graph.shared:
            raise ConfigError(
                f"{name}: share_buffers was asked for and the graph appends to its caches: export it with GroupQueryAttention "
                "(onnxruntime-genai's model builder, or `spanfold export`)"
            )
        target = Target(graph, loaded.signature, loaded.vocabulary, loaded.hidden, context, row_width or 1)
        try:
            exact = rows_are_exact(target, context)
        except Exception as error:  # the first run of the graph; onnxruntime's own errors share no base class
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{name}: its graph cannot run ({line})") from error
        if row_width is None and exact is False:
            target.row_width = 2
            exact = rows_are_exact(target, context)
            if not exact:
                target.row_width = 1
        self._target: Target = target
        self._head: Head | None = None
        if loaded.head is not None:
            head_graph = Graph(
                loaded.head.session, loaded.head.signature, loaded.head.sizes, device, context + DRAFT_DEPTH, shift=1, share=share
            )
            self._head = Head(head_graph, loaded.head.signature, loaded.head.scored, loaded.head.vocabulary, context, target.row_width)
        super().__init__(self._describe(loaded, device, name, context_length, draft_context_length, draft_depth, exact))

    @classmethod
    def from_directory(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        provider_options: Mapping[str, str] | None = None,
        threads: int | None = None,
        session_options: Any = None,
        draft: bool = True,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        share_buffers: bool | None = None,
        row_width: int | None = None,
        name: str | None = None,
    ) -> OnnxRuntime:
        """Open an exported model (docs/reference/onnx-models.md); its head ``mtp.onnx`` comes along where there is one.

        Args:
            model: the directory.
            device: ``cpu``, ``cuda`` or ``cuda:N``. What the sessions do not really run on is an error; there is no fallback.
            provider_options: for the device's execution provider, as ONNX Runtime names them.
            threads: of one operator; None: ONNX Runtime's choice.
            session_options: an ``onnxruntime.SessionOptions`` for everything else; then without ``threads``.
            draft: False: the head is not loaded.
            context_length: see the class.
            draft_context_length: see the class.
            draft_depth: see the class.
            share_buffers: past and present in the same memory, so that a trim is free: True: an error where the graph cannot; False: kept
                apart; None: where the graph can and the directory does not ask otherwise.
            row_width: least rows of a forward; shorter ones are padded. 1 is off. None: 2 where that was measured to make rows
                independent of those beside them and 1 was not; else 1.
            name: what ``info.model`` and so every trace says; default: ``model`` itself.

        Raises:
            ConfigError: a device, a directory or a graph that cannot be used; the message names what is missing and what to do.
        """
        where, path = parse_device(device), model_path(model)
        if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"name must be a string or None, not {name!r}")
        loaded = load(model, device=where, draft=draft, provider_options=provider_options, threads=threads, session_options=session_options)
        runtime = cls(
            loaded,
            device=where,
            name=name or path,
            tokenizer=load_tokenizer(Path(path), path),
            context_length=context_length,
            draft_context_length=draft_context_length,
            draft_depth=draft_depth,
            share_buffers=share_buffers,
            row_width=row_width,
        )
        warn_of_a_constant_draft(runtime)
        return runtime

    def _describe(
        self, loaded: Loaded, device: Device, name: str, asked: int | None, draft_asked: int | None, depth: int, exact: bool | None
    ) -> RuntimeInfo:
        own = loaded.context_length
        length = _context(asked, own, name, "context_length")
        draft: DraftInfo | None = None
        if self._head is not None:
            if type(depth) is not int or not 1 <= depth <= DRAFT_DEPTH:
                raise ConfigError(f"draft_depth must be an integer from 1 to {DRAFT_DEPTH}, not {depth!r}")
            draft_length = min(_context(draft_asked, own, name, "draft_context_length"), length)
            draft = DraftInfo(origin="mtp", layers=1, depth=depth, context_length=draft_length)
        return RuntimeInfo(
            backend="onnx",
            model=name,
            vocabulary=loaded.vocabulary,
            context_length=length,
            rollback="crop",
            draft=draft,
            max_batch=1,
            threads="any",
            row_exact=exact,
            stop_tokens=loaded.stop_tokens,
            device=str(device),
            dtype=loaded.dtype,
        )

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers that the target's session really has, as ONNX Runtime names them."""
        return tuple(self._target.graph.session.get_providers())

    @property
    def shares_buffers(self) -> bool:
        """Whether the target's past and present lie in the same memory."""
        return self._target.graph.shared

    @property
    def row_width(self) -> int:
        """Least rows of a forward; shorter ones are padded."""
        return self._target.row_width

    def _new_session(self, sampling: Sampling, masked: Array | None, head_masked: Array | None, drafting: bool) -> _Session:
        lane = self._target.graph.lane()
        head = HeadSession(self._head, self._head.graph.lane()) if drafting and self._head is not None else None
        return _Session(sampling=sampling, masked=masked, head_masked=head_masked, cache=lane.cache, head=head, lane=lane)

    def _ids(self, ids: list[int]) -> Array:
        return np.array(ids)

    def _head_places(self, masked: Array) -> Array | None:
        vocabulary = None if self._head is None else self._head.vocabulary
        if vocabulary is None:
            return masked
        places = np.flatnonzero(np.isin(vocabulary, masked))
        return places if len(places) else None

    def _reserve(self, held: _Session, rows: int) -> None:
        try:
            held.lane.cache.reserve(rows + self._target.row_width)
        except Exception as error:  # out of memory, in numpy's or ONNX Runtime's words: the buffers are as they were
            raise NotStarted(f"no memory for {rows} rows: {error}") from error

    def _compute(self, call: Forward, held: _Session, opened: Open) -> Computed:
        end = call.base + len(call.tokens)
        first = end - (len(call.tokens) if call.want == "all" else 1) + 1  # index of the first wanted row's token
        masking = held.masked is not None and first < held.sampling.mask_until
        extras = call.extras
        scored = masking or extras.margins or extras.logprobs or extras.logits
        passed = self._target.run(held.lane, call.tokens, call.want, hidden=held.head is not None, scores=scored)
        opened.hidden = passed.hidden
        if passed.scores is None:
            return Computed(passed.ids or ())
        chosen = choose(masked_scores(passed.scores, first, held.sampling, held.masked), extras)
        return Computed(chosen.ids, chosen.margins, chosen.logprobs, passed.scores if extras.logits else None)

    def _release(self) -> None:
        self._target, self._head = cast(Target, None), None


def _context(asked: int | None, own: int, name: str, field: str) -> int:
    if asked is None:
        return own
    if type(asked) is not int or not 1 <= asked <= own:
        raise ConfigError(f"{field} must be an integer from 1 to {own} (what {name} has), not {asked!r}")
    return asked
