root=$1; folder=$1
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
df -Pk "$folder"
echo "stored $(du -sk "$root" 2>/dev/null | cut -f1)"
