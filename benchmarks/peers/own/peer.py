"""spanfold itself, by the protocol of its peers: decodes with the account of every round, and bare forwards by rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

sys.path += [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from protocol import Handler, Stamps, options, serve, timed_rows
from speedbench.recorded import recorded_costs

from spanfold.backends.descriptors import SCRIPTED, TORCH
from spanfold.engine import (
    DecodeFailed,
    Decoder,
    Extras,
    Forward,
    Prefilled,
    Record,
    Rows,
    Sampling,
    SerialDecoded,
    SessionOpened,
    Settle,
)
from spanfold.engine.registry import Opened, OpenOptions

#: Most tokens per draft that are measured at a fixed width.
WIDTHS = (1, 2, 3, 4)
_ROWS_SESSION = 10**6  # far from the ids that decoders count up from 0


def versions(model: str, backend: str) -> dict[str, str]:
    import platform

    found = {"python": platform.python_version()}
    if model == "scripted":
        return found
    if backend == "onnx":
        import onnxruntime

        return found | {"onnxruntime": onnxruntime.__version__}
    import torch
    import transformers

    return found | {"torch": str(torch.__version__), "transformers": transformers.__version__}


class Own:
    """One opened model, and an answer to each of the requests."""

    def __init__(self, opened: Opened, model: str, backend: str) -> None:
        self._opened, self._runtime, self._model, self._backend = opened, opened.runtime, model, backend
        # One decoder per setting for all prompts, as a program would have it.
        self._decoders: dict[int | None, Decoder] = {}
        self._records: list[Record] = []

    def hello(self, request: dict[str, Any]) -> dict[str, Any]:
        depth = 0 if self._runtime.info.draft is None else self._runtime.info.draft.depth
        settings: list[dict[str, Any]] = [{"label": "serial", "width": 0}]
        if depth:
            settings += [{"label": f"k={k}", "width": k} for k in WIDTHS if k <= depth]
            settings.append({"label": "default", "width": None})
        return {
            "versions": versions(self._model, self._backend),
            "notes": [],
            "groups": {one["label"]: [one] for one in settings},
            "row_exact": self._runtime.info.row_exact is True,
        }

    def encode(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"ids": list(self._opened.encode(request["text"], None))}

    def _decoder(self, width: int | None) -> Decoder:
        if width not in self._decoders:
            chosen: dict[str, Any] = {} if width is None else {"policy": width}
            self._decoders[width] = Decoder(self._runtime, observers=[self._records.append], **chosen)
        return self._decoders[width]

    def decode(self, request: dict[str, Any]) -> dict[str, Any]:
        decoder = self._decoder(request["setting"]["width"])
        self._records.clear()
        tokens: list[int] = []
        stamps = Stamps()
        with decoder.stream(request["prompt"], max_tokens=request["tokens"]) as stream:
            for token in stream:
                tokens.append(token)
                stamps.delivered(1)
        stats = stream.result.stats
        policy = next(record.event for record in self._records if isinstance(record.event, SessionOpened)).policy
        account = {name: getattr(stats, name) for name in ("spans", "span_tokens", "serial_steps", "verified", "accepted")}
        account["accepted_per_depth"] = list(stats.accepted_per_depth)
        account["verified_per_depth"] = list(stats.verified_per_depth)
        costs = recorded_costs(self._records)
        return stamps.reply(tokens) | {"policy": policy.kind, "width": policy.width, "costs": costs, "stats": account}

    def margin(self, request: dict[str, Any]) -> dict[str, Any]:
        """How far apart the two best tokens are at one index of the output, decoded without speculation."""
        margins: list[float | None] = []

        def observe(record: Record) -> None:
            if isinstance(record.event, (Prefilled, SerialDecoded)):
                margins.append(record.event.margin)

        with Decoder(self._runtime, policy=0, source="none", observers=[observe], extras=Extras(margins=True)) as decoder:
            try:
                decoder.generate(request["prompt"], max_tokens=request["index"] + 1)
            except DecodeFailed:
                return {"margin": None}  # the runtime cannot tell margins
        return {"margin": margins[request["index"]] if len(margins) > request["index"] else None}

    def rows(self, request: dict[str, Any]) -> dict[str, Any]:
        """Bare forwards over a cache of ``past`` rows: the call of the protocol, its choice of tokens included."""
        past, runtime = request["past"], self._runtime
        runtime.open_session(_ROWS_SESSION, Sampling(), False)
        prompt = tuple(1 + at % 7 for at in range(past))
        runtime.forward((Forward(session=_ROWS_SESSION, base=0, tokens=prompt, want="last", canonical=True),))

        def run(count: int) -> None:
            call = Forward(session=_ROWS_SESSION, base=past, tokens=(7,) * count, want="all", canonical=False)
            position = cast(Rows, runtime.forward((call,))[0]).position
            runtime.settle((Settle(session=_ROWS_SESSION, base=past, rows=position - past, position=past),))

        try:
            return timed_rows(run, request)
        finally:
            runtime.drop_session(_ROWS_SESSION)


def opened_by(given: dict[str, Any]) -> Opened:
    model: str = given["model"]
    if model == "scripted":
        return SCRIPTED.open(OpenOptions())
    if given.get("backend", "torch") == "onnx":
        from spanfold.backends.onnx import OnnxRuntime
        from spanfold.backends.tokenizer_text import encoder, from_transformers

        runtime = OnnxRuntime.from_directory(model, threads=given["threads"], row_width=given.get("row_width"))
        return Opened(runtime=runtime, text=from_transformers(runtime.tokenizer), encode=encoder(runtime.tokenizer))
    import torch

    torch.set_num_threads(given["threads"])
    return TORCH.open(OpenOptions(model=model, dtype=given["dtype"]))


def start() -> dict[str, Handler]:
    given = options()
    own = Own(opened_by(given), given["model"], given.get("backend", "torch"))
    return {"hello": own.hello, "encode": own.encode, "decode": own.decode, "margin": own.margin, "rows": own.rows}


if __name__ == "__main__":
    serve(start)
