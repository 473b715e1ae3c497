"""S6, S3, R10 and R2: no step without a free slot, no stop with a step in flight."""

from collections.abc import Callable, Mapping

from gridsched.core.commands import GrantStep, StopInstance
from sim.checkers.checker import Checker
from sim.checkers.notes import InstanceNote, JobNote


class Slots(Checker):
    """Every grant has a slot of its own on a ready process of its model; a process is stopped only when it is empty."""

    def judges(self) -> Mapping[type, Callable[..., None]]:
        """Grants and stops."""
        return {GrantStep: self._judge_grant, StopInstance: self._judge_stop}

    def _judge_grant(self, command: GrantStep) -> None:
        grant = command.grant
        instance, note = self.book.instances.get(grant.instance_id), self.book.jobs.get(grant.job_id)
        if grant.id in self.book.grants:
            self.broken("S6", f"grant {grant.id} is made twice")
        if instance is None or instance.state != "ready":
            state = instance.state if instance else "unknown"
            self.broken("S6", f"job {grant.job_id} is granted a slot of instance {grant.instance_id}, which is {state}")
            return
        if instance.free_slots < 1:
            self.broken("S6", f"instance {grant.instance_id} has {instance.parallel} slots, all are taken")
        if note is None:
            return
        if grant.model != instance.model or instance.model != note.model:
            self._judge_model(command, instance, note)
        if (grant.step, grant.steps) != (note.steps_done + 1, note.job.steps):
            done = f"{note.steps_done} of {note.job.steps} steps"
            self.broken("S3", f"job {grant.job_id} has done {done} and is granted {grant.step}/{grant.steps}")
        spec = self.book.models.get(instance.model)
        if spec is not None and spec.reserved_slots and note.low:
            low = sum(one.job.low for one in instance.slots.values())
            if low >= instance.parallel - spec.reserved_slots:
                self.broken("S6", f"low job {grant.job_id} takes a slot of {instance.model} that is kept for chats")

    def _judge_model(self, command: GrantStep, instance: InstanceNote, note: JobNote) -> None:
        """The right model, or a variant of the right family that will do (R10)."""
        grant = command.grant
        if note.model in self.book.families:
            names = [variant.model for variant in self.book.variants_for(note)]
            if grant.model == instance.model and instance.model in names:
                return
            self.broken("R10", f"job {grant.job_id} may be served by {names} and is granted {instance.model}")
            return
        self.broken("S6", f"job {grant.job_id} wants {note.model} and is granted {instance.model} as {grant.model}")

    def _judge_stop(self, command: StopInstance) -> None:
        instance = self.book.instances.get(command.instance_id)
        if instance is None or instance.state in ("stopping", "exited"):
            state = instance.state if instance else "unknown"
            self.broken("R2", f"instance {command.instance_id} is stopped, which is {state}")
            return
        if not instance.slots or instance.forced:
            return
        dead = self.book.condemned(instance)
        busy = [one for one in instance.slots.values() if not one.stalled and not (one.over and dead)]
        if busy:
            jobs = ", ".join(str(one.job.job.id) for one in busy)
            self.broken("R2", f"instance {command.instance_id} is stopped while steps of jobs {jobs} are in flight")
