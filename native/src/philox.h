// Philox4x64-10 (Salmon et al., SC 2011): four 64-bit words as a pure function of counter and key, as in rng.py.
#pragma once

#include <cstdint>

namespace draftproof {

struct Block {
  std::uint64_t words[4];
};

// The block with counter (index, position, 0, 0) under the key (seed, use).
[[gnu::always_inline]] static inline Block philox(std::uint64_t index, std::uint64_t position, std::uint64_t seed,
                                                  std::uint64_t use) {
  std::uint64_t x0 = index, x1 = position, x2 = 0, x3 = 0;
  for (int round = 0; round < 10; ++round) {
    const unsigned __int128 low = static_cast<unsigned __int128>(x0) * 0xD2E7470EE14C6C93u;
    const unsigned __int128 high = static_cast<unsigned __int128>(x2) * 0xCA5A826395121157u;
    x0 = static_cast<std::uint64_t>(high >> 64) ^ x1 ^ seed, x1 = static_cast<std::uint64_t>(high);
    x2 = static_cast<std::uint64_t>(low >> 64) ^ x3 ^ use, x3 = static_cast<std::uint64_t>(low);
    seed += 0x9E3779B97F4A7C15u, use += 0xBB67AE8584CAA73Bu;
  }
  return {{x0, x1, x2, x3}};
}

}  // namespace draftproof
