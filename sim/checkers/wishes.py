"""R7 and R8: persons' wishes are answered once and truly, pins come back, and a leased device is nobody else's."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import AnswerRequest, GrantStep, KeepStanding, StartInstance
from gridsched.core.events import LeaseAsked, LoadAsked, UnloadAsked
from gridsched.core.ids import DeviceName, ModelName
from sim.checkers.checker import Checker
from sim.checkers.notes import LONG_AGO, WishNote


class Wishes(Checker):
    """Answers, leases and pins."""

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Answers, and what must not happen on a leased device."""
        return {
            AnswerRequest: self._judge_answer,
            StartInstance: self._judge_start,
            GrantStep: self._judge_grant,
            KeepStanding: self._judge_kept,
        }

    def _judge_answer(self, command: AnswerRequest) -> None:
        note = self.book.wishes.get(command.request)
        if note is None:
            how = "again" if command.request in self.book.answered else "which nobody has made"
            self.broken("R7", f"wish {command.request} is answered {how}")
        elif command.rejection is None:
            self._judge_done(note)
        elif not command.rejection.message:
            self.broken("R7", f"wish {command.request} is refused without a word")

    def _judge_done(self, note: WishNote) -> None:
        """What is said to be done must be so."""
        book, wish = self.book, note.wish
        of_model = book.of_model.get(wish.model, []) if isinstance(wish, LoadAsked | UnloadAsked) else []
        if isinstance(wish, LoadAsked) and not any(one.state == "ready" for one in of_model):
            self.broken("R7", f"{wish.model} is said to be loaded and is not")
        if isinstance(wish, UnloadAsked):
            old = [
                one
                for one in of_model
                if one.started_at <= note.asked_at and not LONG_AGO < one.stopped_at < note.asked_at
            ]
            if old:
                self.broken("R7", f"{wish.model} is said to be gone and instance {old[0].id} is {old[0].state}")
        if isinstance(wish, LeaseAsked):
            there = [one for one in book.living() if set(wish.devices) & set(one.devices) and not book.lost(one)]
            if there:
                self.broken("R8", f"{wish.devices} is said to be held and instance {there[0].id} is {there[0].state}")

    def _judge_start(self, command: StartInstance) -> None:
        for device in command.option.devices:
            if device in self.book.leases:
                self.broken("R8", f"{command.model} is started on {device}, which is leased")

    def _judge_kept(self, command: KeepStanding) -> None:
        """What is kept over a restart are the leases that there are, and words that hold."""
        book = self.book
        leased = {lease.device for lease in command.standing.leases}
        if leased != book.leases.keys():
            self.broken("R8", f"leases of {sorted(leased)} are kept, and there are those of {sorted(book.leases)}")
        for word in command.standing.words:
            pinned = not word.put_down and (word.configured if word.pin is None else word.pin)
            was_away = word.model in book.forgotten  # a word that was to be kept waited for it, another is over
            if not was_away and pinned is not book.pinned(word.model):
                self.broken("R7", f"of {word.model} is kept that it is{'' if pinned else ' not'} pinned")

    def _judge_grant(self, command: GrantStep) -> None:
        if not self.book.leases:
            return
        one = self.book.instances.get(command.grant.instance_id)
        for device in one.devices if one is not None else ():
            lease = self.book.leases.get(device)
            if one is not None and lease is not None and (lease.held_at is not None or one.ready_at < lease.asked_at):
                self.broken("R8", f"job {command.grant.job_id} is granted a slot on {device}, which is leased")

    # --- at the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> None:
        """Every wish is answered, every lease over."""
        book = self.book
        for note in book.wishes.values():
            self.broken("liveness", f"{note.wish} is never answered")
        for device in book.leases:
            self.broken("liveness", f"the lease of {device} never ends")
        pinned = [name for name in book.models if book.pinned(name)]
        if book.draining or not all(self._has_room(device, pinned) for device in book.devices):
            return
        for name in pinned:
            # One that ran out of memory is believed to need more than it had, however much that was (L6a).
            if book.open_instance(name) is None and name not in book.starved_models:
                self.broken("liveness", f"{name} is pinned, has room, and is not loaded")

    def _has_room(self, device: DeviceName, pinned: list[ModelName]) -> bool:
        """Whether all pins would fit on a device whatever rung of each is there, with a tenth to spare for what was
        measured or learnt from running out of memory."""
        book, spec = self.book, self.book.devices[device]
        most = [
            max((book.need_of(option).get(device, 0) for option in book.models[name].options), default=0)
            for name in pinned
        ]
        return sum(most) * 11 // 10 <= spec.total_bytes - spec.headroom_bytes
