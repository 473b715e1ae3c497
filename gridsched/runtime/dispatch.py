"""Carries the scheduler's commands out, and looks after what they started: processes, slots, memory.

Owns one task for each process (its whole life, then the proof that its memory is back) and one for each slot that an
abandoned step may still hold. Must never decide: what comes of a command goes back as an event.
"""

from collections.abc import Callable
from typing import assert_never

import trio

from gridsched.core.commands import (
    AbortStep,
    AnswerRequest,
    ArmTimer,
    Command,
    Grant,
    GrantStep,
    KeepLoadTime,
    KeepMeasurement,
    KeepStanding,
    Log,
    LogEvent,
    PauseInstance,
    RejectJob,
    ResumeInstance,
    StartInstance,
    StopInstance,
)
from gridsched.core.events import Failure, FailureCause, FamiliesChanged, InstanceExited, ModelsChanged, SlotSettled
from gridsched.core.ids import InstanceId
from gridsched.core.model import LaunchOption
from gridsched.devices.sampler import Recent, verify_release
from gridsched.engine.stall import StallClocks
from gridsched.ports import (
    Account,
    Catalog,
    DeviceMonitor,
    Engine,
    HostMemory,
    Launch,
    LaunchFacts,
    Post,
    Store,
    Upstream,
    UpstreamFailure,
    Vet,
)
from gridsched.runtime.beside import lacking
from gridsched.runtime.desk import Desk
from gridsched.runtime.vet import too_little
from gridsched.runtime.wishes import Wishes

SETTLE_FIRST_SECONDS = 0.02
SETTLE_LONGEST_SECONDS = 1.25
"""How often a process is asked whether an abandoned step has ended: at once, then less and less often, and soon less
than once a second. llama-server looks whether a plain answer's client is still there when its handler has slept for a
second, and each answer of its own wakes that, one about slots too: asked more often, it works for nobody to the end."""


def tell_served(catalog: Catalog, post: Post, *, had_families: bool = False) -> None:
    """Tell the scheduler which models can be served, and what families they make: other files may have changed both.
    `had_families`: it knows of some, and is to hear that there are none."""
    post(ModelsChanged(tuple(model.spec for model in catalog.models() if model.spec is not None)))
    families = catalog.families()
    if families or had_families:
        post(FamiliesChanged(tuple(family.spec for family in families if family.best is not None)))


