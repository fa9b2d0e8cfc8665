#include "json.h"

#include <cstdio>

namespace sme2 {
namespace {

// Length of the valid UTF-8 sequence at `at`, 0 when there is none (RFC 3629).
size_t utf8_length(const std::string& s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(at);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || at + length > s.size()) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  if (length > 2) {
    const unsigned char second = byte(at + 1);
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool surrogate = lead == 0xED && second >= 0xA0;
    const bool too_large = lead == 0xF4 && second >= 0x90;
    if (overlong || surrogate || too_large) {
      return 0;
    }
  }
  return length;
}

}  // namespace

std::string json_quoted(const std::string& value) {
  std::string out = "\"";
  for (size_t i = 0; i < value.size();) {
    const size_t length = utf8_length(value, i);
    if (length == 0) {
      out += "\\ufffd";
      ++i;
      continue;
    }
    const auto c = static_cast<unsigned char>(value[i]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += value[i];
    } else if (c < 0x20 || c == 0x7F) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out.append(value, i, length);
    }
    i += length;
  }
  return out + '"';
}

void JsonWriter::separate() {
  if (needs_comma_) {
    out_ += ", ";
  }
  needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  separate();
  out_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  out_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  separate();
  out_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  out_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(const std::string& name) {
  separate();
  out_ += json_quoted(name) + ": ";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::text(const std::string& value) {
  separate();
  out_ += json_quoted(value);
  return *this;
}

JsonWriter& JsonWriter::number(int64_t value) {
  separate();
  out_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::decimal(double value) {
  separate();
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.15g", value);
  out_ += digits;
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::texts(const std::vector<std::string>& values) {
  begin_array();
  for (const std::string& value : values) {
    text(value);
  }
  return end_array();
}

JsonWriter& JsonWriter::numbers(const std::vector<int64_t>& values) {
  begin_array();
  for (const int64_t value : values) {
    number(value);
  }
  return end_array();
}

}  // namespace sme2
