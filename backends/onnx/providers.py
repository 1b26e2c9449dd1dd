"""An InferenceSession on the device that was asked for, or an error that says why not. There is no fallback.

ONNX Runtime itself falls back: where the CUDA libraries are missing, the session runs on the CPU and a line goes to its log. What a
session really runs on is therefore asked of the session (``get_providers``), not of the list of providers that were built in.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# onnxruntime carries no type information.
from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Generator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import onnxruntime
from attrs import frozen

from ...engine.errors import ConfigError

__all__ = ["Device", "open_graph", "parse_device"]

_CPU: Final = "CPUExecutionProvider"
_CUDA: Final = "CUDAExecutionProvider"
_WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")
# ONNX Runtime's levels. What goes wrong in a session is raised with the words that it would log, so its log would only repeat them.
_NOTHING: Final = 4
_WARNINGS: Final = 2


@frozen
class Device:
    """Where a session runs: ``kind`` is ``cpu`` or ``cuda``."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def parse_device(device: str) -> Device:
    """``cpu``, ``cuda`` or ``cuda:N``; ConfigError for another word."""
    if device == "cpu":
        return Device("cpu")
    found = re.fullmatch(r"cuda(?::([0-9]+))?", device) if isinstance(device, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {device!r}")
    return Device("cuda", int(found[1] or 0))


def installed_wheels() -> tuple[str, ...]:
    """The distributions that hold ``onnxruntime``, with their versions: ``onnxruntime 1.32.0``."""
    found: list[str] = []
    for name in _WHEELS:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


def _why_no_cuda() -> str:
    wheels = installed_wheels()
    if len(wheels) > 1:
        return f"{' and '.join(wheels)} are both installed and overwrite each other: uninstall both, then install onnxruntime-gpu alone"
    if _CUDA not in onnxruntime.get_available_providers():
        return f"{wheels[0] if wheels else 'this onnxruntime'} is built without it: uninstall it and install onnxruntime-gpu"
    return (
        f"{wheels[0] if wheels else 'this onnxruntime'} could not load it: the CUDA and cuDNN libraries that it was built for, "
        "or the device, are missing (pip install 'onnxruntime-gpu[cuda,cudnn]' brings the libraries)"
    )


def _options(given: Any, threads: int | None) -> Any:
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ConfigError(f"threads must be an integer of at least 1 or None, not {threads!r}")
    if given is not None:
        if threads is not None:
            raise ConfigError("threads and session_options: set the threads in session_options")
        if not isinstance(given, onnxruntime.SessionOptions):
            raise ConfigError(f"session_options must be an onnxruntime.SessionOptions or None, not {given!r}")
        return given
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _NOTHING
    # Target and head have a pool of threads each and run in turn: those of the one that rests must not spin on the other's cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


@contextlib.contextmanager
def _quiet_log() -> Generator[None]:
    # Why a provider cannot be used goes to the log of the process. Its level cannot be asked, so its default comes back.
    onnxruntime.set_default_logger_severity(_NOTHING)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(_WARNINGS)


def open_graph(
    path: Path, device: Device, *, provider_options: Mapping[str, str] | None, threads: int | None, session_options: Any, name: str
) -> Any:
    """An ``onnxruntime.InferenceSession`` for one file.

    Args:
        path: the ``.onnx`` file.
        device: where to run.
        provider_options: handed to the execution provider of the device, as ONNX Runtime names them.
        threads: of one operator (``intra_op_num_threads``); None: ONNX Runtime's choice.
        session_options: an ``onnxruntime.SessionOptions`` in place of the one made here, or None.
        name: of the model, for errors.

    Raises:
        ConfigError: the file cannot be loaded, or the session does not run on ``device``.
    """
    options = _options(session_options, threads)
    if provider_options is not None and not isinstance(provider_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"provider_options must be a mapping of names to values or None, not {provider_options!r}")
    extra = {str(key): str(value) for key, value in (provider_options or {}).items()}
    cuda = device.kind == "cuda"
    if cuda and (_CUDA not in onnxruntime.get_available_providers() or len(installed_wheels()) > 1):
        raise ConfigError(f"device '{device}' was asked for and ONNX Runtime has no {_CUDA}: {_why_no_cuda()}")
    providers: list[Any] = [(_CUDA, {"device_id": str(device.index), **extra}), _CPU] if cuda else [(_CPU, extra)]
    noise = io.StringIO()  # where a provider cannot be used, onnxruntime prints a banner; the error below says it in one line
    try:
        with contextlib.redirect_stdout(noise), _quiet_log() if cuda else contextlib.nullcontext():
            if cuda:
                onnxruntime.preload_dlls()
            session: Any = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime's own errors share no base class
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{name}: {path.name} cannot be loaded ({line})") from error
    real = session.get_providers()
    if cuda and _CUDA not in real:
        raise ConfigError(f"device '{device}' was asked for and the session runs on {', '.join(real)} only: {_why_no_cuda()}")
    return session
