// Sixteen lanes as four 128-bit vectors of the compiler: NEON on ARM (with fused multiply-add), any other machine
// otherwise.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace draftproof::DRAFTPROOF_ISA {

typedef float Float4 __attribute__((vector_size(16)));
typedef std::int32_t Int4 __attribute__((vector_size(16)));
typedef std::uint32_t Unsigned4 __attribute__((vector_size(16)));

struct V16 {
  Float4 q[4];
};
struct I16 {
  Int4 q[4];
};

#if defined(__ARM_NEON)
constexpr int kAccumulators = 6;  // 24 of 32 registers
#else
constexpr int kAccumulators = 2;
#endif
constexpr int kMaxRows = 6;
constexpr int kPairRows = 2;

#define DRAFTPROOF_EACH(T, expression)                 \
  T out;                                               \
  for (int i = 0; i < 4; ++i) out.q[i] = (expression); \
  return out

inline V16 splat(float x) { DRAFTPROOF_EACH(V16, (Float4{x, x, x, x})); }
inline V16 load(const float* p) {
  V16 out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline void store(float* p, V16 a) { std::memcpy(p, &a, sizeof a); }
inline V16 operator+(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] + b.q[i]); }
inline V16 operator-(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] - b.q[i]); }
inline V16 operator*(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] * b.q[i]); }
inline V16 operator/(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] / b.q[i]); }
inline V16 max(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] > b.q[i] ? a.q[i] : b.q[i]); }
inline V16 min(V16 a, V16 b) { DRAFTPROOF_EACH(V16, a.q[i] < b.q[i] ? a.q[i] : b.q[i]); }
// value where x > limit, else zero.
inline V16 keep_above(V16 value, V16 x, V16 limit) {
  DRAFTPROOF_EACH(V16, (Float4)((Int4)value.q[i] & (Int4)(x.q[i] > limit.q[i])));
}
// value where x >= limit, else zero; is that so anywhere?
inline V16 keep_from(V16 value, V16 x, V16 limit) {
  DRAFTPROOF_EACH(V16, (Float4)((Int4)value.q[i] & (Int4)(x.q[i] >= limit.q[i])));
}
inline bool any_from(V16 x, V16 limit) {
  const Int4 found = (x.q[0] >= limit.q[0]) | (x.q[1] >= limit.q[1]) | (x.q[2] >= limit.q[2]) | (x.q[3] >= limit.q[3]);
  return (found[0] | found[1] | found[2] | found[3]) != 0;
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
#if defined(__ARM_NEON)
inline V16 fma(V16 a, V16 b, V16 c) { DRAFTPROOF_EACH(V16, (Float4)vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
#else
inline V16 fma(V16 a, V16 b, V16 c) { DRAFTPROOF_EACH(V16, a.q[i] * b.q[i] + c.q[i]); }
#endif

inline V16 exponent(V16 shifted) { DRAFTPROOF_EACH(V16, (Float4)((Unsigned4)shifted.q[i] << 23)); }

inline V16 load_f16(const std::uint16_t* p) {
  float wide[16];
  for (int i = 0; i < 16; ++i) wide[i] = widen_f16(p[i]);
  return load(wide);
}

inline I16 load_i32(const void* p) {
  I16 out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline I16 splat_i32(std::int32_t x) { DRAFTPROOF_EACH(I16, (Int4{x, x, x, x})); }
inline void store_i32(std::int32_t* p, I16 a) { std::memcpy(p, &a, sizeof a); }
inline I16 operator&(I16 a, I16 b) { DRAFTPROOF_EACH(I16, a.q[i] & b.q[i]); }
inline I16 operator^(I16 a, I16 b) { DRAFTPROOF_EACH(I16, a.q[i] ^ b.q[i]); }
inline I16 operator-(I16 a, I16 b) { DRAFTPROOF_EACH(I16, a.q[i] - b.q[i]); }
inline I16 shift_left(I16 a, int n) { DRAFTPROOF_EACH(I16, (Int4)((Unsigned4)a.q[i] << n)); }
inline I16 shift_right(I16 a, int n) { DRAFTPROOF_EACH(I16, (Int4)((Unsigned4)a.q[i] >> n)); }
inline I16 shift_right_signed(I16 a, int n) { DRAFTPROOF_EACH(I16, a.q[i] >> n); }
inline V16 as_float(I16 a) { DRAFTPROOF_EACH(V16, (Float4)a.q[i]); }
inline V16 to_float(I16 a) { DRAFTPROOF_EACH(V16, __builtin_convertvector(a.q[i], Float4)); }

// The lowest four bits of each lane as a float, whatever stands above them.
inline V16 low_nibble(I16 a) { return to_float(a & splat_i32(15)); }

inline Int4 dot4_quarter(Int4 sum, Int4 u, Int4 s) {
  sum += (u & 0xff) * ((Int4)((Unsigned4)s << 24) >> 24);
  sum += ((u >> 8) & 0xff) * ((Int4)((Unsigned4)s << 16) >> 24);
  sum += ((u >> 16) & 0xff) * ((Int4)((Unsigned4)s << 8) >> 24);
  return sum + ((u >> 24) & 0xff) * (s >> 24);
}
inline I16 dot4(I16 sum, I16 unsigned_bytes, I16 signed_bytes) {
  DRAFTPROOF_EACH(I16, dot4_quarter(sum.q[i], unsigned_bytes.q[i], signed_bytes.q[i]));
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // to level 2

#undef DRAFTPROOF_EACH

}  // namespace draftproof::DRAFTPROOF_ISA
