"""S6, S3 and R2: no step without a free slot, no stop with a step in flight."""

from gridsched.core.commands import Command, Grant, GrantStep, StopInstance
from gridsched.core.ids import InstanceId
from sim.checkers.checker import Checker


class Slots(Checker):
    """Every grant has a slot of its own on a ready process of its model; a process is stopped only when it is empty."""

    def decided(self, command: Command) -> None:
        """Judge a grant or a stop."""
        if isinstance(command, GrantStep):
            self._judge_grant(command.grant)
        elif isinstance(command, StopInstance):
            self._judge_stop(command.instance_id)

    def _judge_grant(self, grant: Grant) -> None:
        instance, note = self.book.instances.get(grant.instance_id), self.book.jobs.get(grant.job_id)
        if grant.id in self.book.grants:
            self.broken("S6", f"grant {grant.id} is made twice")
        if instance is None or instance.state != "ready":
            state = instance.state if instance else "unknown"
            self.broken("S6", f"job {grant.job_id} is granted a slot of instance {grant.instance_id}, which is {state}")
            return
        if instance.free_slots < 1:
            self.broken("S6", f"instance {grant.instance_id} has {instance.start.option.parallel} slots, all are taken")
        if note is None:
            return
        if instance.model != note.job.model or grant.model != note.job.model:
            self.broken("S6", f"job {grant.job_id} wants {note.job.model} and is granted {instance.model}")
        if (grant.step, grant.steps) != (note.steps_done + 1, note.job.steps):
            done = f"{note.steps_done} of {note.job.steps} steps"
            self.broken("S3", f"job {grant.job_id} has done {done} and is granted {grant.step}/{grant.steps}")
        spec = self.book.models.get(instance.model)
        if spec is not None and spec.reserved_slots and note.job.job_class.is_low:
            low = sum(one.job.job.job_class.is_low for one in instance.slots.values())
            if low >= instance.start.option.parallel - spec.reserved_slots:
                self.broken("S6", f"low job {grant.job_id} takes a slot of {instance.model} that is kept for chats")

    def _judge_stop(self, instance_id: InstanceId) -> None:
        instance = self.book.instances.get(instance_id)
        if instance is None or instance.state in ("stopping", "exited"):
            state = instance.state if instance else "unknown"
            self.broken("R2", f"instance {instance_id} is stopped, which is {state}")
            return
        dead = self.book.condemned(instance)
        busy = [one for one in instance.slots.values() if not one.stalled and not (one.over and dead)]
        if busy:
            jobs = ", ".join(str(one.job.job.id) for one in busy)
            self.broken("R2", f"instance {instance_id} is stopped while steps of jobs {jobs} are in flight")
