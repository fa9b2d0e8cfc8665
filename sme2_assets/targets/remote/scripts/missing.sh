# Hashes that are not in the store, or not with that content; then the free space. What is there can be run: a copy of
# the store may have lost that.
root=$1; shift
for sha in "$@"; do
  file=$root/store/$sha
  found=$(sha256sum "$file" 2>/dev/null)
  [ "${found%% *}" = "$sha" ] && { [ -x "$file" ] || chmod 755 "$file"; } || echo "missing $sha"
done
df -Pk "$root"
