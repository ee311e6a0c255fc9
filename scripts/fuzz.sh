#!/usr/bin/env bash
# Runs every fuzz target of the tree, one after another, FUZZTIME each (2m), or those whose "directory Name" matches FUZZ, a regular
# expression. A crash does not keep the others; its input stands in the package's testdata/fuzz, from where ordinary tests run it again:
# fix it and commit both. FUZZFLAGS goes to go test.
set -uo pipefail
cd "$(dirname "$0")/.."
time=${FUZZTIME:-2m}
only=${FUZZ:-.}
mapfile -t targets < <(grep -rE '^func Fuzz[A-Za-z0-9_]*\(f \*testing\.F\)' --include='*_test.go' . |
  sed -E 's|^\./(.*)/[^/]*:func (Fuzz[^(]*)\(.*|\1 \2|' | sort | grep -E "$only")
if ((${#targets[@]} == 0)); then
  echo "no fuzz target matches $only" >&2
  exit 1
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
summary=() failed=0
for i in "${!targets[@]}"; do
  read -r dir name <<<"${targets[i]}"
  printf '== %d of %d: %s %s\n' $((i + 1)) ${#targets[@]} "$dir" "$name"
  start=$SECONDS result=ok
  # shellcheck disable=SC2086 # FUZZFLAGS is several words
  if ! ${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" ${FUZZFLAGS:-} "./$dir" 2>&1 | tee "$out"; then
    result=FAILED failed=$((failed + 1))
  fi
  execs=$(grep -oE 'execs: [0-9]+' "$out" | tail -1 | cut -d' ' -f2)
  total=$(grep -oE 'total: [0-9]+' "$out" | tail -1 | cut -d' ' -f2)
  summary+=("$(printf '%-7s %11s execs %6s inputs %5ss  %s %s' "$result" "${execs:--}" "${total:--}" $((SECONDS - start)) "$dir" "$name")")
done
printf '\n%s\n' "${summary[@]}"
printf '%d of %d targets failed\n' "$failed" ${#targets[@]}
((failed == 0))
