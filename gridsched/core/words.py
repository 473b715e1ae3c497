"""What a job is told, in words: one text for the API, the comment lines and the command line (S9b).

Owns the sentences about views of jobs; the reason in them is of `views`. Pure.
"""

from gridsched.core.snapshot import Keeper, RunningView, WaitingView

SCALES = ((3, 1, "s", 1), (180, 1, "s", 0), (7200, 60, "min", 0), (36000, 3600, "h", 1))
"""Below how many seconds which unit is used, its length, and digits after the point: what a person can do with it."""

OVERDUE = 20
"""From how many times its rest on a step is called overdue: twice the mean, of which `Pace` makes the rest a tenth."""


def short(view: WaitingView) -> str:
    """What a comment line says (H3): `queued 3`, or `loading NAME (5s)`."""
    if view.loading_seconds is not None:
        return f"loading {view.model} ({view.loading_seconds:.0f}s)"
    return f"queued {view.position}"


def sentence(view: WaitingView) -> str:
    """The whole of it: `queued 3, about 12s: people chat on gpu0 (S4); memory: a 8.3 GiB hot, busy`."""
    words = short(view)
    if view.estimate_seconds is not None:
        words += f", about {duration(view.estimate_seconds)}"
    if view.loading_seconds is None:
        words += f": {view.reason} ({view.rule})"
    if view.keepers:
        words += f"; memory: {', '.join(map(keeper, view.keepers))}"
    return words


def running(view: RunningView) -> str:
    """What is said of a job whose step runs: `step 3/32 on gemma4-12b for 2.1s, about 4s more`."""
    words = f"step {view.step}/{view.steps} on {view.model} for {duration(view.running_seconds)}"
    if view.rest_seconds is None:
        return words
    if view.running_seconds >= OVERDUE * view.rest_seconds:
        return f"{words}, longer than usual"
    return f"{words}, about {duration(view.rest_seconds)} more"


def keeper(one: Keeper) -> str:
    """Who keeps memory, how much of it, and why it is not simply free: `gemma4-12b 8.3 GiB hot, busy`."""
    who = one.model or (one.device if one.why else "programs outside")
    return f"{who} {one.bytes / 2**30:.1f} GiB {', '.join(one.why)}".rstrip()


def duration(seconds: float) -> str:
    """A time that is only roughly known: `0.4s`, `12s`, `5min`, `2.5h`."""
    for below, unit, name, digits in SCALES:
        if seconds < below:
            return f"{seconds / unit:.{digits}f}{name}"
    return f"{seconds / 3600:.0f}h"
