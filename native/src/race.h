// Gumbel-max as an exponential race: the token with the largest p / e wins, e = -log(u) being the noise of the position.
//
// No logarithm is taken for a token that cannot win. With g = 1 - u the noise e is at least g, so p / e is at most p / g,
// and the number of tokens for which that bound exceeds the winner's p / e is about one on average, whatever the row.
#pragma once

#include "philox.h"
#include "vocabulary.h"

namespace draftproof::DRAFTPROOF_ISA {

// 1 / e of a token in float32, from the same 52 random bits as rng.exponentials.
inline float speed(std::uint64_t seed, std::uint64_t position, int token) {
  const std::uint64_t word = philox(1 + static_cast<std::uint64_t>(token) / 4, position, seed, 0).words[token % 4];
  return static_cast<float>(1.0 / -__builtin_log((static_cast<double>(word >> 12) + 0.5) * 0x1p-52));
}

// The first maximum of row[x] * speed(x); gaps[x] is g in float32.
inline int race(const float* row, const float* gaps, int n, std::uint64_t seed, std::uint64_t position) {
  int winner = -1;
  float best = 0.0f;
  V16 limit = splat(0.0f);
  const V16 least = splat(0x1p-149f);
  each_vector(0, n, [&](int i, int left) __attribute__((always_inline)) {
    if (!any_from(load_part(row + i, left, 0.0f), max(load_part(gaps + i, left, 1.0f) * limit, least))) return;
    for (int x = i; x < i + left; ++x) {
      if (!(row[x] > 0.0f && row[x] >= gaps[x] * (best * (1.0f - 0x1p-20f)))) continue;
      const float time = row[x] * speed(seed, position, x);
      if (time > best) best = time, winner = x;
    }
    limit = splat(best * (1.0f - 0x1p-20f));  // less by far more than the rounding of all factors
  });
  return winner;
}

}  // namespace draftproof::DRAFTPROOF_ISA
