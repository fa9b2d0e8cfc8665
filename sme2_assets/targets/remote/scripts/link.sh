root=$1; folder=$2; shift 2
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname "$folder/$1")" && ln -sf "$root/store/$2" "$folder/$1" || exit 1
  shift 2
done