class Dispatch:
    """One per server. `nursery` holds the processes' tasks and is left last."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        engine: Engine,
        upstream: Upstream,
        monitor: DeviceMonitor,
        store: Store,
        recent: Recent,
        warn: Callable[[Log], None] = lambda log: None,  # noqa: ARG005 - nobody asked
        host: HostMemory | None = None,
    ) -> None:
        self.catalog = catalog
        self.engine = engine
        self.upstream = upstream
        self.stalls = StallClocks()
        self._monitor = monitor
        self._store = store
        self._recent = recent
        self._warn = warn
        self._host = host
        self._settling: dict[InstanceId, list[Grant]] = {}
        self._living: set[InstanceId] = set()
        self._facts: dict[str, LaunchFacts] = {}
        self._all_gone = trio.Event()

    def connect(self, desk: Desk, wishes: Wishes, post: Post, nursery: trio.Nursery) -> None:
        """Say where answers and events go, and where tasks live. Called once, before the first command."""
        self._desk, self._wishes, self._post, self._nursery = desk, wishes, post, nursery

    def carry_out(self, command: Command) -> None:
        """Do what the scheduler asks for. Never waits."""
        match command:
            case GrantStep(grant):
                self._desk.deliver(grant.job_id, grant)
            case RejectJob(job_id, rejection):
                self._desk.deliver(job_id, rejection)
            case StartInstance() | StopInstance() | PauseInstance() | ResumeInstance():
                self._move_process(command)
            case AbortStep(grant_id):
                self._desk.abort(grant_id)
            case AnswerRequest():
                self._wishes.deliver(command)
            case KeepMeasurement(_, key, measured):
                self._nursery.start_soon(self._keep, key, measured, self._account(command))
            case KeepLoadTime(_, key, seconds):
                self._nursery.start_soon(self._store.keep_load_time, key, seconds)
            case KeepStanding(standing):
                self._nursery.start_soon(self._wishes.memory.keep(standing))
            case Log() | ArmTimer():
                raise AssertionError("the actor keeps its log and its timer itself")
            case _:
                assert_never(command)

    def _move_process(self, command: StartInstance | StopInstance | PauseInstance | ResumeInstance) -> None:
        match command:
            case StartInstance(instance_id, model):
                self._living.add(instance_id)
                if why := lacking(command.option, self._host):
                    self._warn(Log(LogEvent.PRESSURE, model=model, rule="L4", figures={"why": why}))
                self._nursery.start_soon(self._life, command, name=f"instance {instance_id} {model}")
            case StopInstance(instance_id):
                self.engine.stop(instance_id)
            case PauseInstance(instance_id):
                self.engine.pause(instance_id)
                self.stalls.pause(instance_id)
            case ResumeInstance(instance_id):
                self.engine.resume(instance_id)
                self.stalls.resume(instance_id)

    async def _life(self, command: StartInstance) -> None:
        try:
            launch = self._launch(command)
            if launch is not None and await self._is_as_planned(command):
                await self.engine.run(command.instance_id, launch, self._post, self._vet(command.option))
        finally:
            self._living.discard(command.instance_id)
            self._settling.pop(command.instance_id, None)
            if not self._living:
                self._all_gone.set()
                self._all_gone = trio.Event()
        await verify_release(self._monitor, command.instance_id, command.option, self._post, self._recent)

    def _vet(self, option: LaunchOption) -> Vet:
        """What is asked of the process before it is called ready (B16)."""

        async def vet(instance_id: InstanceId, pid: int) -> Failure | None:
            processes = {**self.engine.processes(), instance_id: pid}
            why = await too_little(self._monitor, processes, instance_id, option)
            self._monitor.settled(instance_id)
            return None if why is None else Failure(FailureCause.CPU_FALLBACK, why)

        return vet

    def _launch(self, command: StartInstance) -> Launch | None:
        """What to start; None, said to the scheduler, where the configuration has changed meanwhile."""
        try:
            launch = self.catalog.launch(command.model, command.option)
        except KeyError:
            failure = Failure(FailureCause.MISSING_FILE, f"{command.model} is no longer in the configuration")
            self._post(InstanceExited(command.instance_id, failure))
            return None
        if launch.facts is not None:
            self._facts[command.option.key] = launch.facts
        return launch

    async def _is_as_planned(self, command: StartInstance) -> bool:
        """Whether the model's files are those that the launch was planned with; said to the scheduler where not: what
        lies there now may take any memory."""
        changed = await self.catalog.renew(command.model)
        if changed is None:
            return True
        self._post(InstanceExited(command.instance_id, Failure(FailureCause.MISSING_FILE, changed)))
        tell_served(self.catalog, self._post)
        return False

    async def _keep(self, key: str, measured: tuple[int, ...], account: Account | None) -> None:
        """Keep a measurement; where it tells what other models take, too, they are planned anew (L2)."""
        await self._store.keep_measurement(key, measured, account)
        if self.catalog.learn(self._store.measurements()):
            tell_served(self.catalog, self._post)

    def _account(self, command: KeepMeasurement) -> Account | None:
        """What was measured, where anybody can say it."""
        facts = self._facts.get(command.option_key)
        if facts is None or command.option is None:
            return None
        # What a device's use grew by says nothing of what a process holds beside its buffers there (D2).
        allocated = () if command.by_difference else command.allocated
        return Account(facts, command.option.footprint, allocated)

    async def end_processes(self) -> None:
        """End every process and wait until all are gone."""
        for instance_id in self._living:
            self.engine.stop(instance_id)
        while self._living:
            await self._all_gone.wait()

    # --- abandoned steps --------------------------------------------------------------------------------------------

    def settle(self, grant: Grant) -> None:
        """Find out when the engine has really stopped working on a step whose client has left (S8)."""
        waiting = self._settling.setdefault(grant.instance_id, [])
        waiting.append(grant)
        if len(waiting) == 1:
            self._nursery.start_soon(self._watch_slots, grant.instance_id)

    async def _watch_slots(self, instance_id: InstanceId) -> None:
        """Ask the engine until every abandoned step of one process has ended, or its process has.

        The engine names no request, so what counts is the number: slots it says are busy, less the steps that we know
        to be running. Two answers in a row must agree, because a step that was granted a moment ago may not show yet.
        How long it may take is the scheduler's to say: it ends a process that stays busy for nobody.
        """
        # The process may have ended in the tick in which this watch was begun.
        pause, before = SETTLE_FIRST_SECONDS, len(self._settling.get(instance_id, ()))
        while waiting := self._settling.get(instance_id):
            await trio.sleep(pause)
            held = await self._held_slots(instance_id, len(waiting))
            # Where nobody else runs there is nobody who may not show yet: a person may be waiting for this slot (S11).
            alone = not self._desk.active[instance_id]
            pause = SETTLE_FIRST_SECONDS if alone and not held else min(pause * 3, SETTLE_LONGEST_SECONDS)
            for _ in range(len(waiting) - max(held, before)):
                self._post(SlotSettled(waiting.pop(0).id))
            before = held
        self._settling.pop(instance_id, None)

    async def _held_slots(self, instance_id: InstanceId, waiting: int) -> int:
        """How many of a process's abandoned steps still run; all of them, while it does not say."""
        if instance_id not in self.engine.processes():
            return 0  # its exit frees every slot
        try:
            busy = await self.upstream.busy_slots(instance_id)
        except UpstreamFailure:
            return waiting
        return max(0, busy - self._desk.active[instance_id])
