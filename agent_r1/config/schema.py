"""The configuration's schema: dataclasses, one line under each key. Hydra composes it, unknown keys are refused.

    agent-r1 train recipes/quickstart algorithm=ppo trainer.steps=20 rollout.group_size=4

A key set to `{name: ..., <argument>: ...}` (`env`, and `estimator`, `loss`, `aggregation`, `off_policy` of `algorithm`)
names something in a registry and gives its keyword arguments; they are checked against its signature.

The type of a key says what values it takes (`agent_r1/constraints.py`): `Count` is a whole number from 1. Every number
has a range and is finite, and every text that is a choice lists its choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from pydantic import Field

from agent_r1.config.algorithm_schema import AlgorithmConfig, unread_algorithm
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
    """Where a run lives."""

    name: str = "run"
    """The run's folder is `<folder>/<name>`. One folder's name: no slashes, no dot at its start."""
    folder: PathText = "runs"
    """Parent of all run folders."""
    resume: Annotated[str, one_of("auto", "never", "must")] = "auto"
    """auto: resume an unfinished run of the same configuration, data and model; otherwise rename the old folder and
    start a new run. never: always start a new run. must: resume, also with another configuration; refuse when there is
    no checkpoint, or when data or model have changed."""


@dataclass
class LoraConfig:
    """Training small matrices beside the weights instead of the weights (extra `lora`)."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0: no adapters, all weights are trained."""
    alpha: Positive = 32.0
    """What adapters add to a layer is scaled by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Layers that get one, by the end of their names (`q_proj`); all-linear: every linear layer of the decoder, not the
    head."""


@dataclass
class ModelConfig:
    """The policy."""

    path: PathText = "???"
    """A Hugging Face folder or id, or a GGUF file. `model=smollm2` is a preset."""
    prepare: Optional[str] = None
    """`module:function` that makes the recipe's own `path` when it is missing; called with the configuration."""
    tool_format: str = "hermes"
    """How the model writes tool calls: hermes, qwen3_coder, llama3, mistral, harmony, retool, react or one's own."""
    dtype: Annotated[str, one_of("float32", "bfloat16")] = "float32"
    """Type of the weights that stand still (a LoRA base), of matrix products on a CPU, and of the exported model unless
    `model.path` holds float32: float32 or bfloat16. Weights that are trained are float32 in either case."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Only for models whose code you have read."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters."""


@dataclass
class DataConfig:
    """The rows."""

    train: list[PathText] = field(default_factory=list)
    """Parquet or JSONL files to train on."""
    eval: list[PathText] = field(default_factory=list)
    """Held-out files; empty: no evaluation."""
    prepare: Optional[str] = None
    """`module:function` that makes the recipe's own data files when they are missing; called with the configuration."""
    agent_name: str = "env_loop"
    """The flow of rows that name none."""


@dataclass
class RewardConfig:
    """What is rewarded."""

    function: str = "none"
    """The outcome reward: a registered name or `module:function`."""
    process_weight: NotNegative = 1.0
    """Weight of the steps' own rewards; 0 switches them off."""
    timeout: Optional[Seconds] = None
    """Seconds the outcome reward may take: it runs in a worker process, which is killed then, and the rollout fails.
    null: it runs in this process, and one that hangs holds up the run."""


@dataclass
class RolloutConfig:
    """How experience is made."""

    groups_per_step: Count = 16
    """Tasks in a batch."""
    group_size: Count = 8
    """Rollouts of each task."""
    max_steps: Count = 8
    """Steps an episode."""
    max_tokens: Count = 256
    """Tokens an action."""
    temperature: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Sampling temperature; the policy that is trained is the one at this temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling."""
    top_k: CountOrZero = 0
    """Keep this many most likely tokens; 0 keeps all."""
    context_length: Optional[Annotated[int, Field(ge=2, le=2**31 - 1)]] = None
    """Longest prompt and action together; null: the model's own."""
    concurrency: Count = 256
    """Episodes alive at once."""
    deadline_seconds: Seconds = 600.0
    """An episode that takes longer fails."""
    retries: CountOrZero = 2
    """Further attempts at a rollout that failed."""
    max_staleness: CountOrZero = 0
    """Training steps that the oldest token of a group may be behind when it is trained. 0: a step waits for all its
    groups. Above: it starts when enough groups are complete, and the others go on over the update."""


