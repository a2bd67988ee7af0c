"""What a container that is created is given of its cards and their limits (pure); of CPUs see `mirror`.

It follows from the sandbox's annotations, the container and the node's facts, and knows nothing of NRI: another way
into containers could use it.
"""

from typing import Final

from allocator.vocabulary.delivery import VOID
from allocator.vocabulary.names import VISIBLE_DEVICES_ENV
from reporter import exchange
from reporter.enforcer.cards import bring, cards_of, held_by_others, mounts_others
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


def devices(sandbox: Sandbox, container: Container, facts: Facts | None, rules: Rules) -> Answer:
    """Decide what a container gets of its devices; None: the reporter has told nothing yet."""
    cards = cards_of(sandbox.annotations, container.name)
    if facts is None:
        return Answer(refusal=_NOT_TOLD if cards.only and cards.names else "")
    brought = bring(sandbox, container, cards, facts)
    environment = dict(brought.environment)
    ours = bool(cards.names)
    shut = rules.closed and not ours and sandbox.namespace not in rules.exempt
    if shut and not held_by_others(sandbox, container, facts):
        if container.environment.get(VISIBLE_DEVICES_ENV) != VOID:
            environment[VISIBLE_DEVICES_ENV] = VOID
        ours = True
    limited = limiter(sandbox, container, facts, rules)
    refusal = brought.refusal or (mounts_others(container, cards, facts) if ours else "")
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
