"""Logs of every kind of session, and events made from them that are almost right."""

import attrs
from harness import Bench

from spanfold.backends.scripted import Costs, Fault, adversarial, invalid, list_target, listed, noisy, oracle, short, surplus
from spanfold.engine import Committed, DecodeFailed, Decoder, DraftOffered, DraftRestored, Policy, Record, SpanRefused, SpanVerified

PROMPT = (1, 2, 3)


class Boom(Exception):
    pass


def drain(session):
    """Step until the turn is finished, whatever fails on the way."""
    while not session.finished:
        try:
            session.step()
        except (DecodeFailed, Boom):
            pass


def _raises_at(index):
    raised = []

    def stop_when(token, at):
        if at == index and not raised:
            raised.append(at)
            raise Boom
        return False

    return stop_when


def _log(bench, prompt=PROMPT, script=(), **turn):
    turn.setdefault("max_tokens", 9)
    try:
        session = bench.decoder.open(prompt, **turn)
    except DecodeFailed:
        return bench.logs[0]
    drain(session)
    for name, *arguments in script:
        if session.state.phase == "dropped":
            break
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        getattr(session, name)(*arguments, **options)
        drain(session)
    session.close()
    return bench.logs[session.id]


def _resumed(cut, first=None, **other):
    """A log cut off there, and gone on with upon a fresh runtime (of another kind, where one is given)."""
    log = _log(first if first is not None else Bench())[:cut]
    again = Bench(**other)
    again.logs[0] = list(log)
    session = again.decoder.resume(log)
    drain(session)
    session.close()
    return again.logs[0]


def _polls(count):
    left = iter(range(count))
    return lambda: next(left, None) is None


class Letters:
    """Token i is one letter."""

    strip_spaces = 0

    def token_bytes(self, token):
        return bytes([97 + token])


def _once_after(kind, bench, nth=0):
    """A cancel that is set only at one poll: the first after the nth event of a kind."""
    fired = []

    def cancel():
        if not fired and len(bench.of(kind)) > nth:
            fired.append(1)
            return True
        return False

    return cancel


