// Systems for which nobody has written a sampler yet: the kernels pass says so.
#include "sampler.h"

#include "failure.h"

namespace sme2 {

struct Sampler::State {};

Sampler::Sampler(int64_t, size_t, size_t) {
  throw Failure(ExitCode::no_sampler, "the sampler could not be started: there is none for this system",
                "leave the kernels pass out, or run it on Linux, Android or macOS");
}

Sampler::~Sampler() = default;

void Sampler::start() {}

Recording Sampler::stop() { return {}; }

int64_t sample_clock_ns() { return 0; }

}  // namespace sme2
