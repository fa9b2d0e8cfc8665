// Whether a warm-up ended steady. The rule exists here only: whoever reads a result is told the outcome, and does
// not ask again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sme2 {

constexpr size_t kSteadyWindow = 5;

// Whether the medians of the last two quarters of the series, of kSteadyWindow values each at least, differ by at
// most 2 % of the smaller one. False while there are fewer than two windows. It does not see a drift that is slower.
bool ends_steady(const std::vector<int64_t>& durations_ns);

}  // namespace sme2