@dataclass
class EngineConfig:
    """What samples from the policy: a copy of the model with a paged cache of keys and values."""

    name: str = "local"
    """The engine: local (in this process), or the name of an engine that a module of `imports` registers."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of an engine of your own; the other keys of this section are settings of `local`."""
    dtype: Annotated[str, one_of("auto", "float32", "bfloat16")] = "auto"
    """Type of the copy's weights and cache. auto: bfloat16 on a GPU, `model.dtype` elsewhere. float32, bfloat16."""
    kv_memory: Optional[Positive] = None
    """Tokens whose keys and values are kept, or a fraction of the memory; null: enough for `rollout.concurrency`
    requests of moderate length, at most a quarter of the memory."""
    prefill_tokens: Count = 16384
    """Tokens of prompts computed at once."""
    compile: bool = True
    """On a GPU, compile the decoder layers: some twenty seconds at the start, faster generation."""


@dataclass
class OptimizerConfig:
    """AdamW."""

    learning_rate: Positive = 1e-5
    """Of the policy."""
    warmup_steps: CountOrZero = 0
    """Training steps over which the rate rises from 0."""
    final_fraction: Fraction = 1.0
    """The rate falls in a straight line to this share of itself at the last step; 1: it stays."""
    weight_decay: NotNegative = 0.0
    """Decoupled decay."""
    gradient_clip: Positive = 1.0
    """Largest gradient norm."""


@dataclass
class TrainerConfig:
    """The training loop."""

    steps: Count = 100
    """Training steps: one batch of rollouts and its updates each."""
    seed: Seed = 0
    """Everything random follows from it."""
    device: Annotated[str, like(r"auto|cpu|cuda(:\d{1,3})?", "auto, cpu, cuda or cuda:N")] = "auto"
    """auto: cuda when there is one, else cpu. cpu, cuda, or one GPU by its number: cuda:1."""
    micro_batch_tokens: Count = 16384
    """Tokens, padding included, in one forward and backward pass."""
    packing: Annotated[str, one_of("trie", "rows")] = "trie"
    """trie: prefixes that steps share are computed once. rows: one padded row a step, slower, for comparison."""
    precision: Annotated[str, one_of("auto", "float32", "bfloat16")] = "auto"
    """Of matrix products in training; the weights keep their own. auto: bfloat16 on a GPU, `model.dtype` elsewhere.
    float32, bfloat16."""
    compile: bool = False
    """Compile the decoder layers for training: half a minute at the start, faster updates on a GPU."""
    gradient_checkpointing: bool = False
    """Recompute each layer going backward instead of keeping it: less memory, more time."""
    max_skipped_updates: Count = 5
    """The run stops after this many non-finite updates in a row."""
    save_every: Count = 10
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: Count = 2
    """How many to keep; there is one more while it is written."""


@dataclass
class EvalConfig:
    """Evaluation on the held-out rows."""

    before: bool = True
    """Evaluate before the first step."""
    every: CountOrZero = 0
    """Steps between evaluations; 0: only before and after."""
    max_tasks: Optional[Count] = None
    """Use only this many rows, always the same, evenly over the data sources."""
    samples: CountOrZero = 0
    """Sampled rollouts a row, for mean, best@k and maj@k; 0: greedy only."""
    temperature: Annotated[float, Field(ge=1e-6, le=1000)] = 1.0
    """Of the sampled rollouts."""


@dataclass
class TrackingConfig:
    """What is written and where."""

    tensorboard: bool = False
    """Write TensorBoard events (extra `tensorboard`)."""
    wandb_project: Optional[str] = None
    """Log to this Weights & Biases project (extra `wandb`)."""
    record_every: CountOrZero = 1
    """Steps between recorded batches of trajectories; 0: never."""


@dataclass
class SftConfig:
    """A warm start on demonstrations (`agent-r1 sft`)."""

    folder: Optional[PathText] = None
    """Set in a recipe: runs start from the model in this folder, `model.path` tuned on `data`; the first one makes it.
    null: they start from `model.path`."""
    data: list[PathText] = field(default_factory=list)
    """JSONL or parquet rows with `messages` (a whole conversation) and optional `tools`."""
    steps: Count = 100
    """Optimizer steps."""
    batch_size: Count = 32
    """Conversations a step."""
    learning_rate: Positive = 1e-3
    """Peak rate; it rises over the first tenth and falls to a tenth."""


@dataclass
class Config:
    """A whole run."""

    imports: list[str] = field(default_factory=list)
    """Modules to import first, so that the tools, environments and flows they register have names."""
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    env: dict[str, Any] = field(default_factory=lambda: {"name": "tool"})
    """The environment and its arguments; `env.tools` lists a `ToolEnv`'s tools. `env.limits` lists limits it runs
    within: `[{name: time, seconds: 30}]`."""
    tools: dict[str, Any] = field(default_factory=dict)
    """Changes to the policies of tools, by name: `tools.search.timeout=5` (the fields of `ToolPolicy`). Under
    `mcp`, MCP servers: `tools.mcp.shop.url=...` (the arguments of `McpServer`); `mcp:shop` in `env.tools` names its
    tools."""
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
