"""How the benchmark talks to what it measures: one JSON object per line in, one out; package-free, so every environment has it.

The first argument of a peer is a JSON object: ``model`` (directory), ``dtype``, ``threads``, ``cache`` (a folder of its own).
A request is ``{"op": name, ...}``; a reply is the handler's object, or ``{"error": text}``. A peer answers ``hello`` first, with
``versions``, ``notes`` and ``groups``: ways to decode, each with the settings from which the runner picks the fastest.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class NotApplicable(Exception):
    """This peer cannot do what it is asked for; the text says why and is shown as it is."""


def _told(error: Exception) -> str:
    text = str(error) if isinstance(error, NotApplicable) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]


def options() -> dict[str, Any]:
    """What the runner passed."""
    return json.loads(sys.argv[1])


def serve(start: Callable[[], dict[str, Handler]]) -> None:
    """Load by ``start``, then answer until standard input ends. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    handlers: dict[str, Handler] = {}
    problem = ""
    try:
        handlers = start()
    except Exception as error:  # told as the answer to the first request
        traceback.print_exc()
        problem = _told(error)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if problem:
                raise NotApplicable(problem)
            reply = handlers[request["op"]](request)
        except Exception as error:
            traceback.print_exc()  # to the log, with its place
            reply = {"error": _told(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class Stamps:
    """When tokens came: the time up to the first delivery (prefill and set-up) and the time of the tokens after it."""

    def __init__(self) -> None:
        self.began = time.perf_counter_ns()
        self.first_at = 0
        self.first = 0

    def delivered(self, count: int) -> None:
        """``count`` tokens came; only the first delivery is kept."""
        if not self.first_at:
            self.first_at, self.first = time.perf_counter_ns(), count

    def reply(self, tokens: list[int]) -> dict[str, Any]:
        """The reply of a decode that ends now."""
        ended = time.perf_counter_ns()
        return {"tokens": tokens, "first": self.first, "first_ns": self.first_at - self.began, "rest_ns": ended - self.first_at}


def timed_rows(run: Callable[[int], object], request: dict[str, Any]) -> dict[str, Any]:
    """Reply of ``rows``: nanoseconds of ``run(rows)`` for each asked number of rows, ``repeats`` times after two warm-ups."""
    took: dict[str, list[int]] = {}
    for rows in request["rows"]:
        for _ in range(2):
            run(rows)
        took[str(rows)] = []
        for _ in range(request["repeats"]):
            began = time.perf_counter_ns()
            run(rows)
            took[str(rows)].append(time.perf_counter_ns() - began)
    return {"ns": took}
