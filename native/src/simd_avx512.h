// AVX-512 lanes (F, BW, DQ, VL, and VNNI for the integer dot products).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace draftproof::DRAFTPROOF_ISA {

struct V16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};

constexpr int kAccumulators = 24;  // V16 sums that fit the register file beside weights and a broadcast
constexpr int kMaxRows = 12;
constexpr int kPairRows = 12;  // rows whose sums of two panels fit beside weights

inline V16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
inline V16 operator+(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 operator-(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 operator*(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 operator/(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// value where x > limit, else zero.
inline V16 keep_above(V16 value, V16 x, V16 limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GT_OQ), value.v)};
}
// value where x >= limit, else zero; is that so anywhere?
inline V16 keep_from(V16 value, V16 x, V16 limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), value.v)};
}
inline bool any_from(V16 x, V16 limit) { return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ) != 0; }
// The lanes with low <= x < high, packed at `to`, which has room for sixteen; their number.
inline int pack(float* to, V16 x, V16 low, V16 high) {
  const __mmask16 inside = _mm512_cmp_ps_mask(x.v, low.v, _CMP_GE_OQ) & _mm512_cmp_ps_mask(x.v, high.v, _CMP_LT_OQ);
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(inside, x.v));
  return __builtin_popcount(inside);
}
// The sum that simd.h describes, and the largest lane, without a way through memory.
template <class Join>
inline float join_lanes(V16 v, Join join) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v.v), 1));
  const __m256 eight = join(_mm512_castps512_ps256(v.v), high);
  const auto four = [&](__m128 a, __m128 b) {
    return _mm256_castps256_ps128(join(_mm256_castps128_ps256(a), _mm256_castps128_ps256(b)));
  };
  __m128 lanes = four(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  lanes = four(lanes, _mm_movehl_ps(lanes, lanes));
  return _mm_cvtss_f32(four(lanes, _mm_movehdup_ps(lanes)));
}
inline float lane_sum(V16 v) {
  return join_lanes(v, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}
inline float lane_max(V16 v) {
  return join_lanes(v, [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); });
}
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

// 2^n from the bits that `exp` leaves in the low mantissa.
inline V16 exponent(V16 shifted) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23))};
}

inline V16 load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline I16 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
inline I16 splat_i32(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline void store_i32(std::int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I16 operator^(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
typedef std::uint32_t Unsigned16 __attribute__((vector_size(64)));
typedef std::int32_t Signed16 __attribute__((vector_size(64)));
inline I16 shift_left(I16 a, int n) { return {(__m512i)((Unsigned16)a.v << n)}; }
inline I16 shift_right(I16 a, int n) { return {(__m512i)((Unsigned16)a.v >> n)}; }
inline I16 shift_right_signed(I16 a, int n) { return {(__m512i)((Signed16)a.v >> n)}; }
inline V16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline V16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

// The lowest four bits of each lane as a float, whatever stands above them: one table look-up.
inline V16 low_nibble(I16 a) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_permutexvar_ps(a.v, table)};
}

// Four products a lane of unsigned bytes with signed bytes, added to `sum`: exact in 32 bits.
inline I16 dot4(I16 sum, I16 unsigned_bytes, I16 signed_bytes) {
  return {_mm512_dpbusd_epi32(sum.v, unsigned_bytes.v, signed_bytes.v)};
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // to level 2

}  // namespace draftproof::DRAFTPROOF_ISA
