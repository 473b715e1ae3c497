"""What a person is told of the main job: the live line, the part of the log that matters, one closing sentence.

Owns the wording. Must never judge (`marks` does) and never print: it gives text.
"""

from collections.abc import Iterator, Sequence

import trio

from loadtest.decisions import LOW_CLASSES, Line
from loadtest.mainjob import ALONE_ROW, CHAT_ROW, MainJob, Result
from loadtest.marks import overtaking
from loadtest.report import row_of

LINES_BEFORE, LINES_AFTER = 3, 9
"""How much of the log stands around the moment it is about: enough for one chat's life."""


def live_line(job: MainJob, lines: Sequence[Line]) -> str:
    """How far it is, in under 120 characters."""
    progress, plan = job.progress, job.plan
    if progress.began is None:
        chats = f": {progress.chats_done} of {plan.chats_alone} chats" if progress.phase == ALONE_ROW else ""
        return f"{progress.phase}{chats}"
    found = overtaking(lines)
    steps = [line for line in lines if found and line.job == found.job and line.event == "dispatch"]
    embedding = f"{steps[-1].step}/{steps[-1].steps}" if steps else "waiting"
    return (
        f"{trio.current_time() - progress.began:5.1f} s   chats {progress.chats_done} done"
        f" {progress.chats_running} running   embedding step {embedding}"
        f"   generations {progress.generations_done}/{plan.generations}"
    )


def excerpts(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """The log around the first chat that overtakes, and from the last chat's end to the low work that follows."""
    found = overtaking(lines)
    if found is None or not found.chats:
        return
    first = lines.index(found.chats[0][0])
    yield lines[max(0, first - LINES_BEFORE) : first + LINES_AFTER]
    ends = [line for line in lines if line.event == "complete" and line.job_class == "interactive"]
    after = (place for place, line in enumerate(lines) if ends and line.seq > ends[-1].seq and _goes_on(line))
    resumed = next(after, None)
    if resumed is not None:
        yield (ends[-1], *lines[resumed : resumed + LINES_BEFORE])


def _goes_on(line: Line) -> bool:
    """Whether low work goes on with this line, other than by relief."""
    return line.event == "dispatch" and line.job_class in LOW_CLASSES and not line.is_relief


def closing_sentence(lines: Sequence[Line], result: Result) -> str:
    """One sentence that says what happened, each number as it was found."""
    found = overtaking(lines)
    chat, alone = row_of(result.chats(CHAT_ROW)), row_of(result.chats(ALONE_ROW))
    if found is None or not found.chats or chat.p50_s is None or alone.p50_s is None:
        return "The run did not come to the point where chats overtake the embedding job."
    steps = [line for line in lines if line.job == found.job and line.event == "dispatch"]
    before = sum(1 for step in steps if step.seq < found.chats[0][0].seq)
    relief = sum(1 for step in steps if step.is_relief)
    at_once = sum(1 for enqueued, dispatch in found.chats if dispatch and dispatch.time == enqueued.time)
    return (
        f"An embedding job of {steps[0].steps} steps had begun {before} of them when people came to chat: {at_once} of"
        f" {len(found.chats)} chats were dispatched in the millisecond they arrived and half were answered within"
        f" {chat.p50_s:.2f} s ({alone.p50_s:.2f} s alone), while the job was let through for {relief} relief"
        f" step{'' if relief == 1 else 's'} and began the other {len(steps) - before - relief} once they had gone."
    )
