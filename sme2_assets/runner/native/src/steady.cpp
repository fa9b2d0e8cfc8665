#include "steady.h"

#include <algorithm>

namespace sme2 {
namespace {

// 2 % as one part of 50: whole numbers need no rounding.
constexpr int64_t kTolerancePart = 50;

int64_t window_median(std::vector<int64_t>::const_iterator first) {
  int64_t window[kSteadyWindow];
  std::copy_n(first, kSteadyWindow, window);
  std::nth_element(window, window + kSteadyWindow / 2, window + kSteadyWindow);
  return window[kSteadyWindow / 2];
}

}  // namespace

bool ends_steady(const std::vector<int64_t>& durations_ns) {
  if (durations_ns.size() < 2 * kSteadyWindow) {
    return false;
  }
  const auto [smaller, larger] = std::minmax(
      {window_median(durations_ns.end() - 2 * kSteadyWindow), window_median(durations_ns.end() - kSteadyWindow)});
  return larger - smaller <= smaller / kTolerancePart;
}

}  // namespace sme2
