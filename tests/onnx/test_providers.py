"""Case 7.1: the device that was asked for, or an error that says why not. Never a CPU run that nobody asked for."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from onnx_runtimes import exported

from spanfold.backends.models import embedded
from spanfold.backends.onnx import OnnxRuntime, providers
from spanfold.engine.errors import ConfigError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def refused(device: str = "cuda", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        OnnxRuntime.from_directory(exported(kind="genai"), device=device, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def wheels(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(providers, "version", version)


def test_both_wheels_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(monkeypatch, onnxruntime="1.32.0", onnxruntime_gpu="1.31.1")
    assert "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 are both installed and overwrite each other" in refused()


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(monkeypatch, onnxruntime="1.32.0")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    message = refused("cuda:1")
    assert "device 'cuda:1' was asked for" in message
    assert "onnxruntime 1.32.0 is built without it: uninstall it and install onnxruntime-gpu" in message


def test_a_session_that_fell_back_to_the_cpu_is_an_error_that_lists_its_providers(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """What was built in is not what is usable: the session itself is asked. Here its CUDA libraries are missing."""
    wheels(monkeypatch, onnxruntime_gpu="1.31.1")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("noise"))

    class FallenBack:
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            assert providers == [(CUDA, {"device_id": "0", "arena_extend_strategy": "kSameAsRequested"}), CPU]

        def get_providers(self) -> list[str]:
            return [CPU]

    monkeypatch.setattr(onnxruntime, "InferenceSession", FallenBack)
    message = refused(provider_options={"arena_extend_strategy": "kSameAsRequested"})
    assert f"device 'cuda:0' was asked for and the session runs on {CPU} only: onnxruntime-gpu 1.31.1 could not load it" in message
    assert "noise" not in capfd.readouterr().out


def test_this_machine_opens_cuda_or_says_why_not() -> None:
    try:
        runtime = OnnxRuntime.from_directory(exported(kind="genai"), device="cuda")
    except ConfigError as error:
        assert "CUDA" in str(error) and "\n" not in str(error)
    else:
        assert runtime.info.device == "cuda:0" and CUDA in runtime._target.graph.session.get_providers()


def test_a_load_that_fails_writes_nothing_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error is one line; ONNX Runtime's coloured log would stand in front of it. Afterwards warnings are shown as before."""
    folder = tmp_path / "model"
    shutil.copytree(embedded(), folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[: len(content) // 8])
    with pytest.raises(ConfigError, match="cannot be loaded"):
        OnnxRuntime.from_directory(folder, threads=1)
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        OnnxRuntime.from_directory(folder, threads=1)
    with contextlib.suppress(ConfigError):
        OnnxRuntime.from_directory(exported(kind="genai"), device="cuda").close()
    assert capfd.readouterr() == ("", "")


def test_the_log_of_the_process_is_quiet_for_the_load_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    monkeypatch.setattr(onnxruntime, "set_default_logger_severity", levels.append)
    wheels(monkeypatch, onnxruntime_gpu="1.31.1")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: levels.append(0))

    def failing(*given: Any, **options: Any) -> None:
        raise RuntimeError("no device")

    monkeypatch.setattr(onnxruntime, "InferenceSession", failing)
    assert "cannot be loaded (no device)" in refused()
    assert levels == [4, 0, 2]


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", "CPU", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert "device must be 'cpu', 'cuda' or 'cuda:N'" in refused(device)


def test_options_are_handed_to_the_provider_and_to_the_session() -> None:
    """Case 7.11: whoever wants the arena to stay small says so in ONNX Runtime's own words."""
    folder = exported(kind="genai")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    runtime = OnnxRuntime.from_directory(folder, session_options=options, provider_options={})
    assert runtime._target.graph.session.get_session_options().enable_cpu_mem_arena is False
    assert OnnxRuntime.from_directory(folder, threads=1)._target.graph.session.get_session_options().intra_op_num_threads == 1
    entries = OnnxRuntime.from_directory(folder, threads=1)._target.graph.session.get_session_options()
    assert entries.get_session_config_entry("session.force_spinning_stop") == "1"
    assert "set the threads in session_options" in refused("cpu", session_options=options, threads=1)
    assert "threads must be an integer of at least 1" in refused("cpu", threads=0)
