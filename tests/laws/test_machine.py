"""A state machine over one runtime: sessions opened, stepped, extended, rewound, cancelled, closed, broken and resumed, interleaved.

After every rule the whole world is audited: laws 1 to 5 over every log, law 7, the runtime's own numbers, the rows in its caches, the
live sessions. The model of a session is only its expected canonical tokens, extended by the target function itself.
"""

import laws
from harness import Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from worlds import choice, drafts, masked_best, scores

from spanfold.backends.scripted import Fault
from spanfold.engine import ConfigError, DecodeFailed, Policy, SessionClosed, TooManySessions, fold, redrive
from spanfold.engine.sharing import share_of

VOCABULARY = 5
CONTEXT = 40
BOUND = 4
IDS = st.integers(0, VOCABULARY - 1)
STOPS = st.lists(IDS, max_size=2, unique=True).map(tuple)


@st.composite
def turns(draw):
    most = draw(st.one_of(st.none(), st.integers(0, 12)))
    return {
        "max_tokens": most,
        "min_tokens": draw(st.integers(0, 3 if most is None else min(most, 3))),
        "stop_tokens": draw(st.one_of(st.none(), STOPS)),
        "ignore_eos": draw(st.booleans()),
    }


class Model:
    """What one session must hold: its canonical tokens, and the turn they were made in."""

    def __init__(self, session, prompt, turn, own):
        self.session = session
        self.canonical = list(prompt)
        self.own = own
        self.cancelled = False
        self.begin(turn)

    def begin(self, turn):
        self.turn, self.start = turn, len(self.canonical)
        stops = self.own if turn["stop_tokens"] is None else turn["stop_tokens"]
        self.stops = set(stops) - set(self.own) if turn["ignore_eos"] else set(stops)

    @property
    def live(self):
        return self.session.state.phase != "dropped"


POLICIES = st.sampled_from([0, 1, 2, 3, Policy(kind="auto", width=3)])


