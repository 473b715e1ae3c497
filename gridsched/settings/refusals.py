"""Why a configuration is not changed, as exceptions that whoever asks for a change can tell apart. Owns nothing else.

A module of its own because it is quick to load: the command line knows the verbs, and waits for no schema.
"""


class EditError(Exception):
    """The change cannot be made in this text; one sentence."""


class Refused(Exception):
    """It cannot be a configuration: every fault, a line each."""

    def __init__(self, faults: str) -> None:
        super().__init__(faults)
        self.faults = tuple(faults.split("\n"))


class Changed(Exception):
    """The file is another than the one that was expected."""
