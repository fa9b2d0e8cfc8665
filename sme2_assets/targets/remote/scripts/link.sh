# adbd lets everybody write to what is made by its shell.
umask 022
root=$1; folder=$2; shift 2
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname "$folder/$1")" && ln -sf "$root/store/$2" "$folder/$1" || exit 1
  shift 2
done
