#include "json.h"

#include "check.h"

using sme2::json_quoted;
using sme2::JsonWriter;

TEST(commas_stand_between_values_and_nowhere_else) {
  JsonWriter json;
  json.begin_object();
  json.key("a").numbers({});
  json.key("b").begin_array().null().boolean(true).begin_object().end_object().number(-3).end_array();
  json.key("c").texts({"x", "y"});
  json.key("d").decimal(0.1);
  json.end_object();
  CHECK(json.str() == R"({"a": [], "b": [null, true, {}, -3], "c": ["x", "y"], "d": 0.1})");
}

TEST(what_is_not_there_is_null) {
  JsonWriter json;
  json.begin_array();
  json.maybe(std::optional<bool>()).maybe(std::optional<bool>(false)).maybe(std::optional<size_t>(7));
  json.maybe(std::optional<double>(0.5)).maybe(std::optional<std::string>("x"));
  json.maybe(std::optional<std::vector<int64_t>>({1, 2})).end_array();
  CHECK(json.str() == R"([null, false, 7, 0.5, "x", [1, 2]])");
}

TEST(any_bytes_become_a_valid_text) {
  CHECK(json_quoted("a\"b\\c\n\x7f") == R"("a\"b\\c\u000a\u007f")");
  CHECK(json_quoted("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  // Alone, cut off, too long for what they say, surrogates, beyond the last character.
  for (const char* bad : {"\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc0\xaf", "\xe0\x80\xaf",
                          "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    CHECK(json_quoted(bad).find("\\ufffd") == 1);
  }
  CHECK(json_quoted(std::string("a\0b", 3)) == R"("a\u0000b")");
}
