"""Settings: an empty file is valid; a message about an error names the file, the key and a correct value."""

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from strategies import json_values
from trials import examples

from koordgate.cli import main
from koordgate.settings import Name, Port, Seconds, Section, SettingsError, faults
from webhook import settings
from webhook.settings import CertificateFiles, LedgerSettings, WebhookSettings, load, parse

SECTIONS = [
    value
    for _, value in inspect.getmembers(settings, inspect.isclass)
    if issubclass(value, msgspec.Struct) and value.__module__ == settings.__name__ and value.__struct_fields__
]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for name, each in value.items() for key, leaf in leaves(each, f"{path}{name}.").items()}
    return {path.removesuffix("."): value}


# Sections that are absent or whole, and entries of lists.
REQUIRED = {
    "CertificateFiles": ("certificate", "key", "authority"),
    "OwnType": ("name", "resource"),
    "TypicalSettings": ("requests",),
}


# --- defaults


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_all_defaults(text: str) -> None:
    assert parse(text) == WebhookSettings()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_has_a_default_and_says_what_it_is(section: type[msgspec.Struct]) -> None:
    documented = inspect.getsource(section)
    for field in msgspec.structs.fields(section):
        assert field.required is (field.name in REQUIRED.get(section.__name__, ())), field.name
        is_section = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        said = re.search(rf"(?:#.*\n    {field.name}: |\n    {field.name}: .*  # )", documented)
        assert is_section or said, field.name


def test_when_a_holding_that_was_never_bound_is_given_back() -> None:
    assert WebhookSettings().ledger.given_back_seconds == 240
    assert LedgerSettings(grace_seconds=80, reconcile_seconds=7).given_back_seconds == 127


def test_the_defaults_fit_together() -> None:
    made = WebhookSettings()
    assert made.scheduler.name == "koord-scheduler"
    assert made.scheduler.username.startswith(f"system:serviceaccount:{made.identity.namespace}:")
    assert made.ledger.grace_seconds > 2 * 34  # no API request lives longer, and a bind may renew half-way
    assert made.serve.deadline_seconds < 5  # the webhooks' timeout
    assert made.serve.body_limit_bytes > 2 * 3 * 2**20  # an update carries two objects of 3 MB at most
    assert made.certificate.authority_days > made.certificate.certificate_days


def test_every_default_written_out_is_the_same_settings() -> None:
    written = msgspec.to_builtins(WebhookSettings())
    assert parse(yaml.safe_dump(written)) == WebhookSettings()
    assert all(key[0].islower() and "_" not in key for path in leaves(written) for key in path.split("."))


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        parse("").serve.port = 1  # type: ignore[misc] # that is the point


def sections(of: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    return [of, *(each for section in of.__subclasses__() for each in sections(section))]


@pytest.mark.parametrize("section", sections(Section), ids=lambda section: section.__name__)
def test_every_section_is_frozen_camel_case_and_refuses_unknown_keys(section: type[msgspec.Struct]) -> None:
    config = section.__struct_config__
    assert (config.frozen, config.forbid_unknown_fields) == (True, True)
    assert not any("_" in name for name in section.__struct_encode_fields__)


OWN = "devices: {types: [{name: npu, resource: example.com/npu, %s}]}"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("split: example.com/npus", "split and templates are for a type with amounts"),
        ("templates: [{name: a, amounts: {}}]", "split and templates are for a type with amounts"),
        ("boards: [{models: [m], partitions: [[0], [1], [0]]}]", "a partition, or a minor in one, is listed twice"),
        ("boards: [{models: [m], partitions: [[0, 1], [1, 0]]}]", "a partition, or a minor in one, is listed twice"),
        ("boards: [{models: [m], partitions: [[0, 1], [2, 3, 2]]}]", "a partition, or a minor in one, is listed twice"),
    ],
)
def test_an_own_type_that_contradicts_itself_is_refused(keys: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        parse(OWN % keys)


def test_ports_and_secrets_are_two_each() -> None:
    made = WebhookSettings()
    assert made.serve.port != made.serve.extender_port
    assert made.certificate.secret != made.certificate.client_secret
    assert parse("serve: {port: 0, extenderPort: 0}").serve.extender_port == 0  # two free ones


# --- stated values are taken


def test_what_a_file_says_is_taken_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "domain: koordinator.sh\n"
        "stateMemory: false\n"
        "serve: {port: 8443, shutdownDelaySeconds: 0}\n"
        "certificate:\n  dnsNames: [a.example, b.example]\n  files: {certificate: c, key: k, authority: a}\n",
        encoding="utf-8",
    )
    made = load(file)
    assert (made.domain, made.state_memory) == ("koordinator.sh", False)
    assert (made.serve.port, made.serve.shutdown_delay_seconds) == (8443, 0)
    assert made.serve.host == WebhookSettings().serve.host
    assert made.certificate.dns_names == ("a.example", "b.example")
    assert made.certificate.files == CertificateFiles(certificate="c", key="k", authority="a")


