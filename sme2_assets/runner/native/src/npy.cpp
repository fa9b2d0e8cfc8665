#include "npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include <sys/stat.h>

#include "failure.h"

namespace sme2 {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;
constexpr size_t kLongestHeader = 1 << 16;
constexpr size_t kMostDimensions = 16;

struct DtypeInfo {
  Dtype dtype;
  const char* name;
  const char* descr;
  size_t size;
};

constexpr DtypeInfo kDtypes[] = {
    {Dtype::float32, "float32", "<f4", 4}, {Dtype::float16, "float16", "<f2", 2}, {Dtype::float64, "float64", "<f8", 8},
    {Dtype::int8, "int8", "|i1", 1},       {Dtype::uint8, "uint8", "|u1", 1},     {Dtype::int16, "int16", "<i2", 2},
    {Dtype::int32, "int32", "<i4", 4},     {Dtype::int64, "int64", "<i8", 8},     {Dtype::boolean, "bool", "|b1", 1},
    {Dtype::uint16, "uint16", "<u2", 2},   {Dtype::uint32, "uint32", "<u4", 4},   {Dtype::uint64, "uint64", "<u8", 8},
};

const DtypeInfo& info(Dtype dtype) {
  for (const DtypeInfo& entry : kDtypes) {
    if (entry.dtype == dtype) {
      return entry;
    }
  }
  throw std::logic_error("dtype without an entry");
}

Failure bad_npy(const std::string& path, const std::string& why) {
  return Failure(ExitCode::input, "input file " + path + " is not usable: " + why,
                 "write it with numpy.save from a C-ordered little-endian array");
}

// The header is a Python dict literal with three known keys. This reads that and nothing more.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, const std::string& text) : path_(path), text_(text) {}

  void parse(std::string& descr, bool& fortran_order, std::vector<int64_t>& shape) {
    bool have_descr = false, have_order = false, have_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !have_descr) {
        // A list stands for a structured dtype, which no tensor has.
        if (peek() == '[') {
          throw bad_npy(path_, "its dtype is structured");
        }
        descr = quoted();
        have_descr = true;
      } else if (key == "fortran_order" && !have_order) {
        fortran_order = boolean();
        have_order = true;
      } else if (key == "shape" && !have_shape) {
        shape = dimensions();
        have_shape = true;
      } else {
        throw broken();
      }
      if (!accept(',') && peek() != '}') {
        throw broken();
      }
    }
    skip_space();
    if (at_ != text_.size() || !have_descr || !have_order || !have_shape) {
      throw broken();
    }
  }

 private:
  Failure broken() const { return bad_npy(path_, "its header cannot be read"); }

  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') {
      ++at_;
    }
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c || at_ >= text_.size()) {
      return false;
    }
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) {
      throw broken();
    }
  }

  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      throw broken();
    }
    const size_t end = text_.find(quote, ++at_);
    if (end == std::string::npos) {
      throw broken();
    }
    const std::string value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string word = value ? "True" : "False";
      if (text_.compare(at_, word.size(), word) == 0) {
        at_ += word.size();
        return value;
      }
    }
    throw broken();
  }

  std::vector<int64_t> dimensions() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      sizes.push_back(dimension());
      if (sizes.size() > kMostDimensions) {
        throw bad_npy(path_, "it has more than " + std::to_string(kMostDimensions) + " dimensions");
      }
      if (!accept(',') && peek() != ')') {
        throw broken();
      }
    }
    return sizes;
  }

  int64_t dimension() {
    skip_space();
    int64_t value = 0;
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > std::numeric_limits<int32_t>::max()) {
        throw bad_npy(path_, "a dimension is larger than a tensor can have");
      }
    }
    if (at_ == start) {
      throw broken();
    }
    return value;
  }

  const std::string& path_;
  const std::string& text_;
  size_t at_ = 0;
};

Dtype dtype_of_descr(const std::string& path, const std::string& descr) {
  for (const DtypeInfo& entry : kDtypes) {
    const bool one_byte = entry.size == 1;
    const std::string wanted = entry.descr;
    // A byte has no order: numpy writes '|', others write '<'.
    if (descr == wanted || (one_byte && descr.substr(0, 1) == "<" && descr.substr(1) == wanted.substr(1))) {
      return entry.dtype;
    }
  }
  if (descr.rfind(">", 0) == 0) {
    throw bad_npy(path, "its data is big endian (dtype '" + descr + "')");
  }
  throw bad_npy(path, "its dtype '" + descr +
                          "' is not one of float32, float16, float64, int8, uint8, int16, "
                          "int32, int64, uint16, uint32, uint64, bool");
}

