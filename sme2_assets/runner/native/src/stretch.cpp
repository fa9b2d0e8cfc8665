#include "stretch.h"

namespace sme2 {

int64_t run_stretch(const Stretch& stretch, const std::function<int64_t()>& now_ns, const std::function<void()>& infer,
                    const std::function<void()>& halfway) {
  const int64_t start_ns = now_ns();
  bool first_half = true;
  for (uint64_t made = 0;; ++made) {
    const int64_t elapsed_ns = now_ns() - start_ns;
    if (made >= stretch.most || (made >= stretch.least && elapsed_ns >= stretch.least_ns)) {
      return elapsed_ns;
    }
    const uint64_t twice = 2 * made + 1;
    if (first_half && made > 0 &&
        ((twice >= stretch.least && elapsed_ns >= stretch.least_ns / 2) || twice >= stretch.most)) {
      first_half = false;
      halfway();
    }
    infer();
  }
}

void ThinnedSeries::add(int64_t value) {
  if (count_++ % stride_ != 0) {
    return;
  }
  kept_.push_back(value);
  if (kept_.size() == kMostKept) {
    for (size_t i = 0; 2 * i < kept_.size(); ++i) {
      kept_[i] = kept_[2 * i];
    }
    kept_.resize(kMostKept / 2);
    stride_ *= 2;
  }
}

}  // namespace sme2
