// bfloat16 and float16 to float32, in plain C++. Internal linkage: the kernels of every instruction set have their own
// copy.
#pragma once

#include <cstdint>
#include <cstring>

namespace draftproof {

static inline float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float widen_bf16(std::uint16_t b) { return bits_to_float(static_cast<std::uint32_t>(b) << 16); }

static inline float widen_f16(std::uint16_t h) {
  // The exponent's bias moves from 15 to 127, which also makes subnormals normal.
  const float magnitude = bits_to_float(static_cast<std::uint32_t>(h & 0x7fffu) << 13) * 0x1p112f;
  return h & 0x8000u ? -magnitude : magnitude;
}

}  // namespace draftproof
