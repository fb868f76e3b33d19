// Twelve Philox blocks at a time: eight in vectors of 64-bit lanes, four in the scalar units, which are idle meanwhile.
#pragma once

#include <immintrin.h>

#include "philox.h"

namespace draftproof::DRAFTPROOF_ISA {

struct Product {
  __m512i high, low;
};

// The 128-bit products with a constant, from products of 32-bit halves.
inline Product product(__m512i x, std::uint64_t factor) {
  const __m512i below = _mm512_set1_epi64(static_cast<long long>(factor)), above = _mm512_srli_epi64(below, 32);
  const __m512i x_above = _mm512_srli_epi64(x, 32), mask = _mm512_set1_epi64(0xffffffff);
  const __m512i lowest = _mm512_srli_epi64(_mm512_mul_epu32(x, below), 32);
  const __m512i first = _mm512_add_epi64(lowest, _mm512_mul_epu32(x_above, below));
  const __m512i second = _mm512_add_epi64(_mm512_and_si512(first, mask), _mm512_mul_epu32(x, above));
  const __m512i carries = _mm512_add_epi64(_mm512_srli_epi64(first, 32), _mm512_srli_epi64(second, 32));
  return {_mm512_add_epi64(_mm512_mul_epu32(x_above, above), carries), _mm512_mullo_epi64(x, below)};
}

// The upper halves of the words of twelve blocks from `index` on, in the order of the words.
inline void twelve_blocks(std::uint64_t index, std::uint64_t position, std::uint64_t seed, std::uint32_t* out) {
  const __m512i count = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), none = _mm512_setzero_si512();
  __m512i x0 = _mm512_add_epi64(count, _mm512_set1_epi64(static_cast<long long>(index)));
  __m512i x1 = _mm512_set1_epi64(static_cast<long long>(position)), x2 = none, x3 = none;
  Block scalar[4];
  for (int b = 0; b < 4; ++b) scalar[b] = {{index + 8 + b, position, 0, 0}};
  std::uint64_t k0 = seed, k1 = 0;
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxWeyl0, k1 += kPhiloxWeyl1) {
    const Product even = product(x0, kPhiloxFactor0), odd = product(x2, kPhiloxFactor1);
    each<4>([&](int b) __attribute__((always_inline)) { scalar[b] = philox_round(scalar[b], k0, k1); });
    x0 = _mm512_xor_si512(_mm512_xor_si512(odd.high, x1), _mm512_set1_epi64(static_cast<long long>(k0)));
    x2 = _mm512_xor_si512(_mm512_xor_si512(even.high, x3), _mm512_set1_epi64(static_cast<long long>(k1)));
    x1 = odd.low, x3 = even.low;
  }
  const __m512i first = _mm512_mask_shuffle_epi32(x1, 0x5555, x0, _MM_PERM_DDBB);  // upper halves of words 0 and 1
  const __m512i second = _mm512_mask_shuffle_epi32(x3, 0x5555, x2, _MM_PERM_DDBB);
  const __m512i left = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i right = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(first, left, second));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(first, right, second));
  for (int i = 0; i < 16; ++i) out[32 + i] = static_cast<std::uint32_t>(scalar[i / 4].words[i % 4] >> 32);
}

}  // namespace draftproof::DRAFTPROOF_ISA
