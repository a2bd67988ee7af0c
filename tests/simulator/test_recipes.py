"""examples/recipes: each recipe becomes what its file of expectations says, on the example cluster."""

from pathlib import Path

import pytest
import yaml
from simulator.clusters import EXAMPLES

from koordgate.cli import main

RECIPES = sorted(path.parent for path in EXAMPLES.glob("recipes/*/app.yaml"))
EACH = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
REFUSES = {"quotas"}  # recipes that show a refusal


def simulate(recipe: Path, *more: str) -> int:
    files = ("-f", str(EXAMPLES / "cluster.yaml"), str(recipe / "app.yaml"), "--config", str(EXAMPLES / "config.yaml"))
    return main(["simulate", *files, "-e", str(recipe / "expected.yaml"), *more])


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 8
    folders = {path.name for path in (EXAMPLES / "recipes").iterdir() if path.is_dir()}
    assert folders == {path.name for path in RECIPES}


@EACH
def test_each_recipe_becomes_what_it_says(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demanded = () if recipe.name in REFUSES else ("--require-bound",)
    assert simulate(recipe, *demanded) == 0, capsys.readouterr().err
    assert "checks passed" in capsys.readouterr().err


@EACH
def test_each_recipe_is_expected_in_full(recipe: Path) -> None:
    """Every Pod that the recipe creates is named by an expectation, so that none can fare otherwise unseen."""
    expected = yaml.safe_load((recipe / "expected.yaml").read_text())["pods"]
    documents = [one for one in yaml.safe_load_all((recipe / "app.yaml").read_text()) if "spec" in one]
    created = sum(
        document["spec"].get("replicas", document["spec"].get("parallelism", 1))
        for document in documents
        if "template" in document["spec"]
    )
    assert created == sum(one.get("count", 1) for one in expected)


@EACH
def test_each_recipe_is_listed(recipe: Path) -> None:
    assert f"[{recipe.name}]({recipe.name}/app.yaml)" in (EXAMPLES / "recipes" / "README.md").read_text()


@EACH
def test_each_container_states_what_it_needs_and_long_running_ones_are_probed(recipe: Path) -> None:
    for document in yaml.safe_load_all((recipe / "app.yaml").read_text()):
        template = document.get("spec", {}).get("template")
        for container in template["spec"]["containers"] if template else ():
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "image" in container
            assert document["kind"] == "Job" or "readinessProbe" in container