def test_the_classes_that_count_may_be_of_types_of_ones_own() -> None:
    made = parse(
        "scheduler: {preferenceClasses: [ephemeral-storage, queue, fpga]}\n"
        "devices: {types: [{name: queue, resource: example.com/queue}]}"
    )
    assert made.scheduler.preference_classes == ("ephemeral-storage", "queue", "fpga")


# --- what is wrong is told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("serve: {prot: 1}", ["serve.prot: there is no such key; did you mean port?"]),
        ("serve: {body_limit_bytes: 4096}", ["body_limit_bytes", "serve"]),  # keys are camelCase
        ("unknown: 1", ["unknown: there is no such key; the keys there are domain, stateMemory, "]),
        ("mode: off", ["mode: false (text needs quotes) is none of enforce, shadow, off"]),
        ("logLevel: [info]", ["logLevel: must be text, and is a list"]),
        ("dialects: {hamy: {}}", ["dialects.hamy: there is no such dialect; there are hami, volcano,"]),
        ("dialects: {volcanos: {}}", ["; did you mean volcano?"]),
        ("dialects: {hami: {}, volcano: {enabeld: true}}", ["dialects.volcano.enabeld: there is no such key; did you"]),
        ("a: 1\n---\nb: 2", ["has several YAML documents; settings are one: keep that one"]),
        ("serve: {port: 0x" + "f" * 9000 + "}", ["serve.port", "a longer number"]),
        ("serve: {port: 70000}", ["serve.port", "65535"]),
        ("serve: {port: '9443'}", ["serve.port: must be a whole number, and is the text '9443'"]),
        ("serve: {port: 8443, extenderPort: 8443}", ["serve", "port and extenderPort are both 8443"]),
        ("map: {enabled: true, port: 9443}", ["map.port and a port of serve are both 9443"]),
        ("map: {enabled: true, port: 9444}", ["map.port and a port of serve are both 9444"]),
        ("map: {clients: 0}", ["map.clients", "1"]),
        ("serve: {bodyLimitBytes: 10}", ["serve.bodyLimitBytes", "1024"]),
        ("serve: {bodiesBytes: 7000000}", ["bodiesBytes is 7000000", "bodyLimitBytes (7340032) or more"]),
        ("serve: {connections: 9}", ["serve.connections", "10"]),
        ("certificate: {extenderSecret: koordgate-tls}", ["secret and extenderSecret are both koordgate-tls"]),
        (
            "certificate: {extenderSecret: koordgate-scheduler-tls}",
            ["extenderSecret and clientSecret are both koordgate-scheduler-tls"],
        ),
        ("serve: {deadlineSeconds: 0}", ["serve.deadlineSeconds", "> 0"]),
        ("serve: {deadlineSeconds: soon}", ["serve.deadlineSeconds"]),
        ("serve: {shutdownDelaySeconds: -1}", ["serve.shutdownDelaySeconds"]),
        ("serve: {clientName: api-server}", ["clientAuthority and clientName go together: set both, or neither"]),
        ("serve: {clientAuthority: x}", ["clientAuthority and clientName go together: set both, or neither"]),
        ("serve: {clientAuthority: x, clientName: y}", ["clientAuthority is no certificate as PEM"]),
        ("ledger: {graceSeconds: -5}", ["ledger.graceSeconds"]),
        ("numa: {scope: {namespaces: [Training]}}", ["numa.scope.namespaces[0]"]),
        ("numa: {scope: {selector: {app: 'a b'}}}", ["numa.scope.selector.app"]),
        ("numa: {scope: {selector: {app: 1}}}", ["numa.scope.selector.app"]),
        ("numa: {scope: {selector: {-app: a}}}", ["numa.scope.selector"]),
        ("numa: {scope: {labels: {}}}", ["labels", "numa.scope"]),
        ("ledger: {reconcileSeconds: 0}", ["ledger.reconcileSeconds"]),
        ("ledger: {reconcileSeconds: .inf}", ["ledger.reconcileSeconds", "86400"]),
        ("ledger: {graceSeconds: .nan}", ["ledger.graceSeconds"]),
        ("ledger: {gatherSeconds: .nan}", ["ledger.gatherSeconds"]),
        ("serve: {deadlineSeconds: .inf}", ["serve.deadlineSeconds"]),
        ("serve: {shutdownDelaySeconds: .inf}", ["serve.shutdownDelaySeconds"]),
        ("serve: {shutdownDelaySeconds: .nan}", ["serve.shutdownDelaySeconds"]),
        ("certificate: {authorityDays: .inf}", ["certificate.authorityDays", "1000000"]),
        ("certificate: {certificateDays: .nan}", ["certificate.certificateDays"]),
        ("scheduler: {name: ''}", ["scheduler.name", "length >= 1"]),
        ("scheduler: {commonName: ''}", ["scheduler.commonName", "length >= 1"]),
        ("scheduler: {commonName: " + "x" * 65 + "}", ["scheduler.commonName", "length <= 64"]),
        (
            "scheduler: {preference: Packing}",
            ["'Packing' is none of packing, leastRequested,", "mean packing?"],
        ),
        (
            "scheduler: {mix: [{requests: {cpu: 1, koordinator.sh/gpu: 100}}, {requests: {cpu: x}}]}",
            ["scheduler.mix[1]", "cpu"],
        ),
        ("scheduler: {mix: [{requests: {cpu: 1}}]}", ["scheduler.mix: no request asks for devices"]),
        ("scheduler: {mix: [{requests: {koordinator.sh/gpu: 100}, weight: 0}]}", ["scheduler.mix[0].weight"]),
        ("scheduler: {preferenceClasses: cpu}", ["scheduler.preferenceClasses"]),
        (
            "scheduler: {preferenceClasses: [memory, disk, queue]}",
            [
                "scheduler.preferenceClasses names disk, queue",
                "cpu, memory, ephemeral-storage",
                "rdma",
                "devices.types",
            ],
        ),
        (
            "scheduler: {preferenceClasses: [queues]}\ndevices: {types: [{name: queue, resource: example.com/queue}]}",
            ["names queues", "queue;"],
        ),
        ("scheduler: {preferenceClasses: [cpu, gpu, cpu]}", ["names a class twice"]),
        (
            "scheduler: {clientCertificates: 'yes'}",
            ["clientCertificates: must be true or false, and is the text"],
        ),
        ("certificate: {secret: x, clientSecret: x}", ["certificate", "secret and clientSecret are both x"]),
        ("certificate: {clientAuthority: ca.crt}", ["certificate", "set files too"]),
        ("scheduler: {username: ''}", ["scheduler.username", "length >= 1"]),
        ("identity: {namespace: ''}", ["identity.namespace", "length >= 1"]),
        ("certificate: {files: {certificate: c, key: '', authority: a}}", ["certificate.files.key"]),
        ("domain: example.org", ["domain", "example.org"]),
        ("logLevel: loud", ["logLevel", "loud"]),
        ("stateMemory: 'no'", ["stateMemory: must be true or false, and is the text 'no'"]),
        ("certificate: {dnsNames: a.example}", ["certificate.dnsNames"]),
        ("certificate: {dnsNames: [1]}", ["certificate.dnsNames[0]"]),
        ("certificate: {files: {key: k}}", ["certificate.files", "certificate"]),
        (
            (
                "devices: {types: [{name: q, resource: e.com/q, amounts: [{name: lane, resource: e.com/q.lane}],"
                " templates: [{name: t, amounts: {lane: many}}]}]}"
            ),
            ["device type q: template t: ", "'many'"],
        ),
        ("scheduler: koord-scheduler", ["scheduler: must be a section with keys, and is the text"]),
        ("scheduler: null", ["scheduler"]),
        ("[]", ["the settings: must be a section with keys, and is a list"]),
        ("text", ["the settings: must be a section with keys, and is the text 'text'"]),
        ("a: [", ["not YAML"]),
        ("dialects:\n  hami: {enabled: true}\n  hami: {enabled: false}", ["the key 'hami' occurs twice; keep one"]),
        ("\x00", ["not YAML"]),
        ("[" * 100_000, ["nested too deeply"]),
        ("scheduler: " + "{a: " * 5000, ["nested too deeply"]),
        ("serve: {port: " + "9" * 5000 + "}", ["not YAML"]),
        ("logLevel: 2001-99-99", ["not YAML"]),
        ("logLevel: !!int ''", ["not YAML"]),
        ("logLevel: !!map x", ["not YAML"]),
        ("logLevel: !!bool loud", ["not YAML"]),
        ("logLevel: !!timestamp now", ["not YAML"]),
        ("!!python/object/apply:os.system ['true']", ["not YAML"]),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path: Path, text: str, told: list[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load(file)
    for word in [str(file), *told]:
        assert word in str(caught.value)


def test_all_faults_of_a_file_are_told_at_once() -> None:
    text = (
        "serve: {prot: 1, port: x, deadlineSeconds: 0}\nmode: enforced\nquota: {enabeld: true}\ndevices: {types: [{}]}"
    )
    with pytest.raises(SettingsError) as caught:
        parse(text, "f")
    assert str(caught.value).split("; ") == [
        "f: serve.prot: there is no such key",
        "did you mean port?",
        "serve.port: must be a whole number, and is the text 'x'",
        "serve.deadlineSeconds: must be a number > 0.0, and is 0",
        "mode: the text 'enforced' is none of enforce, shadow, off",
        "did you mean enforce?",
        "quota.enabeld: there is no such key",
        "did you mean enabled?",
        "devices.types[0]: name is missing",
        "write it",
    ]


def test_what_only_follows_from_a_fault_is_not_told() -> None:
    with pytest.raises(SettingsError) as caught:
        parse("serve: {port: '8443', extenderPort: 9443}", "f")
    assert str(caught.value) == "f: serve.port: must be a whole number, and is the text '8443'"


def test_of_many_faults_twenty_are_told() -> None:
    with pytest.raises(SettingsError) as caught:
        parse("\n".join(f"wrong{at}: 1" for at in range(99)), "f")
    assert str(caught.value).count("there is no such key") == 20


@settings_of_hypothesis(max_examples=examples(200))
@given(json_values())
def test_whatever_a_file_has_it_is_settings_or_told(raw: Any) -> None:
    keys = ("serve", "mode", "dialects", "devices", "numa", "scheduler")
    for value in (raw, *({key: raw} for key in keys), {"devices": {"types": [raw]}}, {"dialects": {"hami": raw}}):
        told = faults(value, WebhookSettings)
        try:
            msgspec.convert(value, WebhookSettings)
        except (msgspec.ValidationError, ValueError):
            assert told
            assert all(one and len(one) < 2000 for one in told)
        else:
            assert told == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: koordgate}, data: {config.yaml: 'mode: shadow'}}",
            (
                "a Kubernetes object (ConfigMap koordgate) and no settings; give a file with the text of its "
                "data[config.yaml]"
            ),
        ),
        (
            "{apiVersion: v1, kind: Pod}",
            "a Kubernetes object (Pod) and no settings; give a file with the settings themselves",
        ),
    ],
)
def test_a_kubernetes_object_is_known_for_one(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text, "f")
    assert str(caught.value) == f"f: {told}"


