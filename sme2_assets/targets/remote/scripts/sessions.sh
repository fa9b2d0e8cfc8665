# A session lives as long as the process that holds it, which has the session's name among its words. They end
# in NUL characters, where toybox's grep stops reading unless -z tells it otherwise.
alive() {
  pid=$(cat "$root/sessions/$1/holder" 2>/dev/null) && grep -qzF "$1" "/proc/$pid/cmdline" 2>/dev/null
}
end() {
  for file in $(grep -lzF "$1" /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    kill -9 "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$root/sessions/$1"
  [ "$(readlink "$root/current")" = "$1" ] && rm -f "$root/current"
}
