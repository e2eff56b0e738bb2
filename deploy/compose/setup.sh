#!/bin/sh
# Runs once, when the broker is healthy: the topic, and a token for each program with the rights that it needs.
set -eu
DRIFTQ_TOKEN=$(cat "$TOKENS/operator")
export DRIFTQ_TOKEN
driftq topics create orders --partitions 4
[ -s "$TOKENS/worker" ] || driftq tokens create worker --grant consume:orders/billing --to "$TOKENS/worker"
[ -s "$TOKENS/archive" ] || driftq tokens create archive --grant read:orders --to "$TOKENS/archive"
