// Philox4x64-10 (Salmon et al., SC 2011): four 64-bit words as a pure function of counter and key, as in rng.py.
#pragma once

#include <cstdint>

namespace draftproof {

constexpr int kPhiloxRounds = 10;
constexpr std::uint64_t kPhiloxFactor0 = 0xD2E7470EE14C6C93u, kPhiloxFactor1 = 0xCA5A826395121157u;
constexpr std::uint64_t kPhiloxWeyl0 = 0x9E3779B97F4A7C15u, kPhiloxWeyl1 = 0xBB67AE8584CAA73Bu;

struct Block {
  std::uint64_t words[4];
};

[[gnu::always_inline]] static inline Block philox_round(Block x, std::uint64_t k0, std::uint64_t k1) {
  const unsigned __int128 even = static_cast<unsigned __int128>(x.words[0]) * kPhiloxFactor0;
  const unsigned __int128 odd = static_cast<unsigned __int128>(x.words[2]) * kPhiloxFactor1;
  return {{static_cast<std::uint64_t>(odd >> 64) ^ x.words[1] ^ k0, static_cast<std::uint64_t>(odd),
           static_cast<std::uint64_t>(even >> 64) ^ x.words[3] ^ k1, static_cast<std::uint64_t>(even)}};
}

// The block with counter (index, position, 0, 0) under the key (seed, use).
[[gnu::always_inline]] static inline Block philox(std::uint64_t index, std::uint64_t position, std::uint64_t seed,
                                                  std::uint64_t use) {
  Block x = {{index, position, 0, 0}};
  for (int round = 0; round < kPhiloxRounds; ++round, seed += kPhiloxWeyl0, use += kPhiloxWeyl1)
    x = philox_round(x, seed, use);
  return x;
}

}  // namespace draftproof
