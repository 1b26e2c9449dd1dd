"""Runtimes with one realistic mistake each, for checks that ought to notice it; and the sound ones that they derive from.

They were written from the Runtime protocol, the design and the public bug reports alone, without a look at the checks that are
run on them. Each class says in its docstring what its author did wrong and names its case where there is one.
"""

from collections.abc import Callable

import broken_claims as claims
import broken_heads as heads
import broken_sessions as sessions
import broken_trims as trims
from broken_base import SOUND, TIE, Careless

from spanfold.engine.runtime import Runtime

__all__ = ["BROKEN", "SOUND", "TIE", "origin"]

#: Makes a broken runtime, by a short name.
BROKEN: dict[str, Callable[[], Runtime]] = {
    "trim_no_op": trims.TrimNoOp,
    "trim_skips_one_row": trims.TrimSkipsOneRow,
    "trim_one_too_many": trims.TrimOneTooMany,
    "trim_one_too_few": trims.TrimOneTooFew,
    "trim_to_zero_ignored": trims.TrimToZeroIgnored,
    "trim_keeps_first_row": trims.TrimKeepsFirstRow,
    "trims_relatively": trims.TrimsRelatively,
    "stale_recurrent_state": trims.StaleRecurrentState,
    "restore_without_replay": trims.RestoreWithoutReplay,
    "checkpoint_taken_late": trims.CheckpointTakenLate,
    "checkpoint_not_renewed": trims.CheckpointNotRenewed,
    "snapshot_shared": trims.SnapshotShared,
    "slot_not_cleared": trims.SlotNotCleared,
    "zero_state_multi_token": trims.ZeroStateMultiToken,
    "serial_keeps_checkpoint": trims.SerialKeepsCheckpoint,
    "predictions_rotated": sessions.PredictionsRotated,
    "bonus_missing": sessions.BonusMissing,
    "prefill_answers_last_only": sessions.PrefillAnswersLastOnly,
    "position_not_advanced": sessions.PositionNotAdvanced,
    "view_counts_on_the_host": sessions.ViewCountsOnTheHost,
    "base_ignored": sessions.BaseIgnored,
    "refuses_after_touching": sessions.RefusesAfterTouching,
    "settle_checks_late": sessions.SettleChecksLate,
    "settle_cuts_then_raises": sessions.SettleCutsThenRaises,
    "floor_is_always_zero": sessions.FloorIsAlwaysZero,
    "settle_clamps_above": sessions.SettleClampsAbove,
    "settle_clamps_at_floor": sessions.SettleClampsAtFloor,
    "drop_leaves_an_empty_session": sessions.DropLeavesAnEmptySession,
    "drop_creates_the_unknown": sessions.DropCreatesTheUnknown,
    "drop_in_a_span_leaks": sessions.DropInASpanLeaks,
    "forward_creates_the_unknown": sessions.ForwardCreatesTheUnknown,
    "close_keeps_serving": sessions.CloseKeepsServing,
    "elements_sorted": sessions.ElementsSorted,
    "padding_enters_the_state": sessions.PaddingEntersTheState,
    "one_refusal_raises_for_all": sessions.OneRefusalRaisesForAll,
    "extra_elements_ignored": sessions.ExtraElementsIgnored,
    "head_skips_prompt": heads.HeadSkipsPrompt,
    "head_sees_last_chunk_only": heads.HeadSeesLastChunkOnly,
    "head_backlog_overflows": heads.HeadBacklogOverflows,
    "head_gap_after_full_accept": heads.HeadGapAfterFullAccept,
    "head_falls_behind": heads.HeadFallsBehind,
    "head_keeps_drafted_rows": heads.HeadKeepsDraftedRows,
    "head_not_rewound": heads.HeadNotRewound,
    "head_shared": heads.HeadShared,
    "head_position_is_the_targets": heads.HeadPositionIsTheTargets,
    "limit_zero_feeds_nothing": heads.LimitZeroFeedsNothing,
    "draft_remembers_rejected": heads.DraftRemembersRejected,
    "draft_depends_on_limit": heads.DraftDependsOnLimit,
    "draft_uses_a_generator": heads.DraftUsesAGenerator,
    "draft_ignores_limit": heads.DraftIgnoresLimit,
    "claims_row_exact": claims.ClaimsRowExact,
    "claims_crop": claims.ClaimsCrop,
    "claims_checkpoint": claims.ClaimsCheckpoint,
    "claims_a_head": claims.ClaimsAHead,
    "claims_longer_context": claims.ClaimsLongerContext,
    "claims_longer_draft_context": claims.ClaimsLongerDraftContext,
    "claims_deeper_draft": claims.ClaimsDeeperDraft,
    "claims_padded_vocabulary": claims.ClaimsPaddedVocabulary,
    "unhashable": claims.Unhashable,
    "configure_ignored": claims.ConfigureIgnored,
    "sampling_shared": claims.SamplingShared,
    "mask_ignored_in_spans": claims.MaskIgnoredInSpans,
    "mask_decided_per_forward": claims.MaskDecidedPerForward,
    "mask_by_position": claims.MaskByPosition,
    "logprobs_only_serial": claims.LogprobsOnlySerial,
    "margins_ignored": claims.MarginsIgnored,
}


def origin(name: str) -> str:
    """The name in `SOUND` of the runtime that the broken one would be without its mistake."""
    made = BROKEN[name]
    assert isinstance(made, type) and issubclass(made, Careless)
    return made.origin
