// CPU cycles of the calling thread, where the system lets a process count them: time by a clock that ramps with the
// CPU's. One file per platform: cycles_<platform>.cpp.
#pragma once

#include <cstdint>
#include <optional>

namespace sme2 {

struct CycleReading {
  int64_t cycles = 0;
  int64_t enabled_ns = 0;  // since the counter was opened
  int64_t running_ns = 0;  // of that, how long it really counted
};

// The cycles from one reading to the next. None where the counter did not count all of the time: it was shared
// with others, or belongs to another kind of core than the thread was on.
std::optional<int64_t> cycles_between(const std::optional<CycleReading>& before,
                                      const std::optional<CycleReading>& after);

// Counts the cycles that the thread which made it spends outside the kernel.
class CycleCounter {
 public:
  CycleCounter();
  // Any event of perf_event_open.
  CycleCounter(uint32_t type, uint64_t config);
  ~CycleCounter();
  CycleCounter(const CycleCounter&) = delete;
  CycleCounter& operator=(const CycleCounter&) = delete;

  // None where the system counts nothing for us: no counters, as in many virtual machines, or no permission.
  std::optional<CycleReading> read() const;

 private:
  int file_ = -1;
};

}  // namespace sme2
