_otel_goodput_runs() {
    local run current="${1//\\/}"
    for run in "${OTEL_GOODPUT_DIR:-goodput}"/*/; do
        run="${run%/}"; run="${run##*/}"
        case "$run" in "*"|*%*) ;; "$current"*) printf '%q\n' "$run" ;; esac
    done
}
