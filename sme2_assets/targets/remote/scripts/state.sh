# What asking costs others (`dumpsys` makes system services work) comes after the second reading.
pause=$2
counters() {
  section "uptime $1"; cat /proc/uptime
  section "stat $1"; cat /proc/stat
  section "processes $1"; cat /proc/[0-9]*/stat 2>/dev/null
}
section self; echo $$
counters before
sleep "$pause"
counters after
section loadavg; cat /proc/loadavg 2>/dev/null
section files; grep -asH '' \
  /sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq \
  /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq \
  /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_max_freq \
  /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor \
  /sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count \
  /sys/class/thermal/thermal_zone*/type \
  /sys/class/thermal/thermal_zone*/temp \
  /sys/class/thermal/thermal_zone*/trip_point_*_type \
  /sys/class/thermal/thermal_zone*/trip_point_*_temp \
  /sys/class/thermal/cooling_device*/type \
  /sys/class/thermal/cooling_device*/cur_state \
  /sys/class/power_supply/*/type \
  /sys/class/power_supply/*/scope \
  /sys/class/power_supply/*/capacity \
  /sys/class/power_supply/*/temp \
  /sys/class/power_supply/*/online
section battery; ask dumpsys -t 5 battery
section thermal; ask dumpsys -t 5 thermalservice
section end
