"""What a container that is created is given of its cards and their limits (pure); of CPUs see `mirror`.

It follows from the sandbox's annotations, the container and the node's facts, and knows nothing of NRI: another way
into containers could use it.
"""

from typing import Final

from allocator.vocabulary.delivery import VOID
from allocator.vocabulary.names import VISIBLE_DEVICES_ENV
from reporter import exchange
from reporter.enforcer.cards import Held, bring, cards_of, held_by_others, mounts_others
from reporter.enforcer.limits import Rules, limiter
from reporter.enforcer.model import Answer, Container, Edits, Sandbox
from reporter.exchange import Facts, Remark
from reporter.settings import ReporterSettings

LIMIT_MISSING: Final = "LimitMissing"
_NOT_TOLD: Final = (
    "the reporter has told the enforcer nothing of this node yet: see that it runs (koordgate doctor); then the "
    "container is created without your doing"
)


def rules_of(settings: ReporterSettings) -> Rules:
    """What the settings decide."""
    enforcement, folder = settings.enforcement, exchange.folder(settings.roots.state)
    return Rules(
        cpus=settings.cpus.enforce,
        closed=enforcement.closed,
        exempt=frozenset(enforcement.exempt_namespaces),
        library=enforcement.hami_core.library,
        preload=str(folder / "ld.so.preload"),
        caches=str(folder / "caches"),
        pipe=enforcement.mps.pipe,
        shm=enforcement.mps.shm,
    )


def shut(sandbox: Sandbox, container: Container, rules: Rules, held: Held | None) -> bool:
    """Whether a container is to be kept from all cards of a closed node. `held`: None if that is not known."""
    if not rules.closed or sandbox.namespace in rules.exempt or cards_of(sandbox.annotations, container.name).names:
        return False
    return not held_by_others(sandbox, container, held)


def void(container: Container) -> dict[str, str]:
    """The variable by which NVIDIA's runtime shows a container no card, unless it has it."""
    return {} if container.environment.get(VISIBLE_DEVICES_ENV) == VOID else {VISIBLE_DEVICES_ENV: VOID}


def devices(
    sandbox: Sandbox, container: Container, facts: Facts | None, rules: Rules, held: Held | None = None
) -> Answer:
    """Decide what a container gets of its devices.

    `facts`: None if the reporter has told nothing yet. `held`: None if that is not known.
    """
    cards = cards_of(sandbox.annotations, container.name)
    closed = shut(sandbox, container, rules, held)
    mounted = mounts_others(container, cards, facts) if closed or (cards.names and facts is not None) else ""
    if facts is None:
        refusal = _NOT_TOLD if cards.only and cards.names else mounted
        return Answer(Edits(environment=void(container) if closed else {}), refusal=refusal)
    brought = bring(sandbox, container, cards, facts)
    environment = {**brought.environment, **(void(container) if closed else {})}
    limited = limiter(sandbox, container, facts, rules)
    refusal = brought.refusal or mounted
    if limited.why_not and limited.required:
        refusal = refusal or f"container {container.name} requires limits of its cards: {limited.why_not}"
    if refusal:
        return Answer(refusal=refusal)
    remarks: tuple[Remark, ...] = ()
    if limited.why_not:
        text = f"container {container.name} runs without the limits of its cards that were decided: {limited.why_not}"
        remarks = (Remark(LIMIT_MISSING, text, sandbox.uid, sandbox.namespace, sandbox.name),)
    return Answer(
        Edits(
            environment={**environment, **limited.environment},
            mounts=(*brought.mounts, *limited.mounts),
            cdi=brought.cdi,
        ),
        limits=limited.limits,
        required=limited.required,
        caches=limited.caches,
        mps=limited.mps,
        remarks=remarks,
        kept={container.id: limited.kept} if limited.kept else {},
    )
