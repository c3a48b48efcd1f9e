"""Notebooks for the tests: cells are run by a real Jupyter kernel."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any


def run_cells(cells: list[str], folder: Path) -> list[list[Any]]:
    """The outputs of each cell. An exception in a cell is raised."""
    import nbformat
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(AsyncKernelManager):
        """A kernel of the Python that runs the tests, installed or not, on sockets that no other program can take."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings, transport="ipc", ip=f"{sockets}/kernel")

        @property
        def kernel_spec(self) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name="tests", language="python")

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with tempfile.TemporaryDirectory() as sockets:  # the path of a socket must be short
        client = NotebookClient(
            notebook, timeout=300, kernel_manager_class=ThisPython, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    return [cell["outputs"] for cell in notebook.cells]


def text_of(outputs: list[Any]) -> str:
    """Everything that a cell wrote to its output as text."""
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def displays_of(outputs: list[Any]) -> list[dict[str, str]]:
    """The data of what a cell displays, in its last state."""
    return [output["data"] for output in outputs if output["output_type"] == "display_data"]
