#!/bin/sh
# Runs a training command, and runs it again until it succeeds.
#
#   examples/retry.sh [-n TIMES] [-w SECONDS] [--] COMMAND [ARGUMENT ...]
#
#   -n TIMES    maximum number of tries; then exits with the status of the last one (default: 10)
#   -w SECONDS  wait between tries (default: 10)
#
# Each try is an attempt of the same run and gets the previous exit status (OTEL_GOODPUT_EXIT_CODE), so that the
# report knows what interrupted the run. SIGTERM and Ctrl-C reach the command as SIGTERM, and end the loop with it.

tries=10
wait_s=10

usage() {
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 64
}

whole() {
    case $2 in '' | *[!0-9]*) echo "retry.sh: $1 takes a whole number, not '$2'" >&2; exit 64 ;; esac
}

while getopts 'n:w:' option; do
    case $option in
        n) whole -n "$OPTARG"; tries=$OPTARG ;;
        w) whole -w "$OPTARG"; wait_s=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage

stopped=''
child=''
pass_on() {
    stopped=yes
    # Not SIGINT: a shell lets what it runs in the background ignore that.
    [ -z "$child" ] || kill -s TERM "$child" 2>/dev/null
}
trap pass_on TERM INT

try=1
while :; do
    # In the background, so that traps run immediately. <&0 keeps the standard input, which the shell would close.
    "$@" <&0 &
    child=$!
    # A signal interrupts wait. The command has received the signal; wait again until it is gone.
    while :; do
        wait "$child"
        status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=''
    if [ "$status" -eq 0 ] || [ -n "$stopped" ]; then
        exit "$status"
    fi
    if [ "$try" -ge "$tries" ]; then
        echo "retry.sh: try $try of $tries ended with status $status; that was the last" >&2
        exit "$status"
    fi
    echo "retry.sh: try $try of $tries ended with status $status; the next one begins in $wait_s s" >&2
    OTEL_GOODPUT_EXIT_CODE=$status
    export OTEL_GOODPUT_EXIT_CODE
    sleep "$wait_s" &
    child=$!
    wait "$child"
    child=''
    [ -z "$stopped" ] || exit "$status"
    try=$((try + 1))
done