@pytest.mark.parametrize("command", ["webhook", "reporter"])
@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_not_all_right(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    assert main(["serve", command, "--config", str(file), "--check"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("is empty; write {} if all settings are to be at their defaults\n")
    file.write_text("{}", encoding="utf-8")
    assert main(["serve", command, "--config", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file}: all right\n"


def test_without_a_file_a_check_says_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "reporter", "--check"]) == 0
    assert capsys.readouterr().out == "no --config: all defaults\n"


def test_a_file_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"logLevel: \xff")
    with pytest.raises(SettingsError, match=r"config\.yaml: not UTF-8"):
        load(file)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.yaml: cannot be read .*--config"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path)


def test_a_file_of_a_mebibyte_is_read_as_yaml_and_a_longer_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("\x00" * 1048576, encoding="utf-8")  # YAML refuses the first of them: to read comments takes long
    with pytest.raises(SettingsError, match="not YAML"):
        load(file)
    file.write_text("\x00" * 1048577, encoding="utf-8")
    with pytest.raises(SettingsError, match="longer than 1048576 bytes"):
        load(file)


@pytest.mark.parametrize(("port", "right"), [(-1, False), (0, True), (65535, True), (65536, False)])
def test_a_port_is_a_number_of_16_bits(port: int, right: bool) -> None:  # noqa: FBT001 a parameter of the test
    text = f"serve: {{extenderPort: {port}}}"
    if right:
        assert parse(text).serve.extender_port == port
    else:
        with pytest.raises(SettingsError, match=r"serve\.extenderPort"):
            parse(text)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Seconds, [0.001, 0.5, 1, 86399.5, 86400], [0, -0.5, -1, 86400.001, 86401, 90000, float("inf"), float("nan")]),
        (Name, ["a", "ab"], [""]),
        (Port, [0, 1, 65534, 65535], [-1, 65536, 0.5]),
    ],
    ids=["seconds", "name", "port"],
)
def test_seconds_are_more_than_none_and_at_most_a_day_a_name_has_a_letter_and_a_port_16_bits(
    kind: Any, right: list[object], wrong: list[object]
) -> None:
    for value in right:
        assert msgspec.convert(value, kind) == value
    for value in wrong:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)


# --- device types


BOARDS = "boards: [{models: [X], partitions: [[0, 1]]}]"
AMOUNTS = "amounts: [{name: core, resource: example.com/core}]"


@pytest.mark.parametrize("amounts", ["", AMOUNTS], ids=["one number", "amounts"])
@pytest.mark.parametrize(
    ("stated", "partitioned", "boards"),
    [
        pytest.param("", False, 0, id="neither"),
        pytest.param("partitioned: true", True, 0, id="nodes state their tables"),
        pytest.param(BOARDS, True, 1, id="the settings state the tables"),
        pytest.param(f"partitioned: true, {BOARDS}", True, 1, id="both"),
    ],
)
def test_whole_devices_come_as_sets_where_the_settings_say_so_or_have_tables(
    amounts: str,
    stated: str,
    partitioned: bool,  # noqa: FBT001 a parameter of the test
    boards: int,
) -> None:
    keys = ", ".join(filter(None, ["name: npu", "resource: example.com/npu", amounts, stated]))
    (own,) = parse(f"devices: {{types: [{{{keys}}}]}}").devices.types
    assert (own.kind.partitioned, len(own.kind.boards)) == (partitioned, boards)
