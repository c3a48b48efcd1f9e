"""The pages of the recipes, from their READMEs."""

from __future__ import annotations

import re

from agent_r1.shipped import shipped_recipes
from docs.generate.docstrings import in_cell

_INTRODUCTION = """# Recipes

A recipe is a folder with a task: data, tools or an environment, a reward, a configuration. These come with the package:

    agent-r1 recipes                            # lists them
    agent-r1 train quickstart                   # trains one by its name
    agent-r1 recipes copy hotpotqa my_search    # copies one into a folder, to be edited

In a clone of the repository they are the folder `recipes`, and `agent-r1 train recipes/quickstart` is the same. A
folder of your own wins over a recipe of the same name, and the command says so. Scripts of a recipe (`python
recipes/hotpotqa/...`) are in a clone or in a copy. [Your own recipe](../your_own_recipe.md) starts from an empty folder
instead.
"""


def recipe_pages() -> dict[str, str]:
    """A page for each recipe and one that lists them, by their paths in the site."""
    recipes = shipped_recipes()
    rows = [
        f"| [{recipe.name}]({recipe.name}.md) | {in_cell(recipe.summary)} | {in_cell(recipe.needs)} |"
        for recipe in sorted(recipes, key=lambda recipe: (recipe.name != "quickstart", recipe.name))
    ]
    table = "\n".join(["| recipe | task | needs |", "|---|---|---|", *rows])
    pages = {"recipes/index.md": f"{_INTRODUCTION}\n{table}\n"}
    for recipe in recipes:
        readme = (recipe.folder / "README.md").read_text(encoding="utf-8")
        # In the site a README is at recipes/<name>.md, one level higher than in the repository. Readers may have the
        # package alone, in which a recipe has a name and no folder.
        by_name = re.sub(rf"(agent-r1 \w+ )recipes/{recipe.name}\b", rf"\g<1>{recipe.name}", readme)
        pages[f"recipes/{recipe.name}.md"] = re.sub(r"\]\(\.\./\.\./docs/", "](../", by_name)
    return pages
