#include "tensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::EValue;
using sme2::Array;
using sme2::Dtype;
using sme2::ExitCode;

namespace {

Array floats(const std::vector<float>& values, const std::vector<int64_t>& shape) {
  Array array;
  array.shape = shape;
  array.data.resize(values.size() * sizeof(float));
  if (!values.empty()) {
    std::memcpy(array.data.data(), values.data(), array.data.size());
  }
  return array;
}

std::vector<float> floats_of(const sme2::InputTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace

TEST(a_tensor_in_another_layout_comes_back_in_c_order) {
  // One image of two channels, 1 x 3: channels last puts the two values of a pixel side by side.
  const Array array = floats({1, 2, 3, 10, 20, 30}, {1, 2, 1, 3});
  sme2::InputTensor tensor(array, ScalarType::Float, {0, 2, 3, 1});
  CHECK((floats_of(tensor) == std::vector<float>{1, 10, 2, 20, 3, 30}));
  const Array back = sme2::output_array(EValue(Tensor(&tensor.impl)), 0);
  CHECK(back.data == array.data);
  CHECK(back.shape == array.shape);
}

TEST(an_order_that_no_tensor_can_have_is_refused_before_it_is_used) {
  const Array array = floats({1, 2, 3, 10, 20, 30}, {1, 2, 1, 3});
  for (const auto& order : std::vector<std::vector<uint8_t>>{
           {0, 2, 3, 200}, {255, 255, 255, 255}, {0, 0, 0, 0}, {3, 3, 2, 1}, {0, 1, 2}, {}, {0, 1, 2, 3, 4}}) {
    CHECK_FAILS(ExitCode::model, "tensor [1, 2, 1, 3]", sme2::InputTensor(array, ScalarType::Float, order));
  }
}

TEST(an_output_that_lies_about_its_memory_is_refused) {
  const Array array = floats({1, 2, 3, 10, 20, 30}, {1, 2, 1, 3});
  sme2::InputTensor tensor(array, ScalarType::Float, {0, 2, 3, 1});
  tensor.dim_order = {1, 1, 1, 1};
  CHECK_FAILS(ExitCode::model, "tensor [1, 2, 1, 3]", sme2::output_array(EValue(Tensor(&tensor.impl)), 0));
  tensor.dim_order = {0, 2, 3, 250};
  CHECK_FAILS(ExitCode::model, "tensor [1, 2, 1, 3]", sme2::output_array(EValue(Tensor(&tensor.impl)), 0));
  tensor.impl.set_data(nullptr);
  CHECK_FAILS(ExitCode::inference, "output 4 has no memory", sme2::output_array(EValue(Tensor(&tensor.impl)), 4));
}

TEST(tensors_without_elements_or_dimensions_are_tensors) {
  for (const auto& array : {floats({}, {0, 3}), floats({7}, {})}) {
    std::vector<uint8_t> order(array.shape.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<uint8_t>(i);
    }
    sme2::InputTensor tensor(array, ScalarType::Float, order);
    CHECK(sme2::output_array(EValue(Tensor(&tensor.impl)), 0).data == array.data);
  }
}

TEST(numbers_are_arrays_without_dimensions) {
  const Array whole = sme2::output_array(EValue(int64_t{-5}), 0);
  CHECK(whole.dtype == Dtype::int64);
  CHECK(whole.shape.empty());
  CHECK(sme2::output_array(EValue(0.5), 0).dtype == Dtype::float64);
  CHECK(sme2::output_array(EValue(true), 0).data == std::vector<unsigned char>{1});
  CHECK_FAILS(ExitCode::cannot_write, "neither a tensor nor a number", sme2::output_array(EValue(), 2));
}

TEST(what_is_not_finite_is_counted) {
  const float infinity = std::numeric_limits<float>::infinity();
  sme2::check_finite(floats({1, -2, 3e38f}, {3}), 0);
  CHECK_FAILS(ExitCode::non_finite_output, "2 of 3 elements",
              sme2::check_finite(floats({1, std::nanf(""), -infinity}, {3}), 1));
  Array half;
  half.dtype = Dtype::float16;
  half.shape = {2};
  half.data = {0xFF, 0x7B, 0x00, 0x7C};  // the largest finite one, and infinity
  CHECK_FAILS(ExitCode::non_finite_output, "1 of 2 elements", sme2::check_finite(half, 0));
  half.dtype = Dtype::int16;
  sme2::check_finite(half, 0);
}

TEST(every_type_that_a_file_can_hold_has_its_name) {
  CHECK(sme2::type_text(ScalarType::Half) == "float16");
  CHECK(sme2::type_text(ScalarType::Bool) == "bool");
  CHECK(!sme2::dtype_of(ScalarType::BFloat16));
  CHECK(!sme2::type_text(ScalarType::BFloat16).empty());
  CHECK(sme2::described("int8", {1, 2}) == "int8 [1, 2]");
}
