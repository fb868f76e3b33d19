// The attention of a layer: new keys and values go to the caches, then tiles of queries are shared out to the threads.
#include <algorithm>

#include "forward.h"
#include "spread.h"

namespace draftproof {
namespace {

constexpr int kFolds = 256;  // so many shares are folded by the caller alone

}  // namespace

// Queries [first, first + count) of a span and one key head; query q is head q % group of token q / group.
struct Forward::Part {
  Span span;
  int kv_head;
  int first, count;

  bool beside(const Part& other) const { return span.request == other.span.request && kv_head == other.kv_head; }
};

void Forward::prepare_head(int index, const Vector& norm, int row, float* head, float scale) const {
  const Layer& layer = model_.layers()[index];
  const int half = config_.head_dim / 2;
  const float* cosines = &angles_[(static_cast<std::size_t>(layer.rope) * rows_.size() + row) * 2 * half];
  if (!norm.empty()) kernels_.rms_norm(head, norm.data(), config_.eps, config_.head_dim, head);
  kernels_.rotate(head, cosines, cosines + half, half, scale);
}

// Queries are prepared in place, keys and values go to the caches. By heads and sixteen rows: neighbouring entries of a
// head share lines of the cache.
void Forward::prepare_heads(int index) {
  const Layer& layer = model_.layers()[index];
  const int width = config_.head_dim, all = config_.heads + 2 * config_.kv_heads;
  const int group = config_.heads / config_.kv_heads;
  const int blocks = (active() + kPanel - 1) / kPanel;
  const auto one = [&](int item, int) {
    const int head = item / blocks, from = item % blocks * kPanel;
    for (int a = from; a < std::min(active(), from + kPanel); ++a) {
      const Row& row = rows_[active_[a]];
      float* heads = &qkv_[static_cast<std::size_t>(a) * all * width];
      for (int query = head * group; query < (head + 1) * group; ++query)
        prepare_head(index, layer.query_norm, active_[a], heads + query * width, config_.attention_scale);
      float* key = heads + (config_.heads + head) * width;
      prepare_head(index, layer.key_norm, active_[a], key, 1.0f);
      requests_[row.request].cache->write(index, row.entry, head, key, key + config_.kv_heads * width);
    }
  };
  spread(pool_, few(active(), config_.hidden), config_.kv_heads * blocks, one);
}

// By span and head; tiles of one head stand together, since they read the same keys.
std::vector<Forward::Part> Forward::attention_parts() const {
  const int group = config_.heads / config_.kv_heads;
  std::vector<Part> parts;
  for (const Span& span : spans_) {
    const int queries = (span.last - span.first) * group;
    const int count = (queries + kernels_.max_rows - 1) / kernels_.max_rows;
    for (int head = 0; head < config_.kv_heads; ++head)
      for (int t = 0; t < count; ++t) {
        const int first = queries * t / count, next = queries * (t + 1) / count;
        parts.push_back({span, head, first, next - first});
      }
  }
  return parts;
}

// Row among the active ones and head of query q of a part.
Forward::Place Forward::place(const Part& part, int q) const {
  const int group = config_.heads / config_.kv_heads, at = part.first + q;
  return {part.span.first + at / group, part.kv_head * group + at % group};
}

void Forward::open_tile(AttentionTile& tile, int index, const Part& part) {
  const Layer& layer = model_.layers()[index];
  const int all = config_.heads + 2 * config_.kv_heads;
  const float* queries[kMostQueries];
  tile.open(kernels_, *requests_[part.span.request].cache, index, part.kv_head, config_.head_dim);
  for (int q = 0; q < part.count; ++q) {
    const auto [a, head] = place(part, q);
    const Row& row = rows_[active_[a]];
    tile.see({row.path, layer.window ? std::max(0, row.path->length() - layer.window) : 0}, row.entry);
    queries[q] = &qkv_[(static_cast<std::size_t>(a) * all + head) * config_.head_dim];
  }
  tile.close_sights();
  tile.set_queries(queries);
}

// `total` [queries][share_size] holds all that the part's queries took.
void Forward::close_tile(const AttentionTile& tile, const Part& part, const float* total) {
  const int width = config_.head_dim;
  for (int q = 0; q < part.count; ++q, total += tile.share_size()) {
    const auto [a, head] = place(part, q);
    float* out = &mixed_[(static_cast<std::size_t>(a) * config_.heads + head) * width];
    const float inverse = 1.0f / total[width + 1];
    for (int d = 0; d < width; ++d) out[d] = total[d] * inverse;
  }
}

void Forward::attend(int index) {
  const std::vector<Part> parts = attention_parts();
  if (static_cast<int>(desks_.size()) < pool_.threads()) desks_.resize(static_cast<std::size_t>(pool_.threads()));
  const bool scarce = static_cast<int>(parts.size()) < 4 * pool_.threads();
  if (scarce && pool_.threads() > 1) attend_divided(index, parts);
  else attend_whole(index, parts);
}

void Forward::attend_whole(int index, const std::vector<Part>& parts) {
  pool_.run(static_cast<int>(parts.size()), [&](int item, int worker) {
    auto& [tile, scores, total, share] = desks_[worker];
    open_tile(tile, index, parts[item]);
    const std::size_t size = static_cast<std::size_t>(tile.queries()) * tile.share_size();
    total.resize(size), share.resize(size);
    for (int page = tile.first_page(); page < tile.last_page(); ++page) {
      const bool first = page == tile.first_page();
      tile.attend(page, scores, first ? total.data() : share.data());
      if (!first) fold_shares(tile, total.data(), share.data());
    }
    close_tile(tile, parts[item], total.data());
  });
}

void Forward::fold_shares(const AttentionTile& tile, float* total, const float* share) const {
  for (int q = 0; q < tile.queries(); ++q, total += tile.share_size(), share += tile.share_size())
    kernels_.fold(total, share, config_.head_dim);
}

// Pages of tiles, as they are handed out: the tiles of a head take a page one after the other.
std::vector<Forward::PageItem> Forward::page_items(const std::vector<Part>& parts) const {
  std::vector<PageItem> items;
  for (std::size_t first = 0, next; first < parts.size(); first = next) {
    int from = tiles_[first].first_page(), to = tiles_[first].last_page();
    for (next = first + 1; next < parts.size() && parts[next].beside(parts[first]); ++next)
      from = std::min(from, tiles_[next].first_page()), to = std::max(to, tiles_[next].last_page());
    for (int page = from; page < to; ++page)
      for (std::size_t t = first; t < next; ++t)
        if (page >= tiles_[t].first_page() && page < tiles_[t].last_page())
          items.push_back({static_cast<int>(t), page});
  }
  return items;
}

// The same, folded in the same order, but every page is shared out by itself: few heads would leave threads idle.
void Forward::attend_divided(int index, const std::vector<Part>& parts) {
  if (tiles_.size() < parts.size()) tiles_.resize(parts.size());
  std::vector<std::size_t> shares(parts.size() + 1);  // where each part's begin
  for (std::size_t t = 0; t < parts.size(); ++t) {
    open_tile(tiles_[t], index, parts[t]);
    shares[t + 1] = shares[t] + static_cast<std::size_t>(tiles_[t].last_page() - tiles_[t].first_page()) *
                                    static_cast<std::size_t>(tiles_[t].queries() * tiles_[t].share_size());
  }
  if (shares_.size() < shares.back()) shares_.resize(shares.back());
  const auto share = [&](int t, int page) {
    const AttentionTile& tile = tiles_[t];
    return &shares_[shares[t]] + (page - tile.first_page()) * tile.queries() * tile.share_size();
  };
  const std::vector<PageItem> items = page_items(parts);
  pool_.run(static_cast<int>(items.size()), [&](int i, int worker) {
    const auto [t, page] = items[i];
    tiles_[t].attend(page, desks_[worker].scores, share(t, page));
  });
  const auto finish = [&](int t, int) {
    const AttentionTile& tile = tiles_[t];
    float* total = share(t, tile.first_page());
    for (int page = tile.first_page() + 1; page < tile.last_page(); ++page) fold_shares(tile, total, share(t, page));
    close_tile(tile, parts[t], total);
  };
  const bool alone = shares.back() / static_cast<std::size_t>(tiles_[0].share_size()) <= kFolds;
  spread(pool_, alone, static_cast<int>(parts.size()), finish);
}

}  // namespace draftproof
