// How fast and how hot the CPUs are while a run measures: read between inferences, never inside one.
// One file per platform: conditions_<platform>.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sme2 {

struct Conditions {
  std::string at;                                    // start, middle or end of the measured inferences
  std::optional<int64_t> cpu;                        // the CPU on which the measuring thread was
  std::vector<std::pair<int64_t, int64_t>> cpu_khz;  // of the CPUs that may be used, as far as readable
  std::optional<double> temperature_c;               // the hottest CPU sensor that can be read
};

// Opens the files once: a reading is then a few system calls.
class ConditionsReader {
 public:
  explicit ConditionsReader(const std::optional<std::vector<int64_t>>& cpus);
  ~ConditionsReader();
  ConditionsReader(const ConditionsReader&) = delete;
  ConditionsReader& operator=(const ConditionsReader&) = delete;

  Conditions read(const std::string& at) const;

 private:
  std::vector<std::pair<int64_t, int>> frequency_files_;  // CPU and file descriptor
  std::vector<int> temperature_files_;
};

}  // namespace sme2
