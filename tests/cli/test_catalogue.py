"""`gridsched models --options`: the catalogue, a row for each model and context."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gridsched.cli.main import main
from tests.support.answering import answering


def _row(**other: object) -> Mapping[str, Any]:
    speed = {"estimated_tokens_per_s": 51.2, "measured_tokens_per_s": None, "confidence": "estimated"}
    return {
        "ctx": 4096,
        "parallel": 4,
        "configured": False,
        "loaded": False,
        "fits_now": True,
        "fits_if_idle": True,
        "devices": ["gpu0"],
        "cache_type": "f16",
        "total_bytes": 1 << 30,
        "evictions": [],
        "speed": speed,
    } | other


MEASURED = {"estimated_tokens_per_s": 51.2, "measured_tokens_per_s": 48.9, "confidence": "measured here"}
UNKNOWN = {"estimated_tokens_per_s": None, "measured_tokens_per_s": None, "confidence": "unknown"}
TOLD: Mapping[str, Any] = {
    "models": [
        {
            "model": "a",
            "unavailable": None,
            "rows": [
                _row(),
                _row(ctx=8192, configured=True, loaded=True, speed=MEASURED),
                _row(ctx=16384, fits_now=False, evictions=[{"model": "b"}], devices=["gpu0", "gpu1"]),
                _row(ctx=32768, fits_now=False),
                _row(ctx=65536, fits_now=False, fits_if_idle=False, speed=UNKNOWN),
            ],
        },
        {"model": "gone", "unavailable": "the file is not there", "rows": []},
    ],
    "total": 2,
    "next_cursor": None,
}


def test_the_catalogue_is_a_row_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    """What fits, where, how fast, and who would go; the server's own answer as JSON."""
    with answering(TOLD) as url:
        assert main(["models", "--options", "--server", url]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [row[1] for row in rows[1:6]] == ["4096", "8192*", "16384", "32768", "65536"]
        assert [row[3] for row in rows[1:6]] == ["now", "loaded", "by", "if", "never"]
        assert (rows[1][-2], rows[2][-2], rows[5][-2]) == ("~51", "49", "-")
        assert rows[3][-1] == "b"
        assert "not there" in " ".join(rows[6])
        assert main(["models", "--options", "--json", "--server", url]) == 0
        assert json.loads(capsys.readouterr().out) == TOLD
