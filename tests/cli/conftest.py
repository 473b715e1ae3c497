"""What holds for every test of the command line: nobody's own servers are known."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the suite may have named servers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GRIDSCHED_URL", "GRIDSCHED_API_KEY", "NO_COLOR", "FORCE_COLOR", "GRIDSCHED_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
