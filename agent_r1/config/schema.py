"""The configuration's schema: one dataclass per section, one line of documentation per key. Unknown keys are refused.

    agent-r1 train quickstart algorithm=ppo trainer.steps=20 rollout.group_size=4

A key set to `{name: ..., <argument>: ...}` (`env`, and `estimator`, `loss`, `aggregation`, `off_policy` of `algorithm`)
names an entry of a registry and its keyword arguments, which are checked against its signature.

The type of a key states its range (`agent_r1/constraints.py`): `Count` is a whole number from 1. Numbers are finite,
and a text with fixed choices lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from pydantic import Field

from agent_r1.config.algorithm_schema import AlgorithmConfig, unread_algorithm
from agent_r1.config.data_schema import DataConfig
from agent_r1.config.model_schema import ModelConfig
from agent_r1.config.servers_schema import ServersConfig
from agent_r1.config.workers_schema import ProcessesConfig, RayConfig
from agent_r1.constraints import (
    Count,
    CountOrZero,
    Fraction,
    NotNegative,
    PathText,
    Positive,
    Seconds,
    Seed,
    like,
    one_of,
)


@dataclass
class RunConfig:
    """The run's folder."""

    name: str = "run"
    """The run's folder is `<folder>/<name>`. A single folder name: no slash, no leading dot."""
    folder: PathText = "runs"
    """Parent of all run folders."""
    resume: Annotated[str, one_of("auto", "never", "must")] = "auto"
    """auto: resume an unfinished run with the same configuration, data and model; otherwise rename the old folder and
    start a new run. never: always start a new run. must: resume, even with another configuration; fail without a
    checkpoint, or when data or model have changed."""


@dataclass
class RewardPart:
    """One of several outcome rewards."""

    name: str = "none"
    """A registered name or `module:function`."""
    weight: float = 1.0
    """What its value is multiplied by."""


@dataclass
class RewardConfig:
    """Rewards."""

    function: str = "none"
    """The outcome reward: a registered name or `module:function`."""
    functions: list[RewardPart] = field(default_factory=list)
    """Several outcome rewards instead of `function`, added up: `[{name: correct}, {name: format_ok, weight: 0.2}]`.
    Each is logged as `reward/<name>`; the first decides what counts as solved."""
    process_weight: NotNegative = 1.0
    """Weight of process rewards, the rewards of single steps; 0 switches them off."""
    timeout: Optional[Seconds] = None
    """Maximum seconds for the outcome reward. It runs in a worker process, which is killed after that, and the rollout
    fails. null: it runs in this process, where a reward that hangs blocks the run."""


@dataclass
class AgentConfig:
    """An agent of your own, for rows with the flow `gateway` (extra `serve`): a function, a command or remote."""

    function: Optional[str] = None
    """`module:function`, called with (task, base_url, api_key) for each rollout; it may return the answer."""
    command: Optional[str] = None
    """A command, started once per rollout with OPENAI_BASE_URL and OPENAI_API_KEY set and the task as JSON on its
    standard input; the last line it prints is the answer."""
    remote: bool = False
    """Programs elsewhere ask the gateway for rollouts (`POST /rollouts`)."""
    reward: Annotated[str, one_of("function", "posted")] = "function"
    """function: `reward.function` scores the episode. posted: the agent, or whoever knows, posts the outcome to
    `<base_url>/reward`."""
    grace_seconds: Seconds = 10.0
    """How long a rollout waits for a posted outcome after its agent ended, and for an agent whose call was refused at
    `rollout.max_steps` to end by itself."""
    host: str = "127.0.0.1"
    """Where the gateway listens. Any address but this machine's own needs a key, in AGENT_R1_GATEWAY_KEY."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Its port; 0: a free one."""


