"""`agent-r1 view --export`: the page, its styles, its scripts and the data of runs in one file that works offline.

Style sheets and classic scripts are put where they are referred to. Modules keep their names through an import map with
`data:` addresses. A policy in the file allows these scripts and no others, so text of a model cannot become one.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1.codec import write_json
from agent_r1.errors import DataError
from agent_r1.files import size_in_words, write_atomically
from agent_r1.view.api import ViewApi
from agent_r1.view.index.query import rows_of, whole_groups
from agent_r1.view.page_files import page_files
from agent_r1.view.pictures import MAX_EXPORTED, exported_pictures, hashes_in
from agent_r1.view.run import ViewedRun

DATA_ID = "embedded-data"
_PREFIX = "agent-r1/"
_MAX_DATA = 256 << 20
_SEARCH_CHARS = 4_000
_LINK = re.compile(r'[ \t]*<link rel="(stylesheet|icon)" href="/static/([^"]+)"[^>]*>\n?')
_SCRIPT = re.compile(r'[ \t]*<script (type="module" )?src="/static/([^"]+)"[^>]*></script>\n?')
_IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*\(?\s*)"\./([^"]+)"')


def write_page(api: ViewApi, path: Path, *, max_trajectories: int) -> tuple[str, list[str]]:
    """Write the page of all runs of `api`; returns its path and size in words, and what of the runs is not in it."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file, for example {path / 'runs.html'}")
    data = collect(api, max_trajectories)
    content = build_page(data, page_files()).encode("utf-8", "replace")
    write_atomically(path, content)
    return f"{path} ({size_in_words(len(content))})", [*api.catalog.problems, *_left_out(data["runs"])]


def collect(api: ViewApi, max_trajectories: int) -> dict[str, Any]:
    """The data of all runs: of each at most so many trajectories, evenly over its steps."""
    runs = api.catalog.runs()
    data: dict[str, Any] = {"format": 1, "runs": [], "metrics": {}, "config": {}, "trajectories": {}, "pictures": {}}
    bytes_left, left_for_pictures = _MAX_DATA, MAX_EXPORTED
    for run in runs:
        run.index.update()
        data["metrics"][run.id] = run.metrics(None)
        data["config"][run.id] = api.config(run.id)
        data["trajectories"][run.id], bytes_left = _trajectories(api, run, max_trajectories, bytes_left)
        hashes = hashes_in(list(data["trajectories"][run.id]["records"].values()))
        data["pictures"][run.id], left_for_pictures = exported_pictures(run.folder, hashes, left_for_pictures)
        data["runs"].append(run.overview())  # after all else has been read: it says what could not be
    return data


def _left_out(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What could not be read of runs, a sentence each."""
    for run in runs:
        for problem in run["problems"]:
            yield f"{run['id']}: {problem}"
        for key, file in (("corrupt_metric_lines", "metrics.jsonl"), ("corrupt_lines", "trajectories")):
            if run[key]:
                lines = "1 line" if run[key] == 1 else f"{run[key]} lines"
                yield f"{run['id']}: {lines} of {file} could not be read"


def _trajectories(api: ViewApi, run: ViewedRun, count: int, bytes_left: int) -> tuple[dict[str, Any], int]:
    """Whole groups, evenly over the steps, until there are `count` trajectories; and how many bytes are left."""
    with run.index.reading() as connection:
        groups = whole_groups(connection, count)
        rows = rows_of(connection, [row_id for group in groups for row_id in group])
    records: dict[str, dict[str, Any]] = {}
    for row in rows:
        record = _without_gaps(api.trajectory(run.id, row["key"]))
        records[row["key"]] = record
        bytes_left -= len(write_json(record, default=str))
        if bytes_left < 0:
            raise DataError(
                f"the page would be larger than {size_in_words(_MAX_DATA)}; name fewer runs, or give a smaller "
                "--trajectories"
            )
        texts = [row["question"], *(str(step.get("text") or "") for step in record["steps"])]
        row["search"] = "\n".join(texts)[:_SEARCH_CHARS]
    return {"total": run.index.state.trajectories, "rows": rows, "records": records}, bytes_left


def _without_gaps(record: dict[str, Any]) -> dict[str, Any]:
    """The record with tokens that have only the numbers that there are: most of a page is tokens."""
    for step in record["steps"]:
        step["tokens"] = [
            {name: value for name, value in token.items() if value is not None or name == "text"}
            for token in step["tokens"]
        ]
    return record


def build_page(data: dict[str, Any], files: dict[str, bytes]) -> str:
    """The page with everything inside."""
    if "index.html" not in files:
        raise DataError("the page is not part of this installation; install agent-r1 again")
    texts = {name: content.decode("utf-8") for name, content in files.items()}
    hashes: list[str] = []
    styles: list[str] = []
    modules = {name: text for name, text in texts.items() if name.endswith(".js")}
    imports = {f"{_PREFIX}{name}": _data_address(_rename_imports(name, text)) for name, text in modules.items()}

    def link(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        if kind == "icon":
            icon = base64.b64encode(files[name]).decode()
            return f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n'
        return _inline_style(texts[name], styles)

    def script(match: re.Match[str]) -> str:
        is_module, name = bool(match[1]), match[2]
        if is_module:
            return _inline(f'import "{_PREFIX}{name}";', hashes, kind="module")
        return _inline(texts[name], hashes)

    page = _LINK.sub(link, _SCRIPT.sub(script, texts["index.html"]))
    import_map = _inline(write_json({"imports": imports}), hashes, kind="importmap")
    embedded = f'<script type="application/json" id="{DATA_ID}">{_json_text(data)}</script>\n'
    policy = (
        f"default-src 'none'; script-src data: {' '.join(hashes)}; "
        f"style-src {' '.join(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
    head = page.index("<head>") + len("<head>")
    # The import map stands before the first module. The data stands last: modules run when everything is there.
    page = f"{page[:head]}\n{meta}{import_map}{page[head:].lstrip()}"
    body = page.rindex("</body>")
    return f"{page[:body]}{embedded}{page[body:]}"


def _json_text(value: Any) -> str:
    """JSON that no HTML parser takes for markup: a text may contain `</script>` or `<!--`."""
    text = write_json(value, default=str)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _inline(code: str, hashes: list[str], *, kind: str = "") -> str:
    """A script element, whose hash the policy allows."""
    code = code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    hashes.append(_hash(code))
    attribute = f' type="{kind}"' if kind else ""
    return f"<script{attribute}>{code}</script>\n"


def _inline_style(text: str, hashes: list[str]) -> str:
    text = text.replace("</style", "<\\/style")
    hashes.append(_hash(text))
    return f"<style>{text}</style>\n"


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _rename_imports(name: str, text: str) -> str:
    """A module whose imports are names of the import map: `./dom.js` in js/main.js is `agent-r1/js/dom.js`."""
    folder = name.rpartition("/")[0]
    return _IMPORT.sub(lambda match: f'{match[1]}"{_PREFIX}{folder}/{match[2]}"', text)


def _data_address(code: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(code.encode()).decode()}"
