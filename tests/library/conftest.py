"""What the library's tests share."""

from pathlib import Path

import pytest

from tests.library.models import write_model


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """A small chat model."""
    return write_model(tmp_path / "chat.gguf")
