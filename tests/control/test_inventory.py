"""`/api/models` and the command that shows it: what each model takes, and how far off the estimates were (L2)."""

import pytest
from trio.testing import MockClock

from gridsched.cli import models
from gridsched.cli.client import NotOurs
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_L2_models_are_listed_with_what_they_take_and_the_error_once_it_is_known(
    autojump_clock: MockClock,
) -> None:
    """Cold and estimated; then served, measured, and off by so much."""
    async with serving(autojump_clock) as house:
        cold = (await house.ask("GET", "/api/models")).json
        assert cold["errors"] == []
        (row,) = [each for each in cold["models"] if each["id"] == "sim-chat-4b"]  # type: ignore[attr-defined]  # JSON
        assert (row["state"], row["architecture"], row["error"]) == ("cold", "simulated", None)
        (device,) = row["devices"]
        assert (device["name"], device["measured_bytes"]) == ("sim0", None)
        await house.ask("POST", CHAT, HELLO)
        await house.until_logged("measure")
        told = (await house.ask("GET", "/api/models")).json
        (row,) = [each for each in told["models"] if each["id"] == "sim-chat-4b"]  # type: ignore[attr-defined]  # JSON
        (device,) = row["devices"]
        (line,) = house.logged("measure")
        assert {"sim0": device["measured_bytes"]} == line["measured_bytes"]
        off = device["estimated_bytes"] - device["measured_bytes"]
        assert row["error"]["components"]["total"] == {"median_bytes": off, "worst_bytes": off}
        assert told["errors"] == [row["error"]]
        assert row["state"] == "ready"


async def test_one_model_is_told_by_any_of_its_names(autojump_clock: MockClock) -> None:
    """Any case, a family's best, and a 404 that names the closest."""
    async with serving(autojump_clock) as house:
        for name in ("sim-chat-4b", "SIM-CHAT-4B"):
            assert (await house.ask("GET", f"/api/models/{name}")).json["id"] == "sim-chat-4b"
        family = house.runtime.parts.catalog.families()[0]
        assert family.best is not None
        assert (await house.ask("GET", f"/api/models/{family.name}")).json["id"] == family.best.name
        answer = await house.ask("GET", "/api/models/org/sim-chat-4c")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


TOLD = {
    "models": [
        {
            "id": "a",
            "state": "ready",
            "architecture": "qwen3",
            "devices": [
                {"name": "gpu0", "estimated_bytes": 3 << 30, "measured_bytes": 2 << 30},
                {"name": "gpu1", "estimated_bytes": 1 << 30, "measured_bytes": None},
            ],
        },
        {"id": "b", "state": "unavailable", "architecture": "", "devices": []},
    ],
    "errors": [
        {
            "architecture": "qwen3",
            "launches": 2,
            "median_ratio": 0.01234,
            "least_ratio": -0.002,
            "most_ratio": 0.03,
            "components": {
                "compute": {"median_bytes": 5, "worst_bytes": 2 << 20},
                "overhead": {"median_bytes": 0, "worst_bytes": 0},
                "total": {"median_bytes": 0, "worst_bytes": -(3 << 20)},
            },
        }
    ],
}


def test_the_tables_are_for_a_person() -> None:
    """A row a device, and a row an architecture with signs."""
    assert models.lines(TOLD, models.models) == [
        "model  state        architecture  device  estimated  measured",
        "a      ready        qwen3         gpu0    3 GiB      2 GiB",
        "                                  gpu1    1 GiB      -",
        "b      unavailable  -             -       -          -",
    ]
    assert models.lines(TOLD, models.errors)[1].split(None, 5) == [
        *("qwen3", "2", "+1.23%", "-0.20%", "+3.00%"),
        "compute +2 MiB, outside +0 B, total -3 MiB",
    ]


@pytest.mark.parametrize("told", [{}, {"models": 3}, {"models": [3]}, {"models": [{"id": "a"}]}])
def test_what_is_no_list_of_models_is_not_ours(told: dict[str, object]) -> None:
    """Another program's JSON is no traceback."""
    with pytest.raises(NotOurs):
        models.lines(told, models.models)
