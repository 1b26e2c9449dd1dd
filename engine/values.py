"""The values that a session is opened with: limits, stops, sampling, policy, and what a runtime says of itself.

All are frozen and validated when built; messages name the class and the field. They travel inside ``SessionOpened`` and
``Extended``, so a log explains every later decision by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar, dataclass_transform

import attrs
from attrs import field

from .errors import ConfigError

__all__ = [
    "DraftInfo",
    "Limits",
    "Origin",
    "Policy",
    "Processor",
    "Rollback",
    "RuntimeInfo",
    "Sampling",
    "Stops",
    "Threads",
    "ids",
    "integer",
    "one_of",
    "text",
    "value",
]

Rollback: TypeAlias = Literal["crop", "checkpoint", "none"]
Threads: TypeAlias = Literal["any", "one"]
Origin: TypeAlias = Literal["mtp", "prompt_lookup", "grammar"]
ORIGINS: Final = ("mtp", "prompt_lookup", "grammar")
#: The widest draft that the policy ``auto`` can be given.
WIDEST: Final = 64

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(attrs.field,))
def value(cls: type[_T]) -> type[_T]:
    """Frozen, keyword-only, slotted: the form of every value and event of the engine."""
    return attrs.frozen(kw_only=True)(cls)


_Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _bad(owner: object, attribute: attrs.Attribute[Any], wanted: str, got: object) -> ConfigError:
    shown = repr(got)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ConfigError(f"{type(owner).__name__}.{attribute.name} must be {wanted}, not {shown}")


def integer(low: int = 0, high: int | None = None, optional: bool = False) -> _Validator:
    """A validator for a plain ``int`` (bool excluded) in ``[low, high]``, or None where optional."""
    wanted = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if optional:
        wanted += " or None"

    if high is None and not optional:  # the fields of nearly all events: as few questions as can be

        def at_least(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
            if type(got) is not int or got < low:
                raise _bad(owner, attribute, wanted, got)

        return at_least

    def check(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
        if got is None and optional:
            return
        if type(got) is not int or got < low or (high is not None and got > high):
            raise _bad(owner, attribute, wanted, got)

    return check


def ids(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
    """Validate a tuple of token ids (plain ints, none negative)."""
    if type(got) is not tuple:
        raise _bad(owner, attribute, "a tuple of token ids", got)
    for token in got:  # pyright: ignore[reportUnknownVariableType]
        if type(token) is not int or token < 0:  # pyright: ignore[reportUnknownArgumentType]
            raise _bad(owner, attribute, "a tuple of token ids (integers of at least 0)", token)  # pyright: ignore[reportUnknownArgumentType]


def one_of(*allowed: str) -> _Validator:
    """A validator for one of a few words."""

    def check(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
        if got not in allowed:
            raise _bad(owner, attribute, f"one of {', '.join(allowed)}", got)

    return check


def text(optional: bool = False) -> _Validator:
    """A validator for a string, or None where optional."""

    def check(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
        if not (isinstance(got, str) or (optional and got is None)):
            raise _bad(owner, attribute, "a string or None" if optional else "a string", got)

    return check


def instance(kind: type, optional: bool = False) -> _Validator:
    """A validator for an instance of one class, or None where optional."""

    def check(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
        if not (isinstance(got, kind) or (optional and got is None)):
            raise _bad(owner, attribute, f"a {kind.__name__}" + (" or None" if optional else ""), got)

    return check


def flag(optional: bool = False) -> _Validator:
    """A validator for a bool, or None where optional."""

    def check(owner: object, attribute: attrs.Attribute[Any], got: object) -> None:
        if not (isinstance(got, bool) or (optional and got is None)):
            raise _bad(owner, attribute, "True or False" + (" or None" if optional else ""), got)

    return check


@value
class DraftInfo:
    """What a draft source can do.

    Attributes:
        origin: where its tokens come from; recorded with every offer.
        layers: distinct MTP layers (0 for prompt lookup). A depth beyond it means that the last layer is recycled.
        depth: most tokens one draft may hold.
        context_length: most tokens (prompt included) after which it still drafts.
    """

    origin: Origin = field(default="mtp", validator=one_of(*ORIGINS))
    layers: int = field(default=1, validator=integer(0))
    depth: int = field(validator=integer(1))
    context_length: int = field(validator=integer(1))


@value
class RuntimeInfo:
    """What a runtime declares of itself; constant for the runtime's life.

    Attributes:
        backend: the backend's name, ``torch`` for example.
        model: name or path of the model.
        vocabulary: number of token ids; valid ids are ``0 <= id < vocabulary``.
        context_length: most tokens that one session may hold.
        rollback: ``crop`` (settle reaches any position), ``checkpoint`` (it reaches back over the rows of the newest
            forward that asked for it), or ``none`` (no speculative row may be fed).
        rollback_note: why rollback is not ``crop``, in a few words; empty: nothing to say.
        draft: the model's own MTP head, or None.
        max_batch: most calls that one element of the protocol accepts; 1 means one call at a time.
        threads: ``any`` thread may call (one at a time), or only the ``one`` that made its first decoder.
        row_exact: whether a row's result was measured not to depend on the rows beside it; None where not measured.
        stop_tokens: the model's own end-of-text ids (generation config, else config, else tokenizer).
        device, dtype: free words for people.
    """

    backend: str = field(validator=text())
    model: str = field(validator=text())
    vocabulary: int = field(validator=integer(1))
    context_length: int = field(validator=integer(1))
    rollback: Rollback = field(validator=one_of("crop", "checkpoint", "none"))
    rollback_note: str = field(default="", validator=text())
    draft: DraftInfo | None = field(default=None, validator=instance(DraftInfo, optional=True))
    max_batch: int = field(default=1, validator=integer(1))
    threads: Threads = field(default="any", validator=one_of("any", "one"))
    row_exact: bool | None = field(default=None, validator=flag(optional=True))
    stop_tokens: tuple[int, ...] = field(default=(), converter=tuple, validator=ids)
    device: str = field(default="", validator=text())
    dtype: str = field(default="", validator=text())


@value
class Limits:
    """How long a turn may run.

    Attributes:
        max_tokens: most tokens committed in the turn; None: up to the context's end. 0 runs no forward.
        min_tokens: so many tokens are committed before a stop id can be chosen (its logit is masked) and before a stop
            text is looked for. It does not delay ``stop_when``, a limit or a cancel.
    """

    max_tokens: int | None = field(default=None, validator=integer(0, optional=True))
    min_tokens: int = field(default=0, validator=integer(0))

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ConfigError(f"Limits.min_tokens ({self.min_tokens}) must not exceed Limits.max_tokens ({self.max_tokens})")


@value
class Stops:
    """What ends a turn from within the output.

    Attributes:
        tokens: ids that end the turn; the stop token itself is committed.
        texts: strings that end the turn at the token that completes one of them.
        ignore_eos: the model's own stop ids (``RuntimeInfo.stop_tokens``) do not stop, even where ``tokens`` names them.
    """

    tokens: tuple[int, ...] = field(default=(), converter=tuple, validator=ids)
    texts: tuple[str, ...] = field(default=(), converter=tuple)
    ignore_eos: bool = field(default=False, validator=flag())

    @texts.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_texts(self, attribute: attrs.Attribute[Any], got: tuple[object, ...]) -> None:
        for one in got:
            if not isinstance(one, str) or not one:
                raise _bad(self, attribute, "non-empty strings", one)


@value
class Processor:
    """A declared change of the logits before the choice.

    Attributes:
        name, params: what it is; names and plain values only.
        pure: whether it is a function of (row logits, true prefix, absolute index) alone.
    """

    name: str = field(validator=text())
    params: tuple[tuple[str, str | int | float | bool], ...] = field(default=(), converter=tuple)
    pure: bool = field(default=False, validator=flag())


@value
class Sampling:
    """How a row's token is chosen from its logits; a function of the row and its absolute index, never of a draft.

    The token chosen by the row at position ``p`` has the absolute index ``p + 1``.

    Attributes:
        temperature: 0.0, the argmax (lowest id on a tie). Others come with the sampling issue and are refused here.
        seed: the effective seed; no effect at temperature 0.
        processors: declared processors. A span runs only if all are pure and known.
        masked: ids that may not be chosen for an index below ``mask_until``.
        mask_until: absolute index from which the masked ids are allowed.
    """

    temperature: float = field(default=0.0)
    seed: int = field(default=0, validator=integer(0))
    processors: tuple[Processor, ...] = field(default=(), converter=tuple)
    masked: tuple[int, ...] = field(default=(), converter=tuple, validator=ids)
    mask_until: int = field(default=0, validator=integer(0))

    @temperature.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator, reportUnknownMemberType]
    def _check_temperature(self, attribute: attrs.Attribute[Any], got: object) -> None:
        if got != 0.0 or isinstance(got, bool):
            raise _bad(self, attribute, "0.0 (this version decodes greedily)", got)

    def masks(self, token: int, index: int) -> bool:
        """Whether ``token`` may not be chosen at this absolute index."""
        return index < self.mask_until and token in self.masked


@value
class Policy:
    """How much to draft.

    Attributes:
        kind: ``fixed``: every span asks for ``width`` tokens. ``auto``: for as many, up to ``width``, as promise the most tokens per
            time by what the session has measured, and for none while drafting does not pay (docs/explanation/adaptive-width.md).
        width: most drafted tokens per span; 0 turns speculation off (kind ``fixed`` only); at most 64 for kind ``auto``.
        min_draft: an offer shorter than this is not worth a span; the round goes serially. Clipping to a limit does not
            count as short.
        prefill_chunk: most rows of one prefill forward.
        give_up_after: after so many spans of a session without one accepted token drafting stops (``SpanRefused``
            ``never_accepted``); None: it goes on, with one warning in the log.
    """

    kind: Literal["fixed", "auto"] = field(default="fixed", validator=one_of("fixed", "auto"))
    width: int = field(default=3, validator=integer(0, 1024))
    min_draft: int = field(default=1, validator=integer(1))
    prefill_chunk: int = field(default=512, validator=integer(1))
    give_up_after: int | None = field(default=None, validator=integer(1, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.kind == "auto" and not 1 <= self.width <= WIDEST:
            raise ConfigError(
                f"Policy.width must be from 1 to {WIDEST} for kind 'auto', not {self.width}: a fixed width of 0 drafts nothing"
            )
        if self.width and self.min_draft > self.width:
            raise ConfigError(f"Policy.min_draft ({self.min_draft}) must not exceed Policy.width ({self.width})")
