#include "steady.h"

#include "check.h"

namespace {

std::vector<int64_t> two_windows(int64_t first, int64_t second) {
  std::vector<int64_t> series(sme2::kSteadyWindow, first);
  series.insert(series.end(), sme2::kSteadyWindow, second);
  return series;
}

}  // namespace

TEST(fewer_than_two_windows_are_never_steady) {
  CHECK(!sme2::ends_steady({}));
  CHECK(!sme2::ends_steady(std::vector<int64_t>(2 * sme2::kSteadyWindow - 1, 100)));
  CHECK(sme2::ends_steady(std::vector<int64_t>(2 * sme2::kSteadyWindow, 100)));
}

TEST(two_percent_of_the_smaller_one_is_the_limit) {
  CHECK(sme2::ends_steady(two_windows(100, 102)));
  CHECK(sme2::ends_steady(two_windows(102, 100)));
  CHECK(!sme2::ends_steady(two_windows(100, 103)));
  CHECK(!sme2::ends_steady(two_windows(49, 50)));
  CHECK(sme2::ends_steady(two_windows(INT64_MAX, INT64_MAX)));
  CHECK(sme2::ends_steady(two_windows(0, 0)));
}

TEST(a_long_series_is_judged_by_its_last_two_quarters) {
  // Each window of five is level with the next, and still the series drifts by a tenth from quarter to quarter.
  std::vector<int64_t> drifting;
  for (int64_t i = 0; i < 400; ++i) {
    drifting.push_back(20'000 - 20 * i);
  }
  CHECK(sme2::ends_steady({drifting.begin(), drifting.begin() + 10}));
  CHECK(!sme2::ends_steady(drifting));
  std::vector<int64_t> settled = drifting;
  settled.resize(800, 12'000);
  CHECK(sme2::ends_steady(settled));
}

TEST(the_last_two_windows_decide_and_outliers_do_not) {
  std::vector<int64_t> series = {5000, 5000, 5000};
  for (const int64_t value : {100, 900, 100, 100, 900, 101, 101, 900, 900, 101}) {
    series.push_back(value);
  }
  CHECK(sme2::ends_steady(series));
}
