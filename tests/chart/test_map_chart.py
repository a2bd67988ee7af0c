"""The device map in the chart: off without a trace, and on with a port, a role for readers and the right to ask."""

from collections.abc import Callable
from typing import Any

from localplane.admin import JsonObject
from webhook import settings
from webhook.settings import MapSettings

Render = Callable[..., list[JsonObject]]
ON: dict[str, Any] = {"map": {"enabled": True, "port": 8445, "clients": 7}}


def named(objects: list[JsonObject], kind: str, name: str) -> JsonObject:
    (found,) = (one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def ports(objects: list[JsonObject]) -> tuple[list[JsonObject], list[JsonObject]]:
    """Those of the Service, and those of the webhook's container."""
    (container,) = named(objects, "Deployment", "koordgate")["spec"]["template"]["spec"]["containers"]
    return named(objects, "Service", "koordgate")["spec"]["ports"], container["ports"]


def test_by_default_there_is_no_port_no_role_and_no_right(render: Render) -> None:
    objects = render()
    assert [one["name"] for one in ports(objects)[0]] == ["https", "extender"]
    assert [one["name"] for one in ports(objects)[1]] == ["https", "extender"]
    assert not [one for one in objects if one["metadata"]["name"].startswith("koordgate-map")]


def test_where_it_is_on_replicas_serve_it_on_the_stated_port(render: Render) -> None:
    objects = render(ON)
    text = named(objects, "ConfigMap", "koordgate")["data"]["config.yaml"]
    assert settings.parse(text).map == MapSettings(enabled=True, port=8445, clients=7)
    service, container = ports(objects)
    assert service[-1] == {"name": "map", "port": 9445, "targetPort": 8445, "protocol": "TCP"}
    assert container[-1] == {"name": "map", "containerPort": 8445, "protocol": "TCP"}


def test_readers_get_one_path_and_the_webhook_may_ask_who_they_are(render: Render) -> None:
    objects = render(ON)
    role = named(objects, "ClusterRole", "koordgate-map")
    assert role["rules"] == [{"nonResourceURLs": ["/koordgate/map"], "verbs": ["get"]}]
    bound = [
        one for one in objects if one["kind"] == "ClusterRoleBinding" and one["roleRef"]["name"] == "koordgate-map"
    ]
    assert bound == [], "nobody may read it before an administrator says who"
    asked = {"tokenreviews", "subjectaccessreviews"}
    rules = named(objects, "ClusterRole", "koordgate")["rules"]
    assert [one["verbs"] for one in rules if asked & set(one["resources"])] == [["create"], ["create"]]
    default = named(render(), "ClusterRole", "koordgate")["rules"]
    assert not [one for one in default if asked & set(one["resources"])]


def test_the_network_policy_opens_its_port_only_to_stated_callers(render: Render) -> None:
    def rules(values: dict[str, Any]) -> list[JsonObject]:
        objects = render({"networkPolicy": {"enabled": True}, **values})
        return [
            one
            for one in named(objects, "NetworkPolicy", "koordgate")["spec"]["ingress"]
            if one["ports"][0]["port"] == 8445
        ]

    assert rules(ON) == []
    caller = {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    (rule,) = rules({"map": {**ON["map"], "callers": [caller]}})
    assert rule["from"] == [caller]
