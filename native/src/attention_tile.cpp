#include "attention_tile.h"

#include <algorithm>

namespace draftproof {
namespace {

int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

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
  int first = end_, last = 0;
  for (const Sight& sight : sights_) first = std::min(first, sight.first), last = std::max(last, sight.path->length());
  first_page_ = first / kPage, last_page_ = round_up(last, kPage) / kPage;
  end_ = round_up(end_, kPanel);
}

void AttentionTile::set_queries(const float* const* queries) {
  queries_.resize(static_cast<std::size_t>(this->queries()) * width_);
  kernels_->transpose(queries, this->queries(), 0, width_, queries_.data());
}

AttentionTile::Seen AttentionTile::seen(int q, int from) const {
  const Sight& sight = sights_[q];
  const int first = std::max(sight.first, from), last = std::min(sight.path->length(), from + kPage);
  return {first, std::clamp(sight.path->straight, first, std::max(first, last)), std::max(first, last)};
}

void AttentionTile::attend(int index, std::vector<float>& scores, float* shares) const {
  Page page{};
  page.from = index * kPage, page.end = std::min(end_, page.from + kPage), page.shares = shares;
  for (int q = 0; q < queries(); ++q) {
    page.seen[q] = seen(q, page.from);
    if (page.seen[q].straight < page.seen[q].last) page.end = end_;  // entries of a tree lie behind their positions
  }
  page.stride = page.end - page.from + kPanel;  // the spare panel keeps rows off the same cache sets
  const std::size_t size = static_cast<std::size_t>(queries()) * page.stride;
  if (scores.size() < size) scores.resize(size);
  page.scores = scores.data();
  if (index + 1 < last_page_) page.next = cache_->keys(layer_, page.from + kPage, head_);
  score(page);
  soften(page);
  mix(page);
}

void AttentionTile::score(const Page& page) const {
  const Tile tile{queries(), queries_.data(), nullptr, nullptr, nullptr, nullptr};
  const std::size_t panel_bytes = static_cast<std::size_t>(width_) * kPanel * sizeof(float);
  for (int entry = page.from; entry < page.end; entry += kPage) {
    const auto* keys = reinterpret_cast<const std::uint8_t*>(cache_->keys(layer_, entry, head_));
    const auto* values = reinterpret_cast<const std::uint8_t*>(cache_->values(layer_, entry, head_));
    const Panels panels{Format::f32, keys, panel_bytes, width_, kGroup, false, values - keys};  // fetches the values
    kernels_->multiply(panels, 0, std::min(kPage, page.end - entry) / kPanel, tile, page.scores + (entry - page.from),
                       page.stride);
  }
}

// Scores of bent entries move to their positions first: never past one still to be read, since entry >= position.
void AttentionTile::soften(const Page& page) const {
  for (int q = 0; q < queries(); ++q) {
    const Seen& s = page.seen[q];
    const Path& path = *sights_[q].path;
    float* row = page.scores + static_cast<std::size_t>(q) * page.stride;
    float* share = page.shares + static_cast<std::size_t>(q) * share_size();
    for (int p = s.straight; p < s.last; ++p) row[p - page.from] = row[path.bent[p - path.straight] - page.from];
    std::fill_n(share, share_size(), 0.0f);
    if (s.first < s.last)
      share[width_ + 1] = kernels_->softmax(row, s.first - page.from, s.last - page.from, share + width_);
  }
}

// Queries [first, first + count) take values from `entry` on by their scores from `position` on.
void AttentionTile::mix_run(const Page& page, int first, int count, int entry, int position, int positions) const {
  if (positions <= 0) return;
  const float* weights = page.scores + static_cast<std::size_t>(first) * page.stride + (position - page.from);
  const float* values = cache_->values(layer_, entry, head_) + entry % kPage * width_;
  const float* next = page.next ? page.next + entry % kPage * width_ : values;
  kernels_->mix(weights, page.stride, count, {values, positions, width_, next},
                page.shares + static_cast<std::size_t>(first) * share_size(), share_size());
}

// Each query takes its positions in ascending order; what all of them see is taken together, and what the heads of one
// token see.
void AttentionTile::mix(const Page& page) const {
  int from = page.from, to = from + kPage;
  for (int q = 0; q < queries(); ++q)
    from = std::max(from, page.seen[q].first), to = std::min(to, page.seen[q].straight);
  const bool shared = from < to;
  const auto by_token = [&](auto&& body) {
    for (int q = 0, next; q < queries(); q = next) {
      for (next = q + 1; next < queries() && sights_[next].path == sights_[q].path;) ++next;
      body(q, next - q, page.seen[q]);
    }
  };
  by_token([&](int q, int count, const Seen& s) {
    mix_run(page, q, count, s.first, s.first, (shared ? from : s.straight) - s.first);
  });
  if (shared) mix_run(page, 0, queries(), from, from, to - from);
  by_token([&](int q, int count, const Seen& s) {
    if (shared) mix_run(page, q, count, to, to, s.straight - to);
    const Path& path = *sights_[q].path;
    for (int p = s.straight; p < s.last; ++p) mix_run(page, q, count, path.bent[p - path.straight], p, 1);
  });
}

}  // namespace draftproof
