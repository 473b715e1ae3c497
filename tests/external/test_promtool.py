"""Prometheus's own checker reads our configuration, our alerts, and runs the alerts' tests."""

import subprocess

import pytest

from tests.external.prometheus import CONFIG, tool

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 240
"""All alerts' tests take three."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "config", "prometheus.yml"), "prometheus.yml is valid prometheus config file syntax"),
        (("check", "rules", "alerts.yml"), "rules found"),
        (("test", "rules", "alerts_test.yml"), "SUCCESS"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_wrong(words: tuple[str, ...], said: str) -> None:
    """With the configuration, with the alerts; and each alert fires, and is silent just below."""
    done = subprocess.run(
        [tool("promtool"), *words], cwd=CONFIG, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr
