"""Replay: what can be proved, measured and compared from a trace alone, and done again from it.

check     fold, laws 1 to 5, the account and the digests of traces
replayer  redrive: the recorded inputs must be decided as they were
rerun     a recorded session again, on a live runtime
diff      two logs of one prompt
resume    go on after a crash
stats     what speculation did and whether it paid
laws      the law checker itself, written from the laws' wording
sessions  which record of a file belongs to which session
"""

from .check import CheckReport as CheckReport
from .check import FileCheck as FileCheck
from .check import SegmentCheck as SegmentCheck
from .check import SessionCheck as SessionCheck
from .check import check as check
from .check import check_records as check_records
from .choices import BOUNDS as BOUNDS
from .diff import DiffReport as DiffReport
from .diff import EventDifference as EventDifference
from .diff import Setting as Setting
from .diff import Side as Side
from .diff import TokenDifference as TokenDifference
from .diff import diff as diff
from .laws import LawChecker as LawChecker
from .laws import Violation as Violation
from .laws import law_violations as law_violations
from .replayer import Divergence as Divergence
from .replayer import Replay as Replay
from .replayer import Replayer as Replayer
from .rerun import RerunDifference as RerunDifference
from .rerun import RerunReport as RerunReport
from .rerun import rerun as rerun
from .resume import resume_trace as resume_trace
from .sessions import SessionKey as SessionKey
from .sessions import iter_sessions as iter_sessions
from .sessions import session_log as session_log
from .stats import AcceptanceRecord as AcceptanceRecord
from .stats import Account as Account
from .stats import SessionFigures as SessionFigures
from .stats import TraceStats as TraceStats
from .stats import TurnFigures as TurnFigures
from .stats import trace_stats as trace_stats
