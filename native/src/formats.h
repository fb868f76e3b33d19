// How weights of each format are read from a panel.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace draftproof::DRAFTPROOF_ISA {

// How a format is read, with float32 activations: a block covers `step` values of k, and `weight` is one of them.
struct F32 {
  static constexpr int step = 1;
  using Block = V16;
  static Block block(const std::uint8_t* panel, int k, std::ptrdiff_t ahead) {
    const std::uint8_t* p = panel + static_cast<std::size_t>(k) * kPanel * 4;
    prefetch_far(p + ahead);
    return load(reinterpret_cast<const float*>(p));
  }
  static V16 weight(Block b, int) { return b; }
  static V16 finish(const std::uint8_t*, V16 sum) { return sum; }
};

// Two neighbouring k in one lane: a shift gives the first as float32, a mask the second.
struct Bf16 {
  static constexpr int step = 2;
  using Block = I16;
  static Block block(const std::uint8_t* panel, int k, std::ptrdiff_t ahead) {
    const std::uint8_t* p = panel + static_cast<std::size_t>(k) * kPanel * 2;
    prefetch_far(p + ahead);
    return load_i32(p);
  }
  static V16 weight(Block b, int j) {
    return as_float(j == 0 ? shift_left(b, 16) : b & splat_i32(static_cast<std::int32_t>(0xffff0000u)));
  }
  static V16 finish(const std::uint8_t*, V16 sum) { return sum; }
};

struct Int8 {
  static constexpr int step = 4;
  using Block = I16;
  static const std::uint8_t* bytes(const std::uint8_t* panel, int k) { return panel + kPanel * 4 + k * kPanel; }
  static Block block(const std::uint8_t* panel, int k, std::ptrdiff_t ahead) {
    prefetch_far(bytes(panel, k) + ahead);
    return load_i32(bytes(panel, k));
  }
  static V16 weight(Block b, int j) { return to_float(shift_right_signed(shift_left(b, 24 - 8 * j), 24)); }
  static V16 finish(const std::uint8_t* panel, V16 sum) { return sum * load(reinterpret_cast<const float*>(panel)); }
};

// One group of 32 of int8 weights with a scale a group.
struct Int8Group {
  static constexpr int bytes = 2 * kPanel + kGroup * kPanel;
  const std::uint8_t* data;
  V16 scales() const { return load_f16(reinterpret_cast<const std::uint16_t*>(data)); }
  I16 block(int k) const {  // k a multiple of 4
    const std::uint8_t* p = data + 2 * kPanel + k * kPanel;
    prefetch_far(p + kAhead);
    return load_i32(p);
  }
};

// One group of M * 32 of int4 weights.
template <int M>
struct Int4Group {
  static constexpr int size = M * kGroup;
  static constexpr int bytes = 2 * 2 * kPanel + size * kPanel / 2;
  const std::uint8_t* data;
  V16 scales() const { return load_f16(reinterpret_cast<const std::uint16_t*>(data)); }
  V16 minima() const { return load_f16(reinterpret_cast<const std::uint16_t*>(data) + kPanel); }
  I16 words(int k) const {  // k a multiple of 8
    const std::uint8_t* p = data + 4 * kPanel + k * kPanel / 2;
    prefetch_far(p + kAhead);
    return load_i32(p);
  }
};

constexpr int nibble_shift(int j) { return 8 * (j % 4) + 4 * (j / 4); }

}  // namespace draftproof::DRAFTPROOF_ISA
