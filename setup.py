"""The build copies `recipes/` into the package as `agent_r1/recipes`; everything else is in pyproject.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RECIPES = Path(__file__).parent / "recipes"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.py[cod]")


class BuildWithRecipes(build_py):
    """Build the package with the recipes in it. An editable install has them beside the package instead."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "agent_r1" / "recipes"
        shutil.rmtree(target, ignore_errors=True)
        for file in sorted(RECIPES.glob("*/base.yaml")):
            shutil.copytree(file.parent, target / file.parent.name, ignore=LEFT_OUT)


setup(cmdclass={"build_py": BuildWithRecipes})
