// Command line -> Options. Knows the flags, their ranges and how they exclude each other; opens no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sme2 {

enum class Action { run, help, version, cpu, roofs };
enum class Pass { latency, etdump, kernels, work };

struct Options {
  Action action = Action::run;
  std::string model;
  std::vector<std::string> inputs;
  Pass pass = Pass::latency;
  uint32_t warmup = 0;
  uint32_t warmup_ms = 0;  // 0: a warm-up of a fixed number of inferences
  uint32_t iterations = 0;
  uint32_t iterations_cap = 0;
  uint32_t timed_ms = 0;
  uint32_t threads = 0;
  double slowdown_percent = 0;
  std::string result;
  std::string outputs;
  std::string etdump;
  std::string samples;
  std::string modules;
  uint32_t sample_period_us = 500;
  uint32_t sample_capacity = 200'000;
  std::string method = "forward";
  std::string data;  // empty: the weights are in the program
  std::vector<std::string> op_libraries;
  uint32_t steps = 1;
  std::vector<int64_t> cpus;  // ascending; empty: not bound
  std::string qos;            // empty: not asked for
  std::string roofs;          // with Action::roofs: the file to write
};

Options parse_args(int argc, char** argv);

const char* pass_name(Pass pass);
const char* help_text();

}  // namespace sme2
