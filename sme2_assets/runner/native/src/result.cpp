#include "result.h"

#include <algorithm>

#include "files.h"

namespace sme2 {
namespace {

void write_tensors(JsonWriter& json, const std::vector<TensorFact>& tensors) {
  json.begin_array();
  for (const TensorFact& tensor : tensors) {
    json.begin_object();
    if (!tensor.file.empty()) {
      json.key("file").text(tensor.file);
    }
    json.key("dtype").text(dtype_name(tensor.dtype));
    json.key("shape").numbers(tensor.shape);
    json.end_object();
  }
  json.end_array();
}

// Cycles are null as a whole where no inference has any.
void write_iterations(JsonWriter& json, const std::vector<Inference>& iterations) {
  json.key("iteration_ns").begin_array();
  for (const Inference& inference : iterations) {
    json.number(inference.duration_ns);
  }
  json.end_array();
  json.key("iteration_cycles");
  if (std::none_of(iterations.begin(), iterations.end(), [](const Inference& each) { return each.cycles; })) {
    json.null();
    return;
  }
  json.begin_array();
  for (const Inference& inference : iterations) {
    json.maybe(inference.cycles);
  }
  json.end_array();
}

void write_etdump(JsonWriter& json, const Options& options, const RunResult& result) {
  if (!result.etdump_bytes) {
    json.null();
    return;
  }
  json.begin_object();
  json.key("file").text(base_name(options.etdump));
  json.key("bytes").number(static_cast<int64_t>(*result.etdump_bytes));
  json.end_object();
}

void write_samples(JsonWriter& json, const Options& options, const RunResult& result) {
  if (!result.samples) {
    json.null();
    return;
  }
  json.begin_object();
  json.key("file").text(base_name(options.samples));
  json.key("bytes").number(static_cast<int64_t>(result.samples->bytes));
  json.key("count").number(result.samples->count);
  json.key("dropped").number(result.samples->dropped);
  json.end_object();
}

void write_conditions(JsonWriter& json, const Conditions& conditions) {
  json.begin_object();
  json.key("at").text(conditions.at);
  json.key("cpu").maybe(conditions.cpu);
  json.key("cpu_khz").begin_object();
  for (const auto& [cpu, khz] : conditions.cpu_khz) {
    json.key(std::to_string(cpu)).number(khz);
  }
  json.end_object();
  json.key("temperature_c").maybe(conditions.temperature_c);
  json.end_object();
}

}  // namespace

std::string compiler_text() {
#if defined(__apple_build_version__)
  const char* name = "appleclang";
#elif defined(__clang__)
  const char* name = "clang";
#else
  const char* name = "gcc";
#endif
#if defined(__clang__)
  const int parts[] = {__clang_major__, __clang_minor__, __clang_patchlevel__};
#else
  const int parts[] = {__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__};
#endif
  return std::string(name) + " " + std::to_string(parts[0]) + "." + std::to_string(parts[1]) + "." +
         std::to_string(parts[2]);
}

std::string result_json(const Options& options, const RunResult& result) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").number(2);
  json.key("pass").text(pass_name(options.pass));
  json.key("method").text(options.method);
  json.key("threads").number(options.threads);
  json.key("warmup_iterations").number(result.warmup.count());
  json.key("warmup_stride").number(result.warmup.stride());
  json.key("warmup_wall_ns").number(result.warmup_wall_ns);
  json.key("warmup_traced").boolean(false);
  json.key("iterations").number(static_cast<int64_t>(result.iterations.size()));
  json.key("timed_wall_ns").number(result.timed_wall_ns);
  json.key("steady").maybe(result.steady);
  json.key("slowdown_percent").decimal(options.slowdown_percent);
  json.key("load_ns").number(result.load_ns);
  json.key("warmup_ns").numbers(result.warmup.kept());
  write_iterations(json, result.iterations);
  json.key("peak_memory_bytes").number(result.peak_memory_bytes);
  json.key("cpu");
  write_json(json, result.cpu);
  json.key("cpus").maybe(result.cpus);
  json.key("qos").maybe(result.qos);
  json.key("conditions").begin_array();
  for (const Conditions& conditions : result.conditions) {
    write_conditions(json, conditions);
  }
  json.end_array();
  json.key("etdump");
  write_etdump(json, options, result);
  json.key("samples");
  write_samples(json, options, result);
  json.key("inputs");
  write_tensors(json, result.inputs);
  json.key("outputs");
  write_tensors(json, result.outputs);
  json.key("versions").begin_object();
  json.key("executorch").text(SME2_EXECUTORCH_VERSION);
  json.key("runner").text(SME2_RUNNER_VERSION);
  json.key("compiler").text(compiler_text());
  json.end_object();
  json.end_object();
  return json.str() + "\n";
}

}  // namespace sme2
