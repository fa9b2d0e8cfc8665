#include "method_runner.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include <unistd.h>

#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include "cycles.h"
#include "failure.h"
#include "tensors.h"

namespace sme2 {
namespace {

namespace rt = executorch::runtime;
using executorch::aten::Tensor;
using executorch::extension::FileDataLoader;
using executorch::extension::FlatTensorDataMap;
using executorch::extension::MallocMemoryAllocator;
using Clock = std::chrono::steady_clock;

// XNNPACK reads whole vectors: planned memory is aligned for the widest of them.
constexpr size_t kPlannedAlignment = 64;

int64_t elapsed_ns(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Returns once the time since `start` is `own_ns` and `percent` of it. Busy, as a slower kernel would be.
void busy_wait(Clock::time_point start, int64_t own_ns, double percent) {
  const auto whole_ns = static_cast<int64_t>(static_cast<double>(own_ns) * (1 + percent / 100));
  while (elapsed_ns(start) < whole_ns) {
  }
}

size_t physical_memory_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

Failure model_error(const std::string& path, const std::string& why) {
  return Failure(ExitCode::model, "model " + path + ": " + why,
                 "check the path and export the model again with this ExecuTorch version");
}

Failure input_error(size_t index, const std::string& why) {
  return Failure(ExitCode::input, "input " + std::to_string(index) + ": " + why,
                 "give the inputs that were written when the model was exported, in their order");
}

struct AlignedBuffer {
  explicit AlignedBuffer(size_t bytes)
      : size(bytes), data(static_cast<uint8_t*>(::operator new(bytes, std::align_val_t{kPlannedAlignment}))) {
    std::memset(data.get(), 0, bytes);
  }

  struct Delete {
    void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t{kPlannedAlignment}); }
  };
  size_t size;
  std::unique_ptr<uint8_t, Delete> data;
};

}  // namespace

struct MethodRunner::State {
  std::string model;
  std::string method_name;
  rt::EventTracer* tracer = nullptr;
  CycleCounter cycles;
  int64_t load_ns = 0;

  // Destroyed from the bottom up: the method before what it points to.
  std::optional<FileDataLoader> loader;
  std::optional<rt::Program> program;
  std::optional<FileDataLoader> data_loader;
  std::optional<FlatTensorDataMap> data;
  std::vector<std::unique_ptr<InputTensor>> tensors;
  std::vector<rt::EValue> inputs;
  // What inputs were that the method works on where they are: an inference may change them.
  std::vector<std::pair<size_t, std::vector<uint8_t>>> unplanned;
  std::vector<std::string> expectations;
  std::vector<AlignedBuffer> planned;
  std::vector<rt::Span<uint8_t>> planned_spans;
  std::vector<std::vector<uint8_t>> initial;  // planned memory as the method was loaded; empty: never set back
  uint32_t steps = 0;
  uint32_t steps_made = 0;
  std::optional<rt::HierarchicalAllocator> planned_memory;
  MallocMemoryAllocator method_allocator;
  MallocMemoryAllocator temp_allocator;
  std::optional<rt::MemoryManager> memory;
  std::optional<rt::Method> method;

  void load_program();
  void load_data(const std::string& path);
  void set_back();
  rt::EValue accept_input(const rt::MethodMeta& meta, size_t index, const Array& array);
  rt::EValue accept_tensor(const rt::TensorInfo& info, size_t index, const Array& array);
  rt::MethodMeta meta() const;
  void set_inputs();
};

void MethodRunner::State::load_program() {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) {
    throw model_error(model, "no such file");
  }
  if (!std::filesystem::is_regular_file(model, error)) {
    throw model_error(model, "not a regular file");
  }
  const auto start = Clock::now();
  auto loaded = FileDataLoader::from(model.c_str());
  if (!loaded.ok()) {
    throw model_error(model, std::string("cannot be opened (") + rt::to_string(loaded.error()) + ")");
  }
  loader.emplace(std::move(*loaded));
  // Full verification: a damaged file must end in a message and not in a crash.
  auto parsed = rt::Program::load(&*loader, rt::Program::Verification::InternalConsistency);
  if (!parsed.ok()) {
    throw model_error(model, std::string("not a whole ExecuTorch program (") + rt::to_string(parsed.error()) + ")");
  }
  program.emplace(std::move(*parsed));
  load_ns += elapsed_ns(start);
}

