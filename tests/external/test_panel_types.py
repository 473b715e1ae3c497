"""The panel's scripts, judged by TypeScript's compiler from the types in their comments."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPILER = ROOT / ".cache/external/node/node_modules/.bin/tsc"
SCRIPTS = ROOT / "gridsched/panel/static"


def test_the_panel_s_scripts_are_of_the_types_that_they_say(tmp_path: Path) -> None:
    """Strictly, and as browsers load them: /panel/ is the folder."""
    options = {"allowJs": True, "checkJs": True, "strict": True, "noEmit": True, "types": []}
    options |= {"target": "es2023", "module": "es2022", "moduleResolution": "bundler"}
    options |= {"lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"], "paths": {"/panel/*": [f"{SCRIPTS}/*"]}}
    project = tmp_path / "tsconfig.json"
    project.write_text(json.dumps({"compilerOptions": options, "include": [f"{SCRIPTS}/**/*.js"]}), encoding="utf-8")
    done = subprocess.run([COMPILER, "-p", project], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.stdout == ""
    assert done.returncode == 0
