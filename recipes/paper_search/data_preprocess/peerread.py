"""PeerRead (Kang et al., 2018) as papers and queries.

Every section of the repository has `reviews/ID.json` (title, abstract, date of submission) and
`parsed_pdfs/ID.pdf.json` (references, and the sentences that mention them). A reference is a paper of the collection
when their titles are equal up to case and punctuation.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_r1.errors import DataError

MIN_CITED = {"inline_citation": 2, "related_work": 3}
"""A query needs so many papers of the collection."""
_MIN_CHARACTERS = 40
"""A sentence that is shorter says too little."""

_FILE = re.compile(r"(?:^|/)data/(?P<section>[^/]+)/[^/]+/(?P<kind>reviews|parsed_pdfs)/(?P<name>.+?)(?:\.pdf)?\.json$")


def read_peerread(place: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of papers and of queries, from a clone or from an archive (.tar.gz) of the repository."""
    about: dict[tuple[str, str], Mapping[str, Any]] = {}
    parsed: dict[tuple[str, str], Mapping[str, Any]] = {}
    for section, kind, name, text in _files(place):
        content = json.loads(text)
        if kind == "reviews":
            about[section, name] = {key: content.get(key) for key in ("title", "abstract", "DATE_OF_SUBMISSION")}
        else:
            parsed[section, name] = _citations(content.get("metadata") or {})
    if not about:
        raise DataError(f"{place} has no files data/SECTION/SPLIT/reviews/ID.json: it is not PeerRead")
    return _rows(about, parsed)


def _files(place: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Section, kind, name and content of each file, in the order of their paths where that is known."""
    if place.is_dir():
        for path in sorted((place / "data").rglob("*.json")):
            if found := _FILE.search(path.as_posix()):
                yield found["section"], found["kind"], found["name"], path.read_bytes()
        return
    try:
        with tarfile.open(place, "r|*") as archive:
            for member in archive:
                found = _FILE.search(member.name)
                content = archive.extractfile(member) if found and member.isfile() else None
                if found and content is not None:
                    yield found["section"], found["kind"], found["name"], content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{place} cannot be read as an archive: {error}. Remove it and try again") from error


def _citations(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The titles of the references, and for each sentence which of them it mentions."""
    titles = [normal_title(entry.get("title") or "") for entry in metadata.get("references") or []]
    sentences: dict[str, set[str]] = defaultdict(set)
    for mention in metadata.get("referenceMentions") or []:
        number, sentence = mention.get("referenceID"), " ".join((mention.get("context") or "").split())
        if isinstance(number, int) and 0 <= number < len(titles) and len(sentence) >= _MIN_CHARACTERS:
            sentences[sentence].add(titles[number])
    return {"titles": titles, "sentences": sentences}


def _rows(
    about: Mapping[tuple[str, str], Mapping[str, Any]], parsed: Mapping[tuple[str, str], Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    numbers: dict[str, int] = {}
    papers: list[dict[str, Any]] = []
    keys: list[tuple[str, str]] = []
    for key, entry in sorted(about.items()):
        title = normal_title(entry["title"] or "")
        if title and entry["abstract"] and title not in numbers:
            numbers[title] = len(papers)
            keys.append(key)
            date = entry["DATE_OF_SUBMISSION"]
            papers.append({"title": entry["title"].strip(), "abstract": entry["abstract"], "date": date, "cites": []})
    queries = []
    for number, key in enumerate(keys):
        found = parsed.get(key, {"titles": [], "sentences": {}})
        papers[number]["cites"] = _known(found["titles"], numbers, number)
        sentences = [(text, _known(titles, numbers, number)) for text, titles in found["sentences"].items()]
        asked = [("inline_citation", *entry) for entry in sentences]
        asked.append(("related_work", papers[number]["title"], papers[number]["cites"]))
        queries += [
            {"type": kind, "query": text, "source_pid": number, "gold": gold}
            for kind, text, gold in asked
            if len(gold) >= MIN_CITED[kind]
        ]
    return papers, queries


def _known(titles: Any, numbers: Mapping[str, int], source: int) -> list[int]:
    return sorted({numbers[title] for title in titles if title in numbers} - {source})


def normal_title(title: str) -> str:
    """A title without case and punctuation.

    >>> normal_title("End-To-End Memory Networks.")
    'end to end memory networks'
    """
    return " ".join(re.findall(r"[^\W_]+", title.lower()))
