root=$2; folder=$root
while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
section df; df -Pk "$folder"
section stored; du -sk "$root" 2>/dev/null | cut -f1
section end
