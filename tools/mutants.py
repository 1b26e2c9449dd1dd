"""Mutation run: change the engine's decisions one at a time and see whether the fast tests notice.

    python tools/mutants.py [--jobs 2] [--only rules.py] [--sample 0.2] [--list] [--show 17]

What is mutated: rules.py, adaptive.py, estimates.py, reducer.py and the handlers behind it, transitions.py, positions.py, round.py, life.py
and repairs.py, each by its syntax tree (comparisons, boolean and arithmetic operators, constants by one, conditions, removed statements,
yields of events left out, swapped arguments). Nothing on disk changes: a mutant replaces its module in a forked process, which then
runs the kill set in order of speed and stops at the first failure. A mutant that hangs counts as killed.

Survivors are printed with their diff; docs/explanation/mutation.md says why each that is left changes nothing that can be seen.
Exit status 1 where fewer than 95% are killed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = (
    "positions.py",
    "rules.py",
    "adaptive.py",
    "estimates.py",
    "transitions.py",
    "checks.py",
    "reducer.py",
    "on_session.py",
    "on_round.py",
    "round.py",
    "life.py",
    "repairs.py",
)

#: In order of speed, each with the CPU seconds after which a mutant counts as hanging; the last are for what the first let through.
KILL_SET = (
    (5, "tests/engine/test_golden.py", "tests/engine/test_estimates.py"),
    (
        40,
        "tests/engine/test_decisions.py",
        "tests/engine/test_contract.py",
        "tests/engine/test_reducer.py",
        "tests/engine/test_survivors.py",
    ),
    (40, "tests/cases"),
    (60, "tests/laws/test_laws.py"),
    (60, "tests/laws/test_small_scope.py", "-k", "rollback or cancel"),
    (60, "tests/laws/test_machine.py"),
    (120, "tests/engine/test_adaptive.py"),
)
TIMEOUT_S = 600
BAR = 0.95


@dataclass(frozen=True)
class Mutant:
    """One changed module: its number, file, line, what was done, and the new source."""

    number: int
    file: str
    line: int
    what: str
    source: str

    @property
    def name(self) -> str:
        """For people; the number is what --pick and --show take."""
        return f"{self.number} {self.file}:{self.line} {self.what}"


# -- making mutants --------------------------------------------------------------------------------------------------

_COMPARE = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.FloorDiv: ast.Mult, ast.Mult: ast.FloorDiv}
_SWAPPED_CALLS = {"min": "max", "max": "min"}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(what is done, the node instead)."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            for other in _COMPARE.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.ops[at] = other()
                yield f"{type(operator).__name__} -> {other.__name__}", changed
    elif isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{type(node.op).__name__} -> {type(changed.op).__name__}", changed
        for at in range(len(node.values)):
            rest = [value for other, value in enumerate(node.values) if other != at]
            yield f"operand {at} left out", rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        changed = copy.deepcopy(node)
        changed.op = _ARITHMETIC[type(node.op)]()
        yield f"{type(node.op).__name__} -> {type(changed.op).__name__}", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out", node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield f"{node.value} -> {not node.value}", ast.Constant(not node.value)
        elif isinstance(node.value, int):
            for other in (node.value + 1, node.value - 1):
                yield f"{node.value} -> {other}", ast.Constant(other)
    elif isinstance(node, ast.IfExp):
        changed = copy.deepcopy(node)
        changed.body, changed.orelse = node.orelse, node.body
        yield "branches swapped", changed
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_CALLS:
        changed = copy.deepcopy(node)
        changed.func = ast.Name(_SWAPPED_CALLS[node.func.id], ast.Load())
        yield f"{node.func.id} -> {_SWAPPED_CALLS[node.func.id]}", changed
    elif isinstance(node, ast.If | ast.While):
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.Constant):
            changed = copy.deepcopy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield "condition negated", changed
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield f"removed: {ast.unparse(node)[:50]}", ast.Pass()
    elif isinstance(node, ast.Assign | ast.AugAssign):
        value = node.value
        if isinstance(value, ast.Yield) and isinstance(value.value, ast.Call):  # an event or a request that is not made
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "state":
                yield f"event left out: {ast.unparse(value.value.func)}", ast.Pass()
        elif isinstance(value, ast.YieldFrom) and isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "state":
                yield f"step left out: {ast.unparse(value.value)[:50]}", ast.Pass()
        elif isinstance(node, ast.AugAssign):
            yield f"removed: {ast.unparse(node)[:50]}", ast.Pass()
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield f"{node.arg}= left out", ast.keyword(arg=None, value=ast.Dict(keys=[], values=[]))
    elif isinstance(node, ast.Return) and node.value is not None and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        changed = copy.deepcopy(node)
        assert isinstance(changed.value, ast.Tuple)
        changed.value.elts[:2] = reversed(changed.value.elts[:2])
        yield "returned values swapped", changed
    elif isinstance(node, ast.Set | ast.Tuple) and len(node.elts) > 1 and all(_is_text(element) for element in node.elts):
        for at in range(len(node.elts)):
            changed = copy.deepcopy(node)
            del changed.elts[at]
            yield f"{ast.unparse(node.elts[at])} left out", changed
    elif isinstance(node, ast.Dict) and node.keys and all(key is not None and _is_text(key) for key in node.keys):
        for at, key in enumerate(node.keys):
            assert key is not None
            changed = copy.deepcopy(node)
            del changed.keys[at], changed.values[at]
            yield f"entry {ast.unparse(key)} left out", changed


#: The reducer's writes: a keyword argument left out keeps the old value.
_WRITES = {"evolve_state", "evolve_stats"}


class _Replace(ast.NodeTransformer):
    def __init__(self, target: int, instead: ast.AST) -> None:
        self.target, self.instead, self.at = target, instead, -1

    def visit(self, node: ast.AST) -> ast.AST:
        self.at += 1
        if self.at == self.target:
            return ast.copy_location(self.instead, node)
        return self.generic_visit(node)


def _numbered(tree: ast.AST) -> Iterator[tuple[int, ast.AST, tuple[ast.AST, ...]]]:
    """Every node with its number in the order in which the replacer visits, and its ancestors."""
    count = -1

    def walk(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[int, ast.AST, tuple[ast.AST, ...]]]:
        nonlocal count
        count += 1
        yield count, node, above
        for child in ast.iter_child_nodes(node):
            yield from walk(child, (*above, node))

    yield from walk(tree, ())


def _relevant(node: ast.AST, above: tuple[ast.AST, ...]) -> bool:
    """Not: annotations, imports, docstrings, `__all__`, the wording of messages."""
    for parent, child in pairwise((*above, node)):
        if isinstance(parent, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom | ast.Assert):
            return False
        if isinstance(parent, ast.AnnAssign) and child is parent.annotation:
            return False
        if isinstance(parent, ast.arg):
            return False
        if isinstance(parent, ast.BoolOp) and ast.unparse(parent).endswith("cost_ns or 0"):
            return False
        if isinstance(parent, ast.FunctionDef) and (child is parent.returns or child in parent.decorator_list):
            return False
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("refuse", "log.warning"):
            return False
        if isinstance(parent, ast.Assign | ast.AnnAssign):
            target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
            if isinstance(target, ast.Name) and (target.id == "__all__" or target.id.endswith("Reason")):
                return False
    if isinstance(node, ast.BoolOp) and ast.unparse(node).endswith("cost_ns or 0"):
        return False
    if isinstance(node, ast.keyword):
        call = above[-1]
        return isinstance(call, ast.Call) and ast.unparse(call.func) in _WRITES
    return True


def mutants(only: str | None) -> list[Mutant]:
    """All mutants, in order of file and line."""
    made: list[Mutant] = []
    for name in TARGETS:
        if only is not None and name != only:
            continue
        source = (ROOT / "engine" / name).read_text(encoding="utf-8")
        tree = ast.parse(source)
        seen = {ast.unparse(tree)}
        for at, node, above in _numbered(tree):
            if not _relevant(node, above):
                continue
            for what, instead in _changes(node):
                changed = _Replace(at, instead).visit(copy.deepcopy(tree))
                text = ast.unparse(ast.fix_missing_locations(changed))
                if text in seen:
                    continue
                seen.add(text)
                line = getattr(node, "lineno", None) or getattr(above[-1], "lineno", 0)
                made.append(Mutant(len(made), name, line, what, text))
    return made


# -- running one -----------------------------------------------------------------------------------------------------


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the mutant's source under the module's own name."""

    def __init__(self, mutant: Mutant) -> None:
        self.module = "spanfold.engine." + mutant.file.removesuffix(".py")
        self.mutant = mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(ROOT / "engine" / self.mutant.file))

    def exec_module(self, module: object) -> None:
        exec(compile(self.mutant.source, f"<{self.mutant.name}>", "exec"), vars(module))


