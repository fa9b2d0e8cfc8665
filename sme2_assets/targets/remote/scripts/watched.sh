# `$$` leads a process group, as adbd starts every shell in a session of its own. Without a descriptor of
# its own a background process of a shell would read from /dev/null. The last line ends the watcher; the exit
# code that counts is the reported one.
mark=$1; shift
echo "$mark begin $$" >&2
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
( read -r line <&3; kill -9 -$$ ) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $child
code=$?
printf '\n%s end %s\n' "$mark" "$code" >&2
kill -9 $watcher 2>/dev/null
exit $code