class Sessions(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    @initialize(data=st.data())
    def world(self, data):
        draw = data.draw
        seed = draw(st.integers(0, 1000))
        self.best = masked_best(choice(seed, VOCABULARY), VOCABULARY)
        self.own = draw(STOPS)
        self.policy = Policy(width=3, min_draft=draw(st.integers(1, 2)), prefill_chunk=draw(st.sampled_from([2, 512])))
        self.bench = Bench(
            scores(choice(seed, VOCABULARY), VOCABULARY),
            vocabulary=VOCABULARY,
            context_length=CONTEXT,
            drafts=drafts(draw),
            rollback=draw(st.sampled_from(["crop", "crop", "checkpoint", "none"])),
            backlog=draw(st.sampled_from([1, 3, 64])),
            early_exit=draw(st.booleans()),
            head=draw(st.sampled_from([True, True, True, False])),
            stop_tokens=self.own,
            record=False,
            policy=self.policy,
            source=draw(st.sampled_from(["auto", "auto", "prompt_lookup"])),
            decoder={"max_sessions": BOUND},
        )
        self.models = []
        self.faulty = False
        self.leaky = False

    # -- what can happen

    @rule(
        target=sessions,
        prompt=st.lists(IDS, min_size=1, max_size=8),
        turn=turns(),
        policy=POLICIES,
    )
    def open(self, prompt, turn, policy):
        full = sum(model.live for model in self.models) >= BOUND
        model = Model(None, prompt, turn, self.own)
        try:
            model.session = self.bench.decoder.open(prompt, policy=policy, cancel=lambda: model.cancelled, **turn)
        except TooManySessions as error:
            assert full and error.live == error.bound == BOUND
            return multiple()
        except DecodeFailed:
            assert self.faulty
            return multiple()
        assert not full
        self.models.append(model)
        return model

    @rule(model=sessions, rounds=st.integers(1, 4))
    def step(self, model, rounds):
        for _ in range(rounds):
            before = len(model.session.state.canonical)
            try:
                tokens = model.session.step()
            except SessionClosed:
                assert not model.live and model.session.finish is None
                return
            except DecodeFailed:
                assert self.faulty
                tokens = model.session.state.canonical[before:]
            self.commit(model, tokens)

    def commit(self, model, tokens):
        for token in tokens:
            early = len(model.canonical) - model.start < model.turn["min_tokens"]
            assert token == self.best(tuple(model.canonical), model.stops if early else ()), "law 6: not the target's own choice"
            model.canonical.append(token)

    @rule(model=sessions, tokens=st.lists(IDS, max_size=4), turn=turns())
    def extend(self, model, tokens, turn):
        try:
            model.session.extend(tokens, cancel=lambda: model.cancelled, **turn)
        except SessionClosed:
            assert not model.live
        except ConfigError:
            assert len(model.canonical) + len(tokens) > CONTEXT
        except DecodeFailed:
            assert self.faulty
        else:
            model.cancelled = False  # the new turn's own; a refused extension leaves the old finish as it was
            model.canonical += tokens
            model.begin(turn)

    @rule(model=sessions, count=st.integers(0, 12))
    def rewind(self, model, count):
        try:
            model.session.rewind(count)
        except SessionClosed:
            assert not model.live
            return
        except ConfigError:
            assert not 0 < count < len(model.canonical)
            return
        except DecodeFailed:
            assert self.faulty
        del model.canonical[len(model.canonical) - count :]
        model.start = min(model.start, len(model.canonical))

    @rule(model=sessions)
    def cancel(self, model):
        model.cancelled = True

    @rule(model=sessions)
    def close(self, model):
        model.session.close()
        assert not model.live

    @rule(prompt=st.lists(IDS, min_size=1, max_size=5), turn=turns())
    def generate(self, prompt, turn):
        model = Model(None, prompt, turn, self.own)
        try:
            result = self.bench.decoder.generate(prompt, **turn)
        except TooManySessions:
            assert sum(each.live for each in self.models) >= BOUND
        except DecodeFailed as error:
            assert self.faulty
            self.commit(model, error.partial.tokens if error.partial else ())
        else:
            self.commit(model, result.tokens)

    @rule(model=sessions, data=st.data())
    def resume(self, model, data):
        """A crash at some record: another decoder goes on from the log on a fresh runtime."""
        log = self.bench.logs[model.session.id]
        cut = data.draw(st.integers(1, len(log)))
        fresh = Bench(self.bench.runtime.target, vocabulary=VOCABULARY, context_length=CONTEXT, policy=self.policy, stop_tokens=self.own)
        fresh.logs[model.session.id] = list(log[:cut])
        state = fold(log[:cut])
        session = fresh.decoder.resume(log[:cut])
        for _ in range(3):
            session.step()
        tokens = session.state.canonical[:]
        assert tokens[: len(state.canonical)] == state.canonical[:]
        fresh.audit(session)
        session.close()
        fresh.audit_logs()

    @precondition(lambda self: not self.faulty)
    @rule(
        call=st.sampled_from(["open", "configure", "forward", "forward", "settle", "draft", "drop", "view"]),
        at=st.integers(0, 3),
        started=st.booleans(),
        done=st.sampled_from([0, 1, None]),
        wrong=st.sampled_from([None, None, "position", "short", "trim_off_by_one", "lost_row"]),
    )
    def break_something(self, call, at, started, done, wrong):
        known = {"forward": ("position", "short", "lost_row"), "settle": ("position", "trim_off_by_one")}
        self.bench.runtime.inject(
            Fault(call=call, at=at, started=started, done=done, wrong=wrong if wrong in known.get(call, ()) else None)
        )
        self.faulty = True
        self.leaky = self.leaky or call == "drop"

    # -- what must hold, always

    @invariant()
    def every_log_and_every_session_keeps_the_laws(self):
        if not hasattr(self, "bench"):
            return
        for model in self.models:
            state = model.session.state
            assert state.canonical[:] == tuple(model.canonical)
            if model.live or not self.leaky:
                self.bench.audit(model.session)
            if state.finish is not None:
                self.check_finish(model, state)

    def check_finish(self, model, state):
        reason, tokens, most = state.finish.reason, model.canonical[model.start :], model.turn["max_tokens"]
        if reason == "stop_token":
            assert tokens[-1] in model.stops
        elif reason == "length":
            assert len(tokens) == most if state.finish.limit == "max_tokens" else len(model.canonical) == CONTEXT
        elif reason == "cancelled":
            assert model.cancelled
        else:
            assert reason == "closed" and not model.live
        if reason in ("stop_token", "length"):
            assert not set(tokens[:-1]) & model.stops

    @invariant()
    def as_many_sessions_live_as_were_not_closed(self):
        if not hasattr(self, "bench"):
            return
        live = sum(model.live for model in self.models)
        assert share_of(self.bench.runtime).live == live
        if not self.leaky:
            assert self.bench.runtime.live_sessions == live

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        self.bench.audit_logs()
        for log in self.bench.logs.values():
            assert redrive(log) == log
            assert laws.committed_tokens(log) is not None
        self.bench.decoder.close()
        assert self.leaky or self.bench.all_released()
        assert share_of(self.bench.runtime).live == 0
        self.bench.audit_logs()


Sessions.TestCase.settings = settings(max_examples=120, stateful_step_count=30)
TestSessions = Sessions.TestCase
