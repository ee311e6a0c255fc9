#!/usr/bin/env bash
set -euo pipefail
: "${SANDBOX_URL:?Set the provisioned base URL including /api/v1}"
: "${STATESET_SANDBOX_API_KEY:?Set the sandbox API key}"
: "${SANDBOX_CREATE_KEY:?Set and persist a unique key for this original create request}"
SANDBOX_URL="${SANDBOX_URL%/}"
printf '%s\n' "$SANDBOX_CREATE_KEY" > sandbox-create-key.txt

request() {
  curl --silent --show-error --fail-with-body --max-time 30 \
    --header "Authorization: ApiKey $STATESET_SANDBOX_API_KEY" "$@"
}

SANDBOX_ID=""
cleanup() {
  if [ -n "$SANDBOX_ID" ]; then
    if ! request --request POST "$SANDBOX_URL/sandbox/$SANDBOX_ID/stop" > sandbox-stop.json \
      || ! jq -e '.success == true' sandbox-stop.json > /dev/null; then
      printf 'Cleanup failed. Inspect sandbox %s and stop it manually.\n' "$SANDBOX_ID" >&2
      return 1
    fi
    printf 'Stop request accepted for %s; verify teardown below.\n' "$SANDBOX_ID"
  fi
}
trap cleanup EXIT

request --request POST "$SANDBOX_URL/sandbox/create" \
  --max-time 210 \
  --header "Idempotency-Key: $SANDBOX_CREATE_KEY" \
  --header 'Content-Type: application/json' \
  --data '{"desktop_os":"linux","cpus":"1","memory":"1Gi","isolation":"container","timeout_seconds":300}' \
  > sandbox-created.json
SANDBOX_ID=$(jq -er '.sandbox_id | select(type == "string" and length > 0)' sandbox-created.json)
printf '%s\n' "$SANDBOX_ID" > sandbox-id.txt

ready=false
for attempt in {1..30}; do
  request "$SANDBOX_URL/sandbox/$SANDBOX_ID/status" > sandbox-status.json
  status=$(jq -er '.status' sandbox-status.json)
  case "$status" in
    running) ready=true; break ;;
    creating) sleep 2 ;;
    *) printf 'Unexpected sandbox state: %s\n' "$status" >&2; exit 1 ;;
  esac
done
if [ "$ready" != true ]; then
  printf 'Sandbox did not become ready within 30 observations.\n' >&2
  exit 1
fi

request --request POST "$SANDBOX_URL/sandbox/$SANDBOX_ID/execute" \
  --header "Idempotency-Key: ${SANDBOX_CREATE_KEY}-exec" \
  --header 'Content-Type: application/json' \
  --data '{"command":["printf","sandbox-ok"],"working_dir":"/workspace","timeout":10000}' \
  > sandbox-execution.json
jq -e '.exit_code == 0 and .stdout == "sandbox-ok" and (.outcome // "known") != "unknown" and (.system_error // "") != "exec_stream_lost"' sandbox-execution.json
printf 'Command output verified for sandbox %s\n' "$SANDBOX_ID"
