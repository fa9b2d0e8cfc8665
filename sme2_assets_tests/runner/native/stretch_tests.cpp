#include "stretch.h"

#include <algorithm>

#include "check.h"

namespace {

using sme2::Stretch;

// A clock that only inferences move.
struct FakeMachine {
  int64_t clock_ns = 0;
  int64_t inference_ns = 0;
  int64_t made = 0;
  std::vector<int64_t> halves;  // inferences that were made at each call of halfway

  int64_t run(const Stretch& stretch) {
    return sme2::run_stretch(
        stretch, [this] { return clock_ns; },
        [this] {
          clock_ns += inference_ns;
          ++made;
        },
        [this] { halves.push_back(made); });
  }
};

}  // namespace

TEST(a_stretch_lasts_for_its_time_and_its_inferences) {
  FakeMachine quick{7, 10};
  CHECK(quick.run({5, 1'000'000, 1'000}) == 1'000);
  CHECK(quick.made == 100);
  FakeMachine slow{0, 600};
  CHECK(slow.run({5, 1'000'000, 1'000}) == 3'000);
  CHECK(slow.made == 5);
  FakeMachine capped{0, 10};
  CHECK(capped.run({5, 30, 1'000}) == 300);
  CHECK(capped.made == 30);
  FakeMachine none{0, 10};
  CHECK(none.run({0, 5'000, 0}) == 0);
  CHECK(none.made == 0);
}

TEST(the_middle_is_told_once_and_never_of_a_single_inference) {
  for (const uint32_t count : {2u, 3u, 4u, 20u, 21u}) {
    FakeMachine machine{0, 10};
    machine.run({count, 5'000, 0});
    CHECK((machine.halves == std::vector<int64_t>{count / 2}));
  }
  FakeMachine one{0, 10};
  one.run({1, 5'000, 0});
  CHECK(one.halves.empty());
  FakeMachine by_time{0, 10};
  by_time.run({2, 5'000, 1'000});
  CHECK((by_time.halves == std::vector<int64_t>{50}));
  FakeMachine by_cap{0, 10};
  by_cap.run({2, 40, 1'000});
  CHECK((by_cap.halves == std::vector<int64_t>{20}));
}

TEST(a_series_of_any_length_is_thinned_evenly) {
  for (const int64_t count : {0, 1, 5, 1023, 1024, 1025, 5000, 100'000}) {
    sme2::ThinnedSeries series;
    for (int64_t i = 0; i < count; ++i) {
      series.add(i);
    }
    CHECK(series.count() == count);
    CHECK(series.kept().size() < sme2::ThinnedSeries::kMostKept);
    CHECK(static_cast<int64_t>(series.kept().size()) == (count + series.stride() - 1) / series.stride());
    for (size_t i = 0; i < series.kept().size(); ++i) {
      CHECK(series.kept()[i] == static_cast<int64_t>(i) * series.stride());
    }
  }
}
