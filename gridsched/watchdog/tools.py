"""The tools: what each is called, takes and does. The only list of them.

A tool is a function of checked arguments that gives a JSON object. What it refuses is a `ToolFailure`, a sentence for
whoever asked; nothing else may leave a tool.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import Configuration, Refused
from gridsched.watchdog.engines import Engines
from gridsched.watchdog.gpus import gpu_status
from gridsched.watchdog.keeper import Keeper
from gridsched.watchdog.mcp import ToolFailure, UnknownTool
from gridsched.watchdog.places import Places
from gridsched.watchdog.tails import MOST_LINES, NoLog, tail
from gridsched.watchdog.watch import Watch

LONGEST_DRAIN_SECONDS = 600
_TYPES: Mapping[str, type] = {"string": str, "boolean": bool, "integer": int}
_DRY_RUN = {"type": "boolean", "description": "only say what would be ended", "default": False}

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `properties` are JSON Schema; `changes` is what a client's person is warned of."""

    name: str
    description: str
    act: Callable[[Arguments], dict[str, Any]]
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    changes: bool = False
    destroys: bool = False

    def told(self) -> dict[str, Any]:
        """As `tools/list` gives it."""
        schema = {"type": "object", "properties": dict(self.properties), "additionalProperties": False}
        hints = {"readOnlyHint": not self.changes, "destructiveHint": self.destroys, "openWorldHint": False}
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": schema | ({"required": list(self.required)} if self.required else {}),
            "annotations": hints | {"idempotentHint": not self.changes},
        }

    def call(self, given: object) -> dict[str, Any]:
        """Check the arguments, then act. Raises ToolFailure."""
        return self.act(self._checked(given if given is not None else {}))

    def _checked(self, given: object) -> Arguments:
        if not isinstance(given, dict):
            raise ToolFailure("arguments must be an object")
        if unknown := sorted(set(given) - set(self.properties)):
            takes = ", ".join(self.properties) or "nothing"
            raise ToolFailure(f"{self.name} takes no {unknown[0]!r}; it takes {takes}")
        if missing := [name for name in self.required if name not in given]:
            raise ToolFailure(f"{self.name} needs {missing[0]!r}")
        for name, value in given.items():
            _check(name, value, self.properties[name])
        defaults = {name: each["default"] for name, each in self.properties.items() if "default" in each}
        return defaults | given


def _check(name: str, value: object, schema: Mapping[str, Any]) -> None:
    """One argument against the few words of JSON Schema that are used here. Raises ToolFailure."""
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        raise ToolFailure(f"{name} must be of type {kind}")
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(value, int) and low is not None and high is not None and not low <= value <= high:
        raise ToolFailure(f"{name} must be {low} to {high}")
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        raise ToolFailure(f"{name} must not be empty")


