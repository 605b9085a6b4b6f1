#!/bin/sh
# Ask a running gateway from the shell and see which model answered, and why.
#
#   export OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=lr-...
#   sh examples/chat.sh "What is 17 + 25?" [TIER]
set -eu

body=$(python3 -c '
import json, sys
print(json.dumps({"model": sys.argv[2], "messages": [{"role": "user", "content": sys.argv[1]}], "max_tokens": 64}))
' "${1:-Say hello}" "${2:-auto}")

headers=$(mktemp)
trap 'rm -f "$headers"' EXIT
curl --silent --show-error --fail-with-body --dump-header "$headers" "$OPENAI_BASE_URL/chat/completions" \
    --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" --data "$body"
echo
grep -i '^x-llmrouter-' "$headers" >&2
