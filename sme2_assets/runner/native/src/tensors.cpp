#include "tensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include "failure.h"

namespace sme2 {
namespace {

namespace rt = executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;

// Strides, in elements, of a dense tensor of `count` elements laid out in `dim_order` (0, 1, 2, 3 is C order).
// Both come from a program that may mean harm: an order names every dimension once, and the sizes give the count.
std::vector<int32_t> strides_of(const std::vector<int64_t>& shape, const std::vector<uint8_t>& dim_order,
                                size_t count) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> strides(shape.size());
  std::vector<bool> seen(shape.size(), false);
  bool fits = dim_order.size() == shape.size();
  int64_t step = 1;
  for (size_t i = shape.size(); fits && i-- > 0;) {
    const size_t d = dim_order[i];
    fits = d < shape.size() && !seen[d] && shape[d] >= 0 && shape[d] <= kMost && step <= kMost;
    if (fits) {
      seen[d] = true;
      strides[d] = static_cast<int32_t>(step);
      step *= shape[d];
    }
  }
  if (!fits || static_cast<uint64_t>(step) != count) {
    throw Failure(ExitCode::model,
                  "the model describes a tensor " + shape_text(shape) + " in memory in a way that cannot be",
                  "the file is damaged: export the model again");
  }
  return strides;
}

// Calls `visit(c_order_offset, strided_offset)` for each of `count` elements, both counted in elements.
template <typename Visit>
void for_each_element(size_t count, const std::vector<int64_t>& shape, const std::vector<int32_t>& strides,
                      Visit visit) {
  std::vector<int64_t> index(shape.size(), 0);
  int64_t strided = 0;
  for (size_t i = 0; i < count; ++i) {
    visit(i, strided);
    for (size_t d = shape.size(); d-- > 0;) {
      strided += strides[d];
      if (++index[d] < shape[d]) {
        break;
      }
      strided -= strides[d] * shape[d];
      index[d] = 0;
    }
  }
}

bool is_c_order(const std::vector<uint8_t>& dim_order) {
  for (size_t i = 0; i < dim_order.size(); ++i) {
    if (dim_order[i] != i) {
      return false;
    }
  }
  return true;
}

template <typename T>
Array scalar_array(Dtype dtype, T value) {
  Array array;
  array.dtype = dtype;
  array.data.resize(sizeof(T));
  std::memcpy(array.data.data(), &value, sizeof(T));
  return array;
}

// A bfloat16 is the upper half of a float.
Array widened(const Array& halves) {
  Array array = {Dtype::float32, halves.shape, std::vector<unsigned char>(halves.data.size() * 2, 0)};
  for (size_t i = 0; i < halves.data.size(); i += 2) {
    std::memcpy(array.data.data() + 2 * i + 2, halves.data.data() + i, 2);
  }
  return array;
}

Array tensor_array(const Tensor& tensor, size_t index) {
  const auto dtype = tensor.scalar_type() == ScalarType::BFloat16 ? Dtype::uint16 : dtype_of(tensor.scalar_type());
  if (!dtype) {
    throw Failure(ExitCode::cannot_write,
                  "output " + std::to_string(index) + " is " + type_text(tensor.scalar_type()) +
                      ", which a .npy file cannot hold",
                  "let the model convert it to float32 before it returns it");
  }
  Array array;
  array.dtype = *dtype;
  array.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  array.data.resize(tensor.nbytes());
  if (tensor.nbytes() == 0) {
    return array;
  }
  const auto* source = static_cast<const unsigned char*>(tensor.const_data_ptr());
  if (source == nullptr) {
    throw Failure(ExitCode::inference, "output " + std::to_string(index) + " has no memory after the inference",
                  "the file is damaged: export the model again");
  }
  const std::vector<uint8_t> dim_order(tensor.dim_order().begin(), tensor.dim_order().end());
  if (is_c_order(dim_order)) {
    std::memcpy(array.data.data(), source, array.data.size());
    return array;
  }
  const size_t width = dtype_size(*dtype);
  const size_t count = array.data.size() / width;
  const std::vector<int32_t> strides = strides_of(array.shape, dim_order, count);
  for_each_element(count, array.shape, strides, [&](size_t c_order, int64_t strided) {
    std::memcpy(array.data.data() + c_order * width, source + strided * width, width);
  });
  return array;
}

uint16_t nearest_bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) {
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  }
  // Ties to even.
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <typename T, typename IsFinite>
int64_t count_non_finite(const Array& array, IsFinite is_finite) {
  int64_t count = 0;
  for (size_t at = 0; at < array.data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, array.data.data() + at, sizeof(T));
    count += is_finite(value) ? 0 : 1;
  }
  return count;
}

