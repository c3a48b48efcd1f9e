"""Every `agent-r1` command that a page or a `--help` shows: it parses, its keys exist, and it runs without a clone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from agent_r1.cli import app
from agent_r1.config import load_config
from agent_r1.shipped import shipped_recipes

ROOT = Path(__file__).parents[2]
ADAPTED = "recipes/"
"""READMEs of recipes name their own folder, which a copy and the site replace."""
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/generate/recipes.py")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / ADAPTED).glob("*/README.md")),
    ]
}
PROGRAM = typer.main.get_command(app)
assert isinstance(PROGRAM, TyperGroup)
KNOWN = PROGRAM.commands
HELP = {f"agent-r1 {name} --help": str(command.callback.__doc__) for name, command in KNOWN.items()}
UsageError = typer.BadParameter.__mro__[1]
"""Of the click that Typer brings: a wrong option is one, and a wrong value too."""
SHIPPED = "|".join(recipe.name for recipe in shipped_recipes())
COMMAND = re.compile(r"\bagent-r1 ((?:[^`;&|#'\"\n]|'[^'\n]*'|\"[^\"\n]*\")+)")
LOOP = {"$algorithm": "grpo", "$seed": "0"}
"""What the loops of pages go over; other variables (`$MORE`) hold several words."""


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a page, without those that only name a command: "`agent-r1 train` writes".

    >>> commands_of("    agent-r1 train quickstart 'env.context={name: window}' \\\\\\n        trainer.steps=2   # why")
    [['train', 'quickstart', 'env.context={name: window}', 'trainer.steps=2']]
    """
    shown = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        is_code = line.startswith(("    ", "$ ", "agent-r1 "))
        for place in [line] if is_code else re.findall(r"`([^`]+)`", line):
            for found in COMMAND.finditer(place):
                words = [_spelled_out(word) for word in shlex.split(found[1].strip())]
                if len(words) > 1 and words[0] in KNOWN:
                    shown.append([word for word in words if not word.startswith("$")])
    return shown


def _spelled_out(word: str) -> str:
    for variable, value in LOOP.items():
        word = word.replace(variable, value)
    return word


COMMANDS = {page: commands for page, text in (PAGES | HELP).items() if (commands := commands_of(text))}


def problem_of(words: list[str]) -> str | None:
    """What the program would say of these words. A mention may leave arguments out: `agent-r1 export --lora apart`."""
    command, name = KNOWN[words[0]], words[0]
    if isinstance(command, TyperGroup):
        command, words = command.commands[words[1]], words[1:]
    try:
        command.make_context(name, list(words[1:]))
    except UsageError as error:
        return None if type(error).__name__ == "MissingParameter" else str(error)
    return None


def test_commands_are_found() -> None:
    assert sum(map(len, COMMANDS.values())) > 250
    assert ["recipes", "copy", "hotpotqa", "my_search"] in COMMANDS["docs/getting_started.md"]
    assert ["eval", "quickstart", "--baseline", "react", "model=smollm2"] in COMMANDS["README.md"]
    assert ["train", "quickstart"] in COMMANDS["agent-r1 train --help"]


@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_of_a_page_is_one_that_the_program_knows(page: str) -> None:
    problems = {" ".join(words): problem for words in COMMANDS[page] if (problem := problem_of(words))}
    assert not problems


def test_a_command_that_the_program_does_not_know_is_found() -> None:
    assert problem_of(["train", "quickstart", "--dry-run", "trainer.steps=2"]) is None
    assert "No such option: --dryrun" in str(problem_of(["train", "quickstart", "--dryrun"]))
    assert "greater than or equal to 1" in str(problem_of(["check", "quickstart", "--groups", "0"]))


@pytest.mark.parametrize("page", [page for page in COMMANDS if not page.startswith("docs/tutorials/")])
def test_every_override_of_a_page_can_be_set(page: str) -> None:
    """All of a page at once: where it sets a key twice, the last value. Tests of tutorials run theirs."""
    overrides: dict[str, str] = {}
    for words in COMMANDS[page]:
        pairs = [word.partition("=") for word in words[1:] if re.match(r"[a-z_]+(\.\w+)*=", word)]
        overrides.update({key: value for key, _, value in pairs if key not in ("model", "model.path")})
    load_config(None, ["model.path=MODEL", *(f"{key}={value}" for key, value in overrides.items())])


@pytest.mark.parametrize(
    "page", [page for page in COMMANDS if not page.startswith(ADAPTED) and page != "docs/results.md"]
)
def test_recipes_are_named_as_they_are_without_a_clone(page: str) -> None:
    """`recipes/quickstart` is a folder of a clone; `quickstart` works there and with the package alone."""
    folders = re.compile(rf"recipes/(?:{SHIPPED})")
    said = {"docs/generate/recipes.py": ["train recipes/quickstart"]}
    by_folder = [" ".join(words) for words in COMMANDS[page] if any(map(folders.fullmatch, words))]
    assert by_folder == said.get(page, [])
