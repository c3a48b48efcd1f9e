#!/usr/bin/env bash
# A shopping agent in plain shell: curl, jq, and a loop. It knows nothing of training.
#
# It reads a task as JSON on its standard input, talks to OPENAI_BASE_URL, and prints the answer:
#
#   echo '{"prompt": [{"role": "user", "content": "What do 3 tea cost?"}], "env_kwargs": {"prices": {"tea": 4}}}' |
#       OPENAI_BASE_URL=http://localhost:8000/v1 bash examples/existing_agents/curl_agent.sh
#
#   agent-r1 train quickstart data.agent_name=gateway run.name=curl_agent \
#       agent.command="bash examples/existing_agents/curl_agent.sh"
set -euo pipefail

task=$(cat)
messages=$(jq -c .prompt <<<"$task")
tools='[
  {"type": "function", "function": {"name": "price", "description": "The price of one item.",
    "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}}},
  {"type": "function", "function": {"name": "calculate", "description": "Work out an arithmetic expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}
]'

run_tool() { # name, arguments as JSON
    local expression
    case $1 in
    price) jq -r --argjson call "$2" '.env_kwargs.prices[$call.item // ""] // "Error: unknown item"' <<<"$task" ;;
    calculate)
        expression=$(jq -r '.expression // ""' <<<"$2")
        # Only numbers and signs reach the shell's arithmetic.
        if [[ $expression =~ ^[0-9+*\ -]{1,60}$ ]]; then
            (echo $((expression))) 2>/dev/null || echo "Error: not arithmetic"
        else
            echo "Error: not arithmetic"
        fi
        ;;
    *) echo "Error: there is no tool $1" ;;
    esac
}

for _ in 1 2 3 4 5; do
    body=$(jq -nc --argjson messages "$messages" --argjson tools "$tools" \
        '{model: "policy", messages: $messages, tools: $tools}')
    response=$(curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Content-Type: application/json" \
        -H "Authorization: Bearer ${OPENAI_API_KEY:-none}" -d "$body")
    message=$(jq -c '.choices[0].message' <<<"$response")
    if [[ $(jq '.tool_calls // [] | length' <<<"$message") -eq 0 ]]; then
        jq -r .content <<<"$message"
        exit 0
    fi
    messages=$(jq -c --argjson message "$message" '. + [$message]' <<<"$messages")
    while read -r call; do
        result=$(run_tool "$(jq -r .function.name <<<"$call")" "$(jq -r .function.arguments <<<"$call")")
        messages=$(jq -c --arg id "$(jq -r .id <<<"$call")" --arg result "$result" \
            '. + [{role: "tool", tool_call_id: $id, content: $result}]' <<<"$messages")
    done < <(jq -c '.tool_calls[]' <<<"$message")
done