void MethodRunner::State::load_data(const std::string& path) {
  auto opened = FileDataLoader::from(path.c_str());
  if (!opened.ok()) {
    throw Failure(ExitCode::model,
                  "the weights " + path + " cannot be opened (" + std::string(rt::to_string(opened.error())) + ")",
                  "check the path given to --data");
  }
  data_loader.emplace(std::move(*opened));
  auto loaded = FlatTensorDataMap::load(&*data_loader);
  if (!loaded.ok()) {
    throw Failure(
        ExitCode::model,
        "the weights " + path + " are not a whole .ptd file (" + std::string(rt::to_string(loaded.error())) + ")",
        "export the model again, and copy the program and its .ptd together");
  }
  data.emplace(std::move(*loaded));
}

rt::MethodMeta MethodRunner::State::meta() const {
  auto found = program->method_meta(method_name.c_str());
  if (found.ok()) {
    return *found;
  }
  std::string names;
  for (size_t i = 0; i < program->num_methods(); ++i) {
    auto name = program->get_method_name(i);
    names += (i == 0 ? "" : ", ") + std::string(name.ok() ? *name : "?");
  }
  throw Failure(ExitCode::model, "model " + model + ": it has no method '" + method_name + "'",
                "use --method with one of: " + names);
}

rt::EValue MethodRunner::State::accept_tensor(const rt::TensorInfo& info, size_t index, const Array& array) {
  const std::vector<int64_t> expected(info.sizes().begin(), info.sizes().end());
  const std::string wanted = described(type_text(info.scalar_type()), expected);
  expectations[index] = wanted;
  // The program states upper bounds where a dimension is dynamic; set_inputs() finds a wrong static one.
  bool fits = file_dtype_of(info.scalar_type()) == array.dtype && expected.size() == array.shape.size();
  for (size_t d = 0; fits && d < expected.size(); ++d) {
    fits = array.shape[d] <= expected[d];
  }
  if (!fits) {
    throw input_error(
        index, "the model wants " + wanted + ", the file has " + described(dtype_name(array.dtype), array.shape));
  }
  const std::vector<uint8_t> dim_order(info.dim_order().begin(), info.dim_order().end());
  tensors.push_back(
      std::make_unique<InputTensor>(as_program_type(array, info.scalar_type()), info.scalar_type(), dim_order));
  const Tensor tensor(&tensors.back()->impl);
  if (!info.is_memory_planned()) {
    const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
    unplanned.emplace_back(index, std::vector<uint8_t>(bytes, bytes + tensor.nbytes()));
  }
  return rt::EValue(tensor);
}

rt::EValue MethodRunner::State::accept_input(const rt::MethodMeta& meta, size_t index, const Array& array) {
  const auto tag = meta.input_tag(index);
  if (!tag.ok()) {
    throw model_error(model, "its input " + std::to_string(index) + " cannot be described");
  }
  if (*tag == rt::Tag::Tensor) {
    const auto info = meta.input_tensor_meta(index);
    if (!info.ok()) {
      throw model_error(model, "its input " + std::to_string(index) + " cannot be described");
    }
    return accept_tensor(*info, index, array);
  }
  const Dtype wanted = *tag == rt::Tag::Int ? Dtype::int64 : *tag == rt::Tag::Double ? Dtype::float64 : Dtype::boolean;
  if (*tag != rt::Tag::Int && *tag != rt::Tag::Double && *tag != rt::Tag::Bool) {
    throw input_error(index, "the model wants neither a tensor nor a number, which no .npy file holds");
  }
  expectations[index] = described(dtype_name(wanted), {});
  if (array.dtype != wanted || array.data.size() != dtype_size(wanted)) {
    throw input_error(index, "the model wants one " + std::string(dtype_name(wanted)) + ", the file has " +
                                 described(dtype_name(array.dtype), array.shape));
  }
  if (wanted == Dtype::boolean) {
    return rt::EValue(array.data[0] != 0);
  }
  if (wanted == Dtype::int64) {
    int64_t value = 0;
    std::memcpy(&value, array.data.data(), sizeof(value));
    return rt::EValue(value);
  }
  double value = 0;
  std::memcpy(&value, array.data.data(), sizeof(value));
  return rt::EValue(value);
}

