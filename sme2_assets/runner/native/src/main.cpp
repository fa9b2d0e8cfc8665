// The order of one run: flags, old files away, model, inputs, warm-up, measured inferences, evidence, result.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include <dlfcn.h>
#include <sys/resource.h>

#include "args.h"
#include "conditions.h"
#include "cpu_features.h"
#include "failure.h"
#include "files.h"
#include "json.h"
#include "marks.h"
#include "method_runner.h"
#include "modules.h"
#include "npy.h"
#include "parent.h"
#include "placement.h"
#include "recording_file.h"
#include "result.h"
#include "roofs.h"
#include "sampler.h"
#include "steady.h"
#include "stretch.h"
#include "thread_pool.h"
#include "tracer.h"

namespace sme2 {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

int64_t peak_memory_bytes() {
#if defined(__linux__)
  // Not ru_maxrss: on Linux that also counts the process which started this one, up to the exec.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
    }
  }
#endif
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return static_cast<int64_t>(usage.ru_maxrss);
#else
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
#endif
}

struct NamedFile {
  const char* flag;
  std::string path;
};

std::vector<NamedFile> written_files(const Options& options) {
  std::vector<NamedFile> files;
  for (const NamedFile& file : std::vector<NamedFile>{{"--result", options.result},
                                                      {"--etdump", options.etdump},
                                                      {"--samples", options.samples},
                                                      {"--modules", options.modules}}) {
    if (!file.path.empty()) {
      files.push_back(file);
    }
  }
  return files;
}

