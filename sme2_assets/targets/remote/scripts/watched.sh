# What a login shell prints comes before the first mark on standard output. Without a descriptor of its own a
# background process of a shell would read from /dev/null. The watcher kills its process group, which is ours whoever
# leads it; where sh is bash, `read` would obey a TMOUT of the host. The last line ends the watcher; the exit code that
# counts is the reported one.
mark=$1; shift
unset TMOUT
printf '\n%s out\n' "$mark"
printf '\n%s begin %s\n' "$mark" "$$" >&2
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
( read -r line <&3; kill -9 0 ) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $child
code=$?
printf '\n%s end %s\n' "$mark" "$code" >&2
kill -9 $watcher 2>/dev/null
exit $code
