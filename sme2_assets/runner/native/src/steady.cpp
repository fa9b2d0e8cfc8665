#include "steady.h"

#include <algorithm>

namespace sme2 {
namespace {

// 2 % as one part of 50: whole numbers need no rounding.
constexpr int64_t kTolerancePart = 50;

int64_t median_of(std::vector<int64_t> window) {
  const auto middle = window.begin() + static_cast<std::ptrdiff_t>(window.size() / 2);
  std::nth_element(window.begin(), middle, window.end());
  return *middle;
}

}  // namespace

bool ends_steady(const std::vector<int64_t>& durations_ns) {
  const size_t window = std::max(kSteadyWindow, durations_ns.size() / 4);
  if (durations_ns.size() < 2 * window) {
    return false;
  }
  const auto border = durations_ns.end() - static_cast<std::ptrdiff_t>(window);
  const auto [smaller, larger] = std::minmax(
      {median_of({border - static_cast<std::ptrdiff_t>(window), border}), median_of({border, durations_ns.end()})});
  return larger - smaller <= smaller / kTolerancePart;
}

}  // namespace sme2
