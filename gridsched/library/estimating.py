"""What a launch would take that nobody has asked for: a file, llama-server's flags, cards by number or by size.

Owns which of the cards the flags choose, how they share the model, and what would fit where their sizes are known: here
the command line is the person's own, taken as llama-server itself would take it. Opens no file but those that the flags
name, looks at no device, and must never choose a context or slots: that is the ladder's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from gridsched.core.ids import DeviceName
from gridsched.core.model import COMPONENTS, DeviceFootprint
from gridsched.library.projectors import projector_beside, read_companions, why_no_model
from gridsched.library.read import Unreadable
from gridsched.library.shards import ModelFile
from gridsched.vram.advice import Advice, Fit
from gridsched.vram.flags import FlagError, LaunchFlags, parse_flags
from gridsched.vram.footprint import HOST, Footprint, footprint
from gridsched.vram.geometry import Geometry, GeometryError
from gridsched.vram.launches import LadderRequest, Launches, Rung, Shape
from gridsched.vram.overhead import overhead

ENGINE_NAMES = {"cuda": "CUDA", "vulkan": "Vulkan", "rocm": "ROCm", "metal": "MTL", "cpu": ""}
"""The backends, and what the engine calls the cards of each, before their number."""

MOST_DEVICES = 15
"""The engine takes no longer list of shares."""

MIB, GIB = 1 << 20, 1 << 30
_ON_HOST_ALONE = ("none",)
_SPLIT = "--tensor-split"


@dataclass(frozen=True, slots=True)
class Target:
    """Where it would be launched: so many devices of a backend, and what each has free, in bytes, where that is known.

    `cards` are their names as the driver gives them, by which what lies outside of the engine's buffers is known; the
    last one stands for those that follow.
    """

    backend: str = "cuda"
    count: int = 1
    sizes: tuple[int, ...] = ()
    cards: tuple[str, ...] = ()

    @property
    def on_host(self) -> bool:
        """Whether there is no card: the one device is the host's memory."""
        return self.backend == "cpu"

    @property
    def names(self) -> tuple[DeviceName, ...]:
        """What the devices are called here."""
        return (HOST,) if self.on_host else tuple(DeviceName(f"gpu{index}") for index in range(self.count))

    @property
    def engine_names(self) -> tuple[str, ...]:
        """What the engine calls them."""
        return () if self.on_host else tuple(f"{ENGINE_NAMES[self.backend]}{index}" for index in range(self.count))

    def size_of(self, index: int) -> int:
        """What a device has free; 0 where nobody knows."""
        return self.sizes[index] if self.sizes else 0

    def card_of(self, index: int) -> str:
        """A device's name; empty where nobody knows."""
        return self.cards[min(index, len(self.cards) - 1)] if self.cards else ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The footprint on every device of the target, in its order. `fits` says whether their sizes carry it, and
    `largest` what they would carry at most: both None where no size is known. `suggestions` are flags, each of which
    makes it fit by itself, with what is to be said of them."""

    architecture: str
    footprint: Footprint
    notes: tuple[str, ...]
    fits: bool | None = None
    largest: Fit | None = None
    suggestions: tuple[str, ...] = ()


def estimate(file: ModelFile, words: tuple[str, ...], target: Target, *, remote: bool = False) -> Estimate:
    """What this command line takes; a `remote` file lies in no folder of ours.

    Raises FlagError for a flag that the engine would refuse or that cannot be planned, Unreadable for a file that the
    flags name, or a model that is none, and GeometryError for a header without what planning needs.
    """
    if reason := why_no_model(file):
        raise Unreadable(reason)
    case = _Case(file, words, target)
    found = case.footprint(words)
    notes = tuple(dict.fromkeys((*found.notes, *case.notes(found), *(() if remote else case.notes_on_folder()))))
    if not target.sizes:
        return Estimate(case.geometry.architecture, found, notes)
    fits = case.carries(found)
    fitting = _Fitting(case, words, found)
    return Estimate(
        architecture=case.geometry.architecture,
        footprint=found,
        notes=notes,
        fits=fits,
        largest=fitting.largest(),
        suggestions=() if fits else tuple(fitting.suggestions()),
    )


class _Case:
    """One model, with what is loaded beside it, on one target: what any command line takes of it."""

    def __init__(self, file: ModelFile, words: tuple[str, ...], target: Target) -> None:
        named = read_companions(parse_flags(words))
        self._file = file
        self._brings_projector = named.projector is not None
        self.target = target
        self.geometry = _geometry(file)
        self.projector = _companion(named.projector) if named.projector is not None else None
        self.draft = _companion(named.draft) if named.draft is not None else None
        self.adapters = tuple(map(_companion, named.adapters))
        outside = [overhead(target.backend, target.card_of(at), target.size_of(at)) for at in range(target.count)]
        self.outside = {name: one.bytes for name, one in zip(target.names, outside, strict=True)}
        notes = [(name, one.note) for name, one in zip(target.names, outside, strict=True) if one.note]
        alike = len({note for _, note in notes}) == 1
        self._outside_notes = tuple(note if alike else f"{name}: {note}" for name, note in notes)

    def footprint(self, words: tuple[str, ...]) -> Footprint:
        """On each device of the target, those that the flags leave alone among them. Raises FlagError."""
        said = parse_flags(words)
        target, chosen = self.target, self.chosen(said)
        said = self._shared(self._on(chosen, said), chosen)
        if target.on_host or not chosen:
            found = self._footprint(said, (HOST,), on_host=True)
            if target.on_host:
                return found
            return replace(found, devices=tuple(map(DeviceFootprint, target.names)), host=found.devices[0])
        names = tuple(target.names[at] for at in chosen)
        found = self._footprint(said, names)
        used = {part.device: part for part in found.devices}
        return replace(found, devices=tuple(used.get(name, DeviceFootprint(name)) for name in target.names))

    def _footprint(self, said: LaunchFlags, names: tuple[DeviceName, ...], *, on_host: bool = False) -> Footprint:
        return footprint(
            self.geometry,
            said,
            names,
            on_host=on_host,
            overhead_bytes={HOST: overhead("cpu").bytes} if on_host else self.outside,
            projector=self.projector,
            draft=self.draft,
            adapters=self.adapters,
        )

    def chosen(self, said: LaunchFlags) -> tuple[int, ...]:
        """The devices that the flags choose, in the order in which the engine then has them: all, those of `--device`,
        or the one of `--main-gpu`. Raises FlagError."""
        known = self.target.engine_names
        if said.device_names == _ON_HOST_ALONE:
            return ()
        for name in said.device_names:
            if name not in known:
                raise FlagError("--device", f"there is no {name!r} (there is {', '.join(known) or 'none'})")
        chosen = tuple(map(known.index, said.device_names or known))
        if said.split_mode != "none" or not chosen:
            return chosen
        if said.main_gpu >= len(chosen):
            raise FlagError("--main-gpu", f"there is no device {said.main_gpu}: this launch has {len(chosen)}")
        return (chosen[said.main_gpu],)

    def _on(self, chosen: tuple[int, ...], said: LaunchFlags) -> LaunchFlags:
        """The flags of a launch that has the chosen devices alone. Raises FlagError for a buffer on another."""
        names = tuple(self.target.engine_names[at] for at in chosen)
        if said.split_mode == "none" and chosen:
            said = replace(said, main_gpu=0)
        return replace(said, device_names=names or _ON_HOST_ALONE).for_devices(names)

    def shares(self, said: LaunchFlags, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """How the engine shares the layers out where no flag says it: by what is free, in MiB; empty where it does
        not, or where all have as much."""
        sizes = tuple(max(1, self.target.size_of(at) // MIB) for at in chosen)
        alike = len(set(sizes)) <= 1
        return () if alike or said.tensor_split or said.split_mode == "none" else sizes

    def _shared(self, said: LaunchFlags, chosen: tuple[int, ...]) -> LaunchFlags:
        shares = self.shares(said, chosen)
        return replace(said, tensor_split=tuple(map(float, shares))) if shares else said

    def carries(self, found: Footprint) -> bool:
        """Whether the sizes carry it."""
        return all(part.total_bytes <= size for part, size in zip(found.devices, self.target.sizes, strict=True))

    def carries_flags(self, words: tuple[str, ...]) -> bool:
        """Whether they carry what a command line takes; not one that the engine would refuse."""
        try:
            return self.carries(self.footprint(words))
        except FlagError:
            return False

    def notes(self, found: Footprint) -> Iterator[str]:
        """What is to be said beside the footprint's own notes."""
        yield from self._outside_notes
        if found.growth_bytes:
            yield (
                f"{found.growth_bytes / MIB:,.0f} MiB more of host memory at most are taken in time, for saved prompts "
                "and states, as gridsched starts the engine"
            )
        if found.mapped_bytes:
            yield (
                f"of the weights in host memory {found.mapped_bytes / MIB:,.0f} MiB are mapped from the file: the "
                "kernel may drop them and read them again"
            )

    def notes_on_folder(self) -> Iterator[str]:
        """What lies beside the model and is not counted, because llama-server would not load it."""
        beside = projector_beside(self._file) if not self._brings_projector else None
        if beside is not None:
            yield f"{beside.path.name} lies beside the model and is not counted: name it with --mmproj"


