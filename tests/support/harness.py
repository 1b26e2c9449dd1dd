"""Runs a decode on the scripted runtime with everything recorded, and audits it afterwards."""

import laws

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import Decoder
from spanfold.engine.invariants import state_violations, view_violations
from spanfold.engine.reducer import fold


class Bench:
    """One scripted runtime, one decoder on it, and the records of every session."""

    def __init__(self, target=None, *, policy=3, source="auto", decoder=None, **runtime):
        runtime.setdefault("drafts", noisy(5, 0.7))
        self.runtime = ScriptedRuntime(target if target is not None else hash_target(3, 17), **runtime)
        self.logs = {}
        options = {"policy": policy, "source": source, **(decoder or {})}
        observers = (self.record, *options.pop("observers", ()))
        self.decoder = Decoder(self.runtime, observers=observers, **options)

    def record(self, record):
        self.logs.setdefault(record.session, []).append(record)

    def events(self, session=None):
        """The events of one session (of the only one, if none is named)."""
        if session is None:
            (log,) = self.logs.values()
            return [record.event for record in log]
        return [record.event for record in self.logs[session]]

    def of(self, kind, session=None):
        """The events of one kind."""
        return [event for event in self.events(session) if isinstance(event, kind)]

    def generate(self, prompt=(1, 2, 3), **options):
        """One turn, audited."""
        result = self.decoder.generate(prompt, **options)
        self.audit_logs()
        return result

    def audit_logs(self):
        """Laws 1 to 5 and 7 over everything recorded so far."""
        for session, log in self.logs.items():
            found = laws.violations(log)
            assert not found, f"session {session}: " + "\n".join(map(str, found))
            state = fold(log)
            differences = laws.account_differences(log, state.stats)
            assert not differences, f"session {session}: {differences}"

    def audit(self, session):
        """Everything that must hold of an opened session between two steps; its runtime side included."""
        log, state = self.logs[session.id], session.state
        assert fold(log) == state, "law 7: the fold of the log is another state"
        assert state_violations(state) == ()
        view = self.runtime.inspect(session.runtime_session)
        assert view_violations(state, view) == ()
        found = laws.violations(log)
        assert not found, "\n".join(map(str, found))
        assert laws.account_differences(log, state.stats) == []
        if view is None:
            return
        canonical = state.canonical[:]
        assert self.runtime.cache_rows(session.runtime_session) == canonical[: view.position], "law 1: the cache's rows"
        if view.head_position is not None:
            pairs = self.runtime.pairs(canonical)[: view.head_position]
            assert self.runtime.head_rows(session.runtime_session) == pairs, "law 1: the head's rows are not the canonical pairs"

    def all_released(self):
        """Whether nothing is left of any session, in the engine or on the runtime."""
        return self.runtime.live_sessions == 0 and self.runtime.live_rows == 0
