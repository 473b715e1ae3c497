"""What holds for every test."""

import signal

# The suite may itself be run under nohup, which processes that a test starts would inherit: they would then rightly
# ignore a closed terminal, and the tests about that would show nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
