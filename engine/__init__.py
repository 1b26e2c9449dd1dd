"""spanfold.engine: an event-sourced decode engine for language models with native multi-token prediction.

>>> from spanfold.engine import Decoder
>>> from spanfold.backends.scripted import ScriptedRuntime, list_target
>>> runtime = ScriptedRuntime(list_target([3, 1, 4, 1, 5, 9, 2, 6]), vocabulary=10)
>>> with Decoder(runtime, policy=3) as decoder:
...     result = decoder.generate([7], max_tokens=6)
>>> result.tokens, result.finish_reason
((3, 1, 4, 1, 5, 9), 'length')
"""

from .decoder import Decoder as Decoder
from .decoder import TurnOptions as TurnOptions
from .drafting import Drafter as Drafter
from .drafting import DraftSource as DraftSource
from .drafting import HeadSource as HeadSource
from .drafting import PromptLookup as PromptLookup
from .errors import ConfigError as ConfigError
from .errors import DecodeFailed as DecodeFailed
from .errors import IllegalEvent as IllegalEvent
from .errors import NotStarted as NotStarted
from .errors import RecorderFailed as RecorderFailed
from .errors import ReplayDiverged as ReplayDiverged
from .errors import RuntimeContractError as RuntimeContractError
from .errors import SessionClosed as SessionClosed
from .errors import SessionInUse as SessionInUse
from .errors import SpanfoldError as SpanfoldError
from .errors import TooManySessions as TooManySessions
from .errors import UnknownRules as UnknownRules
from .events import CUT_BY as CUT_BY
from .events import DISCARD_REASONS as DISCARD_REASONS
from .events import EVENT_TYPES as EVENT_TYPES
from .events import CheckpointRetired as CheckpointRetired
from .events import Committed as Committed
from .events import CutBy as CutBy
from .events import DiscardReason as DiscardReason
from .events import DraftDiscarded as DraftDiscarded
from .events import DraftFailed as DraftFailed
from .events import DraftOffered as DraftOffered
from .events import DraftRestored as DraftRestored
from .events import DraftTaken as DraftTaken
from .events import Event as Event
from .events import Extended as Extended
from .events import FailedCall as FailedCall
from .events import FinishLimit as FinishLimit
from .events import FinishReason as FinishReason
from .events import Prefilled as Prefilled
from .events import Record as Record
from .events import Rewound as Rewound
from .events import RuntimeFailed as RuntimeFailed
from .events import SerialDecoded as SerialDecoded
from .events import SessionDropped as SessionDropped
from .events import SessionFinished as SessionFinished
from .events import SessionOpened as SessionOpened
from .events import SessionResumed as SessionResumed
from .events import Source as Source
from .events import SpanRefused as SpanRefused
from .events import SpanVerified as SpanVerified
from .events import TrimCause as TrimCause
from .events import Trimmed as Trimmed
from .events import Verdict as Verdict
from .hooks import REST as REST
from .hooks import AnyObserver as AnyObserver
from .hooks import Observer as Observer
from .hooks import Recorder as Recorder
from .hooks import SessionObserver as SessionObserver
from .invariants import account_violations as account_violations
from .invariants import state_violations as state_violations
from .invariants import view_violations as view_violations
from .redrive import redrive as redrive
from .reducer import fold as fold
from .reducer import reduce as reduce
from .runtime import Ask as Ask
from .runtime import Draft as Draft
from .runtime import Extras as Extras
from .runtime import Failure as Failure
from .runtime import Forward as Forward
from .runtime import Rows as Rows
from .runtime import Runtime as Runtime
from .runtime import Settle as Settle
from .runtime import Settled as Settled
from .runtime import View as View
from .session import Result as Result
from .session import Session as Session
from .state import NEW as NEW
from .state import DecodeStats as DecodeStats
from .state import SessionState as SessionState
from .state import Turn as Turn
from .stream import TokenStream as TokenStream
from .text import StopMatcher as StopMatcher
from .text import TextStream as TextStream
from .text import TokenText as TokenText
from .tokens import TokenLog as TokenLog
from .values import DraftInfo as DraftInfo
from .values import Limits as Limits
from .values import Policy as Policy
from .values import Processor as Processor
from .values import RuntimeInfo as RuntimeInfo
from .values import Sampling as Sampling
from .values import Stops as Stops

__version__ = "0.1.0"

__all__ = [
    "CUT_BY",
    "DISCARD_REASONS",
    "EVENT_TYPES",
    "NEW",
    "REST",
    "AnyObserver",
    "Ask",
    "CheckpointRetired",
    "Committed",
    "ConfigError",
    "CutBy",
    "DecodeFailed",
    "DecodeStats",
    "Decoder",
    "DiscardReason",
    "Draft",
    "DraftDiscarded",
    "DraftFailed",
    "DraftInfo",
    "DraftOffered",
    "DraftRestored",
    "DraftSource",
    "DraftTaken",
    "Drafter",
    "Event",
    "Extended",
    "Extras",
    "FailedCall",
    "Failure",
    "FinishLimit",
    "FinishReason",
    "Forward",
    "HeadSource",
    "IllegalEvent",
    "Limits",
    "NotStarted",
    "Observer",
    "Policy",
    "Prefilled",
    "Processor",
    "PromptLookup",
    "Record",
    "Recorder",
    "RecorderFailed",
    "ReplayDiverged",
    "Result",
    "Rewound",
    "Rows",
    "Runtime",
    "RuntimeContractError",
    "RuntimeFailed",
    "RuntimeInfo",
    "Sampling",
    "SerialDecoded",
    "Session",
    "SessionClosed",
    "SessionDropped",
    "SessionFinished",
    "SessionInUse",
    "SessionObserver",
    "SessionOpened",
    "SessionResumed",
    "SessionState",
    "Settle",
    "Settled",
    "Source",
    "SpanRefused",
    "SpanVerified",
    "SpanfoldError",
    "StopMatcher",
    "Stops",
    "TextStream",
    "TokenLog",
    "TokenStream",
    "TokenText",
    "TooManySessions",
    "TrimCause",
    "Trimmed",
    "Turn",
    "TurnOptions",
    "UnknownRules",
    "Verdict",
    "View",
    "account_violations",
    "fold",
    "redrive",
    "reduce",
    "state_violations",
    "view_violations",
]
