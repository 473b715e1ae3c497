"""Who asks for what: a machine, its models, the figures of the rules and the clients, all drawn from one seed.

Owns the frozen description of a run. It draws every choice from a generator of its own, named by the seed and the thing
it is for, so that leaving one client out of a run does not change what the others do. It never touches the scheduler.
"""

from dataclasses import dataclass, field, replace
from random import Random

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import NO_MEDIA, JobClass, JobKind, Medium, Quality
from gridsched.core.model import DeviceFootprint, DeviceSpec, FamilySpec, LaunchOption, ModelSpec, Variant
from gridsched.core.policy import Eviction, Policy, QueueLimits

GIB = 1 << 30
HEADROOM_SHARE = 0.03
RIGS = ((16,), (16,), (24,), (12, 12), (16, 8))
SIZES = (0.4, 1.0, 2.8, 4.0, 6.0, 8.3, 11.0)
UNKNOWN = ModelName("nobody-knows-it")
TOO_LARGE = ModelName("too-large")
FAMILY = ModelName("family")
FEATURES = ("families", "hot_yield", "keys", "persons", "ttl", "starts", "host_limit", "differences")
"""What a run may make use of beside plain requests, each in a third of the runs."""


def generator(*names: object) -> Random:
    """The one source of randomness: a generator named by the seed and by what it is for."""
    return Random(":".join(str(name) for name in names))  # noqa: S311 - repeatable numbers, not secrets


def chance(rng: Random, share: float) -> bool:
    """True in this share of the cases."""
    return rng.random() < share


