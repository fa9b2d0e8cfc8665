#include "marks.h"

// Each is a function of its own, so that its no-op shares a translated block with nothing but the return.
#if defined(__aarch64__) || defined(__arm64__)
#define SME2_MARK(number) __asm__ volatile("movz xzr, #" number)
#else
#define SME2_MARK(number)
#endif

namespace sme2 {

[[gnu::noinline]] void mark_start() { SME2_MARK("0x5E00"); }
[[gnu::noinline]] void mark_stop() { SME2_MARK("0x5E01"); }
[[gnu::noinline]] void mark_begin() { SME2_MARK("0x5E02"); }
[[gnu::noinline]] void mark_end() { SME2_MARK("0x5E03"); }

}  // namespace sme2
