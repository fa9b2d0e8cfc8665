#include "cycles.h"

namespace sme2 {

std::optional<int64_t> cycles_between(const std::optional<CycleReading>& before,
                                      const std::optional<CycleReading>& after) {
  if (!before || !after || after->running_ns - before->running_ns != after->enabled_ns - before->enabled_ns ||
      after->cycles <= before->cycles) {
    return std::nullopt;
  }
  return after->cycles - before->cycles;
}

}  // namespace sme2
