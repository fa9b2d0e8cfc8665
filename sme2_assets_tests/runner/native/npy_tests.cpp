#include "npy.h"

#include <cstring>
#include <random>

#include "check.h"

using sme2::Array;
using sme2::Dtype;
using sme2::ExitCode;
using sme2::tests::TemporaryFolder;

namespace {

Array numbers() {
  Array array;
  array.dtype = Dtype::int16;
  array.shape = {2, 3};
  array.data.resize(12);
  for (size_t i = 0; i < array.data.size(); ++i) {
    array.data[i] = static_cast<unsigned char>(i * 20);
  }
  return array;
}

std::string with_header(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes("\x93NUMPY", 6);
  bytes += version;
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8 & 0xFF);
  if (version != 1) {
    bytes.append(2, '\0');
  }
  return bytes + header + data;
}

}  // namespace

TEST(an_array_is_read_as_it_was_written) {
  const TemporaryFolder folder;
  const Array array = numbers();
  const std::string bytes = sme2::npy_bytes(array);
  CHECK(bytes.find('\n') % 64 == 63);
  const Array read = sme2::read_npy(folder.file("a.npy", bytes));
  CHECK(read.dtype == array.dtype);
  CHECK(read.shape == array.shape);
  CHECK(read.data == array.data);
}

TEST(headers_in_other_words_are_understood) {
  const TemporaryFolder folder;
  for (const char version : {char{1}, char{2}}) {
    const std::string header = "{\"shape\":( ),  'fortran_order' :True,'descr':\"<i1\"}\n";
    const Array read = sme2::read_npy(folder.file("a.npy", with_header(header, "x", version)));
    CHECK(read.dtype == Dtype::int8);
    CHECK(read.shape.empty());
  }
}

TEST(headers_that_lie_are_refused) {
  const TemporaryFolder folder;
  const std::string begin = "{'descr': '<f4', 'fortran_order': False, 'shape': ";
  for (const std::string shape :
       {"(1,)}", "(2147483648,)}", "(2147483647,2147483647,2147483647)}", "(99999999999999999999,)}", "(-1,)}", "(1",
        "(1,)", "(,)}", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)}", "(0x1,)}", "()} trailing", "()", "(1 1)}", "[1]}",
        "(0,2147483647,2147483647,2147483647)"}) {
    CHECK_FAILS(ExitCode::input, "not usable", sme2::read_npy(folder.file("a.npy", with_header(begin + shape, ""))));
  }
  for (const std::string header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
        "{'descr': '>f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<c8', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", "{'descr: '<f4'}", "{'",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}"}) {
    CHECK_FAILS(ExitCode::input, "not usable", sme2::read_npy(folder.file("a.npy", with_header(header, "1234"))));
  }
}

TEST(any_damage_of_a_file_is_a_failure_of_input_or_still_an_array) {
  const TemporaryFolder folder;
  const std::string whole = sme2::npy_bytes(numbers());
  std::mt19937 draw(3);
  int refused = 0;
  const auto read = [&](const std::string& bytes) {
    try {
      const Array array = sme2::read_npy(folder.file("a.npy", bytes));
      size_t elements = 1;
      for (const int64_t size : array.shape) {
        elements *= static_cast<size_t>(size);
      }
      CHECK(array.data.size() == elements * sme2::dtype_size(array.dtype));
    } catch (const sme2::Failure& failure) {
      CHECK(failure.code() == ExitCode::input);
      ++refused;
    }
  };
  for (size_t size = 0; size < whole.size(); ++size) {
    read(whole.substr(0, size));
  }
  CHECK(refused == static_cast<int>(whole.size()));
  for (int trial = 0; trial < 1000; ++trial) {
    std::string bytes = whole;
    for (int i = static_cast<int>(draw() % 4); i >= 0; --i) {
      bytes[draw() % bytes.size()] = static_cast<char>(draw());
    }
    read(bytes);
  }
}

TEST(what_is_no_file_is_refused) {
  const TemporaryFolder folder;
  CHECK_FAILS(ExitCode::input, "cannot be opened", sme2::read_npy(folder.path("none.npy")));
  CHECK_FAILS(ExitCode::input, "not a regular file", sme2::read_npy(folder.path("")));
}
