"""The table of verbs: what holds of each of them."""

import msgspec
import pytest

from gridsched.control.verb import Verb
from gridsched.control.verbs import BY_NAME, VERBS


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verbs_arguments_are_of_types_that_can_be_read(verb: Verb) -> None:
    """Msgspec looks at them at the first use only."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"no such argument": 1}, verb.takes)


def test_no_two_verbs_have_a_name_or_a_route() -> None:
    """Each is reachable."""
    routes = [(verb.rest.method, verb.rest.path) for verb in VERBS if verb.rest is not None]
    assert len(BY_NAME) == len(VERBS)
    assert len(set(routes)) == len(routes)
