#include <algorithm>

#include "forward.h"

namespace draftproof {

void PackedRows::resize(int rows, const Matrix& w) {
  rows_ = rows, depth_ = w.depth();
  with_sums_ = w.format() == Format::int4;
  integer_ = quantise_ && w.format() != Format::f32 && w.format() != Format::bf16;
  tiles_ = (rows + kernels_.max_rows - 1) / kernels_.max_rows;
  const std::size_t cells = static_cast<std::size_t>(rows) * depth_, groups_in_all = cells / kGroup;
  if (integer_) {
    quants_.resize(cells), scales_.resize(groups_in_all), offsets_.resize(groups_in_all);
  } else {
    values_.resize(cells);
  }
  sums_.resize(groups_in_all);
}

int PackedRows::tile_of(int row) const {
  int t = static_cast<int>(static_cast<long>(row) * tiles_ / rows_);
  while (start(t + 1) <= row) ++t;
  return t;
}

void PackedRows::pack(int row, const float* x) {
  const int t = tile_of(row), first = start(t), rows = start(t + 1) - first, r = row - first;
  float* sums = &sums_[static_cast<std::size_t>(first) * groups()];
  if (integer_) {
    const std::size_t group = static_cast<std::size_t>(first) * groups();
    kernels_.quantise(x, depth_, rows, r, &quants_[static_cast<std::size_t>(first) * depth_], &scales_[group],
                      &offsets_[group], sums);
    return;
  }
  float* values = &values_[static_cast<std::size_t>(first) * depth_] + r;
  for (int k = 0; k < depth_; ++k) values[static_cast<std::size_t>(k) * rows] = x[k];
  if (with_sums_) kernels_.group_sums(x, depth_, rows, r, sums);
}

Tile PackedRows::tile(int t) const {
  const int first = start(t), rows = start(t + 1) - first;
  const std::size_t cell = static_cast<std::size_t>(first) * depth_, group = static_cast<std::size_t>(first) * groups();
  if (integer_) return {rows, nullptr, &sums_[group], &quants_[cell], &scales_[group], &offsets_[group]};
  return {rows, &values_[cell], sums_.data() + group, nullptr, nullptr, nullptr};
}

}  // namespace draftproof
