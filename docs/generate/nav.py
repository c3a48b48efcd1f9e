"""The navigation of the site. A page that no list names still has a place: at the end of its folder's section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "getting_started.md", "concepts.md", "coming_from.md"),
    "Tutorials": (
        "tutorials/your_own_tool.md",
        "tutorials/an_agent_that_sees.md",
        "tutorials/your_own_environment.md",
        "tutorials/your_own_flow.md",
        "tutorials/your_own_algorithm.md",
        "tutorials/existing_agent.md",
        "your_own_recipe.md",
    ),
    "Build a task": (
        "rewards.md",
        "curriculum.md",
        "tools.md",
        "search.md",
        "sandbox.md",
        "mcp.md",
        "environments.md",
        "ready_environments.md",
        "multimodal.md",
        "tool_formats.md",
        "models.md",
    ),
    "Train": (
        "check.md",
        "algorithms.md",
        "evaluation.md",
        "tracking.md",
        "replay.md",
        "notebooks.md",
        "failures.md",
        "performance.md",
    ),
    "Scaling": (
        "scaling.md",
        "scaling/servers.md",
        "scaling/vllm_on_a_cpu.md",
        "scaling/openai.md",
        "scaling/processes.md",
        "scaling/ray.md",
        "scaling/several_gpus.md",
        "scaling/verl.md",
        "scaling/planning.md",
    ),
    "After training": ("view.md", "chat.md", "serving.md", "export.md"),
    "Recipes": ("recipes/index.md",),
    "Results": ("results.md", "what_works.md"),
    "Reference": ("reference/commands.md", "reference/configuration.md", "reference/python.md", "architecture.md"),
}
"""The pages of each section, in order. Those that do not exist are left out."""

_HOME_OF_OTHERS = {"scaling": "Scaling", "tutorials": "Tutorials", "recipes": "Recipes", "reference": "Reference"}
_DEFAULT_HOME = "Train"


def written_pages() -> list[str]:
    """The pages in docs/, as paths inside it."""
    return sorted(
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if path.relative_to(DOCS).parts[0] != "generate"
    )


def make_nav(pages: list[str]) -> list[dict[str, Any]]:
    """The navigation of these pages, as `mkdocs.yml` would have it."""
    sections = {title: [page for page in listed if page in pages] for title, listed in SECTIONS.items()}
    placed = {page for listed in sections.values() for page in listed}
    for page in pages:
        if page not in placed:
            sections[_HOME_OF_OTHERS.get(page.partition("/")[0], _DEFAULT_HOME)].append(page)
    sections["Recipes"].sort(key=lambda page: (page != "recipes/index.md", page != "recipes/quickstart.md", page))
    return [{title: [_entry(page) for page in listed]} for title, listed in sections.items() if listed]


def _entry(page: str) -> str | dict[str, str]:
    """A page with its own title, or with a shorter one where that says what the section says already."""
    folder, _, name = page.rpartition("/")
    return {name.removesuffix(".md"): page} if folder == "recipes" and name != "index.md" else page
