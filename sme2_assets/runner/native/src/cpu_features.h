// What the CPU offers, what of it the kernels may see, and the state that was asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "json.h"

namespace sme2 {

// One platform's answer; cpu_features_<platform>.cpp has it.
struct PlatformFeatures {
  std::string arch;
  std::vector<std::string> seen;     // before masking
  std::vector<std::string> visible;  // what the libraries are told
  std::optional<int64_t> sme_vector_bits;
  std::optional<int64_t> sve_vector_bits;
};

PlatformFeatures read_platform_features();

struct CpuInfo {
  PlatformFeatures platform;
  std::vector<std::string> masked;
  bool sme2_on = true;  // the state asked for
  bool sme2_usable = false;
};

// Throws a usage failure when the environment asks for a state that does not exist.
CpuInfo read_cpu_info();

void write_json(JsonWriter& json, const CpuInfo& cpu);

}  // namespace sme2
