"""`gridsched simulate`: the same workload on another card or under another policy, in virtual time.

Owns the command's options and the order of what is printed. The simulator is imported only when it is asked for.
"""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gridsched.cli.arguments import a_path
from gridsched.cli.show import say
from gridsched.settings import load as settings_load
from gridsched.settings.faults import SettingsError
from gridsched.settings.schema import Settings

if TYPE_CHECKING:  # the simulator is a package beside ours: nothing of it is loaded with the command line
    from sim.whatif.runs import Outcome
    from sim.whatif.scenario import Scenario

FAILED, CONFIGURATION = 1, 2
BASE = "as given"
"""What the scenario itself is called beside its variants."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    from sim.whatif import SHIPPED  # noqa: PLC0415 - found lazily, see the module's docstring

    shipped = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    parser.add_argument("scenario", type=a_path, metavar="SCENARIO", help=f"a file, or one that is shipped: {shipped}")
    parser.add_argument("--config", type=a_path, metavar="FILE", help="one more policy: the scheduler's figures of it")
    parser.add_argument("--seed", type=int, metavar="N", help="run this seed alone, not the scenario's")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--plot", type=a_path, metavar="F.svg", help="draw the frontier: waiting against low work done")


def main(args: argparse.Namespace) -> int:
    """Run every policy with every seed, and say what came of it. 2 for a file that cannot be used."""
    from sim.whatif import report  # noqa: PLC0415 - found lazily, see the module's docstring

    try:
        scenario = _scenario_of(args)
    except SettingsError as error:
        say(str(error))
        return CONFIGURATION
    if args.plot is not None and (why := unwritable(args.plot)):
        say(why)
        return FAILED
    scenarios = {BASE: scenario, **{name: _of_seed(each, args.seed) for name, each in scenario.variants.items()}}
    outcomes = _run_all(scenarios, quiet=args.json)
    if args.json:
        variants = {name: report.as_json(each) for name, each in outcomes.items() if name != BASE}
        print(json.dumps({**report.as_json(outcomes[BASE]), "variants": variants}))
    else:
        print("compared:", *report.comparison(outcomes), sep="\n")
    return 0 if args.plot is None else _draw(scenario, args.plot, args.scenario.stem)


def _scenario_of(args: argparse.Namespace) -> "Scenario":
    """The scenario with what the command line adds. Raises SettingsError."""
    from gridsched.cli import scenario as files  # noqa: PLC0415 - it imports the simulator

    scenario = files.load(files.found(args.scenario))
    if args.config is not None:
        policy = files.policy_run(files.FROM_CONFIGURATION, settings_load.load(args.config, os.environ))
        policies = (*scenario.policies, policy)
        variants = {name: replace(each, policies=policies) for name, each in scenario.variants.items()}
        scenario = replace(scenario, policies=policies, variants=variants)
    return _of_seed(scenario, args.seed)


def _of_seed(scenario: "Scenario", seed: int | None) -> "Scenario":
    return scenario if seed is None else replace(scenario, seeds=(seed,))


def _run_all(scenarios: "Mapping[str, Scenario]", *, quiet: bool) -> "dict[str, Outcome]":
    """Run the scenario and its variants; unless `quiet` say of each what came of it as soon as that is known."""
    from gridsched.cli import scenario as files  # noqa: PLC0415 - it imports the simulator
    from sim.whatif import report, runs  # noqa: PLC0415 - found lazily, see the module's docstring

    base = scenarios[BASE]
    usual = files.policy_run("usual", Settings()).settings
    said = {policy.name: _differences(policy.settings, usual) for policy in base.policies}
    if not quiet:
        seeds = f"seed {base.seeds[0]}" if len(base.seeds) == 1 else f"mean of {len(base.seeds)} seeds"
        print(f"{base.seconds:g} s of virtual time, {seeds}", end="\n\n", flush=True)
    outcomes = {}
    for name, each in scenarios.items():
        outcomes[name] = runs.run(each)
        if not quiet:
            heading = (f"=== {name}", "") if len(scenarios) > 1 else ()
            print(*heading, *report.lines(outcomes[name], said), sep="\n", flush=True)
    return outcomes


def _differences(settings: Mapping[str, object], usual: Mapping[str, object]) -> list[str]:
    """What a policy says otherwise than the defaults."""
    return [f"{key} {_as_written(value)}" for key, value in settings.items() if usual.get(key) != value]


def _as_written(value: object) -> object:
    """A figure as a person writes it into a policy: switches are words there."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def unwritable(path: Path) -> str:
    """Why the picture cannot be written, found out before minutes of runs; empty where it can. Leaves all as it was."""
    try:
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def _draw(scenario: "Scenario", path: Path, title: str) -> int:
    """Draw the frontier; the exit code. A picture that is there already stays until the new one is known."""
    from sim.whatif import frontier  # noqa: PLC0415 - found lazily, see the module's docstring

    points = frontier.sweep(scenario)
    if not points:
        say("nobody chats in this scenario: there is nothing to draw")
        return FAILED
    try:
        path.write_text(frontier.svg(points, title), encoding="utf-8")
    except OSError as error:
        say(f"cannot write {path}: {error.strerror}")
        return FAILED
    say(f"the frontier is drawn in {path}")
    return 0
