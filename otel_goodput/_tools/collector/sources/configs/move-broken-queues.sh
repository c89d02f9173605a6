#!/bin/sh
# Moves broken queue files aside, to *.broken.*, because they would keep the collector from starting. It runs before
# each start (systemd), or every few seconds (`move-broken-queues.sh 5`, in a pod) on queues that no collector has
# open.
#
# The collector's own `recreate` handles only one of two kinds of damage: most damage ends the process. So this script
# checks what the collector checks when it opens a queue (a bbolt database): the heads and the tree of pages below
# them. It needs sh, od, awk and flock, as in busybox. If the script itself fails, the collector still starts.
state=${OTELCOL_GOODPUT_STATE:-/var/lib/otelcol-goodput}
pages=4000 # the number of pages checked in a long queue: takes some seconds
mark=12566977261 # the first 8 bytes of a head: 0xED0CDAED, version 2

numbers() { # FILE OFFSET BYTES TYPE
  od -A n -v -t "$4" -j "$2" -N "$3" "$1" 2>/dev/null
}

head_at() { # FILE OFFSET: the head there, where it is whole: transaction, size of a page, root, end
  file_=$1 sum=-3750763034362895579 # FNV-1a, 64 bits
  for byte in $(numbers "$1" $(($2 + 16)) 56 u1); do sum=$(((sum ^ byte) * 1099511628211)); done
  # shellcheck disable=SC2046
  set -- $(numbers "$file_" $(($2 + 16)) 64 d8)
  [ $# -eq 8 ] && [ "$1" = $mark ] && [ "$8" = $sum ] && echo "$7 $(($2 & 0xFFFFFFFF)) $3 $6"
}

head_of() { # FILE: the newer of its two heads
  first=$(head_at "$1" 0)
  for size in ${first:+$(echo "$first" | cut -d ' ' -f 2)} ${first:-1024 2048 4096 8192 16384 32768 65536}; do
    second=$(head_at "$1" "$size") && break
    [ -z "$first" ] || break
  done
  printf '%s\n' "$first" "$second" | sort -n | tail -n 1
}

walk() { # FILE HEAD: whether the tree is whole
  # shellcheck disable=SC2086
  set -- "$1" $2
  QUEUE=$1 awk -v size="$(wc -c <"$1")" -v page="$3" -v root="$4" -v end="$5" -v most="$pages" '
    function read_at(offset, width, count, into,    command, line, parts, found, n, i) {
      command = "od -A n -v -t u" width " -j " sprintf("%.0f", offset) " -N " width * count " \"$QUEUE\" 2>/dev/null"
      found = 0
      while ((command | getline line) > 0) {
        n = split(line, parts, " ")
        for (i = 1; i <= n; i++) into[++found] = parts[i]
      }
      close(command)
      return found == count
    }
    function later(id) { if (id in seen) exit 1; seen[id] = 1; left[++waiting] = id }
    BEGIN {
      if (size < 2 * page) exit 1
      later(root)
      while (waiting > 0 && most-- > 0) {
        id = left[waiting--]
        at = id * page
        # id, in four parts; branch (1) or leaf (2); how many elements; how many pages more, in two parts
        if (id > end || at + page > size || !read_at(at, 2, 8, h)) exit 1
        more = h[7] + 65536 * h[8]
        long = (more + 1) * page
        if (h[1] + 65536 * h[2] + 4294967296 * h[3] != id || h[4] || (h[5] != 1 && h[5] != 2)) exit 1
        if (at + long > size || 16 + 16 * h[6] > long) exit 1
        if (h[6] && !read_at(at + 16, 4, 4 * h[6], e)) exit 1
        for (k = 0; k < h[6]; k++) {
          here = 16 + 16 * k
          if (h[5] == 1) { # place and length of a key, page
            if (here + e[4 * k + 1] + e[4 * k + 2] > long) exit 1
            later(e[4 * k + 3] + 4294967296 * e[4 * k + 4])
          } else { # 1 for a bucket, place of a key, its length, that of the value behind
            if (here + e[4 * k + 2] + e[4 * k + 3] + e[4 * k + 4] > long) exit 1
            if (e[4 * k + 1] == 1) {
              if (!read_at(at + here + e[4 * k + 2] + e[4 * k + 3], 4, 2, b)) exit 1
              if (b[1] + b[2]) later(b[1] + 4294967296 * b[2]) # or it is within
            }
          }
        }
      }
    }'
}

unused() { # FILE COMMAND…: done where nobody has it open
  if command -v flock >/dev/null; then
    flock -n "$@"
  else
    shift && "$@"
  fi
}

check() {
  for file in "$state"/exporter_*; do
    case $file in *.backup | *.broken*) continue ;; esac
    [ -f "$file" ] && [ -s "$file" ] || continue # the collector begins an empty one anew
    version="$file $(stat -c '%i %s %Y' "$file" 2>/dev/null || date +%s)"
    case $good in *"<$version>"*) continue ;; esac
    unused "$file" true || continue
    found=$(head_of "$file")
    if [ -n "$found" ] && walk "$file" "$found"; then
      good="$good<$version>"
    elif unused "$file" mv -f "$file" "$file.broken.$(date +%s)"; then
      echo "moved aside, for it is no queue: $file" >&2
    fi
  done
}

good=
check
[ -n "$1" ] || exit 0
trap 'exit 0' TERM INT
while :; do
  sleep "$1" &
  wait $! # which a signal ends, unlike `sleep`
  ! command -v flock >/dev/null || check # a collector may be there by now, and its queues' trees change as one looks
done
