#include "matrix.h"

#include <cstring>
#include <stdexcept>

#include "half.h"

namespace draftproof {
namespace {

constexpr int kInt8Group = 2 * kPanel + kGroup * kPanel;  // bytes of a group: scales, codes

// Bytes of a group: scales, minima, nibbles.
constexpr std::size_t int4_group(int group) { return 4 * kPanel + static_cast<std::size_t>(group) * kPanel / 2; }

std::size_t bytes_of_panel(Format format, int depth, int group) {
  const std::size_t k = static_cast<std::size_t>(depth);
  switch (format) {
    case Format::f32: return k * kPanel * 4;
    case Format::bf16: return k * kPanel * 2;
    case Format::int8: return kPanel * 4 + k * kPanel;
    case Format::int8_groups: return k / kGroup * kInt8Group;
    case Format::int4: return k / static_cast<std::size_t>(group) * int4_group(group);
  }
  throw std::invalid_argument("unknown weight format");
}

template <class T>
void put(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <class T>
T get(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::size_t int8_at(int lane, int k) {
  return kPanel * 4 + static_cast<std::size_t>(k / 4) * kPanel * 4 + lane * 4 + k % 4;
}

std::size_t group_scale_at(int lane, int group) { return static_cast<std::size_t>(group) * kInt8Group + lane * 2; }

std::size_t group_code_at(int lane, int k) {
  return group_scale_at(0, k / kGroup) + kPanel * 2 + k % kGroup / 4 * kPanel * 4 + lane * 4 + k % 4;
}

struct NibbleAt {
  std::size_t byte;
  int shift;
};

std::size_t scale_at(int lane, int k, int group) {
  return static_cast<std::size_t>(k / group) * int4_group(group) + lane * 2;
}
std::size_t minimum_at(int lane, int k, int group) { return scale_at(lane, k, group) + kPanel * 2; }

NibbleAt nibble_at(int lane, int k, int group) {
  const int within = k % group, j = within % 8;
  const std::size_t word = scale_at(0, k, group) + 4 * kPanel + (within / 8 * kPanel + lane) * 4;
  return {word + j % 4, 4 * (j / 4)};
}

}  // namespace

std::size_t Matrix::bf16_at(int output, int k) const {
  const int panel = output / kPanel, half = pairs_ ? panel % 2 : 0;
  const std::size_t lines = pairs_ && panel - half + 1 < panel_count() ? 2 : 1;
  const std::size_t line = static_cast<std::size_t>(k / 2) * lines + half;
  return static_cast<std::size_t>(panel - half) * stride_ + (line * kPanel + output % kPanel) * 4 + k % 2 * 2;
}

Matrix::Matrix(Arena& arena, Format format, int outputs, int depth, int group)
    : format_(format),
      outputs_(outputs),
      depth_(depth),
      group_(group),
      stride_(bytes_of_panel(format, depth, group)) {
  if (outputs < 1 || depth < kPanel || depth % kPanel != 0)
    throw std::invalid_argument("a matrix needs outputs, and a depth in multiples of 16");
  data_ = arena.allocate(bytes());
}

std::shared_ptr<Matrix> Matrix::from_f32(Arena& arena, const float* w, int outputs, int depth) {
  std::shared_ptr<Matrix> m(new Matrix(arena, Format::f32, outputs, depth));
  for (int n = 0; n < outputs; ++n)
    for (int k = 0; k < depth; ++k) put(m->panel(n) + (static_cast<std::size_t>(k) * kPanel + n % kPanel) * 4, *w++);
  return m;
}

std::shared_ptr<Matrix> Matrix::from_bf16(Arena& arena, const std::uint16_t* w, int outputs, int depth) {
  std::shared_ptr<Matrix> m(new Matrix(arena, Format::bf16, outputs, depth));
  m->pairs_ = kernels("auto").pairs;
  for (int n = 0; n < outputs; ++n)
    for (int k = 0; k < depth; ++k) put(m->data_.get() + m->bf16_at(n, k), *w++);
  return m;
}

std::shared_ptr<Matrix> Matrix::from_int8(Arena& arena, const std::int8_t* q, const float* scales, int outputs,
                                          int depth) {
  std::shared_ptr<Matrix> m(new Matrix(arena, Format::int8, outputs, depth));
  for (int n = 0; n < outputs; ++n) {
    put(m->panel(n) + n % kPanel * 4, scales[n]);
    for (int k = 0; k < depth; ++k) put(m->panel(n) + int8_at(n % kPanel, k), *q++);
  }
  return m;
}

std::shared_ptr<Matrix> Matrix::from_int8_groups(Arena& arena, const std::int8_t* q, const std::uint16_t* scales,
                                                 int outputs, int depth) {
  if (depth % kGroup != 0) throw std::invalid_argument("grouped int8 weights need a depth in multiples of 32");
  std::shared_ptr<Matrix> m(new Matrix(arena, Format::int8_groups, outputs, depth));
  for (int n = 0; n < outputs; ++n) {
    for (int g = 0; g < depth / kGroup; ++g) put(m->panel(n) + group_scale_at(n % kPanel, g), *scales++);
    for (int k = 0; k < depth; ++k) put(m->panel(n) + group_code_at(n % kPanel, k), *q++);
  }
  return m;
}

std::shared_ptr<Matrix> Matrix::from_int4(Arena& arena, const std::uint8_t* q, const std::uint16_t* scales,
                                          const std::uint16_t* minima, int outputs, int depth, int group) {
  if (group != 32 && group != 64 && group != 128)
    throw std::invalid_argument("int4 weights have groups of 32, 64 or 128");
  if (depth % group != 0) throw std::invalid_argument("int4 weights need a depth in whole groups");
  std::shared_ptr<Matrix> m(new Matrix(arena, Format::int4, outputs, depth, group));
  for (int n = 0; n < outputs; ++n) {
    std::uint8_t* panel = m->panel(n);
    for (int k = 0; k < depth; k += group)
      put(panel + scale_at(n % kPanel, k, group), *scales++), put(panel + minimum_at(n % kPanel, k, group), *minima++);
    for (int k = 0; k < depth; ++k, ++q) {
      const NibbleAt at = nibble_at(n % kPanel, k, group);
      panel[at.byte] |= static_cast<std::uint8_t>((*q & 15) << at.shift);
    }
  }
  return m;
}

void Matrix::row(int output, float* out) const {
  const std::uint8_t* panel = this->panel(output);
  const int lane = output % kPanel;
  for (int k = 0; k < depth_; ++k) {
    const std::size_t plain = static_cast<std::size_t>(k) * kPanel + lane;
    switch (format_) {
      case Format::f32: out[k] = get<float>(panel + plain * 4); break;
      case Format::bf16: out[k] = widen_bf16(get<std::uint16_t>(data_.get() + bf16_at(output, k))); break;
      case Format::int8: out[k] = get<std::int8_t>(panel + int8_at(lane, k)) * get<float>(panel + lane * 4); break;
      case Format::int8_groups:
        out[k] = get<std::int8_t>(panel + group_code_at(lane, k)) *
                 widen_f16(get<std::uint16_t>(panel + group_scale_at(lane, k / kGroup)));
        break;
      case Format::int4: {
        const NibbleAt at = nibble_at(lane, k, group_);
        const float scale = widen_f16(get<std::uint16_t>(panel + scale_at(lane, k, group_)));
        const float minimum = widen_f16(get<std::uint16_t>(panel + minimum_at(lane, k, group_)));
        out[k] = scale * static_cast<float>(panel[at.byte] >> at.shift & 15) + minimum;
      }
    }
  }
}

}  // namespace draftproof
