// Filters on rows of probabilities: top-p and min-p as thresholds, found without a sort.
#pragma once

#include "vocabulary.h"

namespace draftproof::DRAFTPROOF_ISA {

typedef float Floats8 __attribute__((vector_size(32)));
typedef std::int32_t Ints8 __attribute__((vector_size(32)));
typedef double Doubles8 __attribute__((vector_size(64)));

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The sum in float64 of the values at or above the cut; n is a multiple of 8.
inline double mass_from(const float* values, int n, float cut) {
  Doubles8 sums = {};
  for (int i = 0; i < n; i += 8) {
    Floats8 x;
    __builtin_memcpy(&x, values + i, sizeof x);
    sums += __builtin_convertvector((Floats8)((Ints8)(x >= cut) & (Ints8)x), Doubles8);
  }
  double mass = 0.0;
  for (int i = 0; i < 8; ++i) mass += sums[i];
  return mass;
}

// The values in [low, high), then zeros up to a multiple of 8, which is returned; `to` has room for n + 16 and may be
// the values themselves.
inline int select(const float* values, int n, float low, float high, float* to) {
  const V16 floor = splat(low), ceiling = splat(high);
  int count = 0;
  each_vector(0, n, [&](int i, int left) __attribute__((always_inline)) {
    count += pack(to + count, load_part(values + i, left, -1.0f), floor, ceiling);
  });
  while (count % 8) to[count++] = 0.0f;
  return count;
}

// The smallest probability in the smallest set of likeliest tokens that holds the mass top_p: the largest threshold
// from which on that mass lies, found by halving among floats, whose bits ascend as they do; 0 where all are needed.
inline float nucleus(const float* row, int n, double top_p, float* kept) {
  std::uint32_t low = bits_of(2.0f), high;
  int count;
  for (float cut = 0x1p-12f; true; cut = cut < 1e-11f ? 0.0f : cut / 32) {  // at most 1 / cut values lie above it
    high = low, low = bits_of(cut), count = select(row, n, cut, 2.0f, kept);
    if (cut == 0.0f || mass_from(kept, count, cut) >= top_p) break;
  }
  double above = 0.0;  // mass of the values that are in `kept` no longer
  for (int halving = 0; high - low > 1; ++halving) {
    if (halving % 3 == 0) {
      above += mass_from(kept, count, float_of(high));
      count = select(kept, count, float_of(low), float_of(high), kept);
    }
    const std::uint32_t middle = low + (high - low) / 2;
    (above + mass_from(kept, count, float_of(middle)) >= top_p ? low : high) = middle;
  }
  return float_of(low);
}

// Zero below the threshold, the rest made to sum to 1.
inline void cut_row(float* row, int n, float threshold) {
  const V16 limit = splat(threshold);
  const double mass = block_sums(n, [&](int i, int left) __attribute__((always_inline)) {
    const V16 x = load_part(row + i, left, 0.0f), kept = keep_from(x, x, limit);
    store_part(row + i, left, kept);
    return kept;
  });
  scale_row(row, n, static_cast<float>(1.0 / mass));
}

// A row of probabilities filtered in place, NaN left alone; `room` has space for n + 16 floats.
inline void filter(float* row, int n, double top_p, float min_p, float* room) {
  if (row[0] != row[0]) return;
  if (top_p < 1.0) cut_row(row, n, nucleus(row, n, top_p, room));
  if (min_p > 0.0f) {
    V16 best = splat(0.0f);
    each_vector(0, n, [&](int i, int left) __attribute__((always_inline)) {
      best = max(best, load_part(row + i, left, 0.0f));
    });
    cut_row(row, n, min_p * lane_max(best));
  }
}

}  // namespace draftproof::DRAFTPROOF_ISA