@dataclass(frozen=True, slots=True)
class Client:
    """A closed loop: ask, wait for the answer, think, ask again. Ranges are (least, most), seconds or a number."""

    name: str
    job_class: JobClass
    kind: JobKind
    model: ModelName
    step_seconds: tuple[float, float]
    think_seconds: tuple[float, float]
    steps: tuple[int, int] = (1, 1)
    max_wait_seconds: float | None = None
    warm_only: bool = False
    no_evict: bool = False
    key: str = ""
    ttl_seconds: float | None = None
    quality: Quality | None = None
    media: frozenset[Medium] = NO_MEDIA
    queue_share: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run's beginning. `faults` are the kinds that may happen; `drain` ends the run with a shutdown; `features` are
    what persons and clients make use of beside plain requests."""

    seed: int
    devices: tuple[DeviceSpec, ...]
    models: tuple[ModelSpec, ...]
    policy: Policy
    clients: tuple[Client, ...]
    faults: frozenset[str] = field(default_factory=frozenset)
    drain: bool = False
    features: frozenset[str] = field(default_factory=frozenset)
    families: tuple[FamilySpec, ...] = ()


LATER_KINDS = ("device_fault", "lost")
"""Kinds of faults that came later: each draws by itself, so that older seeds stay what they were."""


def draw(seed: int, fault_kinds: tuple[str, ...]) -> Scenario:
    """The scenario of a seed."""
    rng = generator(seed, "scenario")
    devices = _devices(rng)
    models = _models(rng, devices)
    scenario = Scenario(
        seed=seed,
        devices=devices,
        models=models,
        policy=_policy(rng),
        clients=_clients(rng, models),
        faults=frozenset(
            kind for kind in fault_kinds if chance(generator(seed, "kind", kind) if kind in LATER_KINDS else rng, 0.5)
        ),
        drain=chance(rng, 0.15),
        features=frozenset(feature for feature in FEATURES if chance(rng, 0.35)),
    )
    return _with_features(generator(seed, "features"), scenario)


def _devices(rng: Random) -> tuple[DeviceSpec, ...]:
    """One or two cards."""
    return tuple(
        DeviceSpec(DeviceName(f"gpu{index}"), size * GIB, int(size * GIB * HEADROOM_SHARE))
        for index, size in enumerate(rng.choice(RIGS))
    )


def _models(rng: Random, devices: tuple[DeviceSpec, ...]) -> tuple[ModelSpec, ...]:
    """Three to five models, and at times one that can never fit."""
    models = [_model(rng, f"m{index}", rng.choice(SIZES), devices) for index in range(rng.randint(3, 5))]
    if chance(rng, 0.2):
        models.append(_model(rng, TOO_LARGE, 60.0, devices))
    return tuple(models)


def _model(rng: Random, name: str, size: float, devices: tuple[DeviceSpec, ...]) -> ModelSpec:
    """One model: its full size on each card, at times a smaller rung, at times one that spans the cards."""
    parallel = rng.choice((1, 2, 2, 4))
    whole = int(size * GIB)
    options = [_option(name, "full", whole, parallel, (device,)) for device in devices]
    if chance(rng, 0.3):
        options += [_option(name, "small", whole * 4 // 5, parallel, (device,)) for device in devices]
    if len(devices) > 1 and (chance(rng, 0.3) or whole > devices[0].total_bytes):
        options.append(_option(name, "split", whole, parallel, devices))
    return ModelSpec(
        name=ModelName(name),
        options=tuple(options),
        pinned=size in SIZES[:3] and chance(rng, 0.15),
        reserved_slots=rng.choice((None, None, 0, 1 if parallel > 1 else 0)),
        idle_ttl_seconds=rng.choice((None, None, 20.0, 60.0)),
        load_seconds=0.3 + size * rng.uniform(0.2, 1.0),
    )


def _option(name: str, rung: str, whole: int, parallel: int, devices: tuple[DeviceSpec, ...]) -> LaunchOption:
    """One rung of a ladder, shared evenly by its devices."""
    footprint = tuple(DeviceFootprint(device.name, weights_bytes=whole // len(devices)) for device in devices)
    key = f"{name}/{rung}/{'+'.join(device.name for device in devices)}"
    return LaunchOption(key=key, ctx_size=4096 * parallel, parallel=parallel, footprint=footprint)


def _policy(rng: Random) -> Policy:
    """Mostly the defaults, so that most runs try what most people run."""
    low = QueueLimits(rng.choice((1024, 1024, 6)), rng.choice((24 * 3600.0, 24 * 3600.0, 60.0)))
    return Policy(
        interactive_cooldown_seconds=rng.choice((2.0, 2.0, 2.0, 0.5, 0.0)),
        background_max_starvation_seconds=rng.choice((3.0, 3.0, 3.0, 1.0, 0.0)),
        background_share=rng.choice((0.5, 0.5, 0.25, 1.0)),
        relief_slots=rng.choice((4, 4, 2, 1)),
        batch_max_starvation_seconds=rng.choice((120.0, 20.0, 0.0)),
        hot_window_seconds=rng.choice((300.0, 30.0, 5.0)),
        min_residency_seconds=rng.choice((30.0, 30.0, 5.0, 0.0)),
        interactive_turn_seconds=rng.choice((None, None, 0.0, 10.0)),
        eviction=rng.choice((Eviction.COST, Eviction.COST, Eviction.LRU)),
        abort_after_seconds=rng.choice((None, None, 0.0, 2.0)),
        background_pause=rng.choice((False, False, True)),
        pause_limit_seconds=rng.choice((3.0, 1.0)),
        fit_wait_seconds=rng.choice((10.0, 2.0)),
        queues={
            JobClass.INTERACTIVE: QueueLimits(rng.choice((256, 256, 4)), rng.choice((None, None, 30.0))),
            JobClass.BACKGROUND: low,
            JobClass.BATCH: low,
        },
    )


def _clients(rng: Random, models: tuple[ModelSpec, ...]) -> tuple[Client, ...]:
    """Up to six people and up to a dozen jobs that can wait, each loyal to one model."""
    names = [model.name for model in models]
    counts = {
        JobClass.INTERACTIVE: rng.choice((0, 1, 2, 4, 6)),
        JobClass.BACKGROUND: rng.choice((0, 1, 3, 6)),
        JobClass.BATCH: rng.choice((0, 1, 4)),
    }
    clients = [
        _client(rng, f"{job_class.label}-{index}", job_class, _favourite(rng, names))
        for job_class, count in counts.items()
        for index in range(count)
    ]
    clients += [_embedder(rng, f"embed-{index}", _favourite(rng, names)) for index in range(rng.choice((0, 1, 3)))]
    if not clients or chance(rng, 0.1):
        clients.append(_client(rng, "lost", JobClass.INTERACTIVE, UNKNOWN))
    return tuple(clients)


def _favourite(rng: Random, names: list[ModelName]) -> ModelName:
    """Earlier models are asked for more often, as in life."""
    return names[min(int(rng.expovariate(0.8)), len(names) - 1)]


def _with_features(rng: Random, scenario: Scenario) -> Scenario:
    """What the features of a run change about its clients and figures. It has a generator of its own, so that a feature
    that is new leaves everything else as it was."""
    clients = scenario.clients
    if "hot_yield" in scenario.features:
        scenario = replace(scenario, policy=replace(scenario.policy, hot_yield_after_seconds=rng.choice((5.0, 20.0))))
    if "starts" in scenario.features:
        starts = generator(scenario.seed, "starts").choice((2, 4, 8))
        scenario = replace(scenario, policy=replace(scenario.policy, starts_per_minute=starts))
    if "host_limit" in scenario.features:
        scenario = replace(scenario, policy=replace(scenario.policy, host_memory_limit_bytes=2 * GIB))
    if "ttl" in scenario.features:
        clients = tuple(replace(one, ttl_seconds=rng.choice((None, 0.0, 5.0, 60.0))) for one in clients)
    if "keys" in scenario.features:
        clients = tuple(replace(one, key=rng.choice(("red", "green", "blue"))) for one in clients)
        draws = generator(scenario.seed, "shares")
        shares = {key: draws.choice((None, 0.07, 0.3, 1.0)) for key in ("red", "green", "blue")}
        clients = tuple(replace(one, queue_share=shares[one.key]) for one in clients)
    if "families" in scenario.features:
        clients = tuple(_of_the_family(rng, one) if one.steps == (1, 1) else one for one in clients)
        scenario = replace(scenario, families=(_family(rng, scenario.models),))
    return replace(scenario, clients=clients)


def _family(rng: Random, models: tuple[ModelSpec, ...]) -> FamilySpec:
    """Two or three of the models, the largest first."""
    chosen = rng.sample(models, rng.randint(2, 3))
    by_size = sorted(chosen, key=lambda spec: -sum(need for _, need in spec.options[0].need_bytes))
    media = (frozenset({Medium.IMAGE}), rng.choice((NO_MEDIA, frozenset(Medium))), NO_MEDIA)
    sizes = zip(by_size, Quality, media, strict=False)
    return FamilySpec(FAMILY, tuple(Variant(spec.name, quality, takes) for spec, quality, takes in sizes))


def _of_the_family(rng: Random, client: Client) -> Client:
    """Somebody who names the family; some want a quality, or bring an image."""
    if chance(rng, 0.4):
        return client
    quality = rng.choice((None, None, None, Quality.BALANCED, Quality.PREFERRED))
    media = rng.choice((NO_MEDIA, NO_MEDIA, NO_MEDIA, frozenset({Medium.IMAGE})))
    return replace(client, model=FAMILY, quality=quality, media=media)


def _client(rng: Random, name: str, job_class: JobClass, model: ModelName) -> Client:
    """Somebody who chats, or a job that generates."""
    chat = job_class is JobClass.INTERACTIVE
    return Client(
        name=name,
        job_class=job_class,
        kind=JobKind.CHAT if chat else JobKind.COMPLETION,
        model=model,
        step_seconds=(0.5, 1.5) if chance(rng, 0.8) else (5.0, 20.0),
        think_seconds=rng.choice(((0.5, 3.0), (0.0, 0.2), (5.0, 40.0))),
        max_wait_seconds=rng.choice((None, None, None, 5.0, 30.0)),
        warm_only=chance(rng, 0.06),
        no_evict=chance(rng, 0.06),
    )


def _embedder(rng: Random, name: str, model: ModelName) -> Client:
    """An indexing job of many steps, or a search of one."""
    job_class = rng.choice((JobClass.BACKGROUND, JobClass.BACKGROUND, JobClass.BATCH, JobClass.INTERACTIVE))
    return Client(
        name=name,
        job_class=job_class,
        kind=JobKind.EMBEDDINGS,
        model=model,
        step_seconds=(0.05, 0.5),
        think_seconds=(0.5, 10.0),
        steps=rng.choice(((1, 3), (2, 20))),
    )
