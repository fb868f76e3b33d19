// Gumbel-max as an exponential race: the token with the largest p / e wins, e = -log(u) being the position's noise.
//
// No logarithm is taken for a token that cannot win. The noise e is at least the gap 1 - u, so p / e is at most
// p / (1 - u), and tokens for which that bound reaches the winner's p / e are about two on average, whatever the row.
// Gaps are made for tokens that have mass, when a row first needs them.
#pragma once

#include "philox.h"
#include "vocabulary.h"
#if defined(__AVX512DQ__)
#include "philox_avx512.h"
#endif

namespace draftproof::DRAFTPROOF_ISA {

constexpr int kChunk = 48;  // gaps made together
constexpr float kSlack = 1.0f - 0x1p-20f;  // takes off far more than rounding adds

#if !defined(__AVX512DQ__)
// The upper halves of the words of twelve blocks from `index` on, in the order of the words.
inline void twelve_blocks(std::uint64_t index, std::uint64_t position, std::uint64_t seed, std::uint32_t* out) {
  for (int b = 0; b < kChunk / 4; ++b) {
    const Block block = philox(index + b, position, seed, 0);
    for (int j = 0; j < 4; ++j) out[4 * b + j] = static_cast<std::uint32_t>(block.words[j] >> 32);
  }
}
#endif

// 1 / e of a token in float32, from the same 52 random bits as rng.exponentials.
inline float speed(std::uint64_t seed, std::uint64_t position, int token) {
  const std::uint64_t word = philox(1 + static_cast<std::uint64_t>(token) / 4, position, seed, 0).words[token % 4];
  const double u = (static_cast<double>(static_cast<std::int64_t>(word >> 12)) + 0.5) * 0x1p-52;
  return static_cast<float>(1.0 / -__builtin_log(u));
}

// The gaps of the chunk from `first` on, rounded down to multiples of 2^-32.
inline void make_gaps(float* gaps, int n, int first, std::uint64_t seed, std::uint64_t position) {
  std::uint32_t words[kChunk];
  twelve_blocks(1 + static_cast<std::uint64_t>(first) / 4, position, seed, words);
  float made[kChunk];
  for (int i = 0; i < kChunk; ++i) made[i] = static_cast<float>(~words[i]) * 0x1p-32f;
  for (int i = 0; i < smaller(kChunk, n - first); ++i) gaps[first + i] = made[i];
}

// The first maximum of row[x] * speed(x); gaps[n] are those of the position, 0 where they have not been needed yet.
inline int race(const float* row, float* gaps, int n, std::uint64_t seed, std::uint64_t position) {
  int winner = -1;
  float best = 0.0f;
  V16 limit = splat(0.0f);
  const V16 least = splat(0x1p-149f);
  each_vector(0, n, [&](int i, int left) __attribute__((always_inline)) {
    const V16 p = load_part(row + i, left, 0.0f);
    if (!any_from(p, least)) return;
    if (gaps[i] == 0.0f) make_gaps(gaps, n, i / kChunk * kChunk, seed, position);
    if (!any_from(p, max(load_part(gaps + i, left, 1.0f) * limit, least))) return;
    for (int x = i; x < i + left; ++x) {
      if (!(row[x] > 0.0f && row[x] >= gaps[x] * (best * kSlack))) continue;
      const float rate = row[x] * speed(seed, position, x);
      if (rate > best) best = rate, winner = x;
    }
    limit = splat(best * kSlack);
  });
  return winner;
}

}  // namespace draftproof::DRAFTPROOF_ISA
