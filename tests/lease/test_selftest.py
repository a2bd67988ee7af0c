"""What the answers to the self-test's dry runs mean."""

import pytest
from world import POLICY as POLICY_OF_TRANSLATION
from world import SCHEDULER as WRITER
from world import asks

from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.lease.entries import Guarded
from webhook.lease.selftest import POLICY, Probe, ProbeAnswer, Verdict, judge, pod

SCHEDULER = "koord-scheduler"
NOTES = {"koordgate.io/original-request": "{}"}
TRANSLATED = {"metadata": {"annotations": NOTES}, "spec": {"schedulerName": SCHEDULER}}
PLAIN = {"metadata": {}, "spec": {"schedulerName": "default-scheduler"}}
DOWN = 'Internal error occurred: failed calling webhook "pods.mutate.koordgate.io": connection refused'
OTHERS = 'Internal error occurred: failed calling webhook "pods.example.com": connection refused'
REFUSED = (
    'admission webhook "pods.validate.koordgate.io" denied the request: Pod default/x: '
    "metadata.annotations[koordgate.io/self-test]: marks a self-test"
)
LIMITED = "pods is forbidden: exceeded quota: none"


@pytest.mark.parametrize(
    ("probe", "answer", "opened", "verdict"),
    [
        pytest.param(Probe.TRANSLATED, ProbeAnswer(TRANSLATED), False, Verdict.YES, id="translated"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(TRANSLATED), True, Verdict.YES, id="translated while open"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(message=DOWN), False, Verdict.DEAD, id="nobody answers"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(PLAIN), True, Verdict.DEAD, id="not called while open"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(PLAIN), False, Verdict.UNKNOWN, id="a namespace that is not served"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer({}), True, Verdict.DEAD, id="an empty Pod"),
        pytest.param(
            Probe.TRANSLATED,
            ProbeAnswer({"spec": {"schedulerName": SCHEDULER}}),
            True,
            Verdict.DEAD,
            id="only the name",
        ),
        pytest.param(
            Probe.TRANSLATED, ProbeAnswer({"metadata": {"annotations": NOTES}}), True, Verdict.DEAD, id="only a note"
        ),
        pytest.param(
            Probe.TRANSLATED, ProbeAnswer(message=OTHERS), False, Verdict.UNKNOWN, id="another's webhook is away"
        ),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(message=LIMITED), True, Verdict.UNKNOWN, id="a quota"),
        pytest.param(Probe.TRANSLATED, ProbeAnswer(message=""), False, Verdict.UNKNOWN, id="no message"),
        pytest.param(Probe.REFUSED, ProbeAnswer(message=REFUSED), False, Verdict.YES, id="refused"),
        pytest.param(Probe.REFUSED, ProbeAnswer(message=REFUSED), True, Verdict.YES, id="refused while open"),
        pytest.param(Probe.REFUSED, ProbeAnswer(TRANSLATED), True, Verdict.DEAD, id="not refused while open"),
        pytest.param(Probe.REFUSED, ProbeAnswer(TRANSLATED), False, Verdict.UNKNOWN, id="an older replica"),
        pytest.param(
            Probe.REFUSED,
            ProbeAnswer(message=DOWN.replace("mutate", "validate")),
            False,
            Verdict.DEAD,
            id="validating is away",
        ),
        pytest.param(Probe.REFUSED, ProbeAnswer(message=LIMITED), True, Verdict.UNKNOWN, id="refused by a quota"),
        pytest.param(
            Probe.REFUSED,
            ProbeAnswer(message=REFUSED.partition(": ")[0]),
            True,
            Verdict.UNKNOWN,
            id="for another reason",
        ),
        pytest.param(
            Probe.HELD,
            ProbeAnswer(message=f"ValidatingAdmissionPolicy '{POLICY}' denied"),
            True,
            Verdict.YES,
            id="held",
        ),
        pytest.param(Probe.HELD, ProbeAnswer(PLAIN), True, Verdict.DEAD, id="not held"),
        pytest.param(
            Probe.HELD, ProbeAnswer(message=DOWN), True, Verdict.UNKNOWN, id="not held: the validating entry refuses"
        ),
    ],
)
def test_an_answer_is_judged(probe: Probe, answer: ProbeAnswer, *, opened: bool, verdict: Verdict) -> None:
    judged = judge(probe, answer, SCHEDULER, opened=opened)
    assert judged.verdict is verdict
    assert bool(judged.reason) is (verdict is not Verdict.YES)


def test_a_message_of_another_is_cut_to_300_characters() -> None:
    refused = "something else refuses the Pod of the self-test: "
    told = [
        judge(Probe.TRANSLATED, ProbeAnswer(message="x" * length), SCHEDULER, opened=False).reason
        for length in (299, 300, 301, 9000)
    ]
    assert told == [f"{refused}{said}" for said in ("x" * 299, "x" * 300, *["x" * 296 + " ..."] * 2)]


def test_the_pod_of_a_self_test_runs_as_nobody_in_particular() -> None:
    spec = pod(Probe.TRANSLATED)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("probe", list(Probe))
def test_only_a_probe_that_asks_for_something_bears_the_annotation(probe: Probe) -> None:
    expected = {} if probe is Probe.TRANSLATED else {"koordgate.io/self-test": probe.value}
    assert pod(probe)["metadata"]["annotations"] == expected


@pytest.mark.parametrize("probe", list(Probe))
def test_the_webhook_translates_every_probe_and_refuses_those_that_ask_for_it(probe: Probe) -> None:
    webhooks = PodWebhooks(POLICY_OF_TRANSLATION, WRITER, lambda _pod: (0, 0))
    translated = patch.apply(pod(probe), webhooks.mutate(asks(pod(probe))).patch)
    response = webhooks.validate(asks(translated))
    assert response.allowed is (probe is Probe.TRANSLATED)
    answer = (
        ProbeAnswer(translated)
        if response.allowed
        else ProbeAnswer(message=f"{Guarded.VALIDATING.entry}: {response.message}")
    )
    if probe is not Probe.HELD:
        assert judge(probe, answer, SCHEDULER, opened=True).verdict is Verdict.YES
