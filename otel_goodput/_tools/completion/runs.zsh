_otel_goodput_runs() {
    local -a runs=("${OTEL_GOODPUT_DIR:-goodput}"/*(N/:t))
    compadd -- ${runs:#*%*}
}
