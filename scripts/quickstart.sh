#!/usr/bin/env bash
# Runs the gRPC quickstart against a running Sandtrail with an unmodified grpcurl, and checks each answer.
#   GRPC=localhost:50051  CLICKHOUSE=http://127.0.0.1:8123 (default: as `sandtrail up` wrote it to STATE/up.json)
#   KEY=...  an API key of tenant acme-tenant-uuid, where the gateway asks for one; it is sent with each call and not shown
set -euo pipefail
cd "$(dirname "$0")/.."
GRPC=${GRPC:-localhost:50051}
STATE=${STATE:-.sandtrail}
SESSION=${SESSION:-session-uuid-001}
if [ -z "${CLICKHOUSE:-}" ] && [ -r "$STATE/up.json" ]; then CLICKHOUSE=$(jq -r '.clickhouse_http // empty' "$STATE/up.json"); fi
PATH="$PWD/bin:$PATH"
if ! command -v grpcurl >/dev/null; then
  echo "getting grpcurl (github.com/fullstorydev/grpcurl, Go module proxy) into bin/"
  GOWORK=off GOBIN="$PWD/bin" CGO_ENABLED=0 go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4
fi

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || step() { printf '\n%s\n' "$*"; }
show() { printf '$'; printf ' %q' "$@"; printf '\n'; }
# grpcurl takes the key from the environment: an argument would stand in the list of processes.
auth=()
if [ -n "${KEY:-}" ]; then
  export KEY
  auth=(-expand-headers -H 'authorization: ApiKey ${KEY}')
fi
call() { show grpcurl "$@" >&2; grpcurl "${auth[@]}" "$@" | tee >(cat >&2); }
fail() { echo "quickstart: $*" >&2; exit 1; }
expect() { [ "$2" = "$3" ] || fail "$1 is '$2', expected '$3'"; }

step "1. Verify the server is up"
out=$(call -plaintext "$GRPC" grpc.health.v1.Health/Check)
expect "health" "$(jq -r .status <<<"$out")" SERVING

step "2. Create a sandbox"
out=$(call -plaintext -d "{
  \"tenant_id\": \"acme-tenant-uuid\",
  \"session_id\": \"$SESSION\",
  \"image\":      \"ghcr.io/paper-board/sandbox-python:v0.1.0\"
}" "$GRPC" compute.v1.ComputeService/CreateSandbox)
ID=$(jq -er .sandboxId <<<"$out")
expect "status" "$(jq -r .status <<<"$out")" SANDBOX_STATUS_STARTING
jq -e '.createdAt | length > 0' <<<"$out" >/dev/null || fail "no createdAt"

step "3. Execute a command"
out=$(call -plaintext -d "{
  \"sandbox_id\":  \"$ID\",
  \"command\":     \"python3\",
  \"args\":        [\"-c\", \"import socket, os; print(socket.gethostname()); print(42 * 2)\"],
  \"working_dir\": \"/workspace\"
}" "$GRPC" compute.v1.ComputeService/ExecCommand)
expect "events" "$(jq -s length <<<"$out")" 3
expect "first line" "$(jq -rs '.[0].stdout.data' <<<"$out" | base64 -d)" "sandbox-${ID:0:8}"
expect "second line" "$(jq -rs '.[1].stdout.data' <<<"$out" | base64 -d)" 84
expect "exit code" "$(jq -rs '.[2].completed.exitCode // 0' <<<"$out")" 0
USAGE=$(jq -ers '.[2].completed.usageEventId' <<<"$out")
CPU=$(jq -ers '.[2].completed.usage.cpuMs' <<<"$out")
MEMORY=$(jq -ers '.[2].completed.usage.memoryPeakBytes' <<<"$out")
[ "$CPU" -gt 0 ] && [ "$MEMORY" -gt 0 ] || fail "no usage in the answer"

step "4. Assert usage_event_id"
SQL="SELECT id, event_type, cpu_ms, memory_peak_bytes, wall_time_ms
FROM   agents.usage_events
WHERE  session_id = '$SESSION'
ORDER  BY occurred_at DESC
LIMIT  1;"
[ -n "${CLICKHOUSE:-}" ] || fail "CLICKHOUSE is not set and $STATE/up.json does not say where ClickHouse listens"
echo "$SQL"
row=""
for _ in $(seq 50); do
  row=$(curl -sS --fail-with-body "$CLICKHOUSE/" --data-binary "${SQL%;}")
  [ "${row%%$'\t'*}" = "$USAGE" ] && break
  sleep 0.2
done
echo "$row"
expect "row" "$(cut -f1-4 <<<"$row")" "$(printf '%s\texec_command\t%s\t%s' "$USAGE" "$CPU" "$MEMORY")"

step "5. Write and read a workspace file"
out=$(call -plaintext -d "{\"sandbox_id\": \"$ID\", \"path\": \"result.txt\", \"data\": \"aGVsbG8gd29ybGQK\"}" \
  "$GRPC" compute.v1.ComputeService/WriteFile)
expect "bytes written" "$(jq -r .bytesWritten <<<"$out")" 12
out=$(call -plaintext -d "{\"sandbox_id\": \"$ID\", \"path\": \"result.txt\"}" "$GRPC" compute.v1.ComputeService/ReadFile)
expect "data" "$(jq -r .data <<<"$out")" aGVsbG8gd29ybGQK

step "6. Destroy the sandbox"
out=$(call -plaintext -d "{\"sandbox_id\": \"$ID\"}" "$GRPC" compute.v1.ComputeService/DestroySandbox)
expect "sandbox" "$(jq -r .sandboxId <<<"$out")" "$ID"
[ "$(jq -er .totalUsage.cpuMs <<<"$out")" -ge "$CPU" ] || fail "total usage is less than the exec's"

step "Quickstart passed: sandbox $ID, usage row $USAGE"
