"""The speed benchmark: its counts by hand, its rows on a tiny model, and what it does when something is missing."""

from __future__ import annotations

import json
import lzma
import math
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.errors import DataError
from agent_r1.learner.packing.samples import Sample
from agent_r1.learner.packing.trie import pack_tries
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.types import Action, Episode, Observation, Step, StopReason, Task
from benchmarks.common import device_profile, flops, gsm8k, host_profile, prompts, sample_models, updates
from benchmarks.speed import (
    full_cache,
    gpu,
    host,
    images,
    interpreters,
    profile_generation,
    profile_update,
    trie_attention,
)

SAMPLES = [Sample(token_ids=(1, 2, 3), action_positions=(2,)), Sample(token_ids=(1, 2, 4, 5), action_positions=(2, 3))]

FAKE_VLLM = """
__version__ = "0.0"
from types import SimpleNamespace

class SamplingParams:
    def __init__(self, **given):
        self.given = given

class LLM:
    def __init__(self, **given):
        assert given["dtype"] == "bfloat16" and given["enable_prefix_caching"] and given["max_num_seqs"] == 12
        assert given["gpu_memory_utilization"] == 0.5 and given["max_model_len"] == 56

    def generate(self, prompts, sampling, use_tqdm):
        assert not sampling.given["detokenize"] and sampling.given["ignore_eos"] and sampling.given["logprobs"] == 0
        if len(prompts) == 12:
            raise MemoryError("too many")
        made = SimpleNamespace(token_ids=[1] * sampling.given["max_tokens"], logprobs=[{1: 0.0}])
        return [SimpleNamespace(outputs=[made]) for prompt in prompts if prompt["prompt_token_ids"]]
"""