// What is written is removed at start: none of it may be a file that the run reads.
void check_paths(const Options& options) {
  std::vector<std::string> read = options.inputs;
  read.push_back(options.model);
  if (!options.data.empty()) {
    read.push_back(options.data);
  }
  const std::vector<NamedFile> written = written_files(options);
  for (size_t i = 0; i < written.size(); ++i) {
    for (const std::string& other : read) {
      if (same_file(written[i].path, other)) {
        throw Failure(ExitCode::usage, written[i].path + " is given both to be read and to be written",
                      std::string("give ") + written[i].flag + " a name of its own");
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (same_file(written[j].path, written[i].path)) {
        throw Failure(ExitCode::usage, std::string(written[j].flag) + " and " + written[i].flag + " name the same file",
                      "give each a name of its own");
      }
    }
  }
}

void prepare_files(const Options& options) {
  for (const NamedFile& file : written_files(options)) {
    remove_stale_file(file.path);
    check_writable(file.path);
  }
  make_directory(options.outputs);
}

std::vector<Array> read_inputs(const Options& options, RunResult& result) {
  std::vector<Array> arrays;
  for (const std::string& path : options.inputs) {
    arrays.push_back(read_npy(path));
    result.inputs.push_back({"", arrays.back().dtype, arrays.back().shape});
  }
  return arrays;
}

void warn_of_slowdown(const Options& options) {
  if (options.slowdown_percent > 0) {
    std::fprintf(stderr,
                 "sme2_runner: warning: SLOWED ON PURPOSE: each inference is followed by a busy-wait of %g %% of its "
                 "time (--slowdown-percent); the times of this run do not measure the model\n",
                 options.slowdown_percent);
  }
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Their kernels register themselves as a library is loaded.
void load_op_libraries(const Options& options) {
  for (const std::string& path : options.op_libraries) {
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      throw Failure(ExitCode::model, "the library of kernels " + path + " cannot be loaded: " + ::dlerror(),
                    "give one that is built for this machine against the runner's own ExecuTorch, and needs neither "
                    "Python nor libtorch");
    }
  }
}

// The outputs of a program with state, step by step from its initial state, which is restored afterwards.
std::vector<Array> run_steps(MethodRunner& runner, const Options& options) {
  std::vector<Array> outputs;
  if (options.steps == 1) {
    return outputs;
  }
  runner.start_again_every(options.steps);
  for (uint32_t step = 0; step < options.steps; ++step) {
    runner.execute(0);
    for (Array& array : runner.finite_outputs()) {
      outputs.push_back(std::move(array));
    }
  }
  runner.start_again_every(options.steps);
  return outputs;
}

void warm_up(MethodRunner& runner, const Options& options, RunResult& result) {
  const Stretch stretch = {options.warmup, std::numeric_limits<uint32_t>::max(), options.warmup_ms * kNsPerMs};
  result.warmup_wall_ns = run_stretch(
      stretch, now_ns, [&] { result.warmup.add(runner.execute(options.slowdown_percent).duration_ns); }, [] {});
  if (options.warmup_ms > 0) {
    result.steady = ends_steady(result.warmup.kept());
  }
  if (result.warmup.count() > 0) {
    runner.finite_outputs();
  }
}

// Before anything starts a thread, so that every thread inherits the CPUs.
void place(const Options& options) {
  if (!options.cpus.empty()) {
    restrict_to_cpus(options.cpus);
  }
  if (!options.qos.empty()) {
    request_qos(options.qos);
  }
}

// Every thread of the pool must be where it was asked to be; quality of service is not inherited.
void place_pool(const Options& options) {
  if (options.cpus.empty() && options.qos.empty()) {
    return;
  }
  std::atomic<uint32_t> elsewhere{0};
  on_every_thread(options.threads, [&] {
    try {
      if (!options.qos.empty()) {
        request_qos(options.qos);
      }
      elsewhere += !options.cpus.empty() && allowed_cpus() != options.cpus;
    } catch (const Failure&) {
      ++elsewhere;
    }
  });
  if (elsewhere != 0) {
    throw Failure(ExitCode::inference,
                  std::to_string(elsewhere) + " thread(s) of the pool did not take the CPUs or the quality of service",
                  "leave --cpus and --qos out");
  }
}

void measure(MethodRunner& runner, const Options& options, RunResult& result, const std::function<void()>& halfway) {
  const Stretch stretch = {options.iterations, options.iterations_cap, options.timed_ms * kNsPerMs};
  // Nothing is allocated between the inferences, as long as the time alone does not ask for more of them.
  result.iterations.reserve(options.timed_ms > 0 ? options.iterations_cap : options.iterations);
  result.timed_wall_ns = run_stretch(
      stretch, now_ns, [&] { result.iterations.push_back(runner.execute(options.slowdown_percent)); }, halfway);
}

// The measured inferences with every thread sampled. The sampler is gone when it returns.
Recording measure_sampled(MethodRunner& runner, const Options& options, RunResult& result) {
  Sampler sampler(static_cast<int64_t>(options.sample_period_us) * 1000, options.sample_capacity, options.threads);
  sampler.start();
  // The sampler would also see conditions being read.
  measure(runner, options, result, [] {});
  return sampler.stop();
}

// The counter reads what comes before it is told to start, too, and wants to know where it is.
void measure_marked(MethodRunner& runner, const Options& options, RunResult& result) {
  const std::string modules = modules_text();
  write_file(options.modules, modules.data(), modules.size());
  mark_start();
  measure(runner, options, result, [] {});
  mark_stop();
}

SamplesFact write_recording(const Options& options, const RunResult& result, const Recording& recording) {
  const std::string json = recording_json(result.cpu.platform.arch, recording, read_clocks());
  write_file(options.samples, json.data(), json.size());
  return {json.size(), static_cast<int64_t>(recording.samples.size()), recording.dropped};
}

size_t write_etdump(const Options& options, const RunResult& result, PausableTracer& tracer) {
  const size_t inferences = result.iterations.size();
  const size_t blocks = tracer.get_num_blocks();
  const auto dump = tracer.get_etdump_data();
  const std::unique_ptr<void, decltype(&std::free)> owned(dump.buf, &std::free);
  // The runtime opens a block per inference and logs events into it under one compile-time switch.
  if (dump.buf == nullptr || dump.size == 0 || blocks < inferences) {
    throw Failure(ExitCode::no_trace,
                  "the event tracer recorded " + std::to_string(blocks) + " block(s) for " +
                      std::to_string(inferences) + " inference(s)",
                  "use an ExecuTorch runtime built with its event tracer (the 1.5.1 wheel is; 1.0 to 1.4 are not)");
  }
  write_file(options.etdump, dump.buf, dump.size);
  return dump.size;
}

void write_outputs(const Options& options, const std::vector<Array>& outputs, RunResult& result) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string name = "output_" + std::to_string(i) + ".npy";
    const std::string bytes = npy_bytes(outputs[i]);
    write_file(options.outputs + "/" + name, bytes.data(), bytes.size());
    result.outputs.push_back({name, outputs[i].dtype, outputs[i].shape});
  }
}

