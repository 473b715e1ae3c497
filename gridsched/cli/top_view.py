"""How `gridsched top` looks: the board in lines, for any width and height. Pure; prints nothing.

Owns which part gives way where there is little room. All that comes from outside is made printable here. A bar's
parts differ by their letters, not by colour alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from gridsched.cli.board import CLASSES, STRIP_SECONDS, Board
from gridsched.cli.events import sentence
from gridsched.cli.failures import NotOurs
from gridsched.cli.words import size, size_or_none, span
from gridsched.library.names import printable

LEAST_WIDTH, NARROW, STRIP_AT = 20, 60, 72
LEAST_NAME = 12
"""Cells of a device's name that are shown in any case."""

MOST_DRAWN = 6
"""Slots of a process that are drawn beside their number."""

CLASSES_AT = 2
"""Which part of a view tells of the classes."""

FEWEST_LINES = 4
MOST_LINES = 12
"""Decisions where there is room for any number."""

PARTS: Mapping[str, tuple[str, str]] = {
    "pinned": ("P", "black on magenta"),
    "hot": ("H", "black on green"),
    "cold": ("C", "black on cyan"),
    "reserved": ("r", "black on blue"),
    "others": ("o", "black on yellow"),
    "freeing": ("f", "black on white"),
    "lost": ("x", "black on red"),
    "headroom": ("-", "dim"),
}
"""What a device's memory is taken by: its letter, and its colour."""

CLASS_STYLES: Mapping[str, str] = {"interactive": "green", "background": "blue", "batch": "magenta"}
_LEVELS = " ▂▄▆█"
_PLAIN_LEVELS = " 123+"


def view(board: Board, width: int, height: int | None = None, *, letters: bool = False) -> list[Text]:
    """The lines, as many as there is room for, some too long. `letters`: without the blocks that an old terminal lacks.
    Raises NotOurs where the server tells something else than a status."""
    width = max(width, LEAST_WIDTH)
    parts: list[list[Text]] = [[_header(board)]]
    if board.status is None:
        parts += [[Text("waiting for its status")], []]
    else:
        try:
            parts += _parts(board, board.status, width, letters=letters)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise NotOurs(
                f"its status lacks something ({type(error).__name__} {error}); is it of another version?"
            ) from None
    told = [Text(sentence(line)) for line in list(board.lines)[-MOST_LINES if height is None else -height :]]
    parts.append([Text("last decisions", "bold"), *told] if told else [])
    return _fitted(parts, height)


def _fitted(parts: Sequence[list[Text]], height: int | None) -> list[Text]:
    """All of it with gaps, and as many decisions as there is room for; else without gaps, each long part cut alike;
    where nothing of them would be left, what tells most goes first."""
    *above, last = parts
    spaced = [line for part in above if part for line in (*part, Text(""))]
    if height is None or len(spaced) + min(len(last), FEWEST_LINES) <= height:
        return [*spaced, *(last if height is None else _tail(last, height - len(spaced)))]
    most = next((cap for cap in range(height, 1, -1) if sum(map(len, _capped(parts, cap))) <= height), 0)
    if not most:
        return _first(above, height)
    tight = [line for part in _capped(above, most) for line in part]
    return [*tight, *_tail(last, height - len(tight))]


def _capped(parts: Sequence[list[Text]], most: int) -> Iterator[list[Text]]:
    """Each no longer than that; the classes, the third, are never cut."""
    for at, part in enumerate(parts):
        yield part if at == CLASSES_AT else _head(part, most)


def _first(above: Sequence[list[Text]], height: int) -> list[Text]:
    """The state and the classes, who waits, devices, processes: each as far as there is room."""
    lines: list[Text] = []
    for part in (above[0], *above[2:4], above[1], *above[4:]):
        if (left := height - len(lines)) > 1 or (left and len(part) == 1):
            lines += _head(part, left)
    return lines or above[0][:height]


def _head(part: list[Text], most: int) -> list[Text]:
    if len(part) <= most:
        return part
    return [*part[: most - 1], Text(f"  and {len(part) - most + 1} more", "dim")]


