"""Whether the exported graphs compute what torch computes: reference rows from torch, and the comparison.

The sequences are prompts with torch's own greedy continuation. The exported target reads them as a decode does (the prompt at once,
then one row and four rows in turn, with its cache); torch computes all rows in one forward. The exported head and torch's both read
the exported target's hidden states, then draft on from their own output for a few steps.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch and transformers carry partial type information.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from attrs import asdict, frozen

from ...engine.errors import ConfigError
from ..torch.caches import RowCache
from ..torch.head import MtpHead
from ..torch.loading import Loaded
from .sources import head_dim

__all__ = ["BOUNDS", "CHAIN", "PROMPT_TOKENS", "Bound", "Found", "compare", "reference", "sequences", "verdict"]

Array = np.ndarray[Any, Any]

#: Prompt tokens and continuation of each sequence, and steps of the head on its own output.
PROMPT_TOKENS: Final = 48
_CONTINUATION: Final = 32
CHAIN: Final = 3

#: Real text of several kinds: a model that writes only one of them still sees its own.
TEXTS: Final = (
    """def read_lines(path, encoding='utf-8'):
    'Return the lines of a text file, without their ends.'
    with open(path, encoding=encoding) as file:
        return [line.rstrip('\\n') for line in file]


def count_words(lines):
""",
    """The tide table on the harbour wall had been painted over twice, but under the newer coats one could still read the old numbers, and
