#include "modules.h"

#include <cstring>

#include "check.h"

namespace {

[[gnu::noinline]] int something(int x) { return 3 * x + 1; }

}  // namespace

TEST(a_function_of_this_program_lies_in_this_program) {
  const auto modules = sme2::loaded_modules();
  CHECK(modules.size() > 1);
  const auto pc = reinterpret_cast<uint64_t>(&something);
  const sme2::Place place = sme2::place_of(modules, pc);
  CHECK(place.module);
  const sme2::Module& module = modules[*place.module];
  CHECK(module.path.find("unit_tests") != std::string::npos);
  CHECK(module.base + place.address == pc);
#if defined(__aarch64__)
  uint32_t word = 0;
  std::memcpy(&word, reinterpret_cast<const void*>(pc), sizeof(word));
  CHECK(place.word == word);
#endif
}

TEST(an_address_in_no_module_is_kept_as_it_is) {
  const sme2::Place place = sme2::place_of(sme2::loaded_modules(), 12);
  CHECK(!place.module);
  CHECK(place.address == 12);
  CHECK(!place.word);
}

TEST(nothing_is_read_beyond_a_segment_or_where_it_must_not_be_read) {
  const uint32_t words[2] = {1, 2};
  const auto start = reinterpret_cast<uint64_t>(words);
  sme2::Module module;
  module.base = start;
  module.segments = {{start, start + 6, true}};
  // Its last word is cut off by the segment's end.
  CHECK(!sme2::place_of({module}, start + 4).word);
  CHECK(!sme2::place_of({module}, start + 2).word);
  CHECK(!sme2::place_of({module}, start + 6).module);
  module.segments = {{start, start + 8, false}};
  CHECK(sme2::place_of({module}, start).module);
  CHECK(!sme2::place_of({module}, start).word);
}

TEST(bytes_become_hexadecimal_digits) {
  CHECK(sme2::hexadecimal("\x00\x7f\xff", 3) == "007fff");
  CHECK(sme2::hexadecimal("", 0).empty());
}
