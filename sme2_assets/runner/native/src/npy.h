// NumPy .npy files (versions 1 and 2, C order, little endian) and the dtypes the runner knows.
// An input file is foreign data: nothing in its header is believed before it is checked against the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sme2 {

enum class Dtype { float32, float16, float64, int8, uint8, int16, int32, int64, uint16, uint32, uint64, boolean };

const char* dtype_name(Dtype dtype);
size_t dtype_size(Dtype dtype);

struct Array {
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  std::vector<unsigned char> data;  // C order
};

std::string shape_text(const std::vector<int64_t>& shape);

Array read_npy(const std::string& path);
std::string npy_bytes(const Array& array);

}  // namespace sme2
