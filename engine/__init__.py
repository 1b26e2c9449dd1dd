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
from .drivers import Observer as Observer
from .drivers import Recorder as Recorder
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
from .events import *  # noqa: F403
from .events import __all__ as _events
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
from .session import TokenStream as TokenStream
from .state import NEW as NEW
from .state import DecodeStats as DecodeStats
from .state import SessionState as SessionState
from .state import Turn as Turn
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
    "NEW",
    "Ask",
    "ConfigError",
    "DecodeFailed",
    "DecodeStats",
    "Decoder",
    "Draft",
    "DraftInfo",
    "DraftSource",
    "Drafter",
    "Extras",
    "Failure",
    "Forward",
    "HeadSource",
    "IllegalEvent",
    "Limits",
    "NotStarted",
    "Observer",
    "Policy",
    "Processor",
    "PromptLookup",
    "Recorder",
    "RecorderFailed",
    "ReplayDiverged",
    "Result",
    "Rows",
    "Runtime",
    "RuntimeContractError",
    "RuntimeInfo",
    "Sampling",
    "Session",
    "SessionClosed",
    "SessionInUse",
    "SessionState",
    "Settle",
    "Settled",
    "SpanfoldError",
    "StopMatcher",
    "Stops",
    "TextStream",
    "TokenLog",
    "TokenStream",
    "TokenText",
    "TooManySessions",
    "Turn",
    "TurnOptions",
    "View",
    "account_violations",
    "fold",
    "redrive",
    "reduce",
    "state_violations",
    "view_violations",
    *_events,
]
