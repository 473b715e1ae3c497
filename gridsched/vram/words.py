"""A llama-server command line as flags and their values, and how the engine wants them written.

Owns the spelling alone: `--x=y` and `--x_y`. Which flags take a value is known to whoever asks for one.
"""

from collections.abc import Iterator


class FlagError(Exception):
    """A flag that llama-server would refuse, or that cannot be planned. `flag` is as it was written."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag
        self.message = message


def long_name(word: str) -> str:
    """A flag as the engine's help has it: in long ones an underscore is a hyphen."""
    return word.replace("_", "-") if word.startswith("--") else word


def spelled(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The same for the engine, which takes `--x y` alone: `--x=y` is an argument that it does not know."""
    parted: list[str] = []
    for word in flags:
        name, sign, text = word.partition("=")
        parted += [name, text] if sign and name.startswith("--") else [word]
    return tuple(parted)


class Words:
    """An iterator over flags that gives their values on demand; words that nobody asked for count as flags."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._words = flags
        self._next = 0
        self._inline: str | None = None
        self.written = ""

    def __iter__(self) -> Iterator[str]:
        while self._next < len(self._words):
            self.written = self._words[self._next]
            self._next += 1
            name, sign, text = self.written.partition("=")
            self._inline = text if sign and name.startswith("--") else None
            if self._inline is not None:
                self.written = name
            yield long_name(self.written)

    def value(self) -> str:
        """The value of the flag that was given last. Raises FlagError."""
        if self._inline is not None:
            return self._inline
        if self._next >= len(self._words):
            raise FlagError(self.written, "needs a value")
        self._next += 1
        return self._words[self._next - 1]

    def no_value(self) -> None:
        """The flag that was given last takes none. Raises FlagError."""
        if self._inline is not None:
            raise FlagError(self.written, "takes no value")