void print_summary(const Options& options, const RunResult& result) {
  std::vector<int64_t> sorted;
  for (const Inference& inference : result.iterations) {
    sorted.push_back(inference.duration_ns);
  }
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  std::printf(
      "sme2_runner: %s pass, %lld warm-up%s + %zu measured inferences, %u thread(s), SME2 %s, median %.3f ms%s\n",
      pass_name(options.pass), static_cast<long long>(result.warmup.count()),
      !result.steady   ? ""
      : *result.steady ? " (steady)"
                       : " (not steady)",
      result.iterations.size(), options.threads,
      result.cpu.sme2_usable ? "used where kernels exist"
      : result.cpu.sme2_on   ? "not in this CPU"
                             : "off",
      static_cast<double>(sorted[sorted.size() / 2]) / 1e6, options.slowdown_percent > 0 ? " (slowed on purpose)" : "");
}

void run(const Options& options) {
  RunResult result;
  place(options);
  result.cpu = read_cpu_info();
  result.cpus = allowed_cpus();
  result.qos = current_qos();
  const ConditionsReader conditions(result.cpus);
  check_paths(options);
  prepare_files(options);
  warn_of_slowdown(options);
  set_thread_count(options.threads);
  place_pool(options);
  std::unique_ptr<PausableTracer> tracer;
  if (options.pass != Pass::latency) {
    tracer = std::make_unique<PausableTracer>();
  }
  load_op_libraries(options);
  MethodRunner runner(options.model, options.method, options.data, tracer.get());
  runner.accept_inputs(options.inputs, read_inputs(options, result));
  runner.load_method();
  result.load_ns = runner.load_ns();

  if (tracer) {
    tracer->pause();
  }
  const std::vector<Array> step_outputs = run_steps(runner, options);
  warm_up(runner, options, result);
  if (tracer) {
    tracer->resume();
  }
  std::optional<Recording> recording;
  result.conditions.reserve(3);
  result.conditions.push_back(conditions.read("start"));
  if (options.pass == Pass::kernels) {
    recording = measure_sampled(runner, options, result);
  } else if (options.pass == Pass::work) {
    measure_marked(runner, options, result);
  } else {
    measure(runner, options, result, [&] { result.conditions.push_back(conditions.read("middle")); });
  }
  result.conditions.push_back(conditions.read("end"));
  const std::vector<Array> outputs = runner.finite_outputs();
  result.peak_memory_bytes = peak_memory_bytes();

  if (tracer) {
    result.etdump_bytes = write_etdump(options, result, *tracer);
  }
  if (recording) {
    result.samples = write_recording(options, result, *recording);
  }
  write_outputs(options, options.steps > 1 ? step_outputs : outputs, result);
  const std::string json = result_json(options, result);
  write_file(options.result, json.data(), json.size());
  print_summary(options, result);
}

void measure_roofs(const Options& options) {
  place(options);
  remove_stale_file(options.roofs);
  check_writable(options.roofs);
  set_thread_count(options.threads);
  place_pool(options);
  const std::string json = roofs_json(options.threads);
  write_file(options.roofs, json.data(), json.size());
}

void dispatch(int argc, char** argv) {
  const Options options = parse_args(argc, argv);
  if (options.action == Action::help) {
    std::fputs(help_text(), stdout);
  } else if (options.action == Action::version) {
    std::printf("sme2_runner %s (executorch %s, %s)\n", SME2_RUNNER_VERSION, SME2_EXECUTORCH_VERSION,
                compiler_text().c_str());
  } else if (options.action == Action::cpu) {
    JsonWriter json;
    write_json(json, read_cpu_info());
    std::printf("%s\n", json.str().c_str());
  } else if (options.action == Action::roofs) {
    measure_roofs(options);
  } else {
    run(options);
  }
}

int report(ExitCode code, const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "sme2_runner: error: %s\n", message.c_str());
  return static_cast<int>(code);
}

}  // namespace
}  // namespace sme2

int main(int argc, char** argv) {
  using sme2::ExitCode;
  sme2::end_with_parent();
  try {
    sme2::dispatch(argc, argv);
    return 0;
  } catch (const sme2::Failure& failure) {
    return sme2::report(failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return sme2::report(ExitCode::inference, "out of memory; use a smaller model or a machine with more memory");
  } catch (const std::length_error&) {
    return sme2::report(ExitCode::model, "the model asks for more memory than there can be; export it again");
  } catch (const std::exception& error) {
    return sme2::report(ExitCode::inference, std::string(error.what()) + "; this is a defect of the runner, report it");
  }
}