class _Fitting:
    """What the sizes of a target would carry of one command line. Whatever it leaves to the engine is written out, so
    that the advice is about what was estimated, and about these devices together."""

    def __init__(self, case: _Case, words: tuple[str, ...], found: Footprint) -> None:
        self._case = case
        self._words = words
        target = case.target
        said = parse_flags(words)
        chosen = case.chosen(said)
        self._names = (HOST,) if target.on_host or not chosen else tuple(target.names[at] for at in chosen)
        self._room = dict(zip(target.names, target.sizes, strict=True))
        self._caches = (said.cache_type_k, said.cache_type_v)
        self._shape = Shape(found.ctx_size, found.parallel, self._caches)
        explicit = ["--ctx-size", str(found.ctx_size), "--parallel", str(found.parallel)]
        explicit += ["--kv-unified"] if said.unified else []
        explicit += ["--cache-type-k", said.cache_type_k, "--cache-type-v", said.cache_type_v]
        explicit += ["--batch-size", str(said.batch), "--ubatch-size", str(said.ubatch)]
        explicit += ["--main-gpu", "0"] if said.split_mode == "none" else []
        shares = case.shares(said, chosen)
        self._as_engine_splits = ("--split-mode", "layer", _SPLIT, ",".join(map(str, shares))) if shares else ()
        self._request = LadderRequest(
            fingerprint="",
            flags=(*words, *explicit),
            on_host=target.on_host,
            mixed_cache=target.backend != "vulkan",
            overhead_bytes=max(case.outside.values()),
            device_bytes=self._room,
            together=True,
            projector=case.projector,
            draft=case.draft,
            adapters=case.adapters,
        )
        asked = replace(self._request, flags=(*self._request.flags, *self._as_engine_splits))
        # On the host alone, whatever the cards have: nobody has said what there is of host memory.
        self._advice = Advice(case.geometry, asked, self._names, self._room) if chosen or target.on_host else None

    def largest(self) -> Fit | None:
        """The largest context at the slots that were asked for, and the most slots at the context that was."""
        return self._advice.largest() if self._advice is not None else None

    def suggestions(self) -> Iterator[str]:
        """Flags that make it fit, each found to be true for the very command line that was estimated."""
        for change, told in self._changes():
            if self._case.carries_flags((*self._words, *change)):
                yield " ".join(change) + told

    def _changes(self) -> Iterator[tuple[tuple[str, ...], str]]:
        for found in self._advice.suggestions() if self._advice is not None else ():
            if found.setting == "flags":
                moved = f" ({found.host_bytes / GIB:.2f} GiB of weights then lie in host memory)"
                yield tuple(found.value.split()), moved if found.host_bytes else ""
        yield from self._other_splits()

    def _other_splits(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The layers shared out by what each device is left with, or all of them on one."""
        if len(self._names) < 2:  # noqa: PLR2004 - several
            return
        if not parse_flags(self._words).tensor_split:
            flags = Launches(self._case.geometry, self._request).option(Rung(self._shape, self._names)).flags
            if _SPLIT in flags:
                yield (_SPLIT, flags[flags.index(_SPLIT) + 1]), ""
        for name in self._case.target.engine_names:
            yield ("--device", name), ""


def _geometry(file: ModelFile) -> Geometry:
    return Geometry.from_header(file.header, file.shards)


def _companion(file: ModelFile) -> Geometry:
    """The geometry of a file that the flags name. Raises Unreadable with its name."""
    try:
        return _geometry(file)
    except GeometryError as error:
        raise Unreadable(f"{file.path}: {error}") from error


def as_json(file: ModelFile, found: Estimate, target: Target, notes: Sequence[str]) -> dict[str, object]:
    """The contract's object, sizes in bytes; and whether it fits, null where no size was given."""
    took = found.footprint
    largest = found.largest
    return {
        "model": file.path.name,
        "architecture": found.architecture,
        "devices": [
            _part(part) | ({"available_bytes": target.size_of(at)} if target.sizes else {})
            for at, part in enumerate(took.devices)
        ],
        "host": _part(took.host),
        "total_bytes": took.total_bytes,
        "ctx_size": took.ctx_size,
        "ctx_per_slot": took.ctx_per_slot,
        "parallel": took.parallel,
        "ubatch": took.ubatch,
        "flash_attn": took.flash_attn,
        "layers": asdict(took.layers),
        "backend": target.backend,
        "fits": found.fits,
        "max_ctx_that_fits": largest.ctx_size if largest is not None else None,
        "max_parallel_that_fits": largest.parallel if largest is not None else None,
        "suggestions": list(found.suggestions),
        "notes": list(notes),
    }


def _part(part: DeviceFootprint) -> dict[str, object]:
    sizes = {key: getattr(part, key) for key in COMPONENTS}
    return {"name": str(part.device), **sizes, "total_bytes": part.total_bytes}
