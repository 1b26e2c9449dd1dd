"""Runtimes over the tiny exports of ``onnx_models``, each exported and loaded once per test run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from onnx_models import export

from spanfold.backends.onnx import OnnxRuntime
from spanfold.backends.onnx.loading import Loaded, load
from spanfold.backends.onnx.providers import Device

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def exported(**options: Any) -> Path:
    """The directory of a tiny export."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return export(Path(_KEPT[-1].name) / "model", **options)


@cache
def loaded(**options: Any) -> Loaded:
    cpu = Device("cpu")
    return load(exported(**options), device=cpu, draft=True, provider_options=None, threads=1, session_options=None)


def tiny_runtime(kind: str = "genai", *, of: dict[str, Any] | None = None, **options: Any) -> OnnxRuntime:
    """A runtime. ``of``: options of the export; the others are the runtime's."""
    return OnnxRuntime(loaded(kind=kind, **(of or {})), device=Device("cpu"), name=f"tiny {kind}", **options)


class _Failing:
    def __init__(self, session: Any, error: BaseException) -> None:
        self._session, self._error = session, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        self._session.run_with_iobinding(binding, options)  # the rows are written
        raise self._error


@contextmanager
def failing(graph: Any, error: BaseException | None = None) -> Iterator[None]:
    """Runs of this graph write their rows and then raise."""
    session = graph.session
    graph.session = _Failing(session, error or RuntimeError("half-way"))
    try:
        yield
    finally:
        graph.session = session


@contextmanager
def half_way(runtime: Any) -> Iterator[None]:
    with failing(runtime._target.graph):
        yield