@dataclass
class RolloutConfig:
    """Rollouts."""

    groups_per_step: Count = 16
    """Tasks per training step."""
    group_size: Count = 8
    """Rollouts per task."""
    max_steps: Count = 8
    """Maximum steps per episode."""
    max_tokens: Count = 256
    """Maximum tokens per action."""
    temperature: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Sampling temperature; the policy is trained at this temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: sample from the smallest set of tokens with this probability."""
    top_k: CountOrZero = 0
    """Sample from this many most likely tokens; 0: from all."""
    context_length: Optional[Annotated[int, Field(ge=2, le=2**31 - 1)]] = None
    """Maximum tokens of prompt and action together; null: the model's own limit."""
    max_images: Optional[Count] = None
    """Maximum images in one prompt. An episode whose next prompt would have more ends as one whose context is full; a
    row whose first prompt has more is refused. null: no limit but the context."""
    max_episode_images: Optional[Count] = None
    """Maximum images in all prompts of an episode together, also where later prompts leave earlier images out. It acts
    as `max_images` does. null: no limit."""
    concurrency: Count = 256
    """Maximum episodes at once."""
    deadline_seconds: Seconds = 600.0
    """Maximum seconds per episode; a longer one fails."""
    retries: CountOrZero = 2
    """How often a failed rollout is retried."""
    max_staleness: CountOrZero = 0
    """Maximum age of a group's oldest token, in training steps. 0: a step waits for all its groups. Above 0: it starts
    when enough groups are complete, and the others continue during the update."""
    workers: Annotated[str, one_of("local", "processes", "ray")] = "local"
    """Where episodes run. local: in this process. processes: in worker processes on this machine, so that episodes use
    its other cores. ray: in worker processes of a Ray cluster (extra `ray`)."""
    processes: ProcessesConfig = field(default_factory=ProcessesConfig)
    """The workers of `rollout.workers=processes`."""
    ray: RayConfig = field(default_factory=RayConfig)
    """The cluster and the workers of `rollout.workers=ray`."""


@dataclass
class EngineConfig:
    """The engine samples from a copy of the policy, with a paged KV cache."""

    name: str = "local"
    """The engine: local (in this process); vllm, sglang or http (servers, see `servers`); openai (any server with the
    OpenAI API, not for training); or the name of an engine that a module of `imports` registers. `engine=vllm` is short
    for `engine.name=vllm`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of an engine of your own; `kv_memory`, `prefill_tokens`, `compile` are settings of `local`."""
    servers: ServersConfig = field(default_factory=ServersConfig)
    """Inference servers, for vllm, sglang and http."""
    dtype: Annotated[str, one_of("auto", "float32", "bfloat16")] = "auto"
    """Type of the copy's weights and cache, and of the weights that servers load. auto: bfloat16 on a GPU,
    `model.dtype` elsewhere."""
    kv_memory: Optional[Positive] = None
    """Size of the KV cache in tokens, or as a fraction of the memory; null: enough for `rollout.concurrency` requests
    of moderate length, at most a quarter of the memory."""
    prefill_tokens: Count = 16384
    """Maximum prompt tokens per forward pass."""
    compile: bool = True
    """On a GPU, compile the decoder layers: about 20 s at the start, faster generation."""


@dataclass
class OptimizerConfig:
    """AdamW, for the policy."""

    learning_rate: Positive = 1e-5
    """Peak learning rate."""
    warmup_steps: CountOrZero = 0
    """Training steps over which the learning rate rises from 0."""
    final_fraction: Fraction = 1.0
    """The learning rate falls linearly to this fraction at the last step; 1: constant."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    gradient_clip: Positive = 1.0
    """Maximum gradient norm."""


@dataclass
class ShardingConfig:
    """Several processes, started with torchrun: each rolls out its share, and the models are sharded over them
    (FSDP2)."""

    mode: Annotated[str, one_of("auto", "on", "off")] = "auto"
    """auto: when torchrun started more than one process. on: also with one. off: refuse to run in several."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer state in the host's memory: less GPU memory, much more time."""
    reshard_after_forward: bool = True
    """Free each layer after its forward pass and gather it again for the backward pass: less memory, more messages."""
    timeout_seconds: Seconds = 600.0
    """Maximum seconds for one exchange of an update, such as gathering a layer: the run ends after that."""
    dead_after_seconds: Seconds = 45.0
    """A process that has given no sign of life for so long is dead, and the run ends."""


@dataclass
class TrainerConfig:
    """The training loop."""

    steps: Count = 100
    """Training steps; each is one batch of rollouts and its updates."""
    seed: Seed = 0
    """Seed of all random numbers."""
    device: Annotated[str, like(r"auto|cpu|cuda(:\d{1,3})?", "auto, cpu, cuda or cuda:N")] = "auto"
    """auto: cuda if available, else cpu. One of several GPUs: cuda:1."""
    micro_batch_tokens: Count = 16384
    """Maximum tokens, padding included, per forward and backward pass."""
    packing: Annotated[str, one_of("trie", "rows")] = "trie"
    """trie: prefixes that steps share are computed once. rows: one padded row per step; slower, for comparison."""
    precision: Annotated[str, one_of("auto", "float32", "bfloat16")] = "auto"
    """Type of matrix products in training, not of the weights. auto: bfloat16 on a GPU, `model.dtype` elsewhere."""
    compile: bool = False
    """Compile the decoder layers for training: about 30 s at the start, faster updates on a GPU."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping it: less memory, more time."""
    max_skipped_updates: Count = 5
    """The run stops after this many non-finite updates in a row."""
    save_every: Count = 10
    """Training steps between checkpoints; the last step is saved too."""
    keep_checkpoints: CountOrZero = 2
    """Checkpoints to keep; there is one more while a new one is written. 0: none is written, not even when the run is
    interrupted or fails, so it cannot be resumed."""
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    """Several GPUs."""


