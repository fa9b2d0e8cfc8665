# Whether a command that was given up is gone; killed when it is not. Its words, one of which is the mark, tell
# whether the process is still that one.
pid=$1; mark=$2; tries=0
while [ $tries -lt 300 ]; do
  grep -qzxF "$mark" "/proc/$pid/cmdline" 2>/dev/null || exit 0
  [ $tries -gt 2 ] && group=$(group_of "$pid") && kill -9 "-$group" 2>/dev/null
  sleep 0.1
  tries=$((tries + 1))
done
exit 1
