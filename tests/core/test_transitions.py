"""The tables of moves: every pair of state and move is either in the table or refused."""

from collections.abc import Mapping
from enum import Enum
from itertools import product

import pytest

from gridsched.core.errors import IllegalMove
from gridsched.core.instance import InstanceState
from gridsched.core.transitions import (
    INSTANCE_MOVES,
    JOB_MOVES,
    LEASE_MOVES,
    SERVER_MOVES,
    InstanceMove,
    JobMove,
    JobState,
    LeaseMove,
    LeaseState,
    ServerMove,
    ServerState,
    moved,
)

TABLES: list[tuple[Mapping, type[Enum], type[Enum]]] = [  # type: ignore[type-arg]  # four tables of four types
    (JOB_MOVES, JobState, JobMove),
    (INSTANCE_MOVES, InstanceState, InstanceMove),
    (SERVER_MOVES, ServerState, ServerMove),
    (LEASE_MOVES, LeaseState, LeaseMove),
]


@pytest.mark.parametrize(("table", "states", "moves"), TABLES)
def test_every_pair_is_allowed_by_the_table_or_refused(
    table: Mapping,  # type: ignore[type-arg]  # as above
    states: type[Enum],
    moves: type[Enum],
) -> None:
    """Nothing is left to chance: a pair that is not in the table raises IllegalMove and names both."""
    for state, move in product(states, moves):
        if move in table[state]:
            assert moved(table, state, move) is table[state][move]
        else:
            with pytest.raises(IllegalMove, match=f"{state.name} does not allow {move.name}"):
                moved(table, state, move)


@pytest.mark.parametrize(("table", "states", "moves"), TABLES)
def test_every_state_has_a_row_and_every_move_is_possible_somewhere(
    table: Mapping,  # type: ignore[type-arg]  # as above
    states: type[Enum],
    moves: type[Enum],
) -> None:
    """No dead words."""
    assert set(table) == set(states)
    assert {move for row in table.values() for move in row} == set(moves)


@pytest.mark.parametrize(
    ("table", "start", "ends"),
    [
        (JOB_MOVES, JobState.WAITING, {JobState.ENDED, JobState.REJECTED}),
        (INSTANCE_MOVES, InstanceState.STARTING, {InstanceState.STOPPED, InstanceState.FAILED}),
        (LEASE_MOVES, LeaseState.REQUESTED, {LeaseState.ENDED}),
    ],
)
def test_every_life_can_end_and_an_end_is_an_end(
    table: Mapping,  # type: ignore[type-arg]  # as above
    start: Enum,
    ends: set[Enum],
) -> None:
    """From every state that can be reached an end can be reached, and nothing leads out of one."""
    reached, todo = {start}, [start]
    while todo:
        for after in table[todo.pop()].values():
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert ends <= reached
    assert reached == set(table)
    assert all(not table[end] for end in ends)
    for state in reached - ends:
        assert table[state]
