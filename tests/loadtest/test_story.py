from loadtest import story
from loadtest.clients import Embedded, Measured
from loadtest.mainjob import ALONE_ROW, CHAT_ROW, Result
from tests.loadtest.lines import Log, good_log


def test_the_excerpt_shows_the_chat_that_overtakes() -> None:
    """From the job under way to what comes after the chat."""
    (first,) = story.excerpts(good_log().lines)
    assert [(line.event, line.job) for line in first[:4]] == [
        ("enqueue", 1),
        ("dispatch", 1),
        ("enqueue", 2),
        ("dispatch", 2),
    ]


def test_a_long_log_is_shown_again_where_the_low_work_goes_on() -> None:
    """The end of the last chat and the step that follows it."""
    log = Log().job("enqueue").job("dispatch", 1).at(0.3)
    for number in range(2, 12):
        log.chat("enqueue", number).chat("dispatch", number).chat("complete", number)
    log.at(2.3).job("dispatch", 2)
    _, second = story.excerpts(log.lines)
    assert [line.event for line in second] == ["complete", "dispatch"]


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
