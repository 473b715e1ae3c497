"""What the load test says: documents to embed, questions to chat about, tasks to write about.

Owns deterministic texts made from word lists. Must never read data from outside or draw at random: the n-th text is
the same on every machine, so that two runs ask for the same work.
"""

_SUBJECTS = (
    "gardener",
    "sailor",
    "teacher",
    "violinist",
    "baker",
    "astronomer",
    "carpenter",
    "nurse",
    "farmer",
    "potter",
)
_ACTIONS = (
    "repairs",
    "describes",
    "sells",
    "paints",
    "measures",
    "carries",
    "studies",
    "collects",
    "cleans",
    "invents",
)
_THINGS = ("lanterns", "maps", "clocks", "bridges", "kettles", "boats", "letters", "shoes", "fences", "telescopes")
_PLACES = ("by the harbour", "in the old mill", "near the glacier", "under the viaduct", "at the night market")
_QUESTIONS = (
    "What should I pack for two days of walking in the hills?",
    "How do I keep basil alive on a windowsill?",
    "Tell me in simple words why the sky is blue.",
    "Which three meals can I cook from rice and lentils?",
    "How can I thank a neighbour who watered my plants?",
    "What is a good way to learn ten new words a day?",
    "Why does bread rise when it is baked?",
    "How do I explain a leap year to a child?",
)
_TASKS = ("a short notice about", "a plain description of", "a friendly letter about", "a list of facts about")


MANY = len(_SUBJECTS) * len(_ACTIONS) * len(_THINGS) * len(_PLACES)
"""So many documents are all different."""


def document(number: int) -> str:
    """The document of that number, counted from 0; the first `MANY` are all different."""
    rest, subject = divmod(number, len(_SUBJECTS))
    rest, action = divmod(rest, len(_ACTIONS))
    rest, thing = divmod(rest, len(_THINGS))
    place = _PLACES[rest % len(_PLACES)]
    # Shifting the later words by the earlier ones keeps neighbours in the list from being near-copies of each other.
    verb = _ACTIONS[(action + subject) % len(_ACTIONS)]
    things = _THINGS[(thing + subject + action) % len(_THINGS)]
    return f"The {_SUBJECTS[subject]} {verb} {things} {place}."


def documents(count: int) -> list[str]:
    """The first `count` documents."""
    return [document(number) for number in range(count)]


def passage(number: int, sentences: int) -> str:
    """A longer document, of so many sentences; those of neighbours differ."""
    return " ".join(document(number * sentences + each) for each in range(sentences))


def question(number: int) -> str:
    """What a chatting person asks in their `number`-th turn, counted from 0."""
    return _QUESTIONS[number % len(_QUESTIONS)]


def task(number: int) -> str:
    """What the `number`-th generation of a batch is to write, counted from 0."""
    return f"Write {_TASKS[number % len(_TASKS)]} {_THINGS[number % len(_THINGS)]} {_PLACES[number % len(_PLACES)]}."
