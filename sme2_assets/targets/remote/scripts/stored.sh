# Hashes that are not in the store with that content, after what has arrived in the session's folder was moved there;
# then the free space. What is there can be run: a copy of the store may have lost that.
root=$1; incoming=$2; shift 2
for sha in "$@"; do
  file=$root/store/$sha
  [ ! -e "$incoming/$sha" ] || mv -f "$incoming/$sha" "$file" || exit 1
  found=$(sha256sum "$file" 2>/dev/null)
  [ "${found%% *}" = "$sha" ] && { [ -x "$file" ] || chmod 755 "$file"; } || echo "missing $sha"
done
df -Pk "$root"
