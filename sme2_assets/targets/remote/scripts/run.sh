# Limits as on the computer that measures: the device's memory, 4 GiB (in blocks of 512 bytes) per file, no core file;
# and the first to be killed when memory runs out. What a shell or a device does not allow is left as it is.
cd "$1" || exit 1
shift
while read -r name kilobytes unit; do
  [ "$name" != MemTotal: ] || ulimit -d "$kilobytes"
done 2>/dev/null </proc/meminfo
{ ulimit -f 8388608; ulimit -c 0; echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
exec "$@"
