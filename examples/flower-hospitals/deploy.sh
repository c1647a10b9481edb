#!/usr/bin/env bash
# A server and three hospitals as processes of this machine, on loopback and unencrypted; docs/deploy.md has the real thing.
# usage: ./deploy.sh [further options as flwr run --run-config takes them, e.g. "evenfed.rounds=2"]
set -euo pipefail
cd "$(dirname "$0")"
set -a && . ./quiet.env && set +a
PORT=${PORT:-8000}
export FLWR_HOME="$PWD/runs/flower"
mkdir -p "$FLWR_HOME" && rm -f runs/*.log
printf '[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:%s"\ninsecure = true\n' "$PORT" >"$FLWR_HOME/config.toml"

STARTED=()
trap 'kill "${STARTED[@]}" 2>/dev/null; wait' EXIT
start() { "$@" >"runs/$NAME.log" 2>&1 & STARTED+=($!); }

NAME=server start flower-superlink --insecure --disable-runtime-dependency-installation --host 127.0.0.1 --port "$PORT"
until grep -qs "Uvicorn running" runs/server.log; do
    kill -0 "${STARTED[0]}" 2>/dev/null || { cat runs/server.log && exit 1; } # as when the port is taken: PORT=8100 ./deploy.sh
    sleep 0.3
done
for K in 0 1 2; do
    NAME=hospital-$K start flower-supernode --insecure --superlink "127.0.0.1:$PORT" --host 127.0.0.1 \
        --port $((PORT + 1 + K)) --node-config "partition-id=$K num-partitions=3"
done
flwr run . here --stream --run-config "evenfed.out='$PWD/runs' ${1:-evenfed.rounds=5}"
