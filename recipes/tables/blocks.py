"""The tool format `table_blocks`: a block in Markdown is a call, ```sql of the tool `sql`, ```python of `python`.

    ```sql
    SELECT COUNT(*) FROM t WHERE year > 1990
    ```

A turn ends with its first block: the model reads what it gives before it writes another.
"""

from __future__ import annotations

from agent_r1.chat import BlockTool, FencedBlocks, tool_formats


@tool_formats.register("table_blocks")
class TableBlocks(FencedBlocks):
    """The first SQL or Python block of a turn is a call.

    >>> TableBlocks().parse("```sql\\nSELECT 1\\n```", truncated=False).tool_calls[0].arguments
    {'query': 'SELECT 1'}
    """

    name = "table_blocks"
    tools = (
        BlockTool(name="sql", argument="query", example="SELECT COUNT(*) FROM t", languages=("sql",)),
        BlockTool(name="python", argument="code", example="print(len(rows))", languages=("python",)),
    )
    instructions = (
        "To run a program, write one block and stop there:\n{examples}\nIts output comes in the next message."
    )
    several_per_turn = False
