#!/usr/bin/env bash
# A whole worker over HTTP, in shell: it claims work, keeps its lease, runs it, and reports what came of it.
#
#   URL=http://127.0.0.1:8000/api/v1 TOKEN=… WORKER_ID=shell-1 ./worker.sh
#
# It runs the definition shell.checksum, whose input is {"path": "…"}. With DRAIN=1 it ends when there is nothing to do.
# Needs curl, sha256sum, and python3 to take JSON apart.
set -euo pipefail

: "${URL:?where the interface is, as http://127.0.0.1:8000/api/v1}" "${TOKEN:?a token of a user with the role worker}"
WORKER_ID=${WORKER_ID:-shell-$$}
LEASE_MS=${LEASE_MS:-30000}
WAIT_MS=${WAIT_MS:-20000}
DRAIN=${DRAIN:-}
answer=$(mktemp)
trap 'rm -f "$answer" "$answer".*' EXIT

# json EXPRESSION: print a part of the JSON on standard input; `it` is the whole.
json() { python3 -c 'import json, sys; it = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"; }

# rest SECONDS: so long, and up to a second more, by chance: others were told the same.
rest() { sleep "$1.$(printf %03d $((RANDOM % 1000)))"; }

# later FILE: print after how many seconds the server wants to be asked again, if that answer has said so.
later() { sed -n 's/^retry-after: *\([0-9]\{1,4\}\).*/\1/Ip' "$1.headers" | tail -n 1; }

# say PATH BODY [FILE]: post it until there is an answer; leave that in FILE, and print its status.
# 408, 425, 429, 502, 503, 504 and no answer at all are worth repeating. Every other status is the last word.
# Neither the token nor a body stands among curl's arguments, which everybody on this machine may read.
say() {
    local path=$1 body=$2 file=${3:-$answer} status asked pause=1
    while :; do
        : >"$file.headers"
        status=$(curl --silent --show-error --max-time $((WAIT_MS / 1000 + 30)) --output "$file" \
            --dump-header "$file.headers" --write-out '%{http_code}' \
            --config <(printf 'header = "Authorization: Bearer %s"\n' "$TOKEN") \
            --header 'Content-Type: application/json' --data-binary @- "$URL/$path" <<<"$body") || status=000
        case $status in
        000 | 408 | 425 | 429 | 502 | 503 | 504)
            asked=$(later "$file")
            rest $((${asked:-0} > pause ? asked : pause))
            pause=$((pause < 5 ? pause * 2 : 10))
            ;;
        *)
            echo "$status"
            return
            ;;
        esac
    done
}

# beat PATH FENCE: keep the lease, three times in its length, until it is refused. What is run here causes no effects:
# other work would have to be stopped then, and at the end of its own lease.
beat() {
    while sleep $((LEASE_MS / 3000)).$(printf %03d $((LEASE_MS / 3 % 1000))); do
        [ "$(say "$1/heartbeat/" "{$2, \"extend_ms\": $LEASE_MS}" "$answer.beat")" = 200 ] || return 0
    done
}

run() {
    local workload=$1 fence=$2 attempt=$3 path=$4 sum status
    beat "workloads/$workload" "$fence" &
    local heartbeat=$!
    if sum=$(sha256sum -- "$path" 2>"$answer.error"); then
        # The attempt's id is a result id of its own: a repeat of this report is known as one.
        status=$(say "workloads/$workload/complete/" \
            "{$fence, \"result_id\": \"$attempt\", \"output\": {\"sha256\": \"${sum%% *}\"}}")
    else
        status=$(say "workloads/$workload/fail/" \
            "{$fence, \"kind\": \"unreadable\", \"error\": $(python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))' <"$answer.error"), \"effect\": \"none\"}")
    fi
    kill "$heartbeat" 2>/dev/null || true
    wait "$heartbeat" 2>/dev/null || true
    echo "$workload: $status"
}

while :; do
    # The same request id gets the same claims, should the answer be lost on the way.
    request="$WORKER_ID-$(date +%s%N)"
    status=$(say claims/ "{\"worker_id\": \"$WORKER_ID\", \"capabilities\": [], \"lease_ms\": $LEASE_MS,
        \"definitions\": [\"shell.checksum\"], \"start\": true, \"request_id\": \"$request\", \"wait_ms\": $WAIT_MS}")
    if [ "$status" != 200 ]; then
        cat "$answer" >&2
        exit 1
    fi
    if [ "$(json 'len(it["claims"])' <"$answer")" = 0 ]; then
        [ -z "$DRAIN" ] || exit 0
        asked=$(later "$answer")
        rest "${asked:-0}"
        continue
    fi
    fence=$(json '", ".join(json.dumps(k) + ": " + json.dumps(it["claims"][0][k])
        for k in ("claim_id", "worker_id", "fencing_token"))' <"$answer")
    run "$(json 'it["claims"][0]["workload_id"]' <"$answer")" "$fence" \
        "$(json 'it["claims"][0]["attempt_id"]' <"$answer")" "$(json 'it["claims"][0]["input"]["path"]' <"$answer")"
done
