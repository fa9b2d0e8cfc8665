// When warm-up may end: the rule of sme2_assets/analysis/statistics.py (`steady_from`), which must say the same.
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