def logs():
    """Name -> records. Together they hold every type of event, in every place where the engine writes it."""
    truth = list_target((5, 6, 7, 8, 9, 10, 11, 12), prompt=1, vocabulary=16)
    made = {
        "plain": _log(Bench()),
        "accepted": _log(Bench(truth, drafts=oracle()), (0,)),
        "rejected": _log(Bench(drafts=adversarial(), rollback="checkpoint")),
        "serial": _log(Bench(rollback="none")),
        "chunks": _log(Bench(policy=Policy(width=2, prefill_chunk=2)), (1, 2, 3, 4, 5)),
        "short": _log(Bench(policy=Policy(width=3, min_draft=2), drafts=short(1))),
        "surplus": _log(Bench(drafts=surplus(2, noisy(3, 0.9)))),
        "invalid": _log(Bench(drafts=invalid(99, depth=1))),
        "context": _log(Bench(context_length=9), max_tokens=None),
        "window": _log(Bench(draft_context=6)),
        "nothing": _log(Bench(), max_tokens=0),
        "stop draft": _log(Bench(truth, drafts=oracle()), (0,), stop_tokens=[7]),
        "stop bonus": _log(Bench(truth, drafts=oracle()), (0,), stop_tokens=[9]),
        "stop first": _log(Bench(truth, drafts=oracle()), (0,), stop_tokens=[5]),
        "stop masked": _log(Bench(truth, drafts=oracle()), (0,), stop_tokens=[6, 9], min_tokens=3),
        "stop when": _log(Bench(truth, drafts=oracle()), (0,), stop_when=lambda token, index: index == 2),
        "stop error": _log(Bench(truth, drafts=oracle()), (0,), stop_when=_raises_at(2)),
        "stop error serial": _log(Bench(policy=0), stop_when=_raises_at(2)),
        "turns": _log(
            Bench(), script=[("extend", (4, 4), {"max_tokens": 5}), ("rewind", 3), ("rewind", 9), ("extend", (), {"max_tokens": 3})]
        ),
        "turns checkpoint": _log(Bench(rollback="checkpoint"), script=[("rewind", 4), ("extend", (4,), {"max_tokens": 5})]),
        "rewound to one": _log(Bench(), script=[("rewind", 11)]),
        "rewound before the turn": _log(Bench(), script=[("extend", (4, 4), {"max_tokens": 2}), ("rewind", 8), ("rewind", 1)]),
        "stop text": _log(Bench(truth, drafts=oracle(), decoder={"text": Letters()}), (0,), stop_texts=["hi"]),
        "stop text serial": _log(Bench(truth, policy=0, decoder={"text": Letters()}), (0,), stop_texts=["hi"]),
        "give up": _log(Bench(drafts=adversarial(), policy=Policy(width=2, give_up_after=2))),
        "give nothing up": _log(Bench(truth, drafts=noisy(2, 0.8), policy=Policy(width=2, give_up_after=1)), (0,)),
        "negative id": _log(Bench(drafts=invalid(-1, depth=2), policy=Policy(width=3, min_draft=2))),
        "no source": _log(Bench(source="none")),
        "window met": _log(Bench(draft_context=4)),
        "closed early": _log_closed(3),
        "closed before": _log_closed(0),
        "last token": _log(Bench(), max_tokens=1),
        "two tokens": _log(Bench(), max_tokens=2),
        "full context": _log(Bench(context_length=3), max_tokens=None),
        "context or limit": _log(Bench(context_length=6), max_tokens=3),
        "ignored": _log(Bench(truth, drafts=oracle(), stop_tokens=[7, 9]), (0,), ignore_eos=True, stop_tokens=[7, 10]),
        "own stop": _log(Bench(truth, drafts=oracle(), stop_tokens=[8]), (0,)),
        "early exit": _log(Bench(early_exit=True, drafts=adversarial())),
        "backlog": _log(Bench(backlog=1), (1,) * 6),
        "lookup": _log(Bench(truth, head=False, source="prompt_lookup"), (0, *range(5, 13), 5, 6)),
    }
    for kind in (SpanVerified, DraftOffered, Committed):
        bench = Bench(truth, drafts=noisy(1, 0.9))
        made[f"cancel once after {kind.__name__}"] = _log(bench, (0,), cancel=_once_after(kind, bench))
    bench = Bench(truth, drafts=oracle(), faults=[Fault(call="forward", at=1)])
    made["cancel with a restored draft"] = _log(bench, (0,), cancel=_once_after(SpanRefused, bench))
    bench = Bench(truth, drafts=oracle(), faults=[Fault(call="forward", at=1)])
    made["cancel right after a refusal"] = _log(bench, (0,), cancel=_once_after(DraftRestored, bench))
    for name, stop in (
        ("token", {"stop_tokens": [6]}),
        ("text", {"stop_texts": ["g"]}),
        ("decision", {"stop_when": lambda token, index: index == 1}),
    ):
        bench = Bench(truth, drafts=oracle(), faults=[Fault(call="forward", at=1)], decoder={"text": Letters()})
        made[f"stop {name} on a restored draft"] = _log(bench, (0,), **stop)
    made["resumed after a failed draft"] = _resumed(7, Bench(faults=[Fault(call="draft", started=True)]))
    made["resumed where no span can run"] = _resumed(8, rollback="none")
    made["resumed without a head"] = _resumed(8, head=False)
    made["resumed after the finish"] = _resumed(-1)
    made["extended after a stop error"] = _log(
        Bench(policy=0), max_tokens=6, stop_when=_raises_at(5), script=[("rewind", 1), ("extend", (), {"max_tokens": 2})]
    )
    made["rewound before the first step"] = _rewound_at_once(1)
    made["rewound to one before the first step"] = _rewound_at_once(2)
    made["nothing, rewound"] = _log(Bench(), max_tokens=0, script=[("rewind", 1), ("extend", (2,), {"max_tokens": 2})])
    made["rewound to two"] = _log(Bench(), max_tokens=4, script=[("rewind", 5), ("extend", (), {"max_tokens": 2})])
    made["extended and rewound"] = _extended_and_rewound()
    made["invalid first"] = _log(Bench(drafts=invalid(99, depth=0)), max_tokens=5)
    made["stopped, extended"] = _log(Bench(truth, drafts=oracle()), (0,), stop_tokens=[7], script=[("extend", (1,), {"max_tokens": 3})])
    made["refused, extended"] = _refused_and_extended()
    made["resumed from a serial step"] = _resumed(6, Bench(policy=0))
    made["resumed from a refusal"] = _resumed(2, Bench(faults=[Fault(call="forward")]))
    made["resumed from a crash"] = _resumed(2, Bench(faults=[Fault(call="forward", started=True)]))
    made["refused, served, refused"] = _log(
        Bench(drafts=oracle(), faults=[Fault(call="forward", at=1), Fault(call="forward", at=3)]), max_tokens=12
    )
    made["turns in chunks"] = _log(
        Bench(policy=Policy(width=2, prefill_chunk=2)), max_tokens=4, script=[("extend", (4,) * 4, {"max_tokens": 3}), ("rewind", 3)]
    )
    made["refused, rejected"] = _log(Bench(drafts=adversarial(), faults=[Fault(call="forward", at=1)]))
    made["extended and rewound further"] = _extended_and_rewound(3)
    for polls in range(3, 9):
        bench = Bench(truth, drafts=oracle(), faults=[Fault(call="forward", at=1)])
        made[f"cancel {polls} around a restored draft"] = _log(bench, (0,), cancel=_polls_once(polls))
    made["masked, rejected"] = _log(Bench(truth, drafts=listed((7, 7), start=2)), (0,), stop_tokens=[6, 9], min_tokens=3)
    made["masked, serial"] = _log(Bench(truth, policy=0), (0,), stop_tokens=[6, 9], min_tokens=3)
    made["rewound with a restored draft"] = _pending("rewind", 1)
    made["extended with a restored draft"] = _pending("extend", (4,), max_tokens=4)
    made["closed with a restored draft"] = _pending("close")
    made["resumed with a restored draft"] = _resumed_pending()
    for polls in (0, 1, 2, 3, 4, 5, 6, 9):
        made[f"cancel {polls}"] = _log(Bench(truth, drafts=noisy(1, 0.9)), (0,), cancel=_polls(polls))
        made[f"cancel chunks {polls}"] = _log(
            Bench(policy=Policy(width=2, prefill_chunk=2), rollback="checkpoint" if polls % 2 else "crop"), (1,) * 7, cancel=_polls(polls)
        )
    for call, places in (("open", (0,)), ("forward", (0, 1, 2)), ("settle", (0, 1)), ("draft", (0, 1))):
        for at in places:
            for started in (False, True):
                bench = Bench(faults=[Fault(call=call, at=at, started=started, done=None)], drafts=noisy(5, 0.6))
                made[f"{call} {at} {'crash' if started else 'refusal'}"] = _log(bench)
    for wrong in ("short", "position", "vocabulary", "lost_row"):
        made[f"forward {wrong}"] = _log(Bench(faults=[Fault(call="forward", at=1, wrong=wrong)]))
    for wrong in ("position", "trim_noop"):
        made[f"settle {wrong}"] = _log(Bench(faults=[Fault(call="settle", wrong=wrong)], drafts=adversarial()))
    made["twice"] = _log(Bench(faults=[Fault(call="forward", at=1, started=True), Fault(call="settle", started=True)]))
    made["refused twice"] = _log(Bench(faults=[Fault(call="forward", at=1, times=2)], drafts=oracle()))
    made["drop"] = _log(Bench(faults=[Fault(call="drop", started=True)]))
    made["configure"] = _configure_fails()
    for cut in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12):
        made[f"resumed {cut}"] = _resumed(cut)
    paid = _auto(oracle(), row=5, step=10)
    made["auto, paying"] = _log(paid, max_tokens=60)
    made["auto, from a prior"] = _later(paid)
    made["auto, not paying"] = _log(_auto(adversarial(), row=200, step=500), max_tokens=130)
    made["auto, as it goes"] = _log(_auto(noisy(5, 0.7), row=100, step=150), max_tokens=90)
    made["auto, cancelled"] = _log(bench := _auto(noisy(1, 0.9), row=5, step=10), cancel=_once_after(SpanVerified, bench, 3), max_tokens=40)
    made["auto, resumed"] = _resumed(20, _auto(noisy(1, 0.8), row=5, step=10), costs=Costs(forward=995, row=5, step=10))
    return made