@dataclass
class EvalConfig:
    """Evaluation on the held-out rows."""

    split: Annotated[str, one_of("validation", "test", "train")] = "validation"
    """The rows: validation (`data.eval`), test (`data.test`) or train. Only `agent-r1 eval` may set it."""
    before: bool = True
    """Evaluate before the first training step."""
    every: CountOrZero = 0
    """Training steps between evaluations; 0: only before and after."""
    max_tasks: Optional[Count] = None
    """Maximum rows, always the same ones, spread evenly over the data sources; null: all."""
    samples: CountOrZero = 0
    """Sampled rollouts per row, for mean, best@k and maj@k; 0: greedy only."""
    temperature: Annotated[float, Field(ge=1e-6, le=1000)] = 1.0
    """Temperature of the sampled rollouts."""


@dataclass
class TrackingConfig:
    """What is logged and where."""

    trackers: list[str] = field(default_factory=list)
    """Where metrics go beside `metrics.jsonl`: `tensorboard`, `wandb`, `mlflow` (each an extra), and your own by their
    registered names or as `module:function`."""
    project: str = "agent-r1"
    """The project of W&B and the experiment of MLflow."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run in W&B and MLflow, beside its algorithm, model and recipe."""
    record_every: CountOrZero = 1
    """Training steps between recorded batches of trajectories; 0: none are recorded."""
    record_credit: bool = False
    """Record with them what the learner made of each token: advantage, ratio, entropy, value."""
    profile_step: CountOrZero = 0
    """The training step that is profiled: which operations and GPU kernels its time goes to; 0: none. Choose one after
    the first, which compiles."""


@dataclass
class SftConfig:
    """A warm start on demonstrations (`agent-r1 sft`), and where they come from (`agent-r1 demonstrate`)."""

    folder: Optional[PathText] = None
    """Set in a recipe: runs start from the model in this folder, which the first run makes by tuning `model.path` on
    `data`. null: they start from `model.path`."""
    data: list[PathText] = field(default_factory=list)
    """JSONL or parquet rows with `messages` (a whole conversation) and optional `tools`."""
    steps: Count = 100
    """Optimizer steps."""
    batch_size: Count = 32
    """Conversations per optimizer step."""
    learning_rate: Positive = 1e-3
    """Peak learning rate; it rises over the first tenth of the steps and falls to a tenth."""
    from_episode: Optional[str] = None
    """`module:function` of (task, trajectory), may be async: the demonstration that an episode becomes, a row with
    `messages` and optional `tools`, or None. null: solved episodes without malformed turns, as they are. Only
    `agent-r1 demonstrate` reads it."""


@dataclass
class Config:
    """The configuration of a run."""

    recipe: Optional[PathText] = None
    """The recipe folder, set by `load_config`: `module:attribute` names are looked up in its files first."""
    imports: list[str] = field(default_factory=list)
    """Modules to import first, because they register tools, environments or flows."""
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    env: dict[str, Any] = field(default_factory=lambda: {"name": "tool"})
    """The environment and its arguments. `env.tools` lists the tools of a `ToolEnv`; `env.limits` lists wrappers:
    `[{name: time, seconds: 30}]`."""
    tools: dict[str, Any] = field(default_factory=dict)
    """Changes to the policies of tools, by name: `tools.search.timeout=5` (the fields of `ToolPolicy`). Under `mcp`,
    MCP servers: `tools.mcp.shop.url=...` (the arguments of `McpServer`), whose tools `mcp:shop` in `env.tools` adds."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    algorithm: AlgorithmConfig = field(default_factory=unread_algorithm)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sft: SftConfig = field(default_factory=SftConfig)

    def __post_init__(self) -> None:
        self.algorithm.read_parts()
