#!/bin/sh
# Before the collector starts: what is no queue file (any more) is moved aside, to *.broken, for it would keep the
# collector from starting. A disk that was full when a queue was begun leaves such files. What is broken further inside
# the collector moves aside itself (file_storage, `recreate`). Nothing that goes wrong here keeps it from starting.
state=${OTELCOL_GOODPUT_STATE:-/var/lib/otelcol-goodput}

# A bbolt database has its mark behind the head of each of its first two pages, one of which is whole.
marked() {
  [ "$(od -A n -t x4 -j "$2" -N 4 "$1" 2>/dev/null | tr -d ' ')" = ed0cdaed ]
}

for file in "$state"/exporter_*; do
  case $file in *.backup | *.broken*) continue ;; esac
  [ -f "$file" ] && [ -s "$file" ] || continue # the collector begins an empty one anew
  size=$(wc -c <"$file")
  page=$(getconf PAGE_SIZE)
  if [ "$size" -lt $((4 * page)) ] || { ! marked "$file" 16 && ! marked "$file" $((page + 16)); }; then
    echo "moved aside, for it is no queue: $file" >&2
    mv -f "$file" "$file.broken.$(date +%s)"
  fi
done
exit 0
