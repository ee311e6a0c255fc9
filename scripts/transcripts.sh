#!/usr/bin/env bash
# Runs every command of billing and audit against a running `make up` and prints what it shows, as docs/reference/transcripts.md has it. It ends with
# a failing status where one of them fails. It makes tenant $TENANT, which must not be there yet, and leaves it.
#   STATE=.sandtrail  TENANT=acme
set -euo pipefail
cd "$(dirname "$0")/.."
STATE=$(realpath "${STATE:-.sandtrail}")
# Prices and rebuilds need more rights than a reader has.
export SANDTRAIL_CLICKHOUSE=@$STATE/clickhouse/address
TENANT=${TENANT:-acme}
PATH="$PWD/bin:$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$STATE/keys/audit.pem.pub" "$work/"
cd "$work"

section() { printf '\n## %s\n' "$*"; }
# run shows a command, its output without blanks at the ends of lines, and its exit code where that is not 0.
run() {
  printf '\n```console\n$ %s\n' "$*"
  local code=0
  bash -o pipefail -c "$*" >out 2>&1 </dev/null || code=$?
  sed -e 's/[[:space:]]*$//' -e '/level=WARN/d' out
  [ "$code" = "${EXPECT:-0}" ] || { cat out >&2; echo "transcripts: '$*' ended with $code" >&2; exit 1; }
  [ "$code" = 0 ] || printf '(exit code %s)\n' "$code"
  printf '```\n'
}
# await waits a minute and a half for a command to succeed.
await() {
  for _ in $(seq 90); do bash -o pipefail -c "$*" >/dev/null 2>&1 && return; sleep 1; done
  echo "transcripts: '$*' did not come" >&2
  exit 1
}

cat <<TEXT
# Transcripts

Made by \`scripts/transcripts.sh\` against \`make up\` on $(date -u +%F), with nothing left out. Ids, times and digests are others each time.
TEXT

section Prices, and something to bill
sandtrail tenant create "$TENANT" >/dev/null
month=$(date -u +%Y-%m)
run sandtrail usage price set execs 0.25 EUR --per one --from "$month-01" --past
run sandtrail usage price set exec_wall 0.36 EUR --per hour --from "$month-01" --past
run sandtrail usage price ls
ID=$(sandtrail create --tenant "$TENANT" --session demo)
export ID
printf '\n```console\n$ ID=$(sandtrail create --tenant %s --session demo); echo $ID\n%s\n```\n' "$TENANT" "$ID"
run "sandtrail exec $ID -- sh -c 'echo one; sleep 1; echo two'"
EXPECT=3 run "sandtrail exec $ID -- sh -c 'exit 3'"
await "[ \$(sandtrail usage ls --session demo --tenant $TENANT -o json | jq length) = 2 ]"
EXEC=$(sandtrail usage ls --tenant "$TENANT" --session demo -o json | jq -r 'sort_by(.occurred_at)[0].exec_id')
await "sandtrail usage show --tenant $TENANT -o json | jq -e 'any(.meter == \"execs\" and .quantity == \"2\")'"

section Usage
run sandtrail usage ls --tenant "$TENANT" --session demo
run sandtrail usage show --tenant "$TENANT" --by tenant,day
run sandtrail usage show --tenant "$TENANT" --by session,hour --meter execs,exec_wall -o csv
run "sandtrail usage show --tenant $TENANT -o parquet > usage.parquet; head -c 4 usage.parquet; echo"
run sandtrail usage top session --tenant "$TENANT" --meter execs
run sandtrail usage explain "$EXEC"
run sandtrail usage verify
run sandtrail usage invoice "$month" --tenant "$TENANT"
run sandtrail usage rebuild --compare

section Budgets
run sandtrail budget set --tenant "$TENANT" --amount 0.4 --currency EUR --threshold 50,100 --refuse
await "sandtrail budget show --tenant $TENANT -o json | jq -e '.state == \"refusing\"'"
run sandtrail budget show --tenant "$TENANT" --costs
EXPECT=241 run sandtrail create --tenant "$TENANT"
run sandtrail budget ls
run sandtrail budget rm --tenant "$TENANT"

section Replay
run sandtrail replay exec "$EXEC"
run sandtrail replay exec "$EXEC" --play --speed 10
run sandtrail replay exec "$EXEC" --asciicast -
run sandtrail replay sandbox "$ID"
FIRST=$(sandtrail events --sandbox "$ID" -o json | jq -rs '.[0].sequence')
run sandtrail replay sandbox "$ID" --at "$FIRST"
run sandtrail replay tenant "$TENANT"
run "sandtrail replay run --filter 'evt.$TENANT.exec.>'"
run "sandtrail replay run --into jsonl --file - --type ExecCompleted --filter 'evt.$TENANT.exec.>' 2>/dev/null | jq -c '{type, subject, time}'"
run sandtrail trace "$EXEC"

section Audit
await "sandtrail audit prove $FIRST --key audit.pem.pub"
run sandtrail audit checkpoint --key audit.pem.pub
run sandtrail audit verify --key audit.pem.pub
run sandtrail audit export export
run sandtrail audit verify export --key audit.pem.pub
run sandtrail audit prove "$FIRST" --key audit.pem.pub --to proof.json
run sandtrail audit check-proof proof.json --key audit.pem.pub
run sandtrail audit log --tenant "$TENANT"

section Subscribers and dead letters
run sandtrail subscriber create "billing-$TENANT" --tenant "$TENANT"
run sandtrail subscriber list
run sandtrail subscriber config "billing-$TENANT" --tenant "$TENANT" --nkey UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4
run sandtrail subscriber delete "billing-$TENANT"
run sandtrail dlq ls
sandtrail rm "$ID" >/dev/null
