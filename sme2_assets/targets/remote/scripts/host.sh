# Beyond the facts: what tells a Linux machine from others, and where its user keeps what can be made again.
section machine-id; cat /etc/machine-id 2>/dev/null
section node; uname -n
section board; cat /sys/firmware/devicetree/base/model 2>/dev/null || cat /sys/class/dmi/id/product_name 2>/dev/null
section cache; printf '%s' "${XDG_CACHE_HOME:-$HOME/.cache}"
section end