class Toolbox:
    """All tools over one data directory."""

    def __init__(
        self, places: Places, configuration: Configuration, watch: Watch, keeper: Keeper, commands: Commands
    ) -> None:
        self._places = places
        self._configuration = configuration
        self._watch = watch
        self._keeper = keeper
        self._commands = commands
        self._engines = Engines(places)
        self._ending = threading.Lock()
        self.tools = {
            tool.name: tool for tool in (*self._looking(), *self._of_config(), *self._of_server(), *self._of_engines())
        }

    def _looking(self) -> tuple[Tool, ...]:
        lines = {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": 100}
        of = {
            "type": "string",
            "minLength": 1,
            "description": "a model's name, or 'gateway' for the gateway's own output",
        }
        return (
            Tool(
                "health",
                "How the gateway is: not_running, starting, serving or wedged; if wedged, whether its scheduler or its "
                "HTTP side stands, and since when; which engines live; what this watchdog has done.",
                self._health,
                {},
            ),
            Tool(
                "get_config",
                "The gateway's configuration file as it is, its hash, and the last one that is known to work.",
                lambda _: self._configuration.told(),
                {},
            ),
            Tool(
                "tail_logs",
                "The last lines that an engine, or the gateway, has printed.",
                lambda given: tail(self._places, self._commands, given["model"], given["lines"]),
                {"model": of, "lines": lines},
                ("model",),
            ),
            Tool(
                "gpu_status",
                "Memory and processes of the graphics cards, from the driver's own tools, and host memory.",
                lambda _: gpu_status(self._commands),
                {},
            ),
        )

    def _of_config(self) -> tuple[Tool, ...]:
        text = {"type": "string", "description": "the whole file, YAML"}
        expected = {"type": "string", "description": "refuse if the file has another hash now (from get_config)"}
        force = {"type": "boolean", "description": "write it though its check fails or cannot run", "default": False}
        return (
            Tool(
                "set_config",
                "Replace the gateway's configuration file. It is checked first with gridsched check, and the old file "
                "is kept beside it. A restart applies it: restart_server.",
                lambda given: self._configuration.set(
                    given["text"], given.get("expected_sha256"), force=given["force"]
                ),
                {"text": text, "expected_sha256": expected, "force": force},
                ("text",),
                changes=True,
                destroys=True,
            ),
            Tool(
                "rollback_config",
                "Put the last configuration back with which the gateway is known to have run well. A restart applies "
                "it: restart_server.",
                lambda _: self._configuration.roll_back(),
                {},
                changes=True,
                destroys=True,
            ),
        )

    def _of_server(self) -> tuple[Tool, ...]:
        drain = {
            "type": "integer",
            "minimum": 0,
            "maximum": LONGEST_DRAIN_SECONDS,
            "default": 30,
            "description": "how long running requests may take to finish; a wedged gateway gets no such time",
        }
        return (
            Tool(
                "restart_server",
                "End the gateway, also one that is wedged, and start it again: it drains first, models are unloaded.",
                lambda given: self._keeper.ask_restart("restart_server was called", given["drain_seconds"]),
                {"drain_seconds": drain},
                changes=True,
                destroys=True,
            ),
        )

    def _of_engines(self) -> tuple[Tool, ...]:
        model = {"type": "string", "minLength": 1, "description": "the model's name"}
        return (
            Tool(
                "kill_model",
                "End the processes of one model now, with or without the gateway's help. Requests running there fail.",
                self._kill_model,
                {"model": model, "dry_run": _DRY_RUN},
                ("model",),
                changes=True,
                destroys=True,
            ),
            Tool(
                "nuke_all_models",
                "End every engine of this data directory now. All running requests fail; the gateway stays up.",
                lambda given: self._kill(dry_run=given["dry_run"], only_orphans=False),
                {"dry_run": _DRY_RUN},
                changes=True,
                destroys=True,
            ),
            Tool(
                "reclaim_orphan_engines",
                "End engines of this data directory whose gateway is gone, which keep memory that nobody uses. Engines "
                "of a living gateway and other programs are left alone.",
                lambda given: self._kill(dry_run=given["dry_run"], only_orphans=True),
                {"dry_run": _DRY_RUN},
                changes=True,
                destroys=True,
            ),
        )

    def listed(self) -> list[dict[str, Any]]:
        """Every tool, as `tools/list` gives it."""
        return [tool.told() for tool in self.tools.values()]

    def call(self, name: str, given: object) -> dict[str, Any]:
        """Use a tool. Raises UnknownTool and ToolFailure."""
        if name not in self.tools:
            raise UnknownTool
        try:
            return self.tools[name].call(given)
        except (Refused, NoLog) as error:
            raise ToolFailure(str(error)) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise ToolFailure(f"{where}{error.strerror or error}") from None

    def _health(self, _: Arguments) -> dict[str, Any]:
        engines = [engine.told() for engine in self._engines.find()]
        data = {"data_directory": str(self._places.data), "engines": engines}
        return {"gateway": self._watch.look().told(), "watchdog": self._keeper.told()} | data

    def _kill_model(self, given: Arguments) -> dict[str, Any]:
        with self._ending:
            said = self._engines.kill_model(given["model"], self._watch.look(), dry_run=given["dry_run"])
        if not said.get("would_end") and not said.get("ended") and not said.get("still_alive"):
            there = ", ".join(said["running_models"]) or "no model"
            raise ToolFailure(f"no process of {given['model'][:100]!r} runs here; loaded here: {there}")
        return said

    def _kill(self, *, dry_run: bool, only_orphans: bool) -> dict[str, Any]:
        with self._ending:
            return self._engines.kill_all(dry_run=dry_run, only_orphans=only_orphans)
