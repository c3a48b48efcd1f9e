"""`agent-r1 chat`: talk to a model or to the agent of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agent_r1.cli.environments import look_in_current_folder
from agent_r1.cli.errors import readable_errors

if TYPE_CHECKING:
    from rich.console import Console

    from agent_r1.inference import Agent
    from agent_r1.types import Task

ModelOrRun = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN",
        help="A run's folder (runs/quickstart); or a model: a Hugging Face folder or id, or a GGUF file; with "
        "--server the model's name there.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Any number of key=value, for example rollout.temperature=0.7 rollout.max_steps=10."),
]
Recipe = Annotated[
    str | None,
    typer.Option(help="A recipe: its tools, environment, limits and tasks, for a model or instead of a run's."),
]
Question = Annotated[
    str | None,
    typer.Option(
        help="Ask this, print the answer and leave; with --interactive, continue with a chat. - reads it from the "
        "input.",
        metavar="TEXT",
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE", help="An image that comes with --question; may be given several times."),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="N|ID",
        help="A task of the recipe's data: run it, print its answer and leave. With --question, or in a chat with "
        "--interactive, only its environment is used.",
    ),
]
Interactive = Annotated[bool, typer.Option("--interactive", help="Chat in the world of --task, or after --question.")]
System = Annotated[str | None, typer.Option(help="The system message; by default that of the recipe's rows.")]
Step = Annotated[int | None, typer.Option(min=1, help="Load the run's checkpoint of this step.")]
Server = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible server that has the model; the tools run here.", metavar="URL"),
]
KeyEnv = Annotated[str | None, typer.Option(help="The environment variable with the server's key.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print the whole trajectory of a single reply, as one line.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show calls, results and rewards of a single reply (stderr).")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same replies.")]


_NO_WORLD = (
    "note: this recipe's rows bring facts of their own (env_kwargs), and a question of yours has none: tools that need "
    "them report an error. --task 0 --interactive chats in the world of row 0, /task runs one."
)


def chat(
    model_or_run: ModelOrRun,
    overrides: Overrides = None,
    recipe: Recipe = None,
    question: Question = None,
    image: Images = None,
    task: TaskName = None,
    interactive: Interactive = False,
    system: System = None,
    step: Step = None,
    server: Server = None,
    key_env: KeyEnv = None,
    json_record: Json = False,
    verbose: Verbose = False,
    seed: Seed = 0,
) -> None:
    """Talk to an agent in the terminal, with its tools really running.

    A run brings its own tools, environment, limits and sampling; a model is a plain chat model unless --recipe names
    some. Replies appear as they are sampled. /help lists the commands: reset, undo, save, tokens with log-probs,
    sampling, tasks with their reward. Ctrl-C stops a reply, Ctrl-D leaves. In a pipe every line is a message.

    Examples:

      agent-r1 chat runs/quickstart
      agent-r1 chat runs/quickstart --task 3 --verbose
      agent-r1 chat Qwen/Qwen3-0.6B --question "What is the capital of France?"
      agent-r1 chat runs/zoom/hf --image scene.png --question "What color is the dot?"
      agent-r1 chat MODEL --recipe gsm8k_tool rollout.temperature=0.7
      agent-r1 chat MODEL --server http://127.0.0.1:8000 --recipe gsm8k_tool
    """
    from rich.console import Console
    from rich.text import Text

    look_in_current_folder()
    with readable_errors():
        from agent_r1.inference.terminal import TerminalChat, ask_once, failure_text
        from agent_r1.types import printable

        images = tuple(image or ())
        question = _read_question(question, image, has_task=task is not None, in_chat=interactive, as_json=json_record)
        notes = Console(stderr=True, highlight=False)
        agent = _agent(model_or_run, overrides, recipe, step, server, key_env, notes)
        world = _world(agent, task, notes)
        if interactive or (question is None and world is None):
            console = Console(highlight=False, markup=False, emoji=False)
            TerminalChat(agent, console, system=system, seed=seed).run(start=world, question=question, images=images)
            return
        shown_notes = notes if verbose else None
        trajectory, record = ask_once(
            agent, question=question, task=world, system=system, verbose=shown_notes, seed=seed, images=images
        )
        if trajectory.is_failure:
            details = f"{trajectory.error}\n" if verbose else ""
            notes.print(Text(printable(details) + failure_text(trajectory), style="red"), soft_wrap=True)
            raise typer.Exit(1)
        typer.echo(record.rstrip("\n") if json_record else printable(trajectory.episode.final_text))


def _read_question(
    question: str | None, images: list[str] | None, *, has_task: bool, in_chat: bool, as_json: bool
) -> str | None:
    """The question; - reads it from the input."""
    from agent_r1.errors import ConfigError

    if as_json and question is None and not has_task:
        raise ConfigError("--json prints a single reply: give --question or --task")
    if as_json and in_chat:
        raise ConfigError("--json prints a single reply, and --interactive is a chat; leave one of them out")
    if question == "-" and in_chat:
        raise ConfigError("--question - reads the input to its end, and a chat reads its messages there; give the text")
    if images and question is None:
        raise ConfigError("--image comes with --question TEXT; in a chat, /image FILE attaches one")
    text = sys.stdin.read().strip() if question == "-" else question
    if text is not None and not text.strip():
        raise ConfigError("the question is empty")
    return text


def _agent(
    model_or_run: str,
    overrides: list[str] | None,
    recipe: str | None,
    step: int | None,
    server: str | None,
    key_env: str | None,
    notes: Console,
) -> Agent:
    from agent_r1.errors import ConfigError
    from agent_r1.inference import connect_agent, load_agent
    from agent_r1.web import key_from_env

    texts = ["rollout.concurrency=1", *(overrides or ())]
    if server is None:
        if key_env is not None:
            texts.append(f"engine.servers.key_env={key_env}")
        return load_agent(model_or_run, recipe=recipe, overrides=texts, step=step, say=notes.print)
    if step is not None:
        raise ConfigError("--step loads a checkpoint here, and --server uses the server's weights")
    return connect_agent(
        server, model_or_run, recipe=recipe, overrides=texts, key=None if key_env is None else key_from_env(key_env)
    )


def _world(agent: Agent, task: str | None, notes: Console) -> Task | None:
    from agent_r1.inference.terminal import task_named

    world = task_named(agent, task)
    if world is None and agent.has_worlds:
        notes.print(_NO_WORLD, style="dim", soft_wrap=True)
    return world
