"""A real Prometheus, started by a test on loopback with the configuration that we hand out, and what it is asked.

Owns the process, its folder and its port: all gone at the end, also of a test that fails.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML

from tests.support.gateway import free_port

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config" / "prometheus"
SCRAPE_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""For a start and a few scrapes: two seconds, but on a machine that is very busy."""


def tool(name: str) -> str:
    """Where `install.sh` has put a program of Prometheus', unless the system has one."""
    return shutil.which(name) or str(ROOT / ".cache/external/usr/bin" / name)


def handed_out(key_file: Path, targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Our own configuration, for these targets of its jobs, faster than a person's; with a key for the server's."""
    config: dict[str, Any] = YAML(typ="safe").load(CONFIG / "prometheus.yml")
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONFIG / name) for name in config["rule_files"]]
    assert [job["job_name"] for job in config["scrape_configs"]] == list(targets)
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": list(targets[job["job_name"]])}]
    config["scrape_configs"][0]["authorization"] = {"credentials_file": str(key_file)}
    return config


class NotYet(Exception):
    """It listens, and still reads what it has kept."""


@dataclass
class Prometheus:
    """One that runs."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    began: float

    def ask(self, path: str, **params: str) -> Any:
        """The `data` of an answer, which must be a success. Raises NotYet."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, trust_env=False, timeout=10.0)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise NotYet
        said = answer.json()
        assert said["status"] == "success", said
        return said["data"]

    def series(self, expr: str, since: float | None = None) -> list[list[float]]:
        """The values over the time that it has run, or since a moment, of every series that an expression comes to."""
        start = f"{since or self.began:.3f}"
        found = self.ask("query_range", query=expr, start=start, end=f"{time.time():.3f}", step="1")
        assert found["resultType"] == "matrix"
        return [[float(value) for _, value in series["values"]] for series in found["result"]]

    def until_scraped(self, count: int, since: float) -> None:
        """Wait until so many targets were scraped well after a moment."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            with suppress(httpx.HTTPError, NotYet):
                found = self.ask("query", query=f"timestamp(up == 1) > {since:.3f}")["result"]
                if len(found) == count:
                    return
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
                break
        raise AssertionError(f"{self.ask('targets')}; {self.log.read_text(encoding='utf-8')[-2000:]}")


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """One with this configuration. It is killed at the end: nothing of it is to be kept."""
    folder.mkdir()
    YAML().dump(dict(config), folder / "prometheus.yml")
    port, log = free_port(), folder / "prometheus.log"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                "--log.level=debug",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Prometheus(process, f"http://127.0.0.1:{port}", log, time.time())
    finally:
        process.kill()
        process.wait()
