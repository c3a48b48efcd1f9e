"""A process that plays ALFWorld's games with textworld: one JSON object per line in, one out.

    {"start": 1, "problem": "(define ...", "task": "put a mug in cabinet"}
    {"give": 1, "command": "go to cabinet 1"}
    {"close": 1}

Each answer has `answer`, `commands`, `won` and `key`, or `error`. It is a program of its own: textworld's resets change
`sys.argv`, `sys.stdout` and globals of the planner, so it cannot share a process with other threads.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.resources import files
from typing import Any

_UNSAID = ("checked", "examined", "not_", "new-axiom")
"""Facts that are bookkeeping of the planner and no part of the state."""


def spare_repetition() -> None:
    """Parse each template of the grammar once, copy contexts without what is in them, and translate each problem once.

    textworld does the first two for every command in every state and the third four times per game (half of them for
    its planner, which is not used here). That takes nearly all of its time and changes nothing.
    """
    import fast_downward
    import textworld.envs.pddl.textgen as textgen
    from textworld.logic import Rule

    parse: Callable[..., Any] = textgen._parse_and_convert
    known: dict[tuple[str, str], Any] = {}

    def remembered(text: str, rule_name: str, **options: Any) -> Any:
        if (text, rule_name) not in known:
            known[text, rule_name] = parse(text, rule_name=rule_name, **options)
        return copy.deepcopy(known[text, rule_name])

    def copied(context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    translate = fast_downward.pddl2sas

    @functools.lru_cache(maxsize=16)
    def translated(domain: str, problem: str) -> Any:
        return translate(domain, problem)

    fast_downward.pddl2sas = lambda domain, problem, **options: translated(domain, problem)
    textgen._parse_and_convert = remembered
    textgen.copy_context = copied
    Rule.parse_conjunctive_query = functools.lru_cache(maxsize=None)(Rule.parse_conjunctive_query)


class Worker:
    """The games of this process."""

    def __init__(self) -> None:
        spare_repetition()
        data = files("alfworld") / "data"
        self._domain, self._grammar = ((data / name).read_text() for name in ("alfred.pddl", "alfred.twl2"))
        self._games: dict[int, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says."""
        if "close" in request:
            self._games.pop(request["close"], None)
            return {}
        if "start" in request:
            game = self._load(request["problem"], request["task"])
            self._games[request["start"]] = game
            return _told(game.reset())
        state, _, _ = self._games[request["give"]].step(request["command"])
        return _told(state)

    def _load(self, problem: str, task: str) -> Any:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        game = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)), shuffle=False)
        grammar = self._grammar.replace("UNKNOWN GOAL", task)
        game.load({"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": problem})
        return game


def _told(state: Any) -> dict[str, Any]:
    facts = sorted(str(fact) for fact in state["_facts"] if not fact.name.startswith(_UNSAID))
    key = hashlib.blake2b("\n".join(facts).encode(), digest_size=12).hexdigest()
    return {"answer": state.feedback, "commands": state["admissible_commands"], "won": bool(state["won"]), "key": key}


def main() -> None:
    """Answer requests until the input ends."""
    # What the planner prints must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            told = worker.answer(json.loads(line))
        except (Exception, SystemExit):  # noqa: BLE001 - the planner exits where it finds a problem that it cannot read
            told = {"error": traceback.format_exc()}
        out.write(json.dumps(told) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