int64_t count_non_finite(const Array& array) {
  switch (array.dtype) {
    case Dtype::float32:
      return count_non_finite<float>(array, [](float v) { return std::isfinite(v); });
    case Dtype::float64:
      return count_non_finite<double>(array, [](double v) { return std::isfinite(v); });
    case Dtype::float16:
      // Exponent all ones: infinity or NaN.
      return count_non_finite<uint16_t>(array, [](uint16_t v) { return (v & 0x7C00) != 0x7C00; });
    default:
      return 0;
  }
}

}  // namespace

std::optional<Dtype> dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return Dtype::float32;
    case ScalarType::Half:
      return Dtype::float16;
    case ScalarType::Double:
      return Dtype::float64;
    case ScalarType::Char:
      return Dtype::int8;
    case ScalarType::Byte:
      return Dtype::uint8;
    case ScalarType::Short:
      return Dtype::int16;
    case ScalarType::Int:
      return Dtype::int32;
    case ScalarType::Long:
      return Dtype::int64;
    case ScalarType::UInt16:
      return Dtype::uint16;
    case ScalarType::UInt32:
      return Dtype::uint32;
    case ScalarType::UInt64:
      return Dtype::uint64;
    case ScalarType::Bool:
      return Dtype::boolean;
    default:
      return std::nullopt;
  }
}

std::optional<Dtype> file_dtype_of(ScalarType type) {
  return type == ScalarType::BFloat16 ? Dtype::float32 : dtype_of(type);
}

Array as_program_type(const Array& array, ScalarType type) {
  if (type != ScalarType::BFloat16) {
    return array;
  }
  Array halves = {Dtype::uint16, array.shape, std::vector<unsigned char>(array.data.size() / 2)};
  for (size_t i = 0; i < halves.data.size(); i += 2) {
    float value = 0;
    std::memcpy(&value, array.data.data() + 2 * i, sizeof(value));
    const uint16_t half = nearest_bfloat16(value);
    std::memcpy(halves.data.data() + i, &half, sizeof(half));
  }
  return halves;
}

std::string type_text(ScalarType type) {
  if (type == ScalarType::BFloat16) {
    return "bfloat16 (in a file: float32)";
  }
  const auto dtype = dtype_of(type);
  return dtype ? dtype_name(*dtype) : rt::toString(type);
}

std::string described(const std::string& dtype, const std::vector<int64_t>& shape) {
  return dtype + " " + shape_text(shape);
}

InputTensor::InputTensor(const Array& array, ScalarType type, std::vector<uint8_t> order)
    : sizes(array.shape.begin(), array.shape.end()),
      dim_order(std::move(order)),
      strides(strides_of(array.shape, dim_order, array.data.size() / dtype_size(array.dtype))),
      data(array.data),
      impl(type, static_cast<ssize_t>(sizes.size()), sizes.data(), data.data(), dim_order.data(), strides.data()) {
  if (is_c_order(dim_order)) {
    return;
  }
  const size_t width = dtype_size(array.dtype);
  for_each_element(data.size() / width, array.shape, strides, [&](size_t c_order, int64_t strided) {
    std::memcpy(data.data() + strided * width, array.data.data() + c_order * width, width);
  });
}

Array output_array(const rt::EValue& value, size_t index) {
  if (value.isTensor()) {
    const Array array = tensor_array(value.toTensor(), index);
    return value.toTensor().scalar_type() == ScalarType::BFloat16 ? widened(array) : array;
  }
  if (value.isInt()) {
    return scalar_array(Dtype::int64, value.toInt());
  }
  if (value.isDouble()) {
    return scalar_array(Dtype::float64, value.toDouble());
  }
  if (value.isBool()) {
    return scalar_array(Dtype::boolean, static_cast<unsigned char>(value.toBool()));
  }
  throw Failure(ExitCode::cannot_write, "output " + std::to_string(index) + " is neither a tensor nor a number",
                "let the model return tensors");
}

void check_finite(const Array& array, size_t index) {
  const int64_t bad = count_non_finite(array);
  if (bad > 0) {
    const size_t all = array.data.size() / dtype_size(array.dtype);
    throw Failure(ExitCode::non_finite_output,
                  "output " + std::to_string(index) + " (" + described(dtype_name(array.dtype), array.shape) +
                      ") has NaN or infinity in " + std::to_string(bad) + " of " + std::to_string(all) + " elements",
                  "check the model at this precision (fp16 overflows above 65504) and its inputs");
  }
}

}  // namespace sme2
