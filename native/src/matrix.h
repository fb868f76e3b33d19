// Weight matrices packed into panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "arena.h"
#include "kernels.h"

namespace draftproof {

// outputs x depth weights. Missing outputs of the last panel are zero.
class Matrix {
 public:
  static std::shared_ptr<Matrix> from_f32(Arena& arena, const float* w, int outputs, int depth);
  static std::shared_ptr<Matrix> from_bf16(Arena& arena, const std::uint16_t* w, int outputs, int depth);
  // w[n][k] = q[n][k] * scales[n]
  static std::shared_ptr<Matrix> from_int8(Arena& arena, const std::int8_t* q, const float* scales, int outputs,
                                           int depth);
  // w[n][k] = scales[n][k / 32] * q[n][k], scales in float16
  static std::shared_ptr<Matrix> from_int8_groups(Arena& arena, const std::int8_t* q, const std::uint16_t* scales,
                                                  int outputs, int depth);
  // w[n][k] = scales[n][k / group] * q[n][k] + minima[n][k / group], q in 0..15, scales and minima in float16; groups
  // of 32, 64 or 128
  static std::shared_ptr<Matrix> from_int4(Arena& arena, const std::uint8_t* q, const std::uint16_t* scales,
                                           const std::uint16_t* minima, int outputs, int depth, int group);

  Format format() const { return format_; }
  int outputs() const { return outputs_; }
  int depth() const { return depth_; }
  int panel_count() const { return (outputs_ + kPanel - 1) / kPanel; }
  std::size_t bytes() const { return static_cast<std::size_t>(panel_count()) * stride_; }
  Panels panels() const { return {format_, data_.get(), stride_, depth_, group_, pairs_, kAhead}; }

  // out[depth] = weights of one output, dequantised: the embedding of a token when the matrix is the tied head.
  void row(int output, float* out) const;

 private:
  Matrix(Arena& arena, Format format, int outputs, int depth, int group = kGroup);
  std::size_t bf16_at(int output, int k) const;  // byte of a bf16 weight
  std::uint8_t* panel(int output) const { return data_.get() + static_cast<std::size_t>(output / kPanel) * stride_; }

  Format format_;
  int outputs_, depth_, group_;
  bool pairs_ = false;
  std::size_t stride_;
  std::shared_ptr<std::uint8_t[]> data_;
};

}  // namespace draftproof