def _tail(part: list[Text], most: int) -> list[Text]:
    """Its heading and its last lines."""
    return [*part[:1], *part[1:][-(most - 1) :]] if most > 1 else []


def _header(board: Board) -> Text:
    state, style = "connected", "green"
    if board.gone_since is not None:
        state, style = f"gone for {span(board.now() - board.gone_since)}, and waited for", "bold red"
    elif board.status is not None and board.status.get("draining"):
        state, style = "draining", "bold yellow"
    return Text.assemble(
        ("gridsched", "bold"), f" {printable(board.version)} ", (state, style), f" {printable(board.server)}"
    )


def _parts(board: Board, told: Mapping[str, Any], width: int, *, letters: bool) -> Iterator[list[Text]]:
    yield [*_devices(told, width, letters=letters), *_notes(told)]
    yield list(_classes(board, told, width, letters=letters))
    yield list(_waiting(told, width))
    yield list(_instances(told, width))


# --- devices ----------------------------------------------------------------------------------------------------


def _devices(told: Mapping[str, Any], width: int, *, letters: bool) -> Iterator[Text]:
    named = [printable(str(each["name"])) for each in told["devices"]]
    pad = min(max(map(cell_len, named), default=0), max(LEAST_NAME, width // 3))
    used: set[str] = set()
    for name, device in zip(named, told["devices"], strict=True):
        held = memory(device, told["instances"])
        used |= {part for part, held_bytes in held.items() if held_bytes > 0}
        total = int(device["total_bytes"])
        figures = f" {size(sum(held.values()))} of {size(total)}"
        cells = max(6, min(width - pad - 3 - len(figures) - len(_said(device)), 100))
        line = Text(name)
        line.truncate(pad, overflow="crop" if letters else "ellipsis", pad=True)
        line.append(" [").append_text(bar(held, total, cells)).append("]")
        yield line.append(figures).append(_said(device), "yellow")
    if used and width >= NARROW:
        legend = Text(" " * (pad + 1))
        for part, (letter, style) in PARTS.items():
            if part in used:
                legend.append(letter, style).append(f" {part}  ")
        yield legend


def memory(device: Mapping[str, Any], instances: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What a device's memory is taken by. A process that is spread over several has of this one what the others leave
    of what is reserved there."""
    here = [one for one in instances if device["name"] in one["devices"]]
    alone = sum(one["reserved_bytes"] for one in here if len(one["devices"]) == 1)
    spread = sum(one["reserved_bytes"] for one in here if len(one["devices"]) > 1)
    left = max(0, device["reserved_bytes"] - alone)
    held = dict.fromkeys(PARTS, 0)
    for one in here:
        part = "reserved" if one["state"] == "starting" or one["tier"] not in PARTS else one["tier"]
        held[part] += (
            one["reserved_bytes"] if len(one["devices"]) == 1 else left * one["reserved_bytes"] // max(1, spread)
        )
    names = {"others": "external_bytes", "freeing": "freeing_bytes", "lost": "lost_bytes", "headroom": "headroom_bytes"}
    return held | {part: int(device[name]) for part, name in names.items()}


def bar(held: Mapping[str, int], total: int, cells: int) -> Text:
    """The parts, each as long as it is large; one that is there has a cell."""
    drawn, upto, filled = Text(), 0, 0
    for part, (letter, style) in PARTS.items():
        upto += held[part]
        to = min(cells, max(round(cells * upto / total) if total > 0 else 0, filled + (held[part] > 0)))
        drawn.append(letter * (to - filled), style)
        filled = max(filled, to)
    return drawn.append("." * (cells - filled), "dim")


def _said(device: Mapping[str, Any]) -> str:
    """What there is to know beside its memory."""
    if not device["available"]:
        return printable(f"  does not answer: {device['why']}")
    lease = device["lease"]
    words = [f"leased to {lease['owner']} ({lease['state']})"] if lease else []
    words += ["people chat"] if device["mode"] == "interactive" else []
    words += ["under pressure"] if device["pressure"] else []
    return printable("  " + ", ".join(words)) if words else ""


def _notes(told: Mapping[str, Any]) -> Iterator[Text]:
    for name, failed in told["failed"].items():
        sentence = f"{name} failed: {failed['reason']}; tried again in {span(failed['retry_after_s'])}"
        yield Text(printable(sentence), "red")
    if error := told["config_error"]:
        yield Text(printable(f"the configuration on disk is refused: {str(error).splitlines()[0]}"), "red")


# --- queues -----------------------------------------------------------------------------------------------------


def _classes(board: Board, told: Mapping[str, Any], width: int, *, letters: bool) -> Iterator[Text]:
    cells = width - 51 if width >= STRIP_AT else 0
    past = f"the last {STRIP_SECONDS / 60:.0f} minutes" if cells else ""
    yield Text(f"{'class':<12}{'running':>8}{'waiting':>9}{'oldest':>9}{'next in':>9}  {past}", "bold")
    for name in CLASSES:
        queue = told["queues"].get(name, {"running": 0, "length": 0})
        waiting = [one for one in told["waiting"] if one["class"] == name]
        oldest = span(queue.get("oldest_wait_s"))
        soonest = span(min((one["estimate_s"] for one in waiting if one["estimate_s"] is not None), default=None))
        line = Text.assemble(
            (f"{name:<12}", CLASS_STYLES[name]),
            f"{queue['running']:>8}{queue['length']:>9}{oldest:>9}{soonest:>9}  ",
        )
        if cells:
            line.append(strip(board.ran(name, cells), letters=letters), CLASS_STYLES[name])
        yield line


def strip(ran: Sequence[int], *, letters: bool) -> str:
    """How many ran at once, a letter for each part of the time."""
    levels = _PLAIN_LEVELS if letters else _LEVELS
    return "".join(levels[min(each, len(levels) - 1)] for each in ran)


def _waiting(told: Mapping[str, Any], width: int) -> Iterator[Text]:
    if not told["waiting"]:
        return
    yield Text("waiting", "bold")
    for one in told["waiting"]:
        step = f" {one['step']}/{one['steps']}" if one["steps"] > 1 else ""
        who = f"{one['job']} {one['class'] if width >= NARROW else str(one['class'])[:5]}{step} {one['model']}"
        yield Text.assemble(
            printable(f"  {who}  {span(one['waited_s'])}  "),
            (printable(f"{one['rule']} {one['reason']}"), "yellow"),
            "" if one["estimate_s"] is None else f", in about {span(one['estimate_s'])}",
        )
    hidden = sum(queue["length"] for queue in told["queues"].values()) - len(told["waiting"])
    if hidden > 0:
        yield Text(f"  and {hidden} more", "dim")


# --- models -----------------------------------------------------------------------------------------------------


def _instances(told: Mapping[str, Any], width: int) -> Iterator[Text]:
    if not told["instances"]:
        yield Text("nothing is loaded", "dim")
        return
    names = [printable(str(one["model"])) for one in told["instances"]]
    pad = min(max(5, *map(cell_len, names)), max(12, width - 48))
    yield Text(f"{'model':<{pad}}  {'state':<9}{'tier':<7}{'slots':<12}{'memory':>9}  on", "bold")
    for name, one in zip(names, told["instances"], strict=True):
        shown = Text(name)
        shown.truncate(pad, pad=True)
        state = "paused" if one["paused"] else str(one["state"])
        taken = one["reserved_bytes"] if one["measured_bytes"] is None else one["measured_bytes"]
        shown.append(printable(f"  {state:<9}{one['tier']:<7}"))
        shown.append(f"{_slots(one['slots']):<12}{size_or_none(taken):>9}")
        yield shown.append(printable(f"  {'+'.join(map(str, one['devices']))}"))


def _slots(slots: Mapping[str, Any]) -> str:
    busy, total = int(slots["busy"]), int(slots["total"])
    drawn = "#" * busy + "." * (total - busy) if 0 <= busy <= total <= MOST_DRAWN else ""
    return f"{busy}/{total} {drawn}".rstrip()
