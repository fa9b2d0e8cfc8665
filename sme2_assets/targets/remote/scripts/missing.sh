# Hashes that are not in the store, or not with that content; then the free space.
root=$1; shift
for sha in "$@"; do
  found=$(sha256sum "$root/store/$sha" 2>/dev/null)
  [ "${found%% *}" = "$sha" ] || echo "missing $sha"
done
df -Pk "$root"