// Bytes the data must have; guards the product against overflow.
uint64_t data_bytes(const std::string& path, const std::vector<int64_t>& shape, size_t element_size) {
  uint64_t bytes = element_size;
  for (const int64_t size : shape) {
    if (size != 0 && bytes > std::numeric_limits<int64_t>::max() / static_cast<uint64_t>(size)) {
      throw bad_npy(path, "its shape " + shape_text(shape) + " is larger than memory");
    }
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

uint64_t regular_file_size(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Failure(ExitCode::input, "input file " + path + " cannot be opened: " + std::strerror(errno),
                  "check the path given to --input");
  }
  if (!S_ISREG(status.st_mode)) {
    throw bad_npy(path, "it is not a regular file");
  }
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

const char* dtype_name(Dtype dtype) { return info(dtype).name; }

size_t dtype_size(Dtype dtype) { return info(dtype).size; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Array read_npy(const std::string& path) {
  const uint64_t file_size = regular_file_size(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Failure(ExitCode::input, "input file " + path + " cannot be opened: " + std::strerror(errno),
                  "check that it is readable");
  }
  unsigned char start[kMagicSize + 6] = {};
  file.read(reinterpret_cast<char*>(start), kMagicSize + 4);
  if (file.gcount() != kMagicSize + 4 || std::memcmp(start, kMagic, kMagicSize) != 0) {
    throw bad_npy(path, "it is not a .npy file");
  }
  const int version = start[kMagicSize];
  if (version != 1 && version != 2) {
    throw bad_npy(path, "its format version " + std::to_string(version) + " is not 1 or 2");
  }
  uint64_t header_at = kMagicSize + 4;
  uint64_t header_size = start[kMagicSize + 2] | start[kMagicSize + 3] << 8;
  if (version == 2) {
    file.read(reinterpret_cast<char*>(start + header_at), 2);
    if (file.gcount() != 2) {
      throw bad_npy(path, "it ends inside its header");
    }
    header_size |= static_cast<uint64_t>(start[header_at]) << 16 | static_cast<uint64_t>(start[header_at + 1]) << 24;
    header_at += 2;
  }
  if (header_size > kLongestHeader) {
    throw bad_npy(path, "its header claims " + std::to_string(header_size) + " bytes");
  }
  if (header_at + header_size > file_size) {
    throw bad_npy(path, "it ends inside its header");
  }
  std::string header(header_size, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_size));

  Array array;
  std::string descr;
  bool fortran_order = false;
  HeaderParser(path, header).parse(descr, fortran_order, array.shape);
  array.dtype = dtype_of_descr(path, descr);
  if (fortran_order && array.shape.size() > 1) {
    throw bad_npy(path, "its data is in Fortran order");
  }
  const uint64_t wanted = data_bytes(path, array.shape, dtype_size(array.dtype));
  const uint64_t given = file_size - header_at - header_size;
  if (wanted != given) {
    throw bad_npy(path, "its shape " + shape_text(array.shape) + " of " + dtype_name(array.dtype) + " needs " +
                            std::to_string(wanted) + " bytes of data and it has " + std::to_string(given));
  }
  array.data.resize(wanted);
  file.read(reinterpret_cast<char*>(array.data.data()), static_cast<std::streamsize>(wanted));
  if (static_cast<uint64_t>(file.gcount()) != wanted) {
    throw bad_npy(path, "it cannot be read to its end");
  }
  return array;
}

std::string npy_bytes(const Array& array) {
  std::string shape = "(";
  for (const int64_t size : array.shape) {
    shape += std::to_string(size) + ",";
  }
  shape += ")";
  std::string header =
      std::string("{'descr': '") + info(array.dtype).descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  // numpy aligns the data to 64 bytes, counted from the start of the file.
  const size_t unpadded = kMagicSize + 4 + header.size() + 1;
  header.append((64 - unpadded % 64) % 64, ' ');
  header += '\n';

  std::string bytes(kMagic, kMagicSize);
  bytes += '\x01';
  bytes += '\x00';
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8 & 0xFF);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  return bytes;
}

}  // namespace sme2
