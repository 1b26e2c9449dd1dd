"""Takes the measurements of a plan: processes alternate, prompt by prompt, until the time is up."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from .environments import FOLDERS, PEERS, PeerError, Worker, python_of
from .figures import first_difference
from .plan import Plan
from .store import Store

Say = Callable[[str], object]

OWN: Final = "spanfold"
_WARM_UP_TOKENS: Final = 6
_TUNING_TOKENS: Final = 32
#: A decode that takes longer than this per token is given up.
_LIMIT_S_PER_TOKEN: Final = 5.0


@define
class Entry:
    """One way to decode: a worker and the setting that it is given."""

    worker: str
    way: str
    setting: dict[str, Any]


@define
class Measurement:
    """The state of one plan while it is carried out."""

    plan: Plan
    store: Store
    cache: Path
    say: Say
    _workers: dict[str, Worker] = field(factory=dict, init=False)
    _prompts: list[list[int]] = field(factory=list, init=False)

    def run(self) -> None:
        """Carry out the plan, as far as the time allows."""
        began = time.monotonic()
        try:
            self._start()
            until = time.monotonic() + self.plan.minutes * 60  # exports and loading happen once, and take what they take
            entries = self._entries()
            self._warm_up(entries)
            self._rows()
            self._decodes(entries, until)
        finally:
            for worker in self._workers.values():
                worker.stop()
            spent = (self.store.get("seconds") or {"seconds": 0.0})["seconds"]
            self.store.put({"seconds": spent + time.monotonic() - began}, "seconds")

    # -- starting ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        plan = self.plan
        for name in (OWN, *plan.peers):
            try:
                folder = "own" if name == OWN else FOLDERS[name]
                python = Path(sys.executable) if name == OWN else python_of(name, self.cache)
                given = {"model": plan.folder, "dtype": plan.dtype, "threads": plan.threads, "backend": plan.backend}
                given["row_width"] = plan.row_width
                given["cache"] = str(self.cache / "exports" / f"{name}-{Path(plan.folder).name}-{plan.weights}")
                worker = Worker(
                    name,
                    python,
                    PEERS / folder / "peer.py",
                    given,
                    self.cache / "logs" / f"{plan.backend}-{plan.kind}-{plan.dtype}-{name}.log",
                )
                self.say(f"starting {name}")
                worker.start()
                self._workers[name] = worker
                self.store.put(worker.ask("hello"), "hello", name)
            except PeerError as error:
                if name == OWN:
                    raise
                stopped = self._workers.pop(name, None)
                if stopped is not None:
                    stopped.stop()
                self.say(f"{name}: {error}")
                self.store.put({"error": str(error)}, "hello", name)
        self._prompts = [self._workers[OWN].ask("encode", text=text)["ids"] for text in (*plan.prompts, *plan.tuning)]

    def _entries(self) -> list[Entry]:
        entries: list[Entry] = []
        for name in self._workers:
            for way, settings in (self.store.get("hello", name) or {})["groups"].items():
                chosen = settings[0] if len(settings) == 1 else self._tuned(name, way, settings)
                entries.append(Entry(name, way, chosen))
        return entries

    def _tuned(self, name: str, way: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
        """The fastest setting on the tuning prompts: decoded alternately, twice, the better time of each prompt counts."""
        kept = self.store.get("tuned", name, way)
        if kept is None:
            self.say(f"choosing a setting of {name}, {way}")
            prompts = self._prompts[len(self.plan.prompts) :]
            best: dict[str, list[float]] = {setting["label"]: [float("inf")] * len(prompts) for setting in settings}
            count = min(_TUNING_TOKENS, (self.plan.max_tokens + 1) // 2)
            for at, setting in [(at, setting) for _ in range(2) for at in range(len(prompts)) for setting in settings]:
                reply = self._decode(name, prompts[at], count, setting)
                behind = len(reply["tokens"]) - reply["first"]
                if behind > 0:
                    took = best[setting["label"]]
                    took[at] = min(took[at], reply["rest_ns"] / behind / 1e6)
            means = {label: statistics.fmean(took) for label, took in best.items()}
            kept = {label: mean for label, mean in means.items() if mean < float("inf")}
            self.store.put(kept, "tuned", name, way)
        fastest = min(kept, key=lambda label: kept[label], default=settings[0]["label"])
        return next(setting for setting in settings if setting["label"] == fastest)

    def _decode(self, name: str, prompt: list[int], tokens: int, setting: dict[str, Any]) -> dict[str, Any]:
        limit = 60 + _LIMIT_S_PER_TOKEN * tokens
        return self._workers[name].ask("decode", limit, prompt=prompt, tokens=tokens, setting=setting)

    def _warm_up(self, entries: list[Entry]) -> None:
        self.say("warming up")
        for entry in entries:
            self._decode(entry.worker, self._prompts[0], min(_WARM_UP_TOKENS, self.plan.max_tokens), entry.setting)

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _rows(self) -> None:
        """Bare forwards by rows, ours and ONNX Runtime's in turn."""
        plan = self.plan
        for turn in range(plan.row_rounds):
            for name in (OWN, "onnxruntime"):
                if name not in self._workers or self.store.get("rows", turn, name) is not None:
                    continue
                self.say(f"forwards by rows, round {turn + 1} of {plan.row_rounds}")
                reply = self._workers[name].ask("rows", past=plan.past, rows=[1, 2, 3, 4, 5], repeats=plan.row_repeats)
                self.store.put(reply["ns"], "rows", turn, name)

    def _decodes(self, entries: list[Entry], until: float) -> None:
        plan = self.plan
        longest = 0.0
        for turn in range(plan.turns):
            for number in range(len(plan.prompts)):
                began = time.monotonic()
                if (turn or number) and began + longest > until:
                    self.say(f"the time is up after {number} prompts of turn {turn + 1}")
                    return
                self.say(f"turn {turn + 1} of {plan.turns}, prompt {number + 1} of {len(plan.prompts)}")
                self._prompt(entries, turn, number)
                longest = max(longest, time.monotonic() - began)

    def _prompt(self, entries: list[Entry], turn: int, number: int) -> None:
        """One prompt by every way, begun by another one each time; then the margins where tokens part from the serial ones."""
        if number >= self.plan.peer_prompts:
            entries = [entry for entry in entries if entry.worker == OWN]
        start = (turn + number) % len(entries)
        for entry in [*entries[start:], *entries[:start]]:
            key = ("decode", turn, number, entry.worker, entry.way)
            if self.store.get(*key) is None and entry.worker in self._workers:
                try:
                    reply = self._decode(entry.worker, self._prompts[number], self.plan.max_tokens, entry.setting)
                except PeerError as error:
                    if entry.worker == OWN:
                        raise
                    self.say(f"{entry.worker}: {error}")
                    reply = {"error": str(error)}
                self.store.put(reply, *key)
        serial = self.store.get("decode", turn, number, OWN, "serial") or {}
        for entry in entries:
            reply = self.store.get("decode", turn, number, entry.worker, entry.way) or {}
            where = first_difference(serial["tokens"], reply["tokens"]) if "tokens" in reply else None
            if where is not None and self.store.get("margin", number, where) is None:
                margin = self._workers[OWN].ask("margin", prompt=self._prompts[number], index=where)
                self.store.put(margin, "margin", number, where)
