"""`gridsched estimate FILE`: the memory that a llama-server command line would take, by device and component.

Asks no server, starts nothing and reads no configuration. Where nothing else is said it plans for the cards that this
machine's llama-server lists.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gridsched.cli.components import COMPONENTS
from gridsched.library.estimating import ENGINE_NAMES, MOST_DEVICES, Estimate, Target, as_json, estimate
from gridsched.library.names import printable
from gridsched.library.read import Unreadable
from gridsched.library.shards import SUFFIX, ModelFile, read_model
from gridsched.vram.environment import is_withheld
from gridsched.vram.flags import FlagError
from gridsched.vram.geometry import GeometryError

CONFIGURATION = 2
MIB = 1 << 20
SOFTWARE_CARD = "llvmpipe"  # Vulkan on the processor: what it decides about memory says nothing of a card
MOST_NAMED = 3
UNCHECKED = "whether llama-server knows each of the flags was not checked"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_KINDS = {"none": "without a cache"}
"""What a kind of layer is called for a person, where its key would not be understood."""
_ALWAYS = ("weights_bytes", "kv_bytes", "compute_bytes", "overhead_bytes")


class _Wrong(Exception):
    """What was asked cannot be estimated; the sentence says why."""


@dataclass(frozen=True, slots=True)
class _Devices:
    """What `--devices` says."""

    count: int = 1
    sizes: tuple[int, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options. What follows `--` is llama-server's, see `main.split_flags`."""
    parser.usage = "%(prog)s FILE [--devices N or SIZE,SIZE…] [--backend B] [--card NAME] [--json] [-- FLAGS…]"
    parser.epilog = "FLAGS are llama-server's own."
    parser.add_argument("file", metavar="FILE", help="a GGUF file (any part of a split one), or its URL")
    parser.add_argument(
        "--devices",
        type=_devices,
        default=_Devices(),
        metavar="N|SIZE,…",
        help="so many equal cards, or what each has free (24GiB,16GiB): then whether it fits, and what would",
    )
    parser.add_argument(
        "--backend", choices=tuple(ENGINE_NAMES), help="what the engine computes with (as this machine's, else cuda)"
    )
    parser.add_argument("--card", metavar="NAME", help="the card's name (RTX 3090), for what lies outside of buffers")
    parser.add_argument("--json", action="store_true", help="for programs; every size in bytes")