def run(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows that a run of the script wrote."""
    file = tmp_path / "gpu.json"
    gpu.main(["--tiny", "--repeats", "1", "--steps", "1", "--json", str(file), *arguments])
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


# --- counts ---------------------------------------------------------------------------------------------------------


def test_update_flops_by_hand() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11,
            hidden_size=4,
            intermediate_size=6,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )
    shape = flops.shape_of(model)
    # A layer: q and o 4 x 4, k and v 4 x 2, three matrices of 4 x 6.
    assert shape.decoder_entries == 2 * (2 * 16 + 2 * 8 + 3 * 24) == 240
    fuse_projections(model, trained=True)
    assert flops.shape_of(model) == shape  # what is computed together counts as much
    work = flops.packed_work(pack_tries(SAMPLES, [0, 1], max_tokens=64))
    assert work == flops.Work(tokens=5, scored=3, pairs=1 + 2 + 3 + 3 + 4)
    decoder, head, attention = 6 * 240 * 5, 6 * 4 * 11 * 3, 12 * 2 * 2 * 2 * 13
    assert flops.update_flops(shape, work) == decoder + head + attention == 9240


def test_padding_is_not_counted() -> None:
    padded = list(pack_tries(SAMPLES, [0, 1], max_tokens=64, width_multiple=16))
    assert padded[0].input_ids.shape == (1, 16)
    assert flops.packed_work(padded) == flops.packed_work(pack_tries(SAMPLES, [0, 1], max_tokens=64))


def test_a_prefix_repeated_by_a_cut_is_packed_work_but_not_distinct_work() -> None:
    cut = flops.packed_work(pack_tries(SAMPLES, [0, 1], max_tokens=64, row_tokens=4))
    assert (cut.tokens, cut.pairs) == (3 + 4, 6 + 10)
    assert flops.distinct_work(SAMPLES) == flops.Work(tokens=5, scored=3, pairs=13)


def test_utilisation_is_flops_over_what_the_peak_could_do() -> None:
    shape = flops.ModelShape(decoder_entries=10**6, layers=1, heads=1, head_size=1, hidden=1, vocabulary=1)
    work, least = flops.Work(tokens=1000, scored=0, pairs=0), flops.Work(tokens=500, scored=0, pairs=0)
    figures = gpu.use_figures(shape, work, least, seconds=2.0, peak_tflops=0.01)
    assert figures["mfu"] == pytest.approx(6e9 / (2.0 * 1e10))
    assert figures["distinct_mfu"] == pytest.approx(figures["mfu"] / 2)


def test_the_error_of_a_gradient_is_relative_to_its_own_size() -> None:
    expected = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2), "c": torch.zeros(2)}
    found = {"a": torch.tensor([3.0, 4.5]), "b": torch.zeros(2), "c": torch.ones(2)}
    assert updates.gradient_errors(found, expected) == {"a": pytest.approx(0.1), "b": 0.0, "c": math.inf}


# --- workloads ------------------------------------------------------------------------------------------------------


def test_prompts_are_shared_in_a_group_and_fresh_for_every_seed() -> None:
    workload = prompts.Workload(groups=2, members=2, prompt_tokens=20, new_tokens=3)
    first, again, other, last = prompts.random_prompts(workload, vocabulary=500, seed=1)
    assert first == again != other == last
    assert not {first, other} & set(prompts.random_prompts(workload, vocabulary=500, seed=2))
    assert workload.num_new_tokens == 12


def test_gsm8k_answers_stand_after_the_mark() -> None:
    task = Task(
        task_id="t",
        prompt=(),
        reward_model=gsm8k.as_task_row({"question": "?", "answer": "#### 1,012"})["reward_model"],
    )
    assert [gsm8k.answer(task, said(text)) for text in ("so #### 1012", "#### 5", "1012", "#### 5\n#### 1,012.")] == [
        1,
        0,
        0,
        1,
    ]
    assert gsm8k.spread(task, said("#### 1012")) > 1


def said(text: str) -> Episode:
    step = Step(
        observation=Observation(text=""),
        prompt_ids=(1,),
        action=Action(text=text),
        action_ids=(7,),
        rollout_logprobs=(0.0,),
        reward=0.0,
        done=True,
        policy_versions=(0,),
    )
    return Episode(steps=(step,), stop_reason=StopReason.DONE)


def test_gsm8k_is_read_from_every_form_it_comes_in(tmp_path: Path) -> None:
    rows = [{"question": f"{number}?", "answer": f"#### {number}"} for number in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = [gsm8k.read_gsm8k(tmp_path / f"a.{form}", limit=2) for form in ("jsonl", "jsonl.xz", "parquet")]
    assert read[0] == read[1] == read[2]
    assert [row["reward_model"]["ground_truth"] for row in read[0]] == [0.0, 1.0]
    with pytest.raises(DataError, match="question"):
        gsm8k.as_task_row({"prompt": "?"})


def test_a_shape_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="random-smollm2-135m"):
        sample_models.parse_model("S=random-smol")
    assert sample_models.parse_model("S=random-smollm2-135m").vocabulary == 49152


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_every_row_is_measured_on_a_tiny_model(tmp_path: Path) -> None:
    rows = run(tmp_path)
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert all(math.isfinite(value) for row in rows for value in row["figures"].values())
    by_kind = {kind: [row["figures"] for row in rows if row["kind"] == kind] for kind in gpu.KINDS}
    assert {kind: len(figures) for kind, figures in by_kind.items()} == {
        "generation": 3,
        "update": 1,
        "grpo_step": 2,
        "multi_turn": 2,
        "mfu": 2,
        "peer": 0,
    }
    assert all({"tokens_per_second", "best_tokens_per_second", "steps"} <= set(f) for f in by_kind["generation"])
    answered, spread = by_kind["grpo_step"]
    parts = {"seconds", "rollout_seconds", "update_seconds", "push_seconds", "response_tokens", "credited_share"}
    assert parts <= set(answered)
    assert spread["credited_share"] == 1.0
    packing, agreement = by_kind["multi_turn"]
    # Every one of the 36 steps has a row of 42, 54 or 66 tokens.
    assert packing["rows_tokens"] >= 12 * (42 + 54 + 66)
    assert packing["tokens_ratio"] == packing["rows_tokens"] / packing["trie_tokens"] > 3
    assert {"trie_seconds", "rows_seconds", "seconds_ratio"} <= set(packing)
    assert agreement["largest_gradient_error"] < 1e-4
    for figures in by_kind["mfu"]:
        assert figures["distinct_tokens"] == 32 + 3 * (4 + 4 * (3 * 6 + 2 * 6))
        assert figures["model_tflop"] > 0
        assert "mfu" not in figures
    assert all("no peak known" in row["note"] for row in rows if row["kind"] == "mfu")


@pytest.mark.whole
def test_a_row_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    first, second, third = run(tmp_path, "--only", "generation", "--engine", '{"kv_memory": 32}')
    assert "kv_memory" in third["error"]
    assert not third["figures"]
    assert first["error"] is None
    assert second["figures"]["tokens_per_second"] > 0


def test_a_model_that_cannot_be_loaded_is_a_row(tmp_path: Path) -> None:
    [row] = run(tmp_path, "--only", "generation", "--model", f"S={tmp_path / 'nothing'}")
    assert (row["kind"], row["model"], row["figures"]) == ("generation", "S", {})
    assert row["error"]


def test_rows_without_what_they_need_say_how_to_get_it(tmp_path: Path) -> None:
    [row] = run(tmp_path, "--only", "grpo_step", "--model", "S=random-smollm2-135m")
    assert "no tokenizer" in row["note"]
    bench = gpu.make_bench(gpu.parse(["--model", "S=folder"]))
    [refused] = gpu.grpo_step_rows(bench, sample_models.parse_model("S=folder"))
    assert "--gsm8k" in refused.note


def test_a_peer_that_is_not_installed_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('no CUDA')")
    rows = run(tmp_path, "--only", "peer", "--peer-path", str(tmp_path))
    assert [row["error"] for row in rows] == ["not installed (no CUDA)"] * 3


def test_the_peer_stands_beside_our_rows_of_an_earlier_run(tmp_path: Path) -> None:
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_VLLM)
    (package / "inputs.py").write_text("TokensPrompt = dict")
    workload = gpu.TINY.generation[0]
    ours = gpu.Row(kind="generation", model="tiny", case=workload.name, figures={"tokens_per_second": 10.0})
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"rows": [gpu.asdict(ours)]}))
    asked = partial(run, tmp_path, "--only", "peer", "--peer-path", str(package.parent), "--peer-memory", "0.5")
    joined, first, second, third = asked("--join", str(earlier))
    assert joined["figures"]["ratio"] == pytest.approx(10.0 / first["figures"]["tokens_per_second"])
    assert first["note"] == "vLLM 0.0"
    assert second["error"] == "MemoryError: too many"
    assert third["figures"]["tokens_per_second"] > 0


def test_a_cache_that_is_too_small_has_a_row_for_each_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "full_cache.json"
    full_cache.main(["--tiny", "--cache", "1600", "400", "--json", str(file)])
    ample, short = json.loads(file.read_text())
    assert ample == {"cache": 1600, "in_order": 1.0, "now": 1.0}
    assert short["in_order"] > short["now"] > 1
    printed = capsys.readouterr().out
    assert "4 conversations of 3 turns, 768 tokens in the end" in printed  # 4 x (96 + 3 x 32)
    assert f"| 400 | {short['in_order']:.1f} | {short['now']:.1f} |" in printed


def test_a_cache_without_room_for_one_conversation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        full_cache.main(["--cache", "735"])
    assert "a conversation has 736 tokens in the end" in capsys.readouterr().err


# --- where the time of generation and of updates goes ---------------------------------------------------------------


def piece(name: str, start: float, end: float) -> Any:
    return device_profile.Piece(name=name, start=start, end=end)


def test_a_profile_adds_up_kinds_names_and_idle_time_by_hand() -> None:
    """Ten microseconds, of which two kernels at once fill four, and nothing happens in three."""
    found = device_profile.summarise(
        [
            piece("nvjet_tst_64x128", 0, 4),
            piece("Memcpy HtoD", 2, 3),
            piece("decode_kernel", 4, 5),
            piece("nvjet_tst_64x128", 8, 10),
        ]
    )
    assert found.busy_seconds == pytest.approx(7e-6)
    assert found.idle == pytest.approx(0.3)
    assert found.kinds == pytest.approx({"matrix products": 6 / 8, "attention": 1 / 8, "copies": 1 / 8})
    assert found.kernels[0] == {"name": "nvjet_tst_64x128", "times": 2, "mean_us": 3.0, "share": 6 / 8}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "element by element"),
        ("triton_per_fused__to_copy__unsafe_view_add_div_8", "element by element"),
        ("_summarise_kernel", "sample"),
        ("prefill_kernel", "attention"),
        ("triton_tem_fused_flex_attention_backward_zeros_2", "attention"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("sm90_xmma_gemm_bf16f32_bf16f32", "matrix products"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert device_profile.kind_of(name) == kind


@pytest.mark.whole
def test_generation_of_a_tiny_model_can_be_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile_generation.main(["--tiny", "--json", str(tmp_path / "profile.json")])
    found = json.loads((tmp_path / "profile.json").read_text())
    assert sum(found["kinds"].values()) == pytest.approx(1.0)
    assert found["seconds"] > found["prompt_seconds"] > 0
    assert "tiny  6 x (16 in + 8 out)" in capsys.readouterr().out


@pytest.mark.whole
def test_an_update_of_a_tiny_model_can_be_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile_update.main(["--tiny", "--json", str(tmp_path / "profile.json")])
    found = json.loads((tmp_path / "profile.json").read_text())
    assert sum(found["kinds"].values()) == pytest.approx(1.0)
    assert found["busy_seconds"] > 0
    # A preamble of 32 and 2 questions of 4; of 8 episodes two actions and the answer between them, 6 each.
    assert found["tokens"] == 32 + 2 * 4 + 8 * 3 * 6
    assert "tiny  2 groups x 4" in capsys.readouterr().out


def test_tiles_are_named_as_flex_attention_names_them_and_others_are_refused() -> None:
    tried = dict(trie_attention.candidates(["128,64,8,3"], ["all"]))
    assert len(tried) == 1 + len(trie_attention.LIKELY["backward"])
    assert tried["forward 128,64,8,3"]["fwd_BLOCK_N"] == 64
    assert tried["backward 64,128,128,64,8,3"]["bwd_num_stages"] == 3
    with pytest.raises(SystemExit, match="1,2: expected 4 numbers"):
        list(trie_attention.candidates(["1,2"], []))


def test_attention_is_timed_on_the_first_micro_batch_of_a_step() -> None:
    made = trie_attention.make_attention(heads=4, key_heads=2, head_size=16, block=64, device=torch.device("cpu"))
    assert made.micro.input_ids.shape == (1, trie_attention.MICRO_BATCH_TOKENS)
    assert made.query.shape == (1, 4, trie_attention.MICRO_BATCH_TOKENS, 16)
    assert flops.packed_work([made.micro]).tokens > 0.9 * trie_attention.MICRO_BATCH_TOKENS


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_attention_is_not_timed_without_a_gpu() -> None:
    with pytest.raises(SystemExit, match="no backward pass on a CPU"):
        trie_attention.main([])


# --- the host -------------------------------------------------------------------------------------------------------


def test_a_sample_belongs_to_the_innermost_part_that_is_known() -> None:
    def stack(*files: str) -> Any:
        frame: Any = None
        for file in files:
            code, _, function = file.partition(":")
            frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=code, co_name=function), f_back=frame)
        return frame

    part = host_profile.part_of
    assert part(stack("/x/agent_r1/runs/trajectories.py:lines", "/p/json/encoder.py:iterencode")) == "recording"
    assert part(stack("/p/asyncio/base_events.py:_run_once", "/p/selectors.py:select")) == host_profile.WAITING
    assert part(stack("/p/asyncio/base_events.py:_run_once", "/x/agent_r1/chat/renderer.py:parse")) == "parse"
    assert part(stack("/x/agent_r1/chat/renderer.py:render", "/s/jinja2/runtime.py:call")) == "render, encode"
    assert part(stack("/x/agent_r1/engines/local/prefix_cache.py:match")) == "scheduler, prefix cache"
    assert part(stack("/p/asyncio/base_events.py:_run_once")) == "event loop"
    assert part(None) == host_profile.OTHER


def test_a_sample_that_takes_longer_than_the_interval_is_not_interrupted_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depth = [0, 0]

    def slow(frame: Any) -> str:
        depth[0] += 1
        depth[1] = max(depth)
        until = time.perf_counter() + 5 * host_profile.INTERVAL
        while time.perf_counter() < until:
            pass
        depth[0] -= 1
        return host_profile.OTHER

    monkeypatch.setattr(host_profile, "part_of", slow)
    profile = host_profile.HostProfile()
    with profile.sampling():
        while profile.num_samples < 3:
            pass
    assert depth == [0, 1]


@pytest.mark.whole
def test_the_host_is_measured_on_the_sample_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_R1_DATA", "replaced")  # and put back at the end
    asked = ["--tiny", "--rounds", "1", "--profiled", "1", "--json", str(tmp_path / "host.json")]
    for engine in ("local", "none"):
        host.main([*asked, "--engine", engine])
        found = json.loads((tmp_path / "host.json").read_text())
        assert found["episodes"] == 12
        assert 2 <= found["calls"] <= 5
        assert found["thread"] > 0
        assert found["profile"]["samples"] == sum(found["profile"]["parts"].values()) > 0
    assert "scheduler, prefix cache" not in found["parts_ms"]


@pytest.mark.whole
def test_steps_rollouts_and_the_raw_rate_are_measured_without_a_gpu_too(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_R1_DATA", "replaced")
    small = ["rollout.max_tokens=4", "rollout.context_length=null", "trainer.compile=false", "rollout.group_size=2"]
    asked = ["--tiny", "--part", "steps", "--as-it-is", "--model", str(model_folder), "--search", "stored"]
    host.main([*asked, "--rounds", "1", "--json", str(tmp_path / "steps.json"), "--set", *small])
    found = json.loads((tmp_path / "steps.json").read_text())
    [step], [rollout] = found["steps"], found["rollouts"]
    assert step["time/step"] >= step["time/rollout"] > 0
    assert rollout["ratio"] == pytest.approx(rollout["rollout_rate"] / rollout["raw_rate"])
    assert rollout["tokens"] >= rollout["calls"] >= 1
    assert found["profile"]["samples"] > 0


@pytest.mark.whole
def test_images_are_encoded_once_per_group_and_every_row_is_measured(tmp_path: Path) -> None:
    rows = images.main(["--tiny", "--device", "cpu", "--repeats", "1", "--json", str(tmp_path / "images.json")])
    assert json.loads((tmp_path / "images.json").read_text()) == rows
    assert [row["kind"] for row in rows] == ["rollout", "update", "update", "update", "update"]
    assert rows[0]["figures"]["images_encoded_per_group"] == 1.0
    assert all(value > 0 for row in rows for value in row["figures"].values())


@pytest.mark.whole
def test_many_episodes_have_few_interpreters(tmp_path: Path) -> None:
    file = tmp_path / "interpreters.json"
    rows = interpreters.main(
        ["--episodes", "8", "--limit", "2", "--plain", "1", "--preload", "fractions", "--json", str(file)]
    )
    assert rows == json.loads(file.read_text())
    assert rows["forked"]["episodes"] == 8
    # The fork server; guard, first process and program of each, and of one that is being closed.
    assert rows["forked"]["processes"] <= 1 + 3 * (2 + 1)
