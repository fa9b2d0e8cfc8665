// When warm-up may end. The rule exists here only: whoever reads a result is told the outcome, and does not ask again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sme2 {

constexpr size_t kSteadyWindow = 5;

// Whether the medians of the last two windows differ by at most 2 % of the smaller one.
// False while there are fewer than two windows. It sees a drift from window to window, not a slower one.
bool ends_steady(const std::vector<int64_t>& durations_ns);

}  // namespace sme2