def _devices(text: str) -> _Devices:
    """`2`, or `24GiB,16GiB`. Raises ArgumentTypeError."""
    if text.isascii() and text.isdigit():
        count = int(text) if len(text) < 3 else 0  # noqa: PLR2004 - two digits
        if not 1 <= count <= MOST_DEVICES:
            raise argparse.ArgumentTypeError(f"{printable(text)}: from 1 to {MOST_DEVICES} devices, or sizes (24GiB)")
        return _Devices(count)
    from gridsched.settings.values import size_of  # noqa: PLC0415 - it brings pydantic, which takes a quarter second

    try:
        sizes = tuple(size_of(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if len(sizes) > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"{len(sizes)} devices are more than the engine takes ({MOST_DEVICES})")
    return _Devices(len(sizes), sizes)


def main(args: argparse.Namespace) -> int:
    """Print the estimate. 0, also where it does not fit; 2 for a file, a flag or a target that cannot be planned."""
    flags = tuple(args.words)
    try:
        file = _read(args.file)
        target, notes = _target(args, flags)
        found = estimate(file, flags, target, remote=_ADDRESS.match(args.file) is not None)
    except (Unreadable, FlagError, GeometryError, _Wrong) as error:
        where = f"{args.file}: " if isinstance(error, Unreadable | GeometryError) else ""
        print(f"gridsched: {printable(where + str(error))}", file=sys.stderr)
        return CONFIGURATION
    told = (*found.notes, *notes, *_environment_notes())
    lines = [json.dumps(as_json(file, found, target, told))] if args.json else rows(file, found, target, told)
    print("\n".join(map(printable, lines)))
    return 0


def _read(name: str) -> ModelFile:
    """The model that a path or an address names. Raises Unreadable and _Wrong."""
    if not name:
        raise _Wrong("an empty path")
    if _ADDRESS.match(name):
        from gridsched.library.remote import read_remote  # noqa: PLC0415 - it brings httpx, which takes a quarter second

        return read_remote(name, os.environ)
    path = Path(name)
    try:
        return read_model(path)
    except Unreadable as error:
        inside = _models_in(path)
        if inside is None:
            raise
        hint = (
            f": name a file in it ({', '.join(inside[:MOST_NAMED])})" if inside else ", and there is no GGUF file in it"
        )
        raise Unreadable(f"{error}{hint}") from None


def _models_in(folder: Path) -> list[str] | None:
    """The GGUF files in a folder; None for what is none, or cannot be looked into."""
    try:
        return sorted(each.name for each in folder.iterdir() if each.name.lower().endswith(SUFFIX))
    except OSError:
        return None


# --- where it would run -----------------------------------------------------------------------------------------


def _target(args: argparse.Namespace, flags: tuple[str, ...]) -> tuple[Target, tuple[str, ...]]:
    """The devices, and what is to be said of the choice. Raises _Wrong."""
    if any(flag.partition("=")[0] in ("-m", "--model") for flag in flags):
        raise _Wrong("--model: the model is FILE; remove it from the flags")
    cards: tuple[str, ...] = (args.card,) if args.card else ()
    backend, notes = args.backend, list[str]()
    if backend is None:
        backend, cards, notes = _from_engine(cards, flags)
    elif flags:
        notes.append(f"{UNCHECKED}: with --backend the one that is installed here is not asked")
    if backend == "cpu" and args.devices.count > 1:
        raise _Wrong("--devices: a launch without a card has one device, the host's memory")
    return Target(backend, args.devices.count, args.devices.sizes, cards), tuple(notes)


def _from_engine(cards: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, tuple[str, ...], list[str]]:
    """The backend that this machine's engine has cards for, else CUDA; the cards' names; what is to be said of it."""
    from gridsched.engine.locate import located  # noqa: PLC0415 - only who names no backend pays for the question
    from gridsched.engine.options import flag_faults  # noqa: PLC0415 - the same

    engine = next(iter(located()))
    listed = [device for device in engine.devices if SOFTWARE_CARD not in device.label.casefold()]
    notes = [f"{engine.info.path}: {fault.sentence}" for fault in flag_faults(flags, engine.options)]
    if flags and not engine.options:
        notes.append(f"{UNCHECKED}: there is none here to ask")
    words = {word.casefold(): backend for backend, word in ENGINE_NAMES.items() if word}
    found = words.get(listed[0].name.rstrip("0123456789").casefold()) if listed else None
    if found is None:
        notes.append("planned for CUDA: no card was found here; --backend names another (cpu: host memory alone)")
        return "cuda", cards, notes
    notes.append(f"planned for {listed[0].label} ({found}), which this machine's llama-server lists first")
    return found, cards or tuple(device.label for device in listed), notes


def _environment_notes() -> Iterator[str]:
    """Settings of the engine in this environment: gridsched's own launches do not get them."""
    names = sorted(name for name in os.environ if is_withheld(name))
    if names:
        yield f"{', '.join(names)} of the environment: not counted, and not passed on by gridsched"


# --- what is said -----------------------------------------------------------------------------------------------


def rows(file: ModelFile, found: Estimate, target: Target, notes: Sequence[str]) -> Iterator[str]:
    """The same for a person."""
    took = found.footprint
    layers = ", ".join(f"{count} {_KINDS.get(kind, kind)}" for kind, count in asdict(took.layers).items() if count)
    slots = "1 slot" if took.parallel == 1 else f"{took.parallel} slots"
    yield f"model    {file.path.name}, {found.architecture}, {file.size_bytes / MIB:,.1f} MiB"
    yield (
        f"launch   {took.ctx_size} tokens, {slots} of up to {took.ctx_per_slot}, micro-batch {took.ubatch}, "
        f"flash attention {'on' if took.flash_attn else 'off'}"
    )
    yield f"layers   {layers}"
    yield ""
    yield from _aligned(list(_table(found, target)))
    yield ""
    if found.fits is not None:
        yield f"fits     {'yes' if found.fits else 'no'}"
        yield from _largest(found)
    yield from (f"try      {one}" for one in found.suggestions)
    yield from (f"note     {note}" for note in notes)


def _largest(found: Estimate) -> Iterator[str]:
    if found.largest is None:
        return
    if not found.largest.ctx_size and not found.largest.parallel:
        yield "at most  nothing: not even the shortest context with one slot"
        return
    tokens, slots = (count or "no" for count in (found.largest.ctx_size, found.largest.parallel))
    yield f"at most  {tokens} tokens with these slots; {slots} slots with this context"


def _table(found: Estimate, target: Target) -> Iterator[list[str]]:
    """A line a device, in MiB. What is 0 everywhere has no column."""
    took = found.footprint
    parts = [*took.devices] if target.on_host else [*took.devices, took.host]
    shown = [pair for pair in COMPONENTS if pair[1] in _ALWAYS or any(getattr(part, pair[1]) for part in parts)]
    sized = bool(target.sizes)
    yield ["MiB", *(title for title, _ in shown), "total", *(["free", "left"] if sized else [])]
    for at, part in enumerate(parts):
        row = [str(part.device), *(_mib(getattr(part, key)) for _, key in shown), _mib(part.total_bytes)]
        if sized and at < len(target.sizes):
            row += [_mib(target.sizes[at]), _mib(target.sizes[at] - part.total_bytes)]
        yield row


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, figures to the right."""
    width = [max(len(row[at]) for row in table if at < len(row)) for at in range(max(map(len, table)))]
    for row in table:
        yield "  ".join(cell.rjust(width[at]) if at else cell.ljust(width[at]) for at, cell in enumerate(row))


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"
