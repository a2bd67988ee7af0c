"""The health lease: whether entries are open, and whether they could be opened and shut.

Whether the self-test can tell anything is tried while replicas live: once none does, it is too late to choose another
namespace.
"""

from collections.abc import Iterator
from typing import Final

from console.doctor.findings import Finding, failure, ok, unknown, warning
from console.doctor.snapshot import Snapshot, enforcing
from console.doctor.trials import SELF_TESTS, Came, Expect, TrialOutcome
from webhook.lease.entries import EntryState, Guarded, Stands, state_of
from webhook.lease.selftest import POLICY, Probe, ProbeAnswer, Verdict, judge

_AREA: Final = "health lease"
_SEE_KEEPER: Final = "see the log of deployment/koordgate-lease"


def lease(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the state of the entries that guard Pods, and the policy that holds while they are open."""
    if snapshot.settings is None:
        return
    unread = next((read.error for key in ("mutating", "validating") if (read := snapshot.of(key)).error), "")
    if unread:
        yield unknown(_AREA, f"webhook configurations cannot be read: {unread}", "run this as a user who may list them")
        return
    identity, enabled = snapshot.settings.identity, snapshot.settings.health_lease.enabled
    names = {Guarded.MUTATING: ("mutating", identity.mutating), Guarded.VALIDATING: ("validating", identity.validating)}
    open_entries = False
    for guarded, (key, name) in names.items():
        state = state_of(guarded, snapshot.of(key).named(name))
        open_entries = open_entries or state.stands in {Stands.OPEN, Stands.FOREIGN}
        yield from _entry(guarded, state, enabled=enabled)
    if not enabled:
        yield ok(
            _AREA, "it is off: while no replica lives, Pods that ask for CPUs are refused as those for devices are"
        )
        return
    yield from _policy(snapshot)
    if not open_entries:
        yield from _self_test(snapshot, snapshot.settings.scheduler.name)
        yield ok(_AREA, "the entries that guard Pods are Fail, and are opened only while no replica lives")


def _entry(guarded: Guarded, state: EntryState, *, enabled: bool) -> Iterator[Finding]:
    if state.stands is Stands.OPEN:
        todo = "bring a replica back: kubectl -n koordgate-system get pods; then the entry is shut by itself"
        todo = todo if enabled else "set it to Fail: helm upgrade"
        yield failure(_AREA, f"{guarded.entry} is open (Ignore) since {state.since}: no replica lived", todo)
    elif state.stands is Stands.FOREIGN:
        todo = "set it to Fail (helm upgrade), unless an administrator wants it so"
        yield warning(_AREA, f"{guarded.entry} is Ignore, and not by the health lease", todo)
    elif state.stands is Stands.STALE and enabled:
        yield warning(_AREA, f"{guarded.entry} is Fail, and is still noted as open", _SEE_KEEPER)


def _self_test(snapshot: Snapshot, scheduler: str) -> Iterator[Finding]:
    tried = [one for one in snapshot.outcomes if one.trial.expect is Expect.SELF_TEST]
    found = [_tried(probe, outcome, scheduler) for probe, outcome in zip(SELF_TESTS, tried, strict=False)]
    complaints = [one for one in found if one is not None]
    yield from complaints[:1]  # what is in the way of one is mostly in the way of the other
    if tried and not complaints and not any(one.came is Came.WEBHOOK_FAILED for one in tried):
        yield ok(_AREA, f"the self-test is answered in the namespace {tried[0].trial.namespace} (healthLease.tryIn)")


def _tried(probe: Probe, outcome: TrialOutcome, scheduler: str) -> Finding | None:
    """What is wrong with a self-test; None if nothing is, or no replica answers, which the dry runs say."""
    where = f"the namespace {outcome.trial.namespace} (healthLease.tryIn)"
    if outcome.came in {Came.NO_RIGHT, Came.NO_ANSWER}:
        todo = "run this as an administrator"
        return unknown(_AREA, f"the self-test was not tried in {where}: {outcome.message}", todo)
    if outcome.came is Came.NOT_THERE:
        todo = "create it, or name another one: without it no entry is opened while no replica lives"
        return warning(_AREA, f"{where} does not exist", todo)
    answer = ProbeAnswer(outcome.body if outcome.came is Came.STORED else None, outcome.message)
    judged = judge(probe, answer, scheduler, opened=False)
    if judged.verdict is not Verdict.UNKNOWN:
        return None
    todo = (
        "let it be one in which koordgate enforces (label koordgate.io/mode) and nothing else refuses Pods: without "
        "self-tests no entry is opened while no replica lives"
    )
    return warning(_AREA, f"the self-test proves nothing in {where}: {judged.reason}", todo)


def _policy(snapshot: Snapshot) -> Iterator[Finding]:
    bindings, policies = snapshot.of("policyBindings"), snapshot.of("policies")
    if bindings.error or policies.error:
        return  # the check of policies says so
    in_force = any(
        enforcing(one) and one["spec"]["policyName"] == POLICY and "Deny" in one["spec"].get("validationActions", ())
        for one in bindings.items
        if one["spec"].get("policyName")
    )
    if POLICY not in policies.names or not in_force:
        todo = "helm upgrade: without it the validating entry is never opened"
        yield failure(_AREA, f"ValidatingAdmissionPolicy {POLICY} does not refuse Pods for devices", todo)
