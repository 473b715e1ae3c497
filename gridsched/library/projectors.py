"""GGUF files that are loaded beside a model: projectors (`mmproj` files, F7), adapters, models that draft for it.

Owns how they are known, which of them a command line names, and which projector goes with a model that lies beside it.
Reads files through `shards`; blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gridsched.library.llama_cache import origin_of, origins
from gridsched.library.read import Unreadable
from gridsched.library.shards import SUFFIX, ModelFile, read_model
from gridsched.ports import Capability
from gridsched.vram.flags import LaunchFlags
from gridsched.vram.header import Header

_OTHER_KINDS = {
    "adapter": "it is an adapter (LoRA), which goes with a model, not a model",
    "imatrix": "it is an importance matrix, not a model",
}
"""What `general.type` says of files that no engine serves."""

NAME_PART = "mmproj"  # how every publisher names them
_ENCODERS = (
    (Capability.VISION, "clip.has_vision_encoder", True),  # files from before the key are for pictures
    (Capability.AUDIO, "clip.has_audio_encoder", False),
)


def is_projector(header: Header) -> bool:
    """Whether a file is a companion."""
    metadata = header.metadata
    return metadata.get("general.architecture") == "clip" or metadata.get("general.type") == "mmproj"


def why_no_model(file: ModelFile) -> str | None:
    """Why a file that could be read is no model; None where it is one."""
    if is_projector(file.header):
        return "it is a projector (mmproj), which goes with a model, not a model"
    if file.header.metadata.get("general.architecture") == "controlvector":
        return "it is a control vector, which goes with a model, not a model"
    if (kind := file.header.metadata.get("general.type")) in _OTHER_KINDS:
        return _OTHER_KINDS[str(kind)]
    if not any(header.tensors for header in (file.header, *file.shards)):
        return "it has no weights (a vocabulary only)"
    return None


def projector_capabilities(header: Header) -> frozenset[Capability]:
    """What a model can take with it: pictures, sound."""
    return frozenset(word for word, key, default in _ENCODERS if header.metadata.get(key, default) is True)


def read_projector(path: Path) -> ModelFile:
    """The companion that a person named. Raises Unreadable, also for a file that is an ordinary model."""
    file = read_model(path)
    if not is_projector(file.header):
        raise Unreadable("it is a model, not a projector")
    return file


def read_adapter(path: Path) -> ModelFile:
    """The adapter that a person named. Raises Unreadable, also for what is none."""
    file = read_model(path)
    if file.header.metadata.get("general.type") != "adapter":
        raise Unreadable("it is no adapter (LoRA)")
    return file


def read_draft(path: Path) -> ModelFile:
    """The draft model that a person named. Raises Unreadable, also for what is no model."""
    file = read_model(path)
    if reason := why_no_model(file):
        raise Unreadable(reason)
    return file


@dataclass(frozen=True, slots=True)
class Companions:
    """What is loaded beside a model because somebody named it."""

    projector: ModelFile | None = None
    draft: ModelFile | None = None
    adapters: tuple[ModelFile, ...] = ()


def read_companions(said: LaunchFlags, mmproj: Path | None = None) -> Companions:
    """The files that flags name, and the projector that a setting does. A relative path is the engine's to resolve,
    from the folder that it is started in, which is this process's. Raises Unreadable, with who named the file."""
    named = Path(said.mmproj) if said.mmproj else mmproj
    draft = said.draft.model if said.draft is not None else None
    return Companions(
        projector=_read(read_projector, "mmproj", named) if named is not None else None,
        draft=_read(read_draft, "flags: --model-draft", Path(draft)) if draft else None,
        adapters=tuple(_read(read_adapter, "flags: --lora", Path(lora)) for lora in said.loras),
    )


def _read(read: Callable[[Path], ModelFile], what: str, path: Path) -> ModelFile:
    """A companion; what is wrong with it is told with who named it. Raises Unreadable."""
    try:
        return read(path)
    except Unreadable as error:
        raise Unreadable(f"{what} {path}: {error}") from error


def projector_beside(model: ModelFile) -> ModelFile | None:
    """The companion in the model's folder, F16 before others; None where no file there fits.

    In a folder of many repositories (llama.cpp's cache) only the model's own counts. One fits when its output is as
    wide as the model's input. Files that do not say so (early LLaVA) are not guessed at.
    """
    try:
        beside = sorted(model.path.parent.iterdir())
    except OSError:
        return None  # a folder that gives up a file by name and does not list them
    fitting = []
    flat = origins(model.path.parent)
    home = _home(model.path, flat)
    for path in beside:
        name = path.name.lower()
        if NAME_PART in name and name.endswith(SUFFIX) and _home(path, flat) == home:
            try:
                file = read_projector(path)
            except Unreadable:
                continue  # one that is damaged is not this model's fault
            if goes_with(file, model):
                fitting.append(file)
    return min(fitting, key=lambda file: ("-f16" not in file.path.name.lower(), file.path.name), default=None)


def goes_with(projector: ModelFile, model: ModelFile) -> bool:
    """Whether its output is as wide as the model's input, as far as it says so."""
    metadata = model.header.metadata
    width = metadata.get(f"{metadata.get('general.architecture')}.embedding_length")
    widths = [projector.header.metadata.get(f"clip.{kind}.projection_dim") for kind in ("vision", "audio")]
    return width is not None and width in widths


def _home(path: Path, flat: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The repository that a file of such a folder is from."""
    found = origin_of(path.name, flat)
    return (found.publisher, found.repo) if found is not None else None
