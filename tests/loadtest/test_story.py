from loadtest import story
from loadtest.clients import Embedded, Measured
from loadtest.mainjob import ALONE_ROW, CHAT_ROW, Result
from tests.loadtest.lines import Log, good_log


def test_the_excerpts_show_the_chat_that_overtakes_and_the_low_work_that_goes_on() -> None:
    """From the job under way to the chat's life; then the last chat's end and the first step that is no relief."""
    first, second = story.excerpts(good_log().lines)
    assert [(line.event, line.job) for line in first[:4]] == [
        ("enqueue", 1),
        ("dispatch", 1),
        ("enqueue", 2),
        ("dispatch", 2),
    ]
    assert [(line.event, line.job, line.step) for line in second[:2]] == [("complete", 2, 0), ("dispatch", 1, 3)]


def test_low_work_that_never_goes_on_is_not_shown() -> None:
    """Relief steps are no return to normal."""
    log = Log().job("enqueue").job("dispatch", 1).at(0.3).chat("enqueue", 2).chat("dispatch", 2)
    log.at(1.0).chat("complete", 2).job("dispatch", 2, rule="S5")
    assert len(list(story.excerpts(log.lines))) == 1


def test_without_an_overtaking_there_is_nothing_to_show() -> None:
    """No excerpt, and a sentence that says so."""
    lines = Log().job("dispatch", 1).lines
    assert list(story.excerpts(lines)) == []
    assert "did not come to the point" in story.closing_sentence(lines, Result())
    assert "did not come to the point" in story.closing_sentence([], Result())


def test_the_closing_sentence_tells_the_numbers_that_were_found() -> None:
    """Steps before, relief steps between, steps after."""
    measured = [Measured(CHAT_ROW, 200, 0.5), Measured(ALONE_ROW, 200, 0.4)]
    result = Result(measured, {}, Embedded(Measured("embeddings", 200)))
    text = story.closing_sentence(good_log().lines, result)
    assert "of 4 steps had begun 1 of them" in text
    assert "1 of 1 chats were dispatched in the millisecond they arrived" in text
    assert "0.50 s (0.40 s alone)" in text
    assert "1 relief step and began the other 2" in text
