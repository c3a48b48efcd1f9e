"""The tool format `code_blocks`: a Python block in Markdown is run, and its output comes back as a block.

The sum is found by brute force.
```python
print(sum(range(1, 101)))
```
"""

from __future__ import annotations

from agent_r1.chat import BlockTool, FencedBlocks, tool_formats


@tool_formats.register("code_blocks")
class CodeBlocks(FencedBlocks):
    """Each Python block is one call of the tool `python`.

    >>> CodeBlocks().parse("Add.\\n```python\\nprint(1 + 1)\\n```", truncated=False).tool_calls[0].arguments
    {'code': 'print(1 + 1)'}
    """

    name = "code_blocks"
    tools = (BlockTool(name="python", argument="code", example="print(1 + 1)", languages=("python", "py")),)
    instructions = f"{FencedBlocks.instructions} Variables last from block to block."
