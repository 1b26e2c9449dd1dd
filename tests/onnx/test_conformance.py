"""The conformance kit on the ONNX backend: both kinds of export, every precision, with a head and without.

``margin`` 0.0 where rows were measured to be exact; else the bound below which a choice may differ (docs/explanation/numerics.md).
"""

from __future__ import annotations

from typing import Any

import pytest
from onnx_models import HEAD_IDS
from onnx_runtimes import half_way, tiny_runtime

from spanfold.backends.conformance import conform


def exports(kind: str = "genai", of: dict[str, Any] | None = None, margin: float = 0.0, drafts: float = 0.0, **options: Any) -> type:
    return conform(lambda: tiny_runtime(kind, of=of, **options), margin=margin, draft_differences=drafts, fail=half_way, examples=8)


TestGenai = exports()
TestGenaiWithoutHead = exports(of={"head": False})
TestGenaiInt4 = exports(of={"precision": "int4"})
TestGenaiInt4WithoutHead = exports(of={"precision": "int4", "head": False})
TestGenaiInt4Unpadded = exports(of={"precision": "int4"}, margin=1.0, drafts=0.1, row_width=1)
TestGenaiFloat16 = exports(of={"precision": "float16"})
TestGenaiApart = exports(share_buffers=False)
TestDraftVocabulary = exports(of={"vocabulary": HEAD_IDS, "ids": False}, draft_depth=4, draft_context_length=50)
TestOrdinary = exports("ordinary")
TestOrdinaryWithoutHead = exports("ordinary", of={"head": False, "mask": None})
TestOrdinaryUnpadded = exports("ordinary", of={"positions": True, "mask": "float", "head_positions": True}, margin=1e-3, row_width=1)


@pytest.mark.parametrize("kind", ["genai", "ordinary"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int4"])
def test_what_the_kit_is_told_to_be_exact_says_so(kind: str, precision: str) -> None:
    assert tiny_runtime(kind, of={"precision": precision}).info.row_exact is True