def _run_kill_set(mutant: Mutant, stages: int) -> str:
    """In a fork: the stage that noticed, or ``survived``."""
    import pytest

    sys.meta_path.insert(0, _Finder(mutant))
    os.chdir(ROOT)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"]
    for stage, (limit_s, *tests) in enumerate(KILL_SET[:stages]):
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)  # the default action of its signal ends the process
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            status = pytest.main([*options, *tests])
        if status != pytest.ExitCode.OK:
            first = next((line for line in out.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))), str(status))
            return f"killed at stage {stage}: {first[:160]}"
    return "survived"


def _start(mutant: Mutant, stages: int) -> tuple[int, int]:
    """Fork a run of the kill set; (pid, the file descriptor on which its verdict comes)."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    os.close(receive)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(TIMEOUT_S)
    try:
        verdict = _run_kill_set(mutant, stages)
    except BaseException as error:
        verdict = f"killed: {type(error).__name__}"
    os.write(send, verdict.encode())
    os._exit(0)


def run_all(chosen: list[Mutant], jobs: int, stages: int) -> dict[Mutant, str]:
    """The verdict on each mutant."""
    verdicts: dict[Mutant, str] = {}
    waiting, running = list(reversed(chosen)), dict[int, tuple[Mutant, int]]()
    began = time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            pid, receive = _start(mutant, stages)
            running[receive] = (mutant, pid)
        for receive in select.select(list(running), [], [])[0]:
            mutant, pid = running.pop(receive)
            said = b""
            while part := os.read(receive, 4096):
                said += part
            os.close(receive)
            os.waitpid(pid, 0)
            verdicts[mutant] = said.decode() or "killed: timeout or crash"
            survivors = sum(verdict == "survived" for verdict in verdicts.values())
            took = time.monotonic() - began
            print(f"\r{len(verdicts)}/{len(chosen)}, {survivors} survived, {took:.0f} s ", end="", file=sys.stderr, flush=True)
            if verdicts[mutant] == "survived":
                print(f"\nsurvived: {mutant.name}", flush=True)
    print(file=sys.stderr)
    return verdicts


def diff(mutant: Mutant) -> str:
    """What the mutant changes, as unparsed code."""
    original = ast.unparse(ast.parse((ROOT / "engine" / mutant.file).read_text(encoding="utf-8")))
    lines = difflib.unified_diff(original.splitlines(), mutant.source.splitlines(), lineterm="", n=2)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=TARGETS, help="mutate one file")
    parser.add_argument("--sample", type=float, default=1.0, help="run this fraction of the mutants, chosen by a fixed seed")
    parser.add_argument("--pick", type=int, nargs="*", help="run these numbers only")
    parser.add_argument("--stages", type=int, default=len(KILL_SET), help="run only the first so many parts of the kill set")
    parser.add_argument("--list", action="store_true", help="list the mutants and stop")
    parser.add_argument("--show", type=int, nargs="*", help="show what these numbers change and stop")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests" / "support")]

    made = mutants(options.only)
    if options.list:
        print(*(mutant.name for mutant in made), sep="\n")
        return 0
    if options.show is not None:
        for number in options.show:
            print(made[number].name, diff(made[number]), sep="\n")
        return 0
    chosen = made
    if options.pick is not None:
        chosen = [made[number] for number in options.pick]
    elif options.sample < 1:
        chosen = random.Random(0).sample(made, max(1, round(len(made) * options.sample)))
    # What does not depend on the engine is imported once, before the forks.
    import attrs
    import cattrs
    import hypothesis.stateful
    import pytest

    assert attrs and cattrs and hypothesis.stateful and pytest
    assert not any(name.startswith("spanfold.engine") for name in sys.modules), "the engine was imported before the forks"

    # The engine as it is must pass the very same way: tests that fail anyway (no spanfold installed, say) would kill every mutant.
    at_hand = made[0]
    unchanged = replace(at_hand, what="unchanged", source=(ROOT / "engine" / at_hand.file).read_text(encoding="utf-8"))
    (verdict,) = run_all([unchanged], 1, options.stages).values()
    if verdict != "survived":
        print(f"the kill set does not pass on the engine as it is, so its verdicts would mean nothing: {verdict}", file=sys.stderr)
        return 2
    verdicts = run_all(chosen, options.jobs, options.stages)
    survivors = sorted((mutant for mutant, verdict in verdicts.items() if verdict == "survived"), key=lambda mutant: mutant.number)
    for mutant in survivors:
        print(f"\n== {mutant.name}", diff(mutant), sep="\n")
    share = 1 - len(survivors) / len(verdicts)
    print(f"\n{len(verdicts)} mutants, {len(verdicts) - len(survivors)} killed ({share:.1%}), {len(survivors)} survived")
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
