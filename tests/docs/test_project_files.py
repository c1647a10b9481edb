"""What stands around the code: citation, security, conduct, templates and the workflow of GitHub."""

from pathlib import Path

import pytest
import yaml

import evenfed

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def test_the_citation_is_of_this_version_and_names_the_paper():
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "license", "version"} <= citation.keys()
    assert (str(citation["version"]), citation["type"]) == (evenfed.__version__, "software")
    (paper,) = citation["references"]
    assert paper["title"] in evenfed.algorithms.find("semi_vred").reference
    assert [author["family-names"] for author in paper["authors"]] == ["Malekmohammadi", "Yu"]
    assert paper["identifiers"][0]["value"].removeprefix("arXiv:") in paper["url"]


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_it_says_how_to_report_in_private(name):
    text = (ROOT / name).read_text()
    assert "security advisories" in text and "in private" in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_what_github_takes(path):
    form = read(path)
    assert form["name"] and form["description"]
    ids = [element["id"] for element in form["body"]]
    assert len(ids) == len(set(ids))
    for element in form["body"]:
        assert element["type"] in {"textarea", "input", "dropdown", "checkboxes"} and element["attributes"]["label"]
        assert (element["type"] == "dropdown") == ("options" in element["attributes"])
    assert any(element.get("validations", {}).get("required") for element in form["body"])


def test_there_are_templates():
    assert len(FORMS) >= 3
    assert "CHANGELOG.md" in (GITHUB / "pull_request_template.md").read_text()
    assert read(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]


def test_the_workflow_runs_the_tests_and_builds_manual_and_wheel():
    workflow = read(GITHUB / "workflows" / "ci.yml")
    commands = ""
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            commands += step.get("run", "") + "\n"
    for command in (".ci/run", "make audit", "make docs", "python -m build", 'evenfed" --version'):
        assert command in commands
    assert workflow["permissions"] == {"contents": "read"}
    assert {"push", "pull_request"} <= workflow[True].keys()  # YAML 1.1 reads `on` as true
