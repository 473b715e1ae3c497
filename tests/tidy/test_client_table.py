"""The README's table of clients says what the tests say."""

from pathlib import Path

import pytest

from gridsched.api.routes import ROUTES
from tests.e2e.clients import table


def test_the_readme_ticks_what_a_test_shows_and_nothing_else() -> None:
    """`python -m tests.e2e.clients.table` makes it so."""
    text = table.README.read_text(encoding="utf-8")
    assert table.rewritten(text) == text


def test_the_readme_names_every_endpoint_that_becomes_a_job() -> None:
    """Whoever looks for one finds it on the first page."""
    text = table.README.read_text(encoding="utf-8")
    assert [path for path in ROUTES if f"`{path}`" not in text] == []


def test_a_mark_of_unknown_words_is_refused(tmp_path: Path) -> None:
    """A feature with a slip in its name would be missed in silence."""
    file = tmp_path / "test_x.py"
    file.write_text('@pytest.mark.shows("curl", "straem")\ndef test_x(): ...\n', encoding="utf-8")
    with pytest.raises(ValueError, match="straem"):
        list(table.marks(file))
