// The attention of a layer: new keys and values go to the caches, then tiles of queries are shared out to the threads.
#include <algorithm>

#include "forward.h"
#include "spread.h"

namespace draftproof {
namespace {

constexpr int kLong = 96;   // entries from which a context is worth dividing among threads
constexpr int kChunk = 128;  // entries scored as one item

}  // namespace

// Queries [first, first + count) of a span and one key head; query q is head q % group of token q / group.
struct Forward::Part {
  Span span;
  int kv_head;
  int first, count;
};

// Rotates one head in place: pairs are (i, i + half), as in the checkpoints of Hugging Face.
void Forward::rotate(int rope, int row, float* head) const {
  const int half = config_.head_dim / 2;
  const float* cosines = &angles_[(static_cast<std::size_t>(rope) * rows_.size() + row) * 2 * half];
  const float* sines = cosines + half;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

void Forward::prepare_head(int index, const Vector& norm, int row, float* head) const {
  if (!norm.empty()) kernels_.rms_norm(head, norm.data(), config_.eps, config_.head_dim, head);
  rotate(model_.layers()[index].rope, row, head);
}

// By heads and sixteen rows: neighbouring entries of a head share lines of the cache.
void Forward::append_keys(int index) {
  const Layer& layer = model_.layers()[index];
  const int width = config_.head_dim, all = config_.heads + 2 * config_.kv_heads;
  const int blocks = (active() + kPanel - 1) / kPanel;
  const auto one = [&](int item, int) {
    const int head = item / blocks, from = item % blocks * kPanel;
    for (int a = from; a < std::min(active(), from + kPanel); ++a) {
      const Row& row = rows_[active_[a]];
      float* key = &qkv_[(static_cast<std::size_t>(a) * all + config_.heads + head) * width];
      prepare_head(index, layer.key_norm, active_[a], key);
      requests_[row.request].cache->write(index, row.entry, head, key, key + config_.kv_heads * width);
    }
  };
  if (active() < 4) {
    for (int head = 0; head < config_.kv_heads; ++head) one(head, 0);
  } else {
    pool_.run(config_.kv_heads * blocks, one);
  }
}

std::vector<Forward::Part> Forward::attention_parts() const {
  const int group = config_.heads / config_.kv_heads;
  std::vector<Part> parts;
  for (const Span& span : spans_) {
    const int queries = (span.last - span.first) * group;
    const int count = (queries + kernels_.max_rows - 1) / kernels_.max_rows;
    for (int t = 0; t < count; ++t) {
      const int first = queries * t / count, next = queries * (t + 1) / count;
      for (int head = 0; head < config_.kv_heads; ++head) parts.push_back({span, head, first, next - first});
    }
  }
  return parts;
}

void Forward::open_tile(AttentionTile& tile, int index, const Part& part) {
  const Layer& layer = model_.layers()[index];
  const int group = config_.heads / config_.kv_heads, all = config_.heads + 2 * config_.kv_heads;
  tile.open(kernels_, *requests_[part.span.request].cache, index, part.kv_head, config_.head_dim);
  for (int q = part.first; q < part.first + part.count; ++q) {
    const Row& row = rows_[active_[part.span.first + q / group]];
    tile.see({row.path, layer.window ? std::max(0, row.path->length() - layer.window) : 0}, row.entry);
  }
  tile.close_sights();
  for (int i = 0; i < part.count; ++i) {
    const int a = part.span.first + (part.first + i) / group;
    const int head = part.kv_head * group + (part.first + i) % group;
    float* query = &qkv_[(static_cast<std::size_t>(a) * all + head) * config_.head_dim];
    prepare_head(index, layer.query_norm, active_[a], query);
    tile.set_query(i, query, config_.attention_scale);
  }
}

void Forward::close_tile(const AttentionTile& tile, const Part& part) {
  const int group = config_.heads / config_.kv_heads;
  for (int i = 0; i < part.count; ++i) {
    const int a = part.span.first + (part.first + i) / group;
    const int head = part.kv_head * group + (part.first + i) % group;
    tile.output(i, &mixed_[(static_cast<std::size_t>(a) * config_.heads + head) * config_.head_dim]);
  }
}

void Forward::attend(int index) {
  const std::vector<Part> parts = attention_parts();
  int longest = 0;
  for (const Span& span : spans_) longest = std::max(longest, rows_[active_[span.last - 1]].entry);
  const bool few = static_cast<int>(parts.size()) < 4 * pool_.threads();
  if (few && longest >= kLong && pool_.threads() > 1) attend_divided(index, parts);
  else attend_whole(index, parts);
}

void Forward::attend_whole(int index, const std::vector<Part>& parts) {
  if (static_cast<int>(tiles_.size()) < pool_.threads()) tiles_.resize(static_cast<std::size_t>(pool_.threads()));
  pool_.run(static_cast<int>(parts.size()), [&](int item, int worker) {
    AttentionTile& tile = tiles_[worker];
    open_tile(tile, index, parts[item]);
    tile.score(tile.first_entry(), tile.last_entry());
    tile.soften();
    tile.mix(0, config_.head_dim);
    close_tile(tile, parts[item]);
  });
}

// The same in the same order for every query, but each step is shared out by itself: few heads would leave threads
// idle.
void Forward::attend_divided(int index, const std::vector<Part>& parts) {
  struct Item {
    int tile, from, to;
  };
  const int count = static_cast<int>(parts.size());
  if (tiles_.size() < parts.size()) tiles_.resize(parts.size());
  std::vector<Item> chunks, slices;
  for (int t = 0; t < count; ++t) {
    open_tile(tiles_[t], index, parts[t]);
    for (int from = tiles_[t].first_entry(); from < tiles_[t].last_entry(); from += kChunk)
      chunks.push_back({t, from, std::min(from + kChunk, tiles_[t].last_entry())});
    for (int from = 0; from < config_.head_dim; from += 2 * kPanel)
      slices.push_back({t, from, std::min(from + 2 * kPanel, config_.head_dim)});
  }
  pool_.run(static_cast<int>(chunks.size()),
            [&](int i, int) { tiles_[chunks[i].tile].score(chunks[i].from, chunks[i].to); });
  pool_.run(count, [&](int t, int) { tiles_[t].soften(); });
  pool_.run(static_cast<int>(slices.size()),
            [&](int i, int) { tiles_[slices[i].tile].mix(slices[i].from, slices[i].to - slices[i].from); });
  for (int t = 0; t < count; ++t) close_tile(tiles_[t], parts[t]);
}

}  // namespace draftproof
