// The one exception of the runner: an exit code and a message with what happened and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace sme2 {

// The meanings are part of the runner's contract; sme2_assets/runner/result.py mirrors them.
enum class ExitCode : int {
  ok = 0,
  usage = 2,
  model = 3,
  input = 4,
  inference = 5,
  non_finite_output = 6,
  cannot_write = 7,
  no_trace = 8,
  no_sampler = 9,
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& what, const std::string& remedy)
      : std::runtime_error(what + "; " + remedy), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

}  // namespace sme2
