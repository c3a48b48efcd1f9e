"""A recipe in verl's keys, rows and files; and everything that verl cannot carry, in one error."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.config import Config, from_yaml, load_config, presets
from agent_r1.data import load_tasks, read_rows, write_rows
from agent_r1.errors import ConfigError, DataError
from agent_r1.integrations.verl.export import hydra_overrides, launch_script, verl_row
from agent_r1.integrations.verl.recipe import TASK_COLUMN, VerlRecipe, open_recipe, read_recipe, task_of_row
from agent_r1.integrations.verl.settings import ACTOR, ROLLOUT, VerlSettings, verl_settings
from agent_r1.types import Task
from tests.helpers.forks import run_python

ROOT = Path(__file__).parents[3]


def settings_of(*overrides: str) -> VerlSettings:
    config = load_config(None, ["model.path=m", *overrides])
    return verl_settings(config, prompt_length=100, context_length=400, gpus=2)


def test_grpo_in_verls_keys() -> None:
    found = settings_of("algorithm=grpo", "rollout.groups_per_step=32", "algorithm.minibatches=4").overrides
    assert found["algorithm.adv_estimator"] == found[f"{ACTOR}.policy_loss.loss_mode"] == "agent_r1"
    assert found[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-mean"
    assert (found["data.train_batch_size"], found[f"{ROLLOUT}.n"], found[f"{ACTOR}.ppo_mini_batch_size"]) == (32, 8, 8)
    assert (found["data.max_prompt_length"], found["data.max_response_length"]) == (100, 300)
    assert found["trainer.n_gpus_per_node"] == 2


def test_without_checkpoints_verl_saves_none_and_the_script_says_that_the_model_is_lost() -> None:
    found = settings_of("trainer.keep_checkpoints=0")
    assert found.overrides["trainer.save_freq"] == -1
    assert any("verl saves the model in its checkpoints, so none is saved" in note for note in found.notes)
    assert settings_of().overrides["trainer.save_freq"] == 10


def test_a_recipe_with_a_critic_gets_verls_own_gae() -> None:
    found = settings_of("algorithm=ppo", "algorithm.critic.kind=own", "algorithm.critic.warmup_steps=3").overrides
    assert (found["algorithm.adv_estimator"], found["algorithm.lam"], found["trainer.critic_warmup"]) == ("gae", 1.0, 3)


def test_remax_gets_verls_own_estimator() -> None:
    found = settings_of("algorithm=remax").overrides
    assert (found["algorithm.adv_estimator"], found[f"{ACTOR}.loss_scale_factor"]) == ("remax", 256)


def test_dapo_refills_groups_with_verls_filter() -> None:
    found = settings_of("algorithm=dapo").overrides
    assert found["algorithm.filter_groups.enable"] is True
    assert found["algorithm.filter_groups.max_num_gen_batches"] == 4


def test_kl_off_policy_weights_and_adapters() -> None:
    found = settings_of(
        *("algorithm.kl.coefficient=0.01", "algorithm.kl.estimator=k3+", "algorithm.off_policy={name: token, cap: 3}"),
        *("model.lora.rank=8", "model.lora.targets=[q_proj,v_proj]"),
    ).overrides
    assert (found[f"{ACTOR}.use_kl_loss"], found[f"{ACTOR}.kl_loss_type"]) == (True, "low_var_kl+")
    assert found["algorithm.rollout_correction.rollout_is_threshold"] == 3
    assert found["actor_rollout_ref.model.target_modules"] == ["q_proj", "v_proj"]


def test_a_kl_penalty_in_the_reward_needs_verls_own_estimator() -> None:
    found = settings_of("algorithm=rloo", "algorithm.kl.target=0.1").overrides
    assert (found["algorithm.adv_estimator"], found["algorithm.use_kl_in_reward"]) == ("rloo", True)
    assert (found["algorithm.kl_penalty"], found["algorithm.kl_ctrl.type"]) == ("kl", "adaptive")
    assert found["algorithm.kl_ctrl.target_kl"] == 0.1
    assert found[f"{ACTOR}.policy_loss.loss_mode"] == "agent_r1"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm.estimator={name: gigpo}", "estimator.name=gigpo: .* no observations; use agent_r1/step_group"),
        ("algorithm=steppo", "estimator.name=step_gae: .* critic mask"),
        ("algorithm=ppo", "critic.kind=closed_form: .* set algorithm.critic.kind=own"),
        ("algorithm.aggregation={name: step-mean-token-mean}", "a row is an episode; use one of token-mean"),
        ("algorithm=reinforce_pp", "kl.place=reward with algorithm.estimator.name=token_return: .* set place=loss"),
        ("algorithm.kl={coefficient: 0.1, target: 0.1}", "kl.target: verl adapts only a KL in the reward"),
        ("algorithm.off_policy={name: sequence}", "off_policy.name=sequence: .* use token"),
        ("algorithm.process.normalisation=running", "divides by what a whole batch earned, .* set none"),
        ("algorithm.old_logprobs=rollout", "old_logprobs=rollout: .* use trainer, or auto"),
        ("rollout.max_staleness=1", "max_staleness=1 is for our own trainer; set 0"),
        ("algorithm.minibatches=3", "minibatches=3 does not divide rollout.groups_per_step=16"),
        ("algorithm.group_plan=plans:mine", "group_plan=plans:mine: .* use sampled"),
    ],
)
def test_what_verl_cannot_carry_is_refused_with_what_to_use_instead(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)verl cannot carry this recipe:.*{says}"):
        settings_of(override)


def test_a_model_that_reads_images_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    with pytest.raises(ConfigError, match=f"model.path={tmp_path} reads images, which the agent loop of verl does not"):
        settings_of(f"model.path={tmp_path}")
    recipe = VerlRecipe(load_config(None, ["model.path=given"]))
    with pytest.raises(ConfigError, match=r"the agent loop agent_r1 cannot be used: model\.path=.* reads images"):
        recipe.renderer(object(), str(tmp_path))


def test_all_problems_are_one_error() -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of("rollout.max_staleness=1", "algorithm.minibatches=3", "algorithm.old_logprobs=rollout")
    assert str(raised.value).count("\n  - ") == 3


@pytest.mark.parametrize("preset", presets("algorithm"))
def test_every_preset_is_carried_or_refused_by_name(preset: str) -> None:
    refused = {
        "ppo": "closed_form",
        "steppo": "step_gae",
        "pspo": "step_gae",
        "gigpo": "gigpo",
        "reinforce_pp": "place=loss",
    }
    if preset not in refused:
        assert settings_of(f"algorithm={preset}").overrides[f"{ACTOR}.policy_loss.loss_mode"] == "agent_r1"
        return
    with pytest.raises(ConfigError, match=refused[preset]):
        settings_of(f"algorithm={preset}")


# --- rows and files ---------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=2),
    max_leaves=4,
)
tasks = st.builds(
    Task,
    task_id=st.text("abc-1", min_size=1),
    prompt=st.lists(
        st.fixed_dictionaries({"role": st.just("user"), "content": st.text("äx ")}), min_size=1, max_size=2
    ).map(tuple),
    agent_name=st.sampled_from(["env_loop", "single_step"]),
    reward_model=st.fixed_dictionaries({"ground_truth": values}),
    env_kwargs=st.dictionaries(st.text("xyz", min_size=1), values, max_size=2),
    extra_info=st.dictionaries(st.text("xyz", min_size=1), values, max_size=2),
    control_tokens=st.booleans(),
)


@given(task=tasks)
def test_a_row_of_verl_holds_the_whole_task(task: Task) -> None:
    row = verl_row(task, 3)
    assert (row["agent_name"], row["extra_info"]["index"]) == ("agent_r1", 3)
    found = task_of_row({"raw_prompt": row["prompt"], **row})
    assert found == task


def test_rows_of_unequal_types_fit_one_file(tmp_path: Path) -> None:
    """Ground truths of several types, which a parquet column could not have."""
    given = [
        Task(task_id=str(n), prompt=({"role": "user", "content": "?"},), reward_model={"ground_truth": truth})
        for n, truth in enumerate(["8", 8, ["8", "acht"], {"low": 7.5}, None])
    ]
    write_rows(tmp_path / "train.parquet", [verl_row(task, number) for number, task in enumerate(given)])
    assert [task_of_row(row) for row in read_rows(tmp_path / "train.parquet")] == given


def test_rows_that_were_written_for_verl_are_read_by_their_columns() -> None:
    row = {
        "raw_prompt": [{"role": "user", "content": "hi"}],
        "reward_model": {"ground_truth": "8"},
        "env_kwargs": '{"prices": {"tea": 4}}',
        "extra_info": {"index": 4, "flow": "single_step"},
    }
    task = task_of_row(row)
    assert (task.task_id, task.agent_name, task.ground_truth) == ("4", "single_step", "8")
    assert task.env_kwargs == {"prices": {"tea": 4}}


IMAGE_PROMPT = [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]}]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"raw_prompt": [{"role": "user"}]}, "a row of verl is no task: message 0 of 'prompt' needs"),
        ({}, "a row of verl is no task"),
        ({TASK_COLUMN: "{"}, f"the column {TASK_COLUMN} must hold JSON text"),
        ({TASK_COLUMN: 5}, "must hold JSON text, found 5"),
        ({TASK_COLUMN: "[]"}, "must hold JSON text"),
        ({TASK_COLUMN: '{"prompt": 3}'}, "'prompt' must be text or a list"),
        ({"raw_prompt": IMAGE_PROMPT}, "a prompt of verl's rows has image content; .* carries text alone in verl"),
        ({TASK_COLUMN: json.dumps({"prompt": IMAGE_PROMPT})}, "image content; .* carries text alone in verl"),
        ({"multi_modal_data": {"image": [b"PNG"]}, "raw_prompt": "hi"}, "the column 'multi_modal_data'; .* text alone"),
    ],
)
def test_a_row_that_is_no_task_is_one_clear_error(row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        task_of_row(row)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no recipe .*recipe\.yaml"):
        read_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError, match="is not on this machine"), open_recipe(Config(recipe=str(tmp_path / "gone"))):
        pass


def test_overrides_are_in_hydras_grammar() -> None:
    given = {"a": "plain/path.yaml", "b": "with space", "c": ["x", 1], "d": True, "e": None, "f": 1e-05, "g": "null"}
    assert hydra_overrides(given) == [
        *("a=plain/path.yaml", "b='with space'", "c=[x,1]", "d=true", "e=null", "f=1e-05", "g='null'")
    ]


def test_the_launch_script_is_one_command_of_the_shell() -> None:
    settings = VerlSettings(overrides={"data.train_files": "/a b/it's.parquet"}, notes=["one thing"])
    script = launch_script(settings, Path("/a b/recipe.yaml"))
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    words = shlex.split(script[script.index("exec") :].replace("\\\n", " "))
    assert words[:4] == ["exec", "python", "-m", "verl.trainer.main_ppo"]
    assert words[4] == r"data.train_files='/a b/it\'s.parquet'"
    assert "export AGENT_R1_VERL_RECIPE='/a b/recipe.yaml'" in script
    assert "# Differs: one thing." in script


@pytest.mark.whole
def test_the_command_writes_a_folder(tmp_path: Path, model_folder: Path) -> None:
    """The quickstart, with its data made on the way; the loop's recipe can be read without them."""
    folder = tmp_path / "verl"
    command = ["-m", "agent_r1.integrations.verl", "quickstart", f"run.folder={tmp_path}"]
    ran = run_python(*command, f"model.path={model_folder}", "--out", str(folder), "--gpus", "4", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "train with: " in ran.stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        *("agent_loop.yaml", "eval.parquet", "launch.sh", "recipe.yaml", "train.parquet")
    ]
    config = from_yaml((folder / "recipe.yaml").read_text())
    assert (config.data.train, config.model.path) == ([], str(model_folder))
    rows = list(read_rows(folder / "train.parquet"))
    assert [task_of_row(row) for row in rows] == load_tasks([tmp_path / "quickstart_data" / "train.jsonl"])
    refused = run_python(*command, "--out", str(folder), "algorithm=gigpo", f"model.path={model_folder}", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "error: verl cannot carry this recipe:" in refused.stderr
