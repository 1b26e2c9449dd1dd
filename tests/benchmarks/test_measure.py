"""Processes take turns, settings are chosen on other prompts, and a peer that fails takes nothing down with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import speedbench.measure as measure
from attrs import evolve
from speedbench.environments import PEERS, PeerError
from speedbench.measure import Measurement
from speedbench.plan import Plan
from speedbench.store import Store
from speedbench.summary import summarise

#: A peer with two ways over the toy model, one of them slower in one of its settings by a token's worth of busy work; its tokens
#: are right but for one prompt, and another prompt it cannot decode.
STUB = """
import sys
sys.path.append({peers!r})
from protocol import NotApplicable, Stamps, serve
from spanfold.backends.scripted.toy import open_toy
from spanfold.engine import Decoder

def start():
    runtime = open_toy()
    def decode(request):
        spent = sum(range(request["setting"].get("work", 0)))
        if bytes(request["prompt"]) == b"refused":
            raise NotApplicable("not this one")
        stamps = Stamps()
        tokens = []
        with Decoder(runtime, policy=0) as decoder:
            for token in decoder.stream(request["prompt"], max_tokens=request["tokens"]):
                tokens.append(token)
                stamps.delivered(1)
                spent = sum(range(request["setting"].get("work", 0)))
        if bytes(request["prompt"]) == b"other":
            tokens[3] += 1
        return stamps.reply(tokens)
    lookup = [{{"label": "slow", "work": 200000}}, {{"label": "quick"}}]
    groups = {{"generate": [{{"label": "plain"}}], "lookup": lookup}}
    hello = lambda request: {{"versions": {{"transformers": "0"}}, "notes": ["a note"], "groups": groups}}
    return {{"hello": hello, "decode": decode}}

serve(start)
"""


def python_here(name: str, cache: Path) -> Path:
    if name == "economize":
        raise PeerError("not made")
    return Path(sys.executable)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    peers = tmp_path / "peers"
    (peers / "stub").mkdir(parents=True)
    (peers / "stub" / "peer.py").write_text(STUB.format(peers=str(PEERS)), encoding="utf-8")
    (peers / "own").symlink_to(PEERS / "own")
    monkeypatch.setattr(measure, "PEERS", peers)
    monkeypatch.setattr(measure, "FOLDERS", {"transformers": "stub", "economize": "stub"})
    monkeypatch.setattr(measure, "python_of", python_here)
    return Plan(
        model="scripted",
        kind="scripted",
        folder="scripted",
        weights="0",
        dtype="float32",
        threads=1,
        prompts_file="prompts.json",
        prompts_sha256="0" * 64,
        prompts=("one", "other", "refused", "last"),
        tuning=("tuning",),
        max_tokens=16,
        turns=1,
        minutes=5.0,
        row_rounds=1,
        row_repeats=1,
        past=8,
        peers=("transformers", "economize"),
        peer_prompts=3,
    )


def test_a_plan_is_carried_out_with_peers(plan: Plan, tmp_path: Path):
    said: list[str] = []
    store = Store(tmp_path / "raw.jsonl", resume=False)
    Measurement(plan, store, tmp_path / "cache", said.append).run()
    result = summarise(plan, store)
    assert result.prompts_done == 4
    plain, lookup, missing = result.peers
    assert (plain.way, lookup.way, lookup.setting, set(lookup.tuned)) == ("generate", "lookup", "quick", {"slow", "quick"})
    # Of its three prompts one has other tokens (the toy tells no margins, so nothing is forgiven) and one was refused.
    assert (plain.runs, plain.pairs, plain.differs, plain.ties) == (2, 1, 1, 0)
    assert plain.versus["serial"] is not None and "transformers: a note" in result.notes
    assert missing.unavailable == "not made" and "economize: not made" in said
    assert all(one.differs == 0 for one in result.settings)
    begun = [next(key[3:] for key in store.having() if key[:3] == ("decode", "0", str(prompt))) for prompt in (0, 1)]
    assert begun[0] != begun[1], "every prompt is begun by another way"

    again = Store(tmp_path / "raw.jsonl", resume=True)
    Measurement(plan, again, tmp_path / "cache", said.append).run()
    assert evolve(summarise(plan, again), seconds=0) == evolve(result, seconds=0), "nothing is measured twice"


def test_no_prompt_is_begun_when_the_time_is_up(plan: Plan, tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    said: list[str] = []
    Measurement(evolve(plan, minutes=0.0, peers=()), store, tmp_path / "cache", said.append).run()
    assert summarise(plan, store).prompts_done == 1 and said[-1] == "the time is up after 1 prompts of turn 1"
