#include "attention_tile.h"

#include <algorithm>

namespace draftproof {
namespace {

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Vectors only grow: a tile is used again for every layer.
void at_least(std::vector<float>& v, std::size_t size) {
  if (v.size() < size) v.resize(size);
}

}  // namespace

void AttentionTile::open(const Kernels& kernels, Cache& cache, int layer, int head, int width) {
  kernels_ = &kernels, cache_ = &cache, layer_ = layer, head_ = head, width_ = width;
  sights_.clear();
  end_ = 0;
}

void AttentionTile::see(Sight sight, int entry) {
  sights_.push_back(sight);
  end_ = std::max(end_, entry + 1);
}

void AttentionTile::close_sights() {
  int first = end_;
  for (const Sight& sight : sights_) first = std::min(first, sight.first);
  origin_ = first / kPanel * kPanel;
  end_ = round_up(end_, kPanel);
  stride_ = end_ - origin_ + kPanel;  // the spare panel keeps rows off the same cache sets
  at_least(queries_, static_cast<std::size_t>(queries()) * width_);
  at_least(scores_, static_cast<std::size_t>(queries()) * stride_);
  at_least(sums_, static_cast<std::size_t>(queries()));
  at_least(mixed_, static_cast<std::size_t>(queries()) * width_);
  std::fill_n(mixed_.begin(), queries() * width_, 0.0f);
}

void AttentionTile::set_query(int q, const float* values, float scale) {
  for (int d = 0; d < width_; ++d) queries_[static_cast<std::size_t>(d) * queries() + q] = values[d] * scale;
}

void AttentionTile::score(int from, int to) {
  const Tile tile{queries(), queries_.data(), nullptr, nullptr, nullptr, nullptr};
  const std::size_t panel_bytes = static_cast<std::size_t>(width_) * kPanel * sizeof(float);
  for (int entry = from; entry < to;) {
    const int end = std::min(to, (entry / kPage + 1) * kPage);
    const auto* keys = reinterpret_cast<const std::uint8_t*>(cache_->keys(layer_, entry, head_));
    const Panels panels{Format::f32, keys, panel_bytes, width_, kGroup, false};
    kernels_->multiply(panels, entry % kPage / kPanel, (end - entry) / kPanel, tile,
                       scores_.data() + (entry - origin_), stride_);
    entry = end;
  }
}

// Scores of bent entries move to their positions: never past one still to be read, since entry >= position.
void AttentionTile::straighten(int q) {
  const auto& [path, first] = sights_[q];
  float* row = scores(q);
  for (int p = std::max(first, path->straight); p < path->length(); ++p)
    row[p - origin_] = row[path->bent[p - path->straight] - origin_];
}

void AttentionTile::soften() {
  for (int q = 0; q < queries(); ++q) {
    straighten(q);
    sums_[q] = kernels_->softmax(scores(q), sights_[q].first - origin_, sights_[q].path->length() - origin_);
  }
}

void AttentionTile::mix_entry(Columns columns, int q, int count, int entry, int position, int positions) {
  const float* values = cache_->values(layer_, entry, head_) + entry % kPage * width_ + columns.first;
  kernels_->mix(scores(q) + (position - origin_), stride_, count, values, positions, width_, columns.count,
                &mixed_[static_cast<std::size_t>(q) * width_ + columns.first]);
}

void AttentionTile::mix_straight(Columns columns, int q, int count, int from, int to) {
  while (from < to) {
    const int end = std::min(to, (from / kPage + 1) * kPage);
    mix_entry(columns, q, count, from, from, end - from);
    from = end;
  }
}

// Each query takes its positions in ascending order; what all of them see is taken together.
void AttentionTile::mix(int first_column, int columns) {
  const Columns slice{first_column, columns};
  int from = 0, to = sights_[0].path->straight;
  for (const auto& [path, first] : sights_) from = std::max(from, first), to = std::min(to, path->straight);
  to = std::max(from, to);
  for (int q = 0; q < queries(); ++q)
    mix_straight(slice, q, 1, sights_[q].first, std::min(from, sights_[q].path->straight));
  mix_straight(slice, 0, queries(), from, to);
  for (int q = 0; q < queries(); ++q) {
    const auto& [path, first] = sights_[q];
    mix_straight(slice, q, 1, to, path->straight);
    for (int p = std::max(first, path->straight); p < path->length(); ++p)
      mix_entry(slice, q, 1, path->bent[p - path->straight], p, 1);
  }
}

void AttentionTile::output(int q, float* out) const {
  const float* mixed = &mixed_[static_cast<std::size_t>(q) * width_];
  for (int d = 0; d < width_; ++d) out[d] = mixed[d] / sums_[q];
}

}  // namespace draftproof
