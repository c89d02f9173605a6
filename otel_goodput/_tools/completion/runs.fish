function __otel_goodput_runs
    set -l place goodput
    set -q OTEL_GOODPUT_DIR; and set place $OTEL_GOODPUT_DIR
    for run in $place/*/
        string match -q -- '*%*' $run; or basename $run
    end
end
