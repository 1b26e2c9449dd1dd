"""Every run of a small scope: vocabulary 2, up to 3 drafts, up to 5 tokens, one trouble per run at every point where it can strike.

A run's choices are: how long each draft is and how much of it is right (rows after a mismatch are fixed), where a stop lies and of
which kind, and at which poll a cancel or at which runtime call which fault comes. After every step laws 1 to 5, 7 and 8 are
audited; the tokens are compared with the serial oracle.
"""

import logging

import laws
import pytest
from choices import explore
from serial_oracle import serial

from spanfold.backends.scripted import DeviceError, Fault, ScriptedRuntime, list_target
from spanfold.engine import DecodeFailed, Decoder, NotStarted, fold, redrive, state_violations, view_violations
from spanfold.engine.sharing import share_of

PATTERN = (0, 1, 1, 0, 1)


class Boom(Exception):
    pass


class Case:
    """One run: the truth, the stop, and the one trouble that the choices bring."""

    def __init__(self, choices, *, width, tokens, rollback, stop, trouble, context, early_exit):
        kind, at = stop
        self.choices, self.trouble, self.tokens = choices, trouble, tokens
        self.truth = tuple(int(index == at) for index in range(5)) if kind == "token" else PATTERN
        self.struck = None
        self.booms = 1
        self.runtime = ScriptedRuntime(
            list_target(self.truth, prompt=1, vocabulary=2),
            drafts=self.draft,
            rollback=rollback,
            faults=self.fault if trouble == "fault" else (),
            context_length=1 + tokens if context else 64,
            early_exit=early_exit,
            record=False,
        )
        self.options = {"policy": width, "max_tokens": None if context else tokens, "stop_tokens": (1,) if kind == "token" else ()}
        if kind == "when":
            self.options["stop_when"] = lambda token, index: index == at
        if kind == "error":
            self.options["stop_when"] = self.boom
            self.boom_at = at
        if trouble == "cancel":
            self.options["cancel"] = self.cancel
        self.expected = serial(
            lambda prefix, masked: self.truth[len(prefix) - 1],
            (0,),
            context=self.runtime.info.context_length,
            max_tokens=self.options["max_tokens"],
            stops=self.options["stop_tokens"],
            stop_when=self.options.get("stop_when") if kind == "when" else None,
        )

    def draft(self, head, limit):
        length = self.choices.pick(limit + 1)
        matched = self.choices.pick(length + 1)
        right = [self.truth[(head.rows + depth) % 5] for depth in range(length)]
        wrong = [1 - right[matched]] + [0] * (length - matched - 1) if matched < length else []
        return right[:matched] + wrong

    def cancel(self):
        if self.struck is None and self.choices.pick(2):
            self.struck = "cancel"
        return self.struck is not None

    def boom(self, token, index):
        if index == self.boom_at and self.booms:
            self.booms -= 1
            raise Boom
        return False

    def fault(self, name, session, request):
        if self.struck is not None:
            return None
        crashes = [{"started": False}, {"started": True}, {"started": True, "done": None}]
        options = {
            "open": crashes,
            "drop": crashes,
            "view": [*crashes[:2], {"wrong": "gone"}, {"wrong": "position"}],
            "draft": crashes,
            "settle": [*crashes, {"wrong": "position"}, {"wrong": "trim_noop"}, {"wrong": "trim_off_by_one"}],
            "forward": [
                *crashes,
                {"started": True, "done": 1, "exception": DeviceError},
                *({"wrong": wrong} for wrong in ("short", "long", "vocabulary", "position", "lost_row")),
            ],
        }[name]
        chosen = self.choices.pick(1 + len(options))
        if not chosen:
            return None
        self.struck = name
        return Fault(call=name, **options[chosen - 1])


def audit(session, runtime):
    state = session.state
    assert state_violations(state) == ()
    view = runtime.inspect(session.runtime_session)
    assert view_violations(state, view) == ()
    if view is not None:
        canonical = state.canonical[:]
        assert runtime.cache_rows(session.runtime_session) == canonical[: view.position]
        assert runtime.head_rows(session.runtime_session) == runtime.pairs(canonical)[: view.head_position or 0]


