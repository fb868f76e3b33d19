// Kernels on rows over the vocabulary: softmax with temperature, what a draft leaves of the target, a draw.
//
// Sums go over blocks of 256 in float32 and over blocks in float64, always in this order: a row has the same bits
// wherever it is computed, and the rounding stays near that of a single addition.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace draftproof::DRAFTPROOF_ISA {

constexpr int kBlock = 256;
constexpr float kLowest = -87.0f;  // e^x is no float below it: such a token has probability zero

inline int smaller(int a, int b) { return a < b ? a : b; }

// The sixteen floats from p, those past `left` replaced.
[[gnu::always_inline]] inline V16 load_part(const float* p, int left, float filler) {
  if (left >= kLanes) return load(p);
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < left ? p[i] : filler;
  return load(lanes);
}

[[gnu::always_inline]] inline void store_part(float* p, int left, V16 v) {
  if (left >= kLanes) return store(p, v);
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < left; ++i) p[i] = lanes[i];
}

// body(i, left) for every vector of [from, to); only the last one may have left < 16.
template <class Body>
[[gnu::always_inline]] inline void each_vector(int from, int to, Body&& body) {
  int i = from;
  for (; i + kLanes <= to; i += kLanes) body(i, kLanes);
  if (i < to) body(i, to - i);
}

// Sum over blocks of what `body(i, left, sum)` adds to the lanes of each.
template <class Body>
[[gnu::always_inline]] inline double block_sums(int n, Body&& body) {
  double total = 0.0;
  for (int from = 0; from < n; from += kBlock) {
    V16 sum = splat(0.0f);
    each_vector(from, smaller(from + kBlock, n), [&](int i, int left) __attribute__((always_inline)) {
      sum = sum + body(i, left);
    });
    total += lane_sum(sum);
  }
  return total;
}

// The largest score; NaN where one is NaN or infinite, or where all are -infinity.
inline float top_score(const float* scores, int n) {
  constexpr int kChains = 4;  // a maximum waits for the one before it, so four are on their way at a time
  const V16 lowest = splat(-__builtin_inff()), limit = splat(__builtin_inff()), one = splat(1.0f);
  V16 best[kChains], usable[kChains];  // NaN and infinity are not below the limit, so they are not counted
  each<kChains>([&](int c) { best[c] = lowest, usable[c] = splat(0.0f); });
  const auto take = [&](int c, int i, int left) __attribute__((always_inline)) {
    const V16 x = load_part(scores + i, left, -__builtin_inff());
    best[c] = max(best[c], x);
    usable[c] = usable[c] + keep_above(one, limit, x);
  };
  int i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes)
    each<kChains>([&](int c) { take(c, i + c * kLanes, kLanes); });
  each_vector(i, n, [&](int at, int left) __attribute__((always_inline)) { take(0, at, left); });
  const float top = lane_max(max(max(best[0], best[1]), max(best[2], best[3])));
  const float counted = lane_sum((usable[0] + usable[1]) + (usable[2] + usable[3]));
  const bool whole = counted == static_cast<float>((n + kLanes - 1) / kLanes * kLanes);
  return whole && top != -__builtin_inff() ? top : __builtin_nanf("");
}

// The first token of the largest score, and its part of a softmax; -1 where `top_score` is NaN.
inline int best(const float* scores, int n, float* share) {
  const float top = top_score(scores, n);
  if (top != top) return -1;
  const V16 shift = splat(top), lowest = splat(kLowest);
  *share = static_cast<float>(1.0 / block_sums(n, [&](int i, int left) __attribute__((always_inline)) {
    const V16 x = load_part(scores + i, left, -__builtin_inff()) - shift;
    return keep_above(exp(x), x, lowest);
  }));
  for (int from = 0; from < n; from += kBlock) {
    V16 most = splat(-__builtin_inff());
    const int to = smaller(from + kBlock, n);
    each_vector(from, to, [&](int i, int left) __attribute__((always_inline)) {
      most = max(most, load_part(scores + i, left, -__builtin_inff()));
    });
    if (lane_max(most) < top) continue;
    for (int i = from; i < to; ++i)
      if (scores[i] == top) return i;
  }
  return -1;
}

inline void scale_row(float* row, int n, float factor) {
  const V16 scale = splat(factor);
  each_vector(0, n, [&](int i, int left) __attribute__((always_inline)) {
    store_part(row + i, left, load_part(row + i, left, 0.0f) * scale);
  });
}

inline void probabilities(const float* scores, int n, float inverse_temperature, float* out) {
  const float top = top_score(scores, n);
  if (top != top) {
    for (int i = 0; i < n; ++i) out[i] = top;
    return;
  }
  const V16 shift = splat(top), factor = splat(inverse_temperature), lowest = splat(kLowest);
  const double total = block_sums(n, [&](int i, int left) __attribute__((always_inline)) {
    const V16 x = (load_part(scores + i, left, -__builtin_inff()) - shift) * factor;
    const V16 power = keep_above(exp(x), x, lowest);
    store_part(out + i, left, power);
    return power;
  });
  scale_row(out, n, static_cast<float>(1.0 / total));
}

// out = (scale * p - q)+ with its mass.
inline double residual(const float* p, const float* q, float scale, int n, float* out) {
  const V16 zero = splat(0.0f), factor = splat(scale);
  return block_sums(n, [&](int i, int left) __attribute__((always_inline)) {
    const V16 rest = max(load_part(p + i, left, 0.0f) * factor - load_part(q + i, left, 0.0f), zero);
    store_part(out + i, left, rest);
    return rest;
  });
}

// The mass of (scale * p - q)+ and the sum of min(p, q).
inline void compare(const float* p, const float* q, float scale, int n, double* mass, double* overlap) {
  *mass = *overlap = 0.0;
  const V16 zero = splat(0.0f), factor = splat(scale);
  for (int from = 0; from < n; from += kBlock) {
    V16 left_sum = zero, shared_sum = zero;
    each_vector(from, smaller(from + kBlock, n), [&](int i, int left) __attribute__((always_inline)) {
      const V16 target = load_part(p + i, left, 0.0f), draft = load_part(q + i, left, 0.0f);
      left_sum = left_sum + max(target * factor - draft, zero);
      shared_sum = shared_sum + min(target, draft);
    });
    *mass += lane_sum(left_sum);
    *overlap += lane_sum(shared_sum);
  }
}

inline double block_sum(const float* row, int n) {
  return block_sums(n, [&](int i, int left) __attribute__((always_inline)) { return load_part(row + i, left, 0.0f); });
}

// The token at the quantile u of the row, never one of probability zero; -1 for a row without mass or with NaN.
inline int draw(const float* row, int n, double u) {
  const double total = block_sum(row, n);
  if (!(total > 0.0)) return -1;
  double left = u * total;
  int chosen = -1;
  for (int from = 0; from < n; from += kBlock) {
    const int size = smaller(kBlock, n - from);
    const double mass = block_sum(row + from, size);
    if (left >= mass && from + size < n) {
      left -= mass;
      continue;
    }
    for (int i = from; i < from + size; ++i) {
      if (row[i] > 0.0f) chosen = i;
      if (left < row[i]) return i;
      left -= row[i];
    }
    if (chosen >= 0) return chosen;  // rounding went past the block's last token
  }
  for (int i = n - 1; i >= 0; --i)
    if (row[i] > 0.0f) return i;
  return -1;
}

}  // namespace draftproof::DRAFTPROOF_ISA
