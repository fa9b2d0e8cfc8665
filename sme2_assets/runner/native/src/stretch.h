// How long a process warms up, and how long it is timed: by the clock and by inferences.
//
// Two arms that are warmed up by count alone are warmed up for different times: on a machine whose clock still
// rises, the faster one is then timed at a lower clock. Stretches of the same wall time meet the same clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace sme2 {

struct Stretch {
  uint32_t least = 0;    // inferences
  uint32_t most = 0;     // inferences, however short they are
  int64_t least_ns = 0;  // wall time
};

// Calls `infer` until `least` inferences are made and `least_ns` have passed by `now_ns`, or `most` are made.
// `halfway` is called once between two inferences, about in the middle. Gives the wall time it took.
int64_t run_stretch(const Stretch& stretch, const std::function<int64_t()>& now_ns, const std::function<void()>& infer,
                    const std::function<void()>& halfway);

// A series of any length in bounded memory: every stride-th value from the first on.
class ThinnedSeries {
 public:
  static constexpr size_t kMostKept = 1024;

  void add(int64_t value);
  const std::vector<int64_t>& kept() const { return kept_; }
  int64_t stride() const { return stride_; }
  int64_t count() const { return count_; }

 private:
  std::vector<int64_t> kept_;
  int64_t stride_ = 1;
  int64_t count_ = 0;
};

}  // namespace sme2
