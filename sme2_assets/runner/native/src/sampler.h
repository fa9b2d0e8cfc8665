// Takes the program counter of every thread at a fixed period. Only the kernels pass makes one; the others run
// none of this. sampler_<platform>.cpp has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sme2 {

// One moment of one thread.
struct Sample {
  int64_t time_ns = 0;  // of sample_clock_ns()
  uint64_t pc = 0;
  uint32_t thread = 0;  // index in Recording::threads
};

struct SampledThread {
  int64_t tid = 0;
  std::string name;
  bool main = false;
};

struct Recording {
  int64_t period_ns = 0;
  int64_t dropped = 0;  // samples that found the buffer full
  int64_t missed = 0;   // periods that went by without a sample, because the one before was still due
  int64_t lag_ns = 0;   // how much later than the program counter a sample's time is read, about
  std::vector<SampledThread> threads;
  std::vector<Sample> samples;  // in order of time
};

class Sampler {
 public:
  // Finds the threads, `least_threads` or more, and reserves all memory; nothing runs yet. One at a time.
  Sampler(int64_t period_ns, size_t capacity, size_t least_threads);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Throws when this system does not let the threads be sampled.
  void start();

  // After it no thread is disturbed any more, and the recording does not change.
  Recording stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The clock of the samples, in nanoseconds.
int64_t sample_clock_ns();

}  // namespace sme2
