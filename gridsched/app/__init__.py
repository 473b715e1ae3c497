"""Composition: from settings to a running server. No rule of the product lives here.

Everything that can be wrong is found before the first process is started, and ends with `StartError`: a sentence, what
to do, and an exit code.
"""

from gridsched.app.beside import Again, Beside, beside_of, configuration_in
from gridsched.app.cataloguing import no_model
from gridsched.app.checking import engine_faults, launch_faults, our_flags
from gridsched.app.finding import ENGINES, find_machine, pinned_engine, plan_here, told_in
from gridsched.app.reloading import Source
from gridsched.app.restarting import refuse_exposure
from gridsched.app.serving import (
    Broken,
    access_in,
    figures_of,
    limits_of,
    longest_end_seconds,
    open_tape,
    serve,
)
from gridsched.app.start import (
    CONFIGURATION,
    DATA_DIR_IN_USE,
    PORT_TAKEN,
    Machine,
    Say,
    StartError,
    SystemClock,
    certificate_of,
    open_port,
    open_ports,
    read_settings,
    take_data_dir,
)

__all__ = [
    "CONFIGURATION",
    "DATA_DIR_IN_USE",
    "ENGINES",
    "PORT_TAKEN",
    "Again",
    "Beside",
    "Broken",
    "Machine",
    "Say",
    "Source",
    "StartError",
    "SystemClock",
    "access_in",
    "beside_of",
    "certificate_of",
    "configuration_in",
    "engine_faults",
    "figures_of",
    "find_machine",
    "launch_faults",
    "limits_of",
    "longest_end_seconds",
    "no_model",
    "open_port",
    "open_ports",
    "open_tape",
    "our_flags",
    "pinned_engine",
    "plan_here",
    "read_settings",
    "refuse_exposure",
    "serve",
    "take_data_dir",
    "told_in",
]
