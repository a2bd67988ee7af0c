"""The dry-run requests: scope, certificates, reachability and policies, shown by what came back."""

from collections.abc import Iterator
from typing import Final

from console.doctor.findings import Finding, failure, ok, unknown
from console.doctor.snapshot import Snapshot
from console.doctor.trials import Came, Expect, TrialOutcome, translated_by, untouched

_AREA: Final = "dry run"
_LONGEST: Final = 300  # characters of another's message
_NO_REPLICA_BEHIND: Final = (
    "what is between API server and webhook reaches no replica: kubectl -n koordgate-system get pods"
)
_CAUSES: Final = (  # what the API server's message has, and what to do
    (
        "certificate signed by unknown authority",
        "the CA in the webhook configuration is another: see the webhook's log",
    ),
    ("certificate has expired", "see the webhook's log: clocks, or rights to its Secrets"),
    ("certificate is not valid", "see the webhook's log: clocks, or rights to its Secrets"),
    ("certificate is valid for", "add the name to certificate.extraDNSNames"),
    ("no endpoints available", "no replica is ready: kubectl -n koordgate-system get pods"),
    ("connection refused", "no replica listens there: kubectl -n koordgate-system get pods"),
    ("EOF", _NO_REPLICA_BEHIND),
    ("connection reset", _NO_REPLICA_BEHIND),
    ("deadline exceeded", "open the way from the API server to the Service's port (firewall, NetworkPolicy)"),
    ("no such host", "see that the Service koordgate exists"),
    ("no route to host", "open the way from the API server to the Service's port (firewall, NetworkPolicy)"),
    ("it presented no certificate", "configure the API server's certificate for webhooks, or webhook.clientAuthority"),
)
_UNSEEN: Final = "koordgate's mutating webhook did not see this Pod"  # as its validating webhook says it
_SEE_LOG: Final = "see the log of deployment/koordgate"


def answers(snapshot: Snapshot) -> Iterator[Finding]:
    """Judge each dry-run request."""
    if snapshot.settings is None:
        return
    scheduler = snapshot.settings.scheduler.name
    for outcome in snapshot.outcomes:
        yield _judge(outcome, scheduler)


def _judge(outcome: TrialOutcome, scheduler: str) -> Finding:
    trial, came = outcome.trial, outcome.came
    about = f"{trial.about} ({trial.namespace})"
    message = _short(outcome.message)
    if came is Came.NO_RIGHT:
        todo = "run this as a user who may create Pods and pods/binding there, and impersonate the scheduler"
        return unknown(_AREA, f"{about}: not tried: {message}", todo)
    if came is Came.NO_ANSWER:
        return unknown(_AREA, f"{about}: {message}", "run the command again")
    if came is Came.WEBHOOK_FAILED:
        ours = "koordgate.io" in outcome.message
        todo = _cause(outcome.message) if ours else "that webhook is not koordgate's: look at its product"
        return failure(_AREA, f"{about}: {message}", todo)
    return {
        Expect.TRANSLATED: _translated,
        Expect.UNTOUCHED: _untouched,
        Expect.REFUSED: _refused,
        Expect.ANSWERED: _answered,
    }[trial.expect](outcome, about, scheduler)


def _translated(outcome: TrialOutcome, about: str, scheduler: str) -> Finding:
    if outcome.came is Came.REFUSED and _UNSEEN in outcome.message:
        todo = "restore the mutating webhook configuration: helm upgrade; or see which webhook changes the Pod after it"
        return failure(_AREA, f"{about}: koordgate's validating webhook refuses it, because it is not translated", todo)
    if outcome.came is not Came.STORED:
        return _kept_off(outcome, about)
    if translated_by(outcome.body, scheduler):
        return ok(_AREA, f"{about}: it is sent to {scheduler}")
    todo = (
        "see that the webhook configurations exist and match the namespace (exemptNamespaces, dialects), and that its "
        "mode is enforce (label koordgate.io/mode)"
    )
    return failure(_AREA, f"{about}: koordgate leaves it alone", todo)


def _untouched(outcome: TrialOutcome, about: str, scheduler: str) -> Finding:
    if outcome.came is not Came.STORED:
        return _kept_off(outcome, about)
    if untouched(outcome.body, scheduler):
        return ok(_AREA, f"{about}: it is left alone")
    todo = "restore the namespaceSelector and matchConditions of the webhook configurations: helm upgrade"
    return failure(_AREA, f"{about}: koordgate changes it", todo)


def _refused(outcome: TrialOutcome, about: str, scheduler: str) -> Finding:  # noqa: ARG001 one of four alike
    if outcome.came is Came.REFUSED and any(word in outcome.message for word in outcome.trial.by):
        return ok(_AREA, f"{about}: it is refused")
    if outcome.came is Came.REFUSED:
        return _kept_off(outcome, about)
    todo = "restore the policies and the webhook configurations: helm upgrade"
    return failure(_AREA, f"{about}: it is accepted", todo)


def _answered(outcome: TrialOutcome, about: str, scheduler: str) -> Finding:  # noqa: ARG001 one of four alike
    """The request reached all webhooks: what they say about something that does not exist is no matter."""
    return ok(_AREA, f"{about}: the webhooks answer")


def _kept_off(outcome: TrialOutcome, about: str) -> Finding:
    exempt = outcome.trial.expect is Expect.UNTOUCHED
    todo = "nothing, if that is right" if exempt else "name a namespace with --try-in in which such Pods are admitted"
    return unknown(_AREA, f"{about}: something else refuses it: {_short(outcome.message)}", todo)


def _cause(message: str) -> str:
    return next((todo for words, todo in _CAUSES if words in message), _SEE_LOG)


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 4]} ..."
