"""What holds for every test."""

import signal

from hypothesis import settings

# The suite may itself be run under nohup, which processes that a test starts would inherit: they would then rightly
# ignore a closed terminal, and the tests about that would show nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The suite tries the same examples each time, so that it cannot fail by chance. `make explore` tries others.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=3000, stateful_step_count=80, deadline=None, print_blob=True)
settings.load_profile("suite")
