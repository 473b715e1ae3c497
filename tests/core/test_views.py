"""What is told of a few who wait is what is told of them among all."""

import pytest

from gridsched.core.events import Event
from sim.scale import Crowd, Size


class _Looked(Crowd):
    """A crowd at which somebody looks after some steps: at all who wait, at a few of each class, and at single ones."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.steps = self.told = 0

    def _tell(self, event: Event) -> None:
        super()._tell(event)
        self.steps += 1
        if self.steps % 40 == 0:
            self._look()

    def _look(self) -> None:
        scheduler, now = self.scheduler, self.now
        everybody = scheduler.jobs(now).waiting
        few = scheduler.jobs(now, 5).waiting
        assert few == tuple(view for view in everybody if view.position <= 5)
        for view in everybody[::30]:
            assert scheduler.waiting(view.id, now) == view
        self.told += len(few)


@pytest.mark.slow
@pytest.mark.parametrize("size", [Size(120, 3, 1, crowded=False), Size(120, 6, 2, crowded=True)], ids=str)
def test_the_first_of_each_class_are_told_the_same_as_among_all(size: Size) -> None:
    """Positions, reasons and estimates, whether all models fit or take turns."""
    crowd = _Looked(size)
    crowd.run(300)
    assert crowd.told > 100
