"""`agent-r1 index` and `agent-r1 search`: build a search index and try it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors


def index(
    passages: Annotated[
        list[Path],
        typer.Argument(help="Files of passages: .jsonl, .jsonl.gz, .jsonl.xz or .parquet.", metavar="PASSAGES"),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write. An index in it is replaced when this one is done.")],
    dense: Annotated[
        str | None,
        typer.Option(
            help="Index by meaning with this sentence-transformers model (extra `dense`), not by words.",
            metavar="MODEL",
        ),
    ] = None,
    text_field: Annotated[str, typer.Option(help="The field of a row that holds the text.")] = "text",
    title_field: Annotated[str, typer.Option(help="The field with the title; optional in rows.")] = "title",
    id_field: Annotated[str, typer.Option(help="The field with the id; optional in rows.")] = "id",
) -> None:
    """Build a search index of passages, for the tool `search`.

    A row is {"id": 7, "title": "Tea", "text": "Tea is a drink made of leaves."}. Titles are searched too. The index is
    by words (BM25); with --dense it is by meaning.

    Examples:

      agent-r1 index wiki.jsonl.xz --out indexes/wiki
      agent-r1 search indexes/wiki "a drink made of leaves"
      agent-r1 train RECIPE 'env.tools=[{name: search, index: indexes/wiki, k: 3}]'
    """
    from agent_r1.console import progress_counter
    from agent_r1.tools.builtin.search import BM25Index, DenseIndex, PassageFields, read_passages

    with readable_errors(), progress_counter("passages") as progress:
        rows = read_passages(passages, PassageFields(passage_id=id_field, title=title_field, text=text_field))
        built: BM25Index | DenseIndex
        if dense is None:
            built = BM25Index.build(rows, out, progress=progress)
        else:
            built = DenseIndex.build(rows, out, model=dense, progress=progress)
    typer.echo(f"{len(built)} passages in {out}")


def search(
    folder: Annotated[Path, typer.Argument(help="An index folder, made by `agent-r1 index`.")],
    query: Annotated[str, typer.Argument(help="What to search for.")],
    k: Annotated[int, typer.Option("-k", help="How many passages.", min=1)] = 3,
    characters: Annotated[int, typer.Option(help="Maximum characters shown per passage.", min=1)] = 400,
) -> None:
    """Try a search index: the best passages for a query, with their scores.

    Example:

      agent-r1 search indexes/wiki "a drink made of leaves" -k 5
    """
    from agent_r1.tools.builtin.search import open_index, shorten

    with readable_errors():
        [hits] = open_index(folder).search([query], k)
        for number, hit in enumerate(hits, start=1):
            title = hit.passage.title or hit.passage.passage_id
            typer.echo(f"[{number}] {title} ({hit.score:.2f})\n{shorten(hit.passage.text, characters)}\n")
        if not hits:
            typer.echo("No passage matches.")
