// The result file: what one run measured, as one JSON object. sme2_assets/runner/result.py reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "args.h"
#include "conditions.h"
#include "cpu_features.h"
#include "method_runner.h"
#include "npy.h"
#include "stretch.h"

namespace sme2 {

struct TensorFact {
  std::string file;  // empty for an input
  Dtype dtype;
  std::vector<int64_t> shape;
};

struct SamplesFact {
  size_t bytes = 0;
  int64_t count = 0;
  int64_t dropped = 0;
};

struct RunResult {
  int64_t load_ns = 0;
  ThinnedSeries warmup;  // durations in nanoseconds
  int64_t warmup_wall_ns = 0;
  std::optional<bool> steady;  // none if the warm-up had a fixed number of inferences
  std::vector<Inference> iterations;
  int64_t timed_wall_ns = 0;
  int64_t peak_memory_bytes = 0;
  CpuInfo cpu;
  std::optional<std::vector<int64_t>> cpus;  // on which the run was allowed
  std::optional<std::string> qos;
  std::vector<Conditions> conditions;
  std::optional<size_t> etdump_bytes;
  std::optional<SamplesFact> samples;
  std::vector<TensorFact> inputs;
  std::vector<TensorFact> outputs;
};

std::string result_json(const Options& options, const RunResult& result);

std::string compiler_text();

}  // namespace sme2
