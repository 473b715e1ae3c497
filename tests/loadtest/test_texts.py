from loadtest import texts


def test_a_thousand_documents_are_all_different_and_always_the_same() -> None:
    """Two runs ask for the same work, and no vector can stand for two documents."""
    once = texts.documents(1000)
    assert len(set(once)) == 1000
    assert once == texts.documents(1000)
    assert once[0] == texts.document(0)


def test_documents_are_short() -> None:
    """A step of 32 takes a fraction of a second on two cores."""
    assert max(map(len, texts.documents(1000))) < 80


def test_questions_and_tasks_never_run_out() -> None:
    """A person may chat for as long as the run lasts."""
    assert texts.question(1000) == texts.question(0)
    assert texts.task(0) != texts.task(1)
