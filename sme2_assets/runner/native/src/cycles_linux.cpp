#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cycles.h"

namespace sme2 {

CycleCounter::CycleCounter() : CycleCounter(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES) {}

CycleCounter::CycleCounter(uint32_t type, uint64_t config) {
  perf_event_attr event = {};
  event.size = sizeof(event);
  event.type = type;
  event.config = config;
  event.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  // What most systems let everybody count.
  event.exclude_kernel = 1;
  event.exclude_hv = 1;
  file_ = static_cast<int>(::syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

CycleCounter::~CycleCounter() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

std::optional<CycleReading> CycleCounter::read() const {
  uint64_t values[3] = {};
  if (file_ < 0 || ::read(file_, values, sizeof(values)) != sizeof(values)) {
    return std::nullopt;
  }
  return CycleReading{static_cast<int64_t>(values[0]), static_cast<int64_t>(values[1]),
                      static_cast<int64_t>(values[2])};
}

}  // namespace sme2
