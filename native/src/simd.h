// Sixteen float32 lanes for every instruction set: the unit in which all kernels are written.
//
// A kernel is compiled once per instruction set into its own namespace (DRAFTPROOF_ISA), so nothing compiled for a
// newer machine can be linked into code that an older one runs. No standard templates in here, for the same reason.
#pragma once

#ifndef DRAFTPROOF_ISA
#error "compile kernels with DRAFTPROOF_ISA set to the name of the instruction set"
#endif

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_generic.h"
#endif

namespace draftproof::DRAFTPROOF_ISA {

// body(0) ... body(n - 1), unrolled: an array of sums stays in registers only if no index is left at run time.
template <int n, class Body>
[[gnu::always_inline]] inline void each(Body&& body) {
  _Pragma("GCC unroll 32") for (int i = 0; i < n; ++i) body(i);
}
template <int n, int m, class Body>
[[gnu::always_inline]] inline void each(Body&& body) {
  each<n>([&](int i) { each<m>([&](int j) { body(i, j); }); });
}

constexpr int kLanes = 16;

// Sum of the lanes in a fixed order, which every instruction set shares: halves are added until one is left.
#if !defined(__AVX512F__)
inline float lane_sum(V16 v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

inline float lane_max(V16 v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i + width] > lanes[i] ? lanes[i + width] : lanes[i];
  return lanes[0];
}
#endif

// e^x by range reduction to |r| <= ln(2)/2 and a polynomial of degree 6 (coefficients of Cephes expf); 1e-7 relative.
inline V16 exp(V16 x) {
  x = max(min(x, splat(88.0f)), splat(-87.0f));
  const V16 magic = splat(12582912.0f + 127.0f);  // 1.5 * 2^23 + bias: the low bits of the sum hold n + 127
  const V16 shifted = fma(x, splat(1.44269504088896341f), magic);
  const V16 n = shifted - magic;
  V16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  V16 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return p * exponent(shifted);
}

}  // namespace draftproof::DRAFTPROOF_ISA