void MethodRunner::State::set_inputs() {
  for (const auto& [index, bytes] : unplanned) {
    std::memcpy(inputs[index].toTensor().mutable_data_ptr(), bytes.data(), bytes.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const rt::Error error = method->set_input(inputs[i], i);
    if (error != rt::Error::Ok) {
      std::string given = "the file has another value";
      if (inputs[i].isTensor()) {
        const auto sizes = inputs[i].toTensor().sizes();
        given = "the file has " + described(type_text(inputs[i].toTensor().scalar_type()),
                                            std::vector<int64_t>(sizes.begin(), sizes.end()));
      }
      throw input_error(i, "the model wants " + expectations[i] + ", " + given + " (" + rt::to_string(error) + ")");
    }
  }
}

MethodRunner::MethodRunner(const std::string& model, const std::string& method, const std::string& data,
                           rt::EventTracer* tracer)
    : state_(std::make_unique<State>()) {
  rt::runtime_init();
  state_->model = model;
  state_->method_name = method;
  state_->tracer = tracer;
  state_->load_program();
  if (!data.empty()) {
    state_->load_data(data);
  }
  state_->meta();  // a missing method is reported before the inputs are read
}

MethodRunner::~MethodRunner() = default;

void MethodRunner::accept_inputs(const std::vector<std::string>& paths, std::vector<Array> arrays) {
  State& s = *state_;
  const rt::MethodMeta meta = s.meta();
  if (meta.num_inputs() != arrays.size()) {
    throw Failure(ExitCode::input,
                  "method '" + s.method_name + "' takes " + std::to_string(meta.num_inputs()) + " input(s) and " +
                      std::to_string(paths.size()) + " were given",
                  "give one --input for each, in order");
  }
  s.expectations.resize(arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) {
    s.inputs.push_back(s.accept_input(meta, i, arrays[i]));
  }
}

void MethodRunner::load_method() {
  State& s = *state_;
  const auto start = Clock::now();
  const rt::MethodMeta meta = s.meta();
  size_t left = physical_memory_bytes();
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
    const auto size = meta.memory_planned_buffer_size(i);
    if (!size.ok() || *size < 0) {
      throw model_error(s.model, "its memory plan cannot be read");
    }
    // It is a number in a file: refused before the system tries to serve it.
    if (static_cast<uint64_t>(*size) > left) {
      throw model_error(s.model, "its memory plan asks for more than this machine has");
    }
    left -= static_cast<size_t>(*size);
    s.planned.emplace_back(static_cast<size_t>(*size));
    s.planned_spans.emplace_back(s.planned.back().data.get(), s.planned.back().size);
  }
  s.planned_memory.emplace(rt::Span<rt::Span<uint8_t>>(s.planned_spans.data(), s.planned_spans.size()));
  s.memory.emplace(&s.method_allocator, &*s.planned_memory, &s.temp_allocator);
  auto loaded = s.program->load_method(s.method_name.c_str(), &*s.memory, s.tracer, s.data ? &*s.data : nullptr);
  if (!loaded.ok()) {
    throw model_error(s.model, "method '" + s.method_name + "' cannot be loaded (" + rt::to_string(loaded.error()) +
                                   ", the lines above say more)");
  }
  s.method.emplace(std::move(*loaded));
  s.load_ns += elapsed_ns(start);
  s.set_inputs();
}

void MethodRunner::start_again_every(uint32_t steps) {
  State& s = *state_;
  s.steps = steps;
  if (s.initial.empty()) {
    for (const AlignedBuffer& buffer : s.planned) {
      s.initial.emplace_back(buffer.data.get(), buffer.data.get() + buffer.size);
    }
  }
  s.set_back();
}

// Mutable buffers are in planned memory, like everything else that an inference writes.
void MethodRunner::State::set_back() {
  for (size_t i = 0; i < initial.size(); ++i) {
    std::memcpy(planned[i].data.get(), initial[i].data(), initial[i].size());
  }
  steps_made = 0;
}

Inference MethodRunner::execute(double slowdown_percent) {
  State& s = *state_;
  if (s.steps > 0 && s.steps_made == s.steps) {
    s.set_back();
  }
  ++s.steps_made;
  // Every time: where the memory plan holds the inputs, an inference may reuse their bytes.
  s.set_inputs();
  const auto cycles_before = s.cycles.read();
  const auto start = Clock::now();
  const rt::Error error = s.method->execute();
  Inference made = {elapsed_ns(start), std::nullopt};
  made.cycles = cycles_between(cycles_before, s.cycles.read());
  if (error != rt::Error::Ok) {
    throw Failure(ExitCode::inference,
                  "inference failed (" + std::string(rt::to_string(error)) + ", the lines above say more)",
                  "check the values of the inputs, and that the model was exported with this ExecuTorch version");
  }
  if (slowdown_percent > 0) {
    busy_wait(start, made.duration_ns, slowdown_percent);
    made.duration_ns = elapsed_ns(start);
  }
  return made;
}

std::vector<Array> MethodRunner::finite_outputs() const {
  std::vector<Array> outputs;
  for (size_t i = 0; i < state_->method->outputs_size(); ++i) {
    outputs.push_back(output_array(state_->method->get_output(i), i));
    check_finite(outputs.back(), i);
  }
  return outputs;
}

int64_t MethodRunner::load_ns() const { return state_->load_ns; }

}  // namespace sme2
