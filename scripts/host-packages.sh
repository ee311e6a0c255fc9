#!/usr/bin/env bash
# Says what a host lacks that tests and `up` need, and installs it where apt-get and root allow. Needs nothing on a usual Debian.
set -euo pipefail
declare -A package=([mkfs.ext4]=e2fsprogs [dpkg-deb]=dpkg [npm]=npm [jq]=jq [curl]=curl [git]=git [python3]=python3 [tmux]=tmux [ip]=iproute2 [nsenter]=util-linux)
missing=()
for program in "${!package[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "missing on this host: ${missing[*]}" >&2
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "install them and run again" >&2
  exit 1
fi
