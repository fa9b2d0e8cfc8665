# What tells a machine from others: the id of a Linux installation, or else its name in the network.
installation() {
  id=$(cat /etc/machine-id 2>/dev/null)
  [ ${#id} = 32 ] || id=$(uname -n)
  echo "$id"
}