def _auto(drafts, **costs):
    """A bench with the policy ``auto`` on a runtime whose forwards cost 1000 for one row."""
    costs = Costs(forward=1000 - costs["row"], **costs)
    bench = Bench(policy="auto", drafts=drafts, costs=costs)
    bench.decoder = Decoder(bench.runtime, observers=(bench.record,), clock=bench.runtime.clock)
    return bench


def _later(bench):
    """The next session of a bench, numbered as the first of another log."""
    session = bench.decoder.open(PROMPT, max_tokens=20)
    drain(session)
    session.close()
    return renumbered([record.event for record in bench.logs[session.id]])


def _log_closed(steps):
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=20)
    for _ in range(steps):
        session.step()
    session.close()
    return bench.logs[0]


def _polls_once(at):
    """A cancel that is set at one poll only."""
    polls = iter(range(10**6))
    return lambda: next(polls) == at


def _extended_and_rewound(count=1):
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=4)
    drain(session)
    session.extend((4,), max_tokens=3)
    session.rewind(count)
    drain(session)
    session.close()
    return bench.logs[0]


def _refused_and_extended():
    bench = Bench(faults=[Fault(call="forward")])
    session = bench.decoder.open(PROMPT, max_tokens=4)
    try:
        session.step()
    except DecodeFailed:
        pass
    session.extend((4,), max_tokens=3)
    drain(session)
    session.close()
    return bench.logs[0]


