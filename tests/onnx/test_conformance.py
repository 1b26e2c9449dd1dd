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
TestGenaiInt4 = exports(of={"precision": "int4"}, margin=1.0, drafts=0.1)
TestGenaiInt4Padded = exports(of={"precision": "int4"}, row_width=2)
TestGenaiInt4WithoutHead = exports(of={"precision": "int4", "head": False}, margin=1.0)
TestGenaiFloat16 = exports(of={"precision": "float16"}, margin=0.05, drafts=0.05)
TestGenaiApart = exports(share_buffers=False, margin=1e-3)
TestGenaiScores = exports(of={"ids": False})
TestDraftVocabulary = exports(of={"vocabulary": HEAD_IDS}, draft_depth=4, draft_context_length=50)
TestOrdinary = exports("ordinary", margin=1e-3)
TestOrdinaryWithoutHead = exports("ordinary", of={"head": False, "mask": None}, margin=1e-3)
TestOrdinaryWithPositions = exports("ordinary", of={"positions": True, "mask": "float", "head_positions": True}, margin=1e-3)
TestOrdinaryInt4 = exports("ordinary", of={"precision": "int4"}, margin=1.0, drafts=0.1)


@pytest.mark.parametrize("of", [{}, {"precision": "int4", "row_width": 2}])
def test_what_the_kit_is_told_to_be_exact_says_so(of: dict[str, Any]) -> None:
    options = {"row_width": of["row_width"]} if "row_width" in of else {}
    assert tiny_runtime(of={key: value for key, value in of.items() if key != "row_width"}, **options).info.row_exact is True
