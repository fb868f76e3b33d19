// Kernels on rows over the vocabulary: softmax with temperature, what a draft leaves of the target, a draw.
//
// Sums go over blocks of 256 in float32 and over blocks in float64, always in this order: a row has the same bits wherever
// it is computed, and the rounding stays near that of a single addition.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace draftproof::DRAFTPROOF_ISA {

constexpr int kBlock = 256;
constexpr float kLowest = -87.0f;  // e^x is no float below it: such a token has probability zero

inline int smaller(int a, int b) { return a < b ? a : b; }

// The sixteen floats from p, those past `left` replaced.
inline V16 load_part(const float* p, int left, float filler) {
  if (left >= kLanes) return load(p);
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < left ? p[i] : filler;
  return load(lanes);
}

inline void store_part(float* p, int left, V16 v) {
  if (left >= kLanes) return store(p, v);
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < left; ++i) p[i] = lanes[i];
}

// The largest score; NaN where one is NaN or infinite, or where all are -infinity.
inline float top_score(const float* scores, int n) {
  const V16 lowest = splat(-__builtin_inff()), limit = splat(__builtin_inff()), one = splat(1.0f);
  V16 best = lowest, usable = splat(0.0f);  // NaN and infinity are not below the limit, so they are not counted
  for (int i = 0; i < n; i += kLanes) {
    const V16 x = load_part(scores + i, n - i, -__builtin_inff());
    best = max(best, x);
    usable = usable + keep_above(one, limit, x);
  }
  const float top = lane_max(best), lanes = static_cast<float>((n + kLanes - 1) / kLanes * kLanes);
  return lane_sum(usable) != lanes || top == -__builtin_inff() ? __builtin_nanf("") : top;
}

inline void probabilities(const float* scores, int n, float inverse_temperature, float* out) {
  const float top = top_score(scores, n);
  if (top != top) {
    for (int i = 0; i < n; ++i) out[i] = top;
    return;
  }
  double total = 0.0;
  for (int from = 0; from < n; from += kBlock) {
    V16 sum = splat(0.0f);
    const int to = smaller(from + kBlock, n);
    for (int i = from; i < to; i += kLanes) {
      const V16 x = (load_part(scores + i, to - i, -__builtin_inff()) - splat(top)) * splat(inverse_temperature);
      const V16 power = keep_above(exp(x), x, splat(kLowest));
      store_part(out + i, to - i, power);
      sum = sum + power;
    }
    total += lane_sum(sum);
  }
  const V16 scale = splat(static_cast<float>(1.0 / total));
  for (int i = 0; i < n; i += kLanes) store_part(out + i, n - i, load_part(out + i, n - i, 0.0f) * scale);
}

// out = (scale * p - q)+ with its mass, and the sum of min(p, q).
inline void residual(const float* p, const float* q, float scale, int n, float* out, double* mass, double* overlap) {
  *mass = *overlap = 0.0;
  const V16 zero = splat(0.0f), factor = splat(scale);
  for (int from = 0; from < n; from += kBlock) {
    V16 left_sum = zero, shared_sum = zero;
    const int to = smaller(from + kBlock, n);
    for (int i = from; i < to; i += kLanes) {
      const V16 target = load_part(p + i, to - i, 0.0f), draft = load_part(q + i, to - i, 0.0f);
      const V16 left = max(target * factor - draft, zero);
      store_part(out + i, to - i, left);
      left_sum = left_sum + left;
      shared_sum = shared_sum + min(target, draft);
    }
    *mass += lane_sum(left_sum);
    *overlap += lane_sum(shared_sum);
  }
}

inline double block_sum(const float* row, int n) {
  V16 sum = splat(0.0f);
  for (int i = 0; i < n; i += kLanes) sum = sum + load_part(row + i, n - i, 0.0f);
  return lane_sum(sum);
}

// The token at the quantile u of the row, never one of probability zero; -1 for a row without mass or with NaN.
inline int draw(const float* row, int n, double u) {
  double total = 0.0;
  for (int from = 0; from < n; from += kBlock) total += block_sum(row + from, smaller(kBlock, n - from));
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
