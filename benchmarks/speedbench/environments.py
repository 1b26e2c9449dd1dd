"""Environments of the peers, each with its own packages, and the processes that run in them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from spanfold.backends.export.environments import environment_of, python_in
from spanfold.backends.export.environments import make_environment as build

PEERS: Final = Path(__file__).resolve().parent.parent / "peers"
#: Folder of each peer of speed.py, in the order of the table.
NAMES: Final = {"transformers": "hf", "economize": "economize_mtp", "onnxruntime": "ort"}
#: Folder of every peer.
FOLDERS: Final = NAMES | {"onnxruntime-genai": "genai"}


class PeerError(Exception):
    """A peer cannot be measured; the text says why."""


def _requirements(peer: str) -> Path:
    return PEERS / FOLDERS[peer] / "requirements.txt"


def environment(peer: str, cache: Path) -> Path:
    """Where the peer's environment lies: a new one for new requirements."""
    return environment_of(peer, _requirements(peer).read_bytes(), cache)


def python_of(peer: str, cache: Path) -> Path:
    """The interpreter of the peer's environment.

    Raises:
        PeerError: it was not made yet.
    """
    python = python_in(environment(peer, cache))
    if python is None:
        raise PeerError("its environment is not there: run with --make-environments once")
    return python


def make_environment(peer: str, cache: Path) -> None:
    """Make the peer's environment where it is not there yet; what this interpreter has installed stays visible in it."""
    build(environment(peer, cache), ["-r", str(_requirements(peer))], lambda message: None)


@define
class Worker:
    """A process that answers the protocol of ``peers/protocol.py``.

    Args:
        name: what is measured; ``spanfold`` or a peer.
        python: the interpreter to run it with.
        script: its ``peer.py``.
        options: what the protocol passes.
        log: where its standard error goes; messages name it without its folder.
    """

    name: str
    python: Path
    script: Path
    options: dict[str, Any]
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False)

    def start(self) -> None:
        """Start the process; its first reply waits for the model to be loaded."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(self.options["threads"])
        variables = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.python), str(self.script), json.dumps(self.options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=variables,
            )

    def ask(self, op: str, timeout_s: float = 600, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Raises:
            PeerError: the peer says so, ended, or took longer than ``timeout_s``.
        """
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise PeerError("it is not running")
        try:
            process.stdin.write(json.dumps({"op": op, **request}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise PeerError(f"its process ended ({process.poll()}), see {self.log.name}") from error
        reply = json.loads(self._line(process, time.monotonic() + timeout_s))
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    def _line(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        stream = process.stdout
        assert stream is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([stream], [], [], max(until - time.monotonic(), 0))
            if not ready:
                self.stop()
                raise PeerError(f"no answer in time; it was ended, see {self.log.name}")
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                raise PeerError(f"its process ended ({process.wait()}), see {self.log.name}")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def stop(self) -> None:
        """End the process; again does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