def _rewound_at_once(count):
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=4)
    session.rewind(count)
    drain(session)
    session.close()
    return bench.logs[0]


def _pending(name, *arguments, **options):
    """A span was refused, so its draft is pending at the boundary; then this is done."""
    bench = Bench(drafts=oracle(), faults=[Fault(call="forward", at=1)])
    session = bench.decoder.open(PROMPT, max_tokens=9)
    for _ in range(2):
        try:
            session.step()
        except DecodeFailed:
            pass
    assert session.stats.pending == 3
    getattr(session, name)(*arguments, **options)
    if name != "close":
        drain(session)
        session.close()
    return bench.logs[0]


def _resumed_pending():
    log = _pending("close")
    cut = next(at for at, record in enumerate(log) if isinstance(record.event, DraftRestored)) + 1
    again = Bench()
    again.logs[0] = list(log[:cut])
    session = again.decoder.resume(log[:cut])
    drain(session)
    session.close()
    return again.logs[0]


def _configure_fails():
    bench = Bench(faults=[Fault(call="configure"), Fault(call="configure", at=1, started=True)])
    session = bench.decoder.open(PROMPT, max_tokens=5)
    drain(session)
    for _ in range(2):
        try:
            session.extend((4,), max_tokens=3)
        except DecodeFailed:
            pass
    session.close()
    return bench.logs[0]


def renumbered(events, session=0):
    """Records of these events, numbered as they stand."""
    return [Record(seq=at, session=session, event=event) for at, event in enumerate(events)]


_WORDS = {
    "cut_by": ("none", "stop_token", "stop_text", "stop_when", "stop_when_error", "length", "cancelled"),
    "source": ("prefill", "serial", "span"),
    "verdict": ("none", "accepted", "rejected"),
    "cause": ("span", "failure", "rewind", "cancel"),
    "origin": ("mtp", "prompt_lookup"),
    "call": ("open", "prefill", "serial", "span", "settle", "reset", "drop", "configure"),
    "reason": (
        "stop_token",
        "stop_text",
        "stop_when",
        "length",
        "cancelled",
        "closed",
        "not_started",
        "rejected_tail",
        "stopped",
        "clipped",
    ),
    "limit": ("max_tokens", "context"),
}


def variants(event):
    """The event with one field changed, in every small way that its own validators allow."""
    for attribute in attrs.fields(type(event)):
        value = getattr(event, attribute.name)
        if not attribute.eq:
            continue
        if isinstance(value, bool):
            changes = [not value]
        elif isinstance(value, int):
            changes = [value - 1, value + 1, value + 2, 0, 1]
        elif isinstance(value, tuple):
            changes = [value[:-1], value[1:], (*value, 0), (*value, 3), (*value, 98)]
            changes += [(*value[:at], other, *value[at + 1 :]) for at in range(len(value)) for other in (0, 7, 98)]
        elif isinstance(value, str) or value is None:
            changes = [word for word in _WORDS.get(attribute.name, ()) if word != value]
            if attribute.name in ("limit", "observed"):
                changes += [None, 0, 3]
        else:
            continue
        for change in changes:
            if change != value:
                try:
                    yield attrs.evolve(event, **{attribute.name: change})
                except (ValueError, TypeError):
                    continue