the fishermen went by those. When the wind turned in the afternoon""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError('pop from an empty stack')
""",
)


@frozen(kw_only=True)
class Bound:
    """What a precision is held to.

    Attributes:
        error: greatest difference of a logit, as a share of the greatest logit's size; None: not held to one.
        agreement: least share of rows whose best id is torch's own.
    """

    error: float | None
    agreement: float


#: float32 differs by the order of sums alone. float16 rounds weights and activations. int4 is another model near the first one:
#: its logits differ freely, and what it is held to is that it still mostly chooses alike.
BOUNDS: Final[Mapping[str, Bound]] = {
    "fp32": Bound(error=1e-3, agreement=0.99),
    "fp16": Bound(error=3e-2, agreement=0.9),
    "int4": Bound(error=None, agreement=0.5),
}


@frozen(kw_only=True)
class Found:
    """What one part of the export was found to do, over all sequences.

    Attributes:
        rows: compared.
        agreement: share of rows whose best id is torch's own.
        error: greatest difference of a logit, as a share of the greatest logit's size.
        margin: greatest distance of torch's two best logits at a row whose best id differs; 0.0 where none does.
    """

    rows: int
    agreement: float
    error: float
    margin: float


@torch.no_grad()
def sequences(loaded: Loaded) -> dict[str, Array]:
    """The token sequences to compare over: prompts, each with torch's greedy continuation."""
    config = loaded.model.config
    room = min(int(config.max_position_embeddings) - CHAIN - 1, PROMPT_TOKENS + _CONTINUATION)
    found: dict[str, Array] = {}
    for at, prompt in enumerate(_prompts(loaded)):
        ids = torch.tensor([prompt[: max(room - _CONTINUATION, room // 2)]])
        while ids.shape[1] < room:
            best = loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, best], dim=1)
        found[f"p{at}"] = ids[0].numpy().astype(np.int64)
    return found


def _prompts(loaded: Loaded) -> list[list[int]]:
    if loaded.tokenizer is None:
        # No text belongs to such a checkpoint: ids from all over its vocabulary.
        size = int(loaded.model.config.vocab_size)
        return [[(7 + 131 * at * (seed + 1)) % size for at in range(PROMPT_TOKENS)] for seed in range(len(TEXTS))]
    return [[int(one) for one in loaded.tokenizer(text)["input_ids"]][:PROMPT_TOKENS] for text in TEXTS]


def reference(loaded: Loaded, tokens: Array, hidden: Array) -> dict[str, Array]:
    """The rows that torch computes for one sequence.

    Args:
        loaded: the checkpoint.
        tokens: ``[n]``.
        hidden: ``[n, hidden]``, the exported target's hidden states: the head is judged by what it makes of what it is given.

    Returns:
        ``logits`` ``[n, vocabulary]``; with a head ``head_logits``, one row for each pair and then for each step on the head's own
        output, and the ids that it drafts, ``draft_ids``.
    """
    with torch.no_grad():
        ids = torch.from_numpy(tokens)[None]
        made: dict[str, Array] = {"logits": loaded.model(input_ids=ids, use_cache=False).logits[0].numpy()}
        if loaded.head is not None:
            made |= _head_reference(loaded, loaded.head, ids, torch.from_numpy(hidden)[None])
    return made


def _head_reference(loaded: Loaded, head: MtpHead, ids: Any, hidden: Any) -> dict[str, Array]:
    config = loaded.model.config
    pairs = ids.shape[1] - 1
    cache = RowCache(1, config.num_key_value_heads, head_dim(loaded), pairs + CHAIN, hidden.dtype, hidden.device)
    vocabulary = loaded.draft_vocab

    def scored(z: Any) -> Any:
        scores = head.scores(z)
        return scores if vocabulary is None else scores[..., vocabulary]

    def drafted(scores: Any) -> Any:
        best = scores.argmax(-1)
        return best if vocabulary is None else vocabulary[best]

    rows = [head(ids[:, 1:], hidden[:, :-1], torch.arange(1, pairs + 1)[None], cache)]
    for step in range(CHAIN):
        z = rows[-1][:, -1:]
        rows.append(head(drafted(scored(z)), z, torch.tensor([[pairs + 1 + step]]), cache))
    scores = scored(torch.cat(rows, dim=1))
    return {"head_logits": scores[0].numpy(), "draft_ids": drafted(scores)[0].numpy()}


def compare(wanted: Sequence[Mapping[str, Array]], made: Sequence[Mapping[str, Array]], logits: str, ids: str) -> Found:
    """Compare one part of the export with torch, over all sequences.

    Args:
        wanted: torch's arrays, per sequence.
        made: the export's.
        logits: their name for the logits, ``[n, ids]``.
        ids: their name for the best id of each row, ``[n]``; torch's may be left out where it is the place in the row.
    """
    rows, equal, error, size, margin = 0, 0, 0.0, 0.0, 0.0
    for ours, theirs in zip(wanted, made, strict=True):
        best = ours.get(ids)
        same = theirs[ids] == (ours[logits].argmax(-1) if best is None else best)
        rows, equal = rows + len(same), equal + int(same.sum())
        # numpy's maximum, in which not-a-number wins.
        error = float(np.maximum(error, np.abs(ours[logits] - theirs[logits]).max()))
        size = max(size, float(np.abs(ours[logits]).max()))
        if not same.all():
            two = np.partition(ours[logits][~same], -2, axis=-1)[:, -2:]
            margin = max(margin, float((two[:, 1] - two[:, 0]).max()))
    return Found(rows=rows, agreement=equal / rows, error=error / size, margin=margin)


def verdict(part: str, found: Found, precision: str) -> dict[str, Any]:
    """What is written into the manifest of a part that is as good as its precision has to be.

    Raises:
        ConfigError: it is not; the message says by how much it differs.
    """
    bound = BOUNDS[precision]
    off = bound.error is not None and not found.error <= bound.error
    if off or found.agreement < bound.agreement:
        allowed = f"{bound.agreement:.0%} of the rows alike" + ("" if bound.error is None else f" and logits within {bound.error:.0e}")
        raise ConfigError(
            f"the exported {part} does not compute what torch does: {found.agreement:.1%} of {found.rows} rows choose alike, logits differ "
            f"by up to {found.error:.1e} of the greatest; {precision} has to have {allowed}. Nothing was written"
        )
    return asdict(found)
