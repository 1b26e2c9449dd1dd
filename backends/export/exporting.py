"""One export from beginning to end: load, write for the builder, build in its environment, check against torch, move into place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from ...engine.errors import ConfigError
from .environments import EXPORTERS, add_sites, environment_of, make_environment, sites

if TYPE_CHECKING:
    from ..torch.loading import Loaded

__all__ = ["MANIFEST", "PRECISIONS", "Exported", "export", "export_python"]

PRECISIONS: Final = ("fp32", "fp16", "int4")
MANIFEST: Final = "spanfold.json"
_FORMAT: Final = 1
#: What the width of a head has to be a multiple of, in the attention that the builder uses.
_HEAD_DIM: Final = 16
_NEEDS: Final = ("torch", "transformers", "safetensors", "numpy", "filelock")


def _silent(message: str) -> None:
    pass


@frozen(kw_only=True)
class Exported:
    """What was written.

    Attributes:
        folder: where it lies.
        manifest: the content of its ``spanfold.json``.
    """

    folder: Path
    manifest: dict[str, Any]


def export(
    model: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    precision: str = "fp32",
    head: bool = False,
    python: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Exported:
    """Write a checkpoint as an ONNX model directory, checked against torch before it is there.

    Args:
        model: what ``TorchRuntime.from_pretrained`` takes, or the name of one of the project's own models; None: the embedded one.
        out: the directory to make; it must not be there yet, or be empty.
        precision: one of ``PRECISIONS``.
        head: export the checkpoint's MTP layer too, as ``mtp.onnx``.
        python: interpreter of an environment that holds ``EXPORTERS``; None: one is made in the cache, once.
        cache_dir: where that environment goes; None: the folder that ``SPANFOLD_CACHE`` names, else the user's cache.
        progress: called with a line of text before each slow part.

    Raises:
        ConfigError: in one line, whatever is wrong; nothing is left in ``out`` then.
    """
    say: Callable[[str], None] = progress or _silent
    if precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    place = Path(out)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ConfigError(f"{place} is there already: remove it, or name another directory")
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"export reads the checkpoint with torch and needs {', '.join(missing)}: pip install 'spanfold[torch]'")
    _check_writable(place)
    from ..torch.opening import locate

    name, checkpoint = locate(model, say)
    # Whatever can be refused is refused before pip is asked for anything.
    builder = None if python is None else _checked_python(python)
    loaded = _loaded(name, checkpoint, head, say)
    builder = builder or export_python(None, cache_dir, say)
    place.absolute().parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that the move at the end is a rename.
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.absolute().parent) as work:
        manifest = _exported(name, loaded, checkpoint, Path(work), builder, precision, head, say)
        if place.exists():
            place.rmdir()
        (Path(work) / "out").rename(place)
    return Exported(folder=place, manifest=manifest)


def export_python(python: str | os.PathLike[str] | None, cache_dir: str | os.PathLike[str] | None, progress: Callable[[str], None]) -> Path:
    """The interpreter that has the exporters: the one that was named, or that of the environment in the cache, made if need be.

    Raises:
        ConfigError: the named one lacks a package, or the environment cannot be made.
    """
    if python is None:
        from ..models import default_cache

        cache = Path(cache_dir) if cache_dir is not None else default_cache()
        folder = environment_of("export", "\n".join(EXPORTERS).encode(), cache)
        try:
            return make_environment(folder, EXPORTERS, progress)
        except OSError as error:
            raise ConfigError(f"the environment {folder} cannot be made: {error}") from error
    return _checked_python(python)


def _checked_python(python: str | os.PathLike[str]) -> Path:
    code = (
        "import importlib.util as u; print(*[n for n in ('onnxruntime', 'onnxruntime_genai', 'onnx', 'onnx_ir') if u.find_spec(n) is None])"
    )
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{python} cannot be run: {error.strerror}; name the interpreter of an environment") from error
    if done.returncode or done.stdout.strip():
        lacks = ", ".join(done.stdout.split()) or "a working Python"
        raise ConfigError(f"{python} lacks {lacks}: install {' '.join(EXPORTERS)} into its environment, or leave out --python")
    return Path(python)


def _check_writable(place: Path) -> None:
    there = next(one for one in place.absolute().parents if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{place} cannot be made: {there} is no directory that can be written to; name another one")


def _loaded(name: str, checkpoint: Path, head: bool, say: Callable[[str], None]) -> Loaded:
    # Only here: they load torch.
    from ..torch.families import PLAIN
    from ..torch.loading import load
    from .sources import head_dim

    say(f"loading {name}")
    loaded = load(checkpoint, device="cpu", dtype="float32", attn_implementation=None, draft=head, revision=None)
    kind = type(loaded.model).__name__
    if kind not in PLAIN:
        raise ConfigError(f"{name} is {kind}: export takes {', '.join(PLAIN)}")
    if head and loaded.head is None:
        raise ConfigError(f"{name} has no MTP layer: leave out --head")
    if head_dim(loaded) % _HEAD_DIM:
        raise ConfigError(f"{name} has heads of {head_dim(loaded)}: the exported attention takes multiples of {_HEAD_DIM}")
    return loaded


def _exported(
    name: str, loaded: Loaded, checkpoint: Path, work: Path, builder: Path, precision: str, head: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    # Only here: they load torch.
    from . import checking
    from .sources import text_files, without_made_up_ids, write_head, write_target

    write_target(loaded, checkpoint, work / "target")
    if head:
        write_head(loaded, work / "head")
    say("decoding the prompts of the check with torch")
    prompts = checking.sequences(loaded)
    _write_job(work, loaded, precision, head, prompts)
    say(f"exporting in {precision}")
    _run_worker(work, builder)

    say("comparing with torch")
    made = _results(work, prompts)
    wanted = [checking.reference(loaded, tokens, one["hidden"]) for tokens, one in zip(prompts.values(), made, strict=True)]
    checked = {"target": checking.verdict("target", checking.compare(wanted, made, "logits", "ids"), precision)}
    if head:
        checked["head"] = checking.verdict("head", checking.compare(wanted, made, "head_logits", "draft_ids"), precision)

    out = work / "out"
    without_made_up_ids(loaded, out / "genai_config.json")
    if loaded.tokenizer is None:
        for path in text_files(out):  # the builder's copies of the one that was made up for it
            path.unlink()
    kept = [checkpoint / "config.json", *text_files(checkpoint)]
    if loaded.draft_vocab is not None:
        kept.append(checkpoint / "draft_vocab.safetensors")
    for path in kept:
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)
    manifest = {
        "format": _FORMAT,
        "source": name if not Path(name).is_dir() else Path(name).resolve().name,
        "precision": precision,
        "head": head,
        "layers": loaded.model.config.num_hidden_layers,
        "exporters": json.loads((work / "versions.json").read_text(encoding="utf-8")),
        "checked": checked,
        "files": {path.name: _digest(path) for path in sorted(out.iterdir())},
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in (out, *out.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return manifest


def _write_job(work: Path, loaded: Loaded, precision: str, head: bool, prompts: dict[str, Any]) -> None:
    import numpy as np

    from .checking import CHAIN, PROMPT_TOKENS

    job = {
        "precision": precision,
        "head": head,
        "epsilon": loaded.model.config.rms_norm_eps,
        "chain": CHAIN,
        "prompt_tokens": PROMPT_TOKENS,
    }
    (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    np.savez(work / "prompts.npz", **prompts)


def _results(work: Path, prompts: dict[str, Any]) -> list[dict[str, Any]]:
    import numpy as np

    with np.load(work / "results.npz") as made:
        return [{key.partition("/")[2]: made[key] for key in made.files if key.startswith(f"{name}/")} for name in prompts]


def _run_worker(work: Path, builder: Path) -> None:
    # Behind that environment's own packages: torch, and this very code.
    seen = [*sites(), str(Path(__file__).resolve().parents[3])]
    code = f"{add_sites(seen)}; import sys, pathlib; from spanfold.backends.export.worker import main; main(pathlib.Path(sys.argv[1]))"
    log = work / "worker.log"
    variables = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with log.open("wb") as file:
        done = subprocess.run([str(builder), "-c", code, str(work)], stdout=file, stderr=subprocess.STDOUT, env=variables, check=False)
    if done.returncode:
        text = log.read_text(encoding="utf-8", errors="replace")
        if os.environ.get("SPANFOLD_TRACEBACK"):
            sys.stderr.write(text)
        lines = [line for line in text.splitlines() if line.strip()]
        told = lines[-1].strip() if lines else f"exit code {done.returncode}"
        raise ConfigError(f"the exporter failed: {told} (SPANFOLD_TRACEBACK=1 shows its output)")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
