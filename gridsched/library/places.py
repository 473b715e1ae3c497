"""Where models usually lie on a machine: our own folder, a person's, and those of other programs.

Owns which folders these are, and the few small files of other programs that say where they have moved theirs to. Looks
at no model.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

DOWNLOADS = "models"
"""The folder of the data directory that downloads are put into."""

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama keeps its models when it runs as a service of its own user."""

_LONGEST_NOTE_BYTES = 64 << 10


def usual_folders(data_dir: Path, home: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Those that exist, most particular first: ours, the person's own, the caches of llama.cpp and the hub, LM
    Studio's, Ollama's stores."""
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub_home = Path(environ.get("HF_HOME") or cache / "huggingface")
    folders = (
        data_dir / DOWNLOADS,
        home / "models",
        Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp"),
        Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hub_home / "hub"),
        *_lm_studio(home),
        Path(environ.get("OLLAMA_MODELS") or home / ".ollama" / "models"),
        OLLAMA_SERVICE,
    )
    there = (folder for folder in folders if os.access(folder, os.F_OK))  # `is_dir` raises behind a closed one
    return tuple({os.path.realpath(folder): folder for folder in reversed(tuple(there))}.values())[::-1]


def _lm_studio(home: Path) -> Iterator[Path]:
    """Its folders of today and of before, and the one that was chosen in its settings."""
    pointed = _small_file(home / ".lmstudio-home-pointer").strip().splitlines()
    homes = [Path(line) for line in pointed[:1] if line] + [home / ".lmstudio", home / ".cache" / "lm-studio"]
    for each in dict.fromkeys(homes):
        with suppress(ValueError, RecursionError):
            told = json.loads(_small_file(each / "settings.json") or "{}")
            chosen = told.get("downloadsFolder") if isinstance(told, dict) else None
            if isinstance(chosen, str) and chosen.startswith("/") and "\0" not in chosen:
                yield Path(chosen)
        yield each / "models"


def _small_file(path: Path) -> str:
    """What a program has noted there; nothing where it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST_NOTE_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", "")
    except (OSError, ValueError):
        return ""
