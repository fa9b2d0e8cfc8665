# Whether a command that was given up is gone; killed when it is not. Its words, which hold the mark, tell
# whether the process is still that one.
pid=$1; mark=$2; tries=0
while [ $tries -lt 300 ]; do
  grep -qzF "$mark" "/proc/$pid/cmdline" 2>/dev/null || exit 0
  [ $tries -gt 2 ] && kill -9 "-$pid" 2>/dev/null
  sleep 0.1
  tries=$((tries + 1))
done
exit 1
