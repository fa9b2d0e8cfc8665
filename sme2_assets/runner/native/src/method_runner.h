// One method of one program: load, check the inputs, run, hand out the outputs.
// The only room of the runner that knows ExecuTorch's program API.
//
// Module of ExecuTorch's extensions does much of this and does not serve here: it reaches Method::execute only
// together with its own look-ups and copies, which would be in every time, and its planned memory lies wherever
// malloc puts it, so that alignment, and with it the speed of kernels, would be a matter of chance.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/core/event_tracer.h>

#include "npy.h"

namespace sme2 {

struct Inference {
  int64_t duration_ns = 0;
  std::optional<int64_t> cycles;  // of the calling thread; the busy-waiting is not among them
};

class MethodRunner {
 public:
  // Loads the program and finds the method. `data` are weights in a file of their own, or empty. `tracer` may be
  // null and must outlive the runner.
  MethodRunner(const std::string& model, const std::string& method, const std::string& data,
               executorch::runtime::EventTracer* tracer);
  ~MethodRunner();

  // Checks count, dtypes and shapes against the program's own description. Keeps the data.
  void accept_inputs(const std::vector<std::string>& paths, std::vector<Array> arrays);

  // Initialises the method with its delegates.
  void load_method();

  // Sets the state back to the initial one, now and after every `steps` inferences, between them.
  void start_again_every(uint32_t steps);

  // One inference; of Method::execute alone, but for `slowdown_percent` of its time spent busy-waiting.
  Inference execute(double slowdown_percent);

  // The outputs of the last inference, in C order. Throws on NaN or infinity.
  std::vector<Array> finite_outputs() const;

  // Program plus method, without the reading of inputs in between.
  int64_t load_ns() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sme2
