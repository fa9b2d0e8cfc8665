// The samples file: what a sampler recorded, as one JSON object. sme2_assets/analysis/samples.py reads it.
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

std::string samples_json(const std::string& arch, const Recording& recording, const ClockPair& clocks);

}  // namespace sme2
