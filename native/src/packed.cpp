#include "packed.h"

namespace draftproof {

void PackedRows::resize(int rows, const Matrix& w) {
  rows_ = rows, depth_ = w.depth();
  with_sums_ = w.format() == Format::int4;
  integer_ = quantise_ && w.format() != Format::f32 && w.format() != Format::bf16;
  tiles_ = (rows + kernels_->max_rows - 1) / kernels_->max_rows;
  const std::size_t cells = static_cast<std::size_t>(rows) * depth_, groups_in_all = cells / kGroup;
  if (integer_) {
    grow(quants_, cells), grow(scales_, groups_in_all), grow(offsets_, groups_in_all);
  } else {
    grow(values_, cells);
  }
  grow(sums_, groups_in_all);
}

void PackedRows::pack(int tile, int from, int to, const float* const* inputs) {
  const int first = start(tile), rows = start(tile + 1) - first;
  const std::size_t cell = static_cast<std::size_t>(first) * depth_ + static_cast<std::size_t>(from) * rows;
  const std::size_t group = cell / kGroup;
  if (integer_) {
    for (int r = 0; r < rows; ++r)
      kernels_->quantise(inputs[r] + from, to - from, rows, r, &quants_[cell], &scales_[group], &offsets_[group],
                        &sums_[group]);
    return;
  }
  kernels_->transpose(inputs, rows, from, to, &values_[cell]);
  for (int r = 0; r < rows && with_sums_; ++r)
    kernels_->group_sums(inputs[r] + from, to - from, rows, r, &sums_[group]);
}

Tile PackedRows::tile(int t) const {
  const int first = start(t), rows = start(t + 1) - first;
  const std::size_t cell = static_cast<std::size_t>(first) * depth_, group = static_cast<std::size_t>(first) * groups();
  if (integer_) return {rows, nullptr, &sums_[group], &quants_[cell], &scales_[group], &offsets_[group]};
  return {rows, &values_[cell], sums_.data() + group, nullptr, nullptr, nullptr};
}

}  // namespace draftproof
