// AVX2 + FMA + F16C lanes: sixteen floats are two registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace draftproof::DRAFTPROOF_ISA {

struct V16 {
  __m256 lo, hi;
};
struct I16 {
  __m256i lo, hi;
};

constexpr int kAccumulators = 5;  // two registers each, of sixteen
constexpr int kMaxRows = 6;
constexpr int kPairRows = 2;  // rows whose sums of two panels fit beside weights

inline V16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V16 a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
inline V16 operator+(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline V16 operator-(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline V16 operator*(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline V16 operator/(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline V16 min(V16 a, V16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
// value where x > limit, else zero.
inline V16 keep_above(V16 value, V16 x, V16 limit) {
  return {_mm256_and_ps(value.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_GT_OQ)),
          _mm256_and_ps(value.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_GT_OQ))};
}
// value where x >= limit, else zero; is that so anywhere?
inline V16 keep_from(V16 value, V16 x, V16 limit) {
  return {_mm256_and_ps(value.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ)),
          _mm256_and_ps(value.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ))};
}
inline bool any_from(V16 x, V16 limit) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_GE_OQ),
                                         _mm256_cmp_ps(x.hi, limit.hi, _CMP_GE_OQ))) != 0;
}
// The lanes with low <= x < high, packed at `to`, which has room for sixteen; their number.
inline int pack(float* to, V16 x, V16 low, V16 high) {
  if (!any_from(x, low)) return 0;
  float lanes[16], floor[16], ceiling[16];
  store(lanes, x), store(floor, low), store(ceiling, high);
  int count = 0;
  for (int i = 0; i < 16; ++i) {
    to[count] = lanes[i];
    count += (lanes[i] >= floor[i]) & (lanes[i] < ceiling[i]);
  }
  return count;
}
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }

inline __m256 exponent_half(__m256 x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
inline V16 exponent(V16 shifted) { return {exponent_half(shifted.lo), exponent_half(shifted.hi)}; }

inline __m128i load_half(const std::uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline V16 load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))};
}

inline I16 load_i32(const void* p) {
  const __m256i* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline I16 splat_i32(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline void store_i32(std::int32_t* p, I16 a) {
  __m256i* halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, a.lo), _mm256_storeu_si256(halves + 1, a.hi);
}
inline I16 operator&(I16 a, I16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline I16 operator^(I16 a, I16 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
inline I16 operator-(I16 a, I16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
typedef std::uint32_t Unsigned8 __attribute__((vector_size(32)));
typedef std::int32_t Signed8 __attribute__((vector_size(32)));
inline I16 shift_left(I16 a, int n) { return {(__m256i)((Unsigned8)a.lo << n), (__m256i)((Unsigned8)a.hi << n)}; }
inline I16 shift_right(I16 a, int n) { return {(__m256i)((Unsigned8)a.lo >> n), (__m256i)((Unsigned8)a.hi >> n)}; }
inline I16 shift_right_signed(I16 a, int n) { return {(__m256i)((Signed8)a.lo >> n), (__m256i)((Signed8)a.hi >> n)}; }
inline V16 as_float(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline V16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

// The lowest four bits of each lane as a float, whatever stands above them.
inline V16 low_nibble(I16 a) { return to_float(a & splat_i32(15)); }

// Even and odd bytes are widened to 16 bits first: maddubs would saturate on 8-bit weights.
inline __m256i dot4_half(__m256i sum, __m256i u, __m256i s) {
  const __m256i low_bytes = _mm256_set1_epi16(0x00ff);
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, low_bytes), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline I16 dot4(I16 sum, I16 unsigned_bytes, I16 signed_bytes) {
  return {dot4_half(sum.lo, unsigned_bytes.lo, signed_bytes.lo), dot4_half(sum.hi, unsigned_bytes.hi, signed_bytes.hi)};
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // to level 2

}  // namespace draftproof::DRAFTPROOF_ISA
