"""Every name that telemetry writes, with its type or unit and its meaning. docs/reference/telemetry.md is made from these tables.

The names of the GenAI semantic conventions (``gen_ai.*``, ``error.type``) are kept here as plain strings: the conventions are not
stable and the Python package's constants for them are deprecated. What the conventions have no word for lies under ``spanfold.*``.
An attribute of a turn's span and of a round's span that bears one name counts the same thing: the turn's is the sum of its rounds'.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen

__all__ = ["ATTRIBUTES", "METRICS", "ORIGINAL", "SPANS", "Attribute", "Metric", "Span"]

#: Instrumentation scope of tracer and meter.
SCOPE: Final = "spanfold.telemetry"
PROVIDER: Final = "spanfold"
OPERATION: Final = "text_completion"

# -- spans -------------------------------------------------------------------------------------------------------------

PREFILL: Final = "spanfold.prefill"
SPAN: Final = "spanfold.span"
SERIAL_STEP: Final = "spanfold.serial_step"
DRAFT: Final = "spanfold.draft"
VERIFY: Final = "spanfold.verify"
SETTLE: Final = "spanfold.settle"

# -- attributes of the conventions -------------------------------------------------------------------------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST: Final = "gen_ai.response.time_to_first_chunk"
ERROR_TYPE: Final = "error.type"

# -- attributes of ours ------------------------------------------------------------------------------------------------

SESSION_ID: Final = "spanfold.session.id"
TURN_NUMBER: Final = "spanfold.turn.number"
TURN_CONTINUED: Final = "spanfold.turn.continued"
BACKEND: Final = "spanfold.backend"
DEVICE: Final = "spanfold.device"
DTYPE: Final = "spanfold.dtype"
POLICY_KIND: Final = "spanfold.policy.kind"
POLICY_WIDTH: Final = "spanfold.policy.width"
DRAFT_ORIGIN: Final = "spanfold.draft.origin"
DRAFT_DEPTH: Final = "spanfold.draft.max_depth"

FINISH_REASON: Final = "spanfold.finish.reason"
FINISH_LIMIT: Final = "spanfold.finish.limit"
FINISH_DETAIL: Final = "spanfold.finish.detail"

FORWARDS: Final = "spanfold.forwards"
PREFILLS: Final = "spanfold.prefills"
SPAN_COUNT: Final = "spanfold.spans"
SERIAL_STEPS: Final = "spanfold.serial_steps"
SERIAL_BY_REASON: Final = "spanfold.serial_steps."
PROBES: Final = "spanfold.probes"
DRAFTED: Final = "spanfold.drafted_tokens"
VERIFIED: Final = "spanfold.verified_tokens"
MATCHED: Final = "spanfold.matched_tokens"
ACCEPTED: Final = "spanfold.accepted_tokens"
ACCEPTED_SERIAL: Final = "spanfold.accepted_serial_tokens"
REJECTED: Final = "spanfold.rejected_tokens"
DISCARDED: Final = "spanfold.discarded_tokens."
COMMITTED: Final = "spanfold.committed_tokens"
SAVED: Final = "spanfold.saved_forwards"
SAVED_NET: Final = "spanfold.saved_forwards_net"
REPLAY_FORWARDS: Final = "spanfold.replay_forwards"
REPLAYED_ROWS: Final = "spanfold.replayed_rows"
RETIRED: Final = "spanfold.retired"
TRIMS: Final = "spanfold.trims"
ACCEPTANCE_RATE: Final = "spanfold.acceptance.rate"
ACCEPTANCE_LENGTH: Final = "spanfold.acceptance.length"
ACCEPTED_PER_DEPTH: Final = "spanfold.acceptance.accepted_per_depth"
VERIFIED_PER_DEPTH: Final = "spanfold.acceptance.verified_per_depth"
TIME: Final = "spanfold.time."

BASE_POSITION: Final = "spanfold.base_position"
ROWS: Final = "spanfold.rows"
CHUNKS: Final = "spanfold.prefill.chunks"
FULL_ACCEPT: Final = "spanfold.full_accept"
CUT_BY: Final = "spanfold.cut_by"
SETTLED_BY: Final = "spanfold.settled_by"
DRAFT_LIMIT: Final = "spanfold.draft.limit"
DRAFT_PROBE: Final = "spanfold.draft.probe"
DRAFT_RESTORED: Final = "spanfold.draft.restored"
DRAFT_ERROR: Final = "spanfold.draft.error"
SERIAL_REASON: Final = "spanfold.serial.reason"
VERDICT: Final = "spanfold.serial.verdict"
FAILED_CALL: Final = "spanfold.failure.call"
FAILURE_STARTED: Final = "spanfold.failure.started"
TRIM_CAUSE: Final = "spanfold.trim.cause"
TOKEN_IDS: Final = "spanfold.token_ids"
DRAFT_TOKEN_IDS: Final = "spanfold.draft.token_ids"

# -- the original system's names ---------------------------------------------------------------------------------------

ORIGINAL_SPAN: Final = "stage.openai_native_mtp_span"
ORIGINAL_DRAFT_TOKENS: Final = "llama_stage.native_mtp.span_draft_tokens"
ORIGINAL_ACCEPTED_TOKENS: Final = "llama_stage.native_mtp.span_accepted_tokens"
ORIGINAL_COMMITTED_TOKENS: Final = "llama_stage.native_mtp.span_committed_tokens"
ORIGINAL_SAVED_FORWARDS: Final = "llama_stage.native_mtp.span_saved_forwards"
ORIGINAL_FULL_ACCEPT: Final = "llama_stage.native_mtp.span_full_accept"
ORIGINAL_VERIFICATION_US: Final = "llama_stage.native_mtp.span_verification_us"

# -- metrics -----------------------------------------------------------------------------------------------------------

M_DRAFTS: Final = "spanfold.drafts"
M_OFFERED_TOKENS: Final = "spanfold.draft.offered_tokens"
M_DRAFT_TOKENS: Final = "spanfold.draft.tokens"
M_ACCEPTED_TOKENS: Final = "spanfold.draft.accepted_tokens"
M_VERIFIED_PER_DEPTH: Final = "spanfold.draft.tokens_per_depth"
M_ACCEPTED_PER_DEPTH: Final = "spanfold.draft.accepted_tokens_per_depth"
M_DISCARDED_TOKENS: Final = "spanfold.draft.discarded_tokens"
M_TOKENS: Final = "spanfold.tokens"
M_FORWARDS: Final = "spanfold.target.forwards"
M_SAVED: Final = "spanfold.target.saved_forwards"
M_REPLAYS: Final = "spanfold.target.replay_forwards"
M_TRIMS: Final = "spanfold.trims"
M_REPLAYED_ROWS: Final = "spanfold.replayed_rows"
M_FAILURES: Final = "spanfold.runtime.failures"
M_SESSIONS: Final = "spanfold.sessions.live"
M_ACCEPTANCE_LENGTH: Final = "spanfold.acceptance.length"
M_VERIFY_DURATION: Final = "spanfold.verify.duration"
M_TIME_TO_FIRST: Final = "gen_ai.server.time_to_first_token"
M_TIME_PER_TOKEN: Final = "gen_ai.server.time_per_output_token"

#: The largest value of the depth of a metric, and one less than that of the rows: it stands for all beyond it too, so that a very wide
#: policy makes no more values.
DEEPEST: Final = 32
A_DEPTH: Final = "spanfold.draft.depth"
A_REASON: Final = "spanfold.discard.reason"
A_KIND: Final = "spanfold.forward.kind"

# -- the tables --------------------------------------------------------------------------------------------------------

#: Which spans hold an attribute: the turn's, a round's, or a part's (draft, verify, settle).
Where: TypeAlias = Literal["turn, at its start", "turn", "turn, round", "round", "round, part", "part"]


@frozen
class Span:
    """A kind of span: its name, the levels at which it is written, what it stands for."""

    name: str
    levels: str
    meaning: str


@frozen
class Attribute:
    """An attribute of spans. A name that ends in a dot is the first part of several."""

    name: str
    type: Literal["string", "int", "double", "boolean", "string[]", "int[]"]
    where: Where
    meaning: str


@frozen
class Metric:
    """A metric. ``attributes`` are those beside the model and the backend; ``buckets`` the advised bounds of a histogram."""

    name: str
    kind: Literal["counter", "updowncounter", "histogram"]
    unit: str
    meaning: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SPANS: Final = (
    Span(f"{OPERATION} MODEL", "summary, rounds, debug", "a turn: from SessionOpened or Extended to SessionFinished"),
    Span(PREFILL, "rounds, debug", "the prefill: one round, however many chunks it was fed in"),
    Span(SPAN, "rounds, debug", "a round with a draft: one target forward over its rows"),
    Span(SERIAL_STEP, "rounds, debug", "a round of one row"),
    Span(DRAFT, "debug", "the draft source was asked; child of its round, or of the turn if no forward followed"),
    Span(VERIFY, "debug", "the target forward of a span, child of its round"),
    Span(SETTLE, "debug", "the cache was cut back or the checkpoint retired; child of its round, of the turn after a rewind or a cancel"),
)

ATTRIBUTES: Final = (
    Attribute(OPERATION_NAME, "string", "turn, at its start", f"`{OPERATION}`"),
    Attribute(PROVIDER_NAME, "string", "turn, at its start", f"`{PROVIDER}`"),
    Attribute(REQUEST_MODEL, "string", "turn, at its start", "the model, as the runtime names it"),
    Attribute(REQUEST_MAX_TOKENS, "int", "turn, at its start", "`max_tokens` of the turn, if there is a limit"),
    Attribute(REQUEST_SEED, "int", "turn, at its start", "the effective seed"),
    Attribute(REQUEST_TEMPERATURE, "double", "turn, at its start", "the temperature"),
    Attribute(INPUT_TOKENS, "int", "turn, at its start", "canonical tokens at the turn's start: the prompt, later all before it too"),
    Attribute(SESSION_ID, "int", "turn, at its start", "the session's number in its records"),
    Attribute(TURN_NUMBER, "int", "turn, at its start", "counted from 0 in the session"),
    Attribute(TURN_CONTINUED, "boolean", "turn, at its start", "true: it goes on after a resume, or after a rewind of a finished turn"),
    Attribute(BACKEND, "string", "turn, at its start", "the backend's name"),
    Attribute(DEVICE, "string", "turn, at its start", "where the model runs, if the runtime says so"),
    Attribute(DTYPE, "string", "turn, at its start", "in which type, if the runtime says so"),
    Attribute(POLICY_KIND, "string", "turn, at its start", "`fixed` or `auto`"),
    Attribute(POLICY_WIDTH, "int", "turn, at its start", "most tokens drafted per span"),
    Attribute(DRAFT_ORIGIN, "string", "turn, at its start", "what drafts: `mtp`, `prompt_lookup`, `grammar`; absent where nothing does"),
    Attribute(DRAFT_DEPTH, "int", "turn, at its start", "most tokens that it can draft at once"),
    Attribute(OUTPUT_TOKENS, "int", "turn", "tokens committed in the turn"),
    Attribute(CACHED_TOKENS, "int", "turn", "of the input tokens: rows that were in the cache already"),
    Attribute(FINISH_REASONS, "string[]", "turn", "`stop`, `length`, `cancelled` or `error`; absent for a turn that did not end"),
    Attribute(TIME_TO_FIRST, "double", "turn", "seconds from the turn's start to its first committed tokens"),
    Attribute(FINISH_REASON, "string", "turn", "the engine's own word: of SessionFinished, or `dropped`, `extended`, `unfinished`"),
    Attribute(FINISH_LIMIT, "string", "turn", "`max_tokens` or `context`, for the reason `length`"),
    Attribute(FINISH_DETAIL, "string", "turn", "which token or text stopped, only with `record_token_ids`"),
    Attribute(FORWARDS, "int", "turn", "target forwards: prefills, spans and serial steps"),
    Attribute(PREFILLS, "int", "turn", "prefills"),
    Attribute(SPAN_COUNT, "int", "turn", "spans"),
    Attribute(SERIAL_STEPS, "int", "turn", "serial steps"),
    Attribute(SERIAL_BY_REASON, "int", "turn", "serial steps by what kept the round from drafting (`budget`, `not_paying`, `short`, ...)"),
    Attribute(PROBES, "int", "turn", "spans in which a policy `auto` looked whether drafting pays again"),
    Attribute(DRAFTED, "int", "turn, round", "tokens that the source offered, unusable ones included"),
    Attribute(VERIFIED, "int", "turn, round", "drafted tokens that went through a span"),
    Attribute(MATCHED, "int", "turn, round", "drafted tokens that equalled the target's choice, those past a stop included"),
    Attribute(ACCEPTED, "int", "turn, round", "drafted tokens that a span committed"),
    Attribute(ACCEPTED_SERIAL, "int", "turn, round", "drafted tokens that a serial step confirmed"),
    Attribute(REJECTED, "int", "turn, round", "drafted tokens in whose place a correction was committed"),
    Attribute(DISCARDED, "int", "turn, round", "drafted tokens thrown away unjudged, by reason (docs/reference/events.md, DraftDiscarded)"),
    Attribute(COMMITTED, "int", "round", "tokens committed by the round"),
    Attribute(SAVED, "int", "turn, round", "forwards saved: committed tokens less one per span"),
    Attribute(SAVED_NET, "int", "turn", "the same, less replayed forwards: what speculation is worth in forwards"),
    Attribute(REPLAY_FORWARDS, "int", "turn", "trims that had to compute rows again"),
    Attribute(REPLAYED_ROWS, "int", "turn, round", "rows computed again by trims"),
    Attribute(RETIRED, "int", "turn", "spans of which every row was kept"),
    Attribute(TRIMS, "int", "turn", "trims, those after a failure, a cancel or a rewind included"),
    Attribute(ACCEPTANCE_RATE, "double", "turn", "accepted / verified tokens; absent where none was verified"),
    Attribute(ACCEPTANCE_LENGTH, "double", "turn", "tokens per span, correction and bonus included; absent without a span"),
    Attribute(ACCEPTED_PER_DEPTH, "int[]", "turn", "entry i: tokens accepted at depth i + 1"),
    Attribute(VERIFIED_PER_DEPTH, "int[]", "turn", "entry i: tokens verified at depth i + 1"),
    Attribute(TIME, "double", "turn, round", "seconds by phase: `prefill`, `draft`, `verify`, `serial`, `settle` (the recorded costs)"),
    Attribute(BASE_POSITION, "int", "round, part", "rows in the target's cache before the forward"),
    Attribute(ROWS, "int", "round, part", "rows of the forward"),
    Attribute(CHUNKS, "int", "round", "forwards that the prefill was fed in"),
    Attribute(FULL_ACCEPT, "boolean", "round", "every verified token was accepted"),
    Attribute(CUT_BY, "string", "round", "what ended the commit early; absent where nothing did"),
    Attribute(SETTLED_BY, "string", "round, part", "`retired` or `trimmed`"),
    Attribute(DRAFT_LIMIT, "int", "round, part", "tokens that the source was asked for"),
    Attribute(DRAFT_PROBE, "boolean", "round, part", "true: the draft is a probe of a policy `auto`"),
    Attribute(DRAFT_RESTORED, "string", "round", "`not_started` or `cancelled`: the forward did not run, the draft is pending again"),
    Attribute(DRAFT_ERROR, "string", "round", "type of the error with which the draft source failed; decoding goes on serially"),
    Attribute(SERIAL_REASON, "string", "round", "why the round was serial"),
    Attribute(VERDICT, "string", "round", "what a serial step said of a pending draft's first token: `accepted` or `rejected`"),
    Attribute(ERROR_TYPE, "string", "turn, round", "the error's type, with status ERROR"),
    Attribute(FAILED_CALL, "string", "turn, round", "the runtime call that failed"),
    Attribute(FAILURE_STARTED, "boolean", "round", "false: the failed call had touched nothing"),
    Attribute(TRIM_CAUSE, "string", "part", "`span`, `failure`, `rewind` or `cancel`"),
    Attribute(TOKEN_IDS, "int[]", "round", "the committed tokens, only with `record_token_ids`"),
    Attribute(DRAFT_TOKEN_IDS, "int[]", "round, part", "the offered tokens, only with `record_token_ids`"),
)  # fmt: skip

#: With ``original_names``: the attributes of the span that takes the place of ``spanfold.span``.
ORIGINAL: Final = (
    Attribute(ORIGINAL_DRAFT_TOKENS, "int", "round", "as `spanfold.verified_tokens`"),
    Attribute(ORIGINAL_ACCEPTED_TOKENS, "int", "round", "as `spanfold.accepted_tokens`"),
    Attribute(ORIGINAL_COMMITTED_TOKENS, "int", "round", "as `spanfold.committed_tokens`"),
    Attribute(ORIGINAL_SAVED_FORWARDS, "int", "round", "as `spanfold.saved_forwards`"),
    Attribute(ORIGINAL_FULL_ACCEPT, "boolean", "round", "as `spanfold.full_accept`"),
    Attribute(ORIGINAL_VERIFICATION_US, "int", "round", "the target forward's time in microseconds"),
)

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_LENGTHS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 16.0, 32.0, 64.0)

METRICS: Final = (
    Metric(M_DRAFTS, "counter", "{draft}", "drafts that went through a span"),
    Metric(M_OFFERED_TOKENS, "counter", "{token}", "tokens that sources offered, unusable ones included"),
    Metric(M_DRAFT_TOKENS, "counter", "{token}", "drafted tokens that went through a span"),
    Metric(M_ACCEPTED_TOKENS, "counter", "{token}", "drafted tokens that spans committed"),
    Metric(M_VERIFIED_PER_DEPTH, "counter", "{token}", "drafted tokens that went through a span, by depth (32: and deeper)", (A_DEPTH,)),
    Metric(M_ACCEPTED_PER_DEPTH, "counter", "{token}", "drafted tokens that spans committed, by depth (32: and deeper)", (A_DEPTH,)),
    Metric(M_DISCARDED_TOKENS, "counter", "{token}", "drafted tokens thrown away unjudged, by reason", (A_REASON,)),
    Metric(M_TOKENS, "counter", "{token}", "committed tokens, by the kind of forward that chose them", (A_KIND,)),
    Metric(M_FORWARDS, "counter", "{forward}", "target forwards, by kind: prefill, span, serial", (A_KIND,)),
    Metric(M_SAVED, "counter", "{forward}", "target forwards saved by spans"),
    Metric(M_REPLAYS, "counter", "{forward}", "forwards that trims had to compute again; take them off the saved ones"),
    Metric(M_TRIMS, "counter", "{trim}", "trims, by cause: span, failure, rewind, cancel", (TRIM_CAUSE,)),
    Metric(M_REPLAYED_ROWS, "counter", "{row}", "rows computed again by trims"),
    Metric(M_FAILURES, "counter", "{failure}", "failed runtime calls, by call", (FAILED_CALL,)),
    Metric(M_SESSIONS, "updowncounter", "{session}", "sessions that are open"),
    Metric(M_ACCEPTANCE_LENGTH, "histogram", "{token}", "tokens committed by a span", buckets=_LENGTHS),
    Metric(M_VERIFY_DURATION, "histogram", "s", "duration of a span's target forward, by its rows (33: and more)", (ROWS,), _SECONDS),
    Metric(M_TIME_TO_FIRST, "histogram", "s", "from a turn's start to its first committed tokens", buckets=_SECONDS),
    Metric(M_TIME_PER_TOKEN, "histogram", "s", "time per committed token after the first, of turns that did not fail", buckets=_SECONDS),
)  # fmt: skip
