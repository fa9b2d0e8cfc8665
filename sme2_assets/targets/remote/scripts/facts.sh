for property in ro.product.manufacturer ro.product.model ro.soc.manufacturer ro.soc.model ro.board.platform \
    ro.build.fingerprint ro.build.version.release ro.serialno; do
  section "$property"; ask getprop "$property"
done
section kernel; uname -r
section arch; uname -m
section system; uname -s
section os-release; cat /etc/os-release 2>/dev/null
section cpuinfo; cat /proc/cpuinfo 2>/dev/null
section meminfo; cat /proc/meminfo 2>/dev/null
section status; cat /proc/self/status 2>/dev/null
section sme_vector_bytes; cat /proc/sys/abi/sme_default_vector_length 2>/dev/null
section files; grep -asH '' \
  /sys/devices/system/cpu/online \
  /sys/devices/system/cpu/cpu[0-9]*/cpu_capacity \
  /sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq
section battery; ask dumpsys -t 5 battery
section end