def run(choices, **scope):
    case = Case(choices, **scope)
    runtime, log = case.runtime, []
    decoder = Decoder(runtime, observers=(log.append,))
    tokens, reason, limit = case.expected
    delivered, dropping = [], False
    try:
        session = decoder.open((0,), **case.options)
    except (DecodeFailed, NotStarted):
        assert case.struck in ("open", "drop")
        session = None
    if session is not None:
        steps = 0
        while not session.finished:
            steps += 1
            assert steps < 20, "no progress"
            before = len(session.state.canonical)
            try:
                delivered += session.step()
            except (DecodeFailed, Boom):
                delivered += session.state.canonical[before:]
            audit(session, runtime)
        committed = list(session.state.canonical[1:])
        assert delivered == committed == laws.committed_tokens(log)
        if session.finish is None or session.finish.reason == "cancelled":
            assert case.struck is not None
            assert committed == tokens[: len(committed)], "law 6: what was committed before the trouble is a prefix"
        else:
            assert (committed, session.finish.reason, session.finish.limit) == (tokens, reason, limit), "law 6"
        dropping = case.struck == "drop"
        session.close()
        session.close()
        assert session.state.phase == "dropped"
        assert case.struck == "drop" or not dropping
    if case.struck != "drop":
        assert runtime.live_sessions == 0 and runtime.live_rows == 0, "law 8"
    assert share_of(runtime).live == 0, "law 8"
    state = fold(log)
    assert session is None or state == session.state, "law 7: the fold of the log is another state"
    checker = laws.read(log)
    assert not checker.found, "\n".join(map(str, checker.found))
    assert laws.differences(checker, state.stats) == []
    assert redrive(log) == log, "law 7: the same inputs were decided otherwise"


STOPS = [("none", 0), *((kind, at) for kind in ("token", "when", "error") for at in range(5))]

SCOPES = {
    "plain": [
        {"width": width, "tokens": tokens, "rollback": "crop", "stop": stop, "trouble": "none", "context": context, "early_exit": False}
        for width in (0, 1, 2, 3)
        for tokens in (0, 1, 2, 3, 4, 5)
        for context in (False, True)
        for stop in STOPS
        if stop[1] < max(tokens, 1)
    ],
    "rollback": [
        {"width": 3, "tokens": 5, "rollback": rollback, "stop": stop, "trouble": "none", "context": False, "early_exit": early}
        for rollback, early in (("crop", True), ("checkpoint", False), ("checkpoint", True), ("none", False))
        for stop in STOPS
    ],
    "cancel": [
        {"width": 3, "tokens": 5, "rollback": "checkpoint", "stop": stop, "trouble": "cancel", "context": False, "early_exit": False}
        for stop in STOPS
    ],
    "fault": [
        {"width": width, "tokens": tokens, "rollback": rollback, "stop": stop, "trouble": "fault", "context": False, "early_exit": False}
        for width, tokens, rollback, stops in (
            (3, 5, "crop", (("none", 0),)),
            (3, 4, "crop", (("token", 2), ("error", 2))),
            (3, 4, "checkpoint", (("none", 0), ("token", 2), ("error", 2), ("when", 1))),
        )
        for stop in stops
    ],
}


@pytest.mark.parametrize("name", SCOPES)
def test_every_run_of_the_small_scope_keeps_the_laws(name, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("spanfold.engine"), "disabled", True)  # thousands of warnings, all expected
    count = 0
    for scope in SCOPES[name]:
        try:
            count += explore(lambda choices, scope=scope: run(choices, **scope))
        except BaseException as error:
            error.add_note(f"scope: {scope}")
            raise
    with capsys.disabled():
        print(f"\n  small scope, {name}: {count} runs", end="", flush=True)
    assert count > 1000
