// ExecuTorch's tensors and values to and from plain arrays: dtypes, memory layouts, finiteness.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>

#include "npy.h"

namespace sme2 {

std::optional<Dtype> dtype_of(executorch::aten::ScalarType type);
// The dtype of a file that holds such values: NumPy has no bfloat16, and float32 has all of them.
std::optional<Dtype> file_dtype_of(executorch::aten::ScalarType type);
// Values of such a file as the program takes them.
Array as_program_type(const Array& array, executorch::aten::ScalarType type);
std::string type_text(executorch::aten::ScalarType type);

// "float32 [1, 3, 32, 32]"
std::string described(const std::string& dtype, const std::vector<int64_t>& shape);

// An input tensor with everything it points to, in the memory layout that `dim_order` asks for.
struct InputTensor {
  InputTensor(const Array& array, executorch::aten::ScalarType type, std::vector<uint8_t> dim_order);
  InputTensor(const InputTensor&) = delete;
  InputTensor& operator=(const InputTensor&) = delete;

  std::vector<executorch::aten::TensorImpl::SizesType> sizes;
  std::vector<executorch::aten::TensorImpl::DimOrderType> dim_order;
  std::vector<executorch::aten::TensorImpl::StridesType> strides;
  std::vector<unsigned char> data;
  executorch::aten::TensorImpl impl;
};

// A copy of output `index` in C order. A number becomes an array without dimensions.
Array output_array(const executorch::runtime::EValue& value, size_t index);

// Throws when output `index` has NaN or infinity.
void check_finite(const Array& array, size_t index);

}  // namespace sme2
