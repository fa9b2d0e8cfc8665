// What the device can do at most, with plain code: the roofs of a roofline.
#pragma once

#include <cstdint>
#include <string>

namespace sme2 {

// With one thread and with all of the pool, as JSON: 32-bit multiply-accumulates of 128-bit vectors that stay in
// registers, and reading more memory than caches hold. Takes about half a second.
std::string roofs_json(uint32_t threads);

}  // namespace sme2
