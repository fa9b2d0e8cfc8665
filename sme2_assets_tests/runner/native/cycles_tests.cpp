#include "cycles.h"

#include "check.h"

using sme2::CycleReading;
using sme2::cycles_between;

TEST(cycles_are_known_only_where_the_counter_counted_all_the_time) {
  const CycleReading before = {100, 1'000, 900};
  CHECK(cycles_between(before, CycleReading{350, 1'500, 1'400}) == 250);
  CHECK(!cycles_between(before, CycleReading{350, 1'500, 1'399}));
  CHECK(!cycles_between(before, CycleReading{100, 1'500, 1'400}));
  CHECK(!cycles_between(before, std::nullopt));
  CHECK(!cycles_between(std::nullopt, before));
}

TEST(an_event_that_does_not_exist_is_no_failure) { CHECK(!sme2::CycleCounter(0xffff, 0).read()); }

TEST(a_counter_that_can_be_opened_grows) {
  // The task clock is counted in software, so it is there where the CPU's counters are not.
  const sme2::CycleCounter counter(1, 1);
  const auto before = counter.read();
  if (!before) {
    return;
  }
  volatile int64_t sum = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    sum = sum + i;
  }
  CHECK(cycles_between(before, counter.read()).value_or(0) > 0);
}
