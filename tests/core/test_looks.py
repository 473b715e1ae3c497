"""What eviction has found for one want is told to others only where they would find the same."""

from gridsched.core import admission, eviction
from gridsched.core.events import Event
from gridsched.core.placement import Choice, Draft, Obstacle, Want
from sim.scale import Crowd, Size


class _Asked(Crowd):
    """A crowd in which after every step each want is asked for twice: after all that stand before it, and alone."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.state = self.scheduler.state
        self.shared: set[str] = set()

    def _tell(self, event: Event) -> None:
        super()._tell(event)
        models = self.state.wanted_models().values()
        wants = [model.want for model in models if model.want is not None and model.unplaced()]
        draft = Draft.of(self.state.ledger, ())
        for want in sorted(wants, key=lambda want: (not want.chat, want.rank)):
            self._ask(want, draft)

    def _ask(self, want: Want, draft: Draft) -> None:
        for _, needs in admission.usable_rungs(self.state.ledger, want.model):
            lacking = draft.lacking(needs)
            if not lacking:
                continue
            before = draft.looks.get(tuple(lacking))
            among = eviction.choose(self.state, want, lacking, draft)
            alone = eviction.choose(self.state, want, lacking, Draft.of(self.state.ledger, ()))
            assert _told(among) == _told(alone)
            if isinstance(among, Obstacle) and isinstance(alone, Obstacle):
                assert all(rank <= ours for (_, rank), (_, ours) in zip(among.watched, alone.watched, strict=True))
            if isinstance(among, Obstacle) and before is draft.looks[tuple(lacking)] and before.want is not want:
                self.shared.add(among.rule)


def _told(found: Choice | Obstacle) -> object:
    """All that is found, but for whom the watching is for."""
    if isinstance(found, Choice):
        return found
    return (found.rule, found.reason, found.until, found.but_for, [each for each, _ in found.watched])


def test_what_was_found_for_another_want_is_what_a_want_would_find_itself() -> None:
    """Nobody's answer depends on who has asked before; what is shared is shared for heat and for turns."""
    crowd = _Asked(Size(waiting=8, models=10, devices=1, crowded=True))
    crowd.run(300)
    assert {"R1", "R4a"} <= crowd.shared
