"""A look at a loaded head: does what it drafts depend on what came before?

A head with a tensor in the wrong place often drafts one and the same token for ever. No output is wrong then, and nothing is gained either;
a log shows it after some dozen spans (the acceptance floor). This shows it when a checkpoint is loaded.
"""

from __future__ import annotations

import logging
from typing import Final

from ..engine.runtime import Ask, Draft, Forward, Rows, Runtime
from ..engine.values import Sampling

__all__ = ["constant_draft", "warn_of_a_constant_draft"]

log = logging.getLogger("spanfold.backends")

#: Prompts that are tried, of so many tokens.
_PROMPTS: Final = 8
_LENGTH: Final = 3
#: Far from the ids that decoders count up from 0.
_SESSION: Final = 2**40


def constant_draft(runtime: Runtime) -> int | None:
    """The token that the head drafts after every one of some prompts whose next tokens are not all the same; None: there is none.

    Runs one forward and one draft for each of eight prompts of three tokens, in sessions of its own.
    """
    info = runtime.info
    if info.draft is None or info.vocabulary < 2 or min(info.context_length, info.draft.context_length) <= _LENGTH:
        return None
    chosen: set[int] = set()
    drafted: set[int] = set()
    for number in range(_PROMPTS):
        prompt = tuple((7 + 31 * place + number * info.vocabulary // _PROMPTS) % info.vocabulary for place in range(_LENGTH))
        session = _SESSION + number
        runtime.open_session(session, Sampling(), True)
        try:
            (rows,) = runtime.forward((Forward(session=session, base=0, tokens=prompt, want="last", canonical=True),))
            if not isinstance(rows, Rows):
                return None
            current = rows.predictions[0]
            (draft,) = runtime.draft((Ask(session=session, current=current, limit=1),))
            if not isinstance(draft, Draft) or not draft.tokens:
                return None
        finally:
            runtime.drop_session(session)
        chosen.add(current)
        drafted.add(draft.tokens[0])
        if len(drafted) > 1:
            return None
    return drafted.pop() if len(chosen) > 1 else None


def warn_of_a_constant_draft(runtime: Runtime) -> None:
    """Say so once, in the log ``spanfold.backends``, where ``constant_draft`` finds one."""
    try:
        token = constant_draft(runtime)
    except Exception as error:  # whether this model decodes is for a session to find out
        log.debug("%s: the look at its MTP head failed: %s: %s", runtime.info.model, type(error).__name__, error)
        return
    if token is not None:
        log.warning(
            "%s: the MTP head drafts the token %d after each of %d prompts. Output will be right, speculation will be lost time: "
            "likely one of its tensors is another layer's, was made up, or was quantised to nothing (draft=False loads the target alone)",
            runtime.info.model,
            token,
            _PROMPTS,
        )
