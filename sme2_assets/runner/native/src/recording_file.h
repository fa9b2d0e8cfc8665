// The recording of the kernels pass as one JSON object: program counters, and what their names can be found by.
// sme2_assets/runner/recording.py reads it.
#pragma once

#include <string>

#include "sampler.h"

namespace sme2 {

// One reading of the trace's clock and of the samples' clock.
struct ClockPair {
  int64_t trace_ns = 0;
  int64_t monotonic_ns = 0;
};

ClockPair read_clocks();

std::string recording_json(const std::string& arch, const Recording& recording, const ClockPair& clocks);

}  // namespace sme2
