#!/usr/bin/env bash
set -euo pipefail
agent-r1 train recipes/hotpotqa algorithm=reinforce_pp run.name=hotpotqa_reinforce_pp "$@"
