#!/bin/bash
# Kill a command at random times and start it again; at last let it finish:
#   kill_again_and_again.sh KILLS FOLDER COMMAND...
# It knows nothing of the command but the folder that it writes to. Every fifth kill comes at any time, also before the
# first result; the others come up to 0.4 s after the next result. Prints how many times the command was killed.
count=$1 folder=$2 kills=0
shift 2
files() { find "$folder/units" "$folder/packs" -type f 2>/dev/null | wc -l; }
for ((i = 0; i < count; i++)); do
    before=$(files)
    "$@" >/dev/null 2>&1 &
    pid=$!
    if ((i % 5 == 0)); then
        sleep "$((RANDOM % 4)).$((RANDOM % 10))"
    else
        while kill -0 "$pid" 2>/dev/null && [ "$(files)" -eq "$before" ]; do sleep 0.02; done
        sleep "0.$(printf %02d $((RANDOM % 40)))"
    fi
    kill -9 "$pid" 2>/dev/null && ((kills++))
    wait "$pid" 2>/dev/null
done
echo "$kills"
"$@" >/dev/null
