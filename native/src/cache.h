// Keys and values of one request, in pages of 64 entries a layer: growing copies nothing, a window frees what it has
// passed.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "arena.h"
#include "kernels.h"

namespace draftproof {

constexpr int kPage = 64;         // entries; four key panels
constexpr int kWindowSlack = 64;  // entries kept behind a window, beyond those of the last call

struct CacheShape {
  int hidden;
  int kv_heads;
  int head_dim;
  std::vector<int> windows;  // one a layer; 0 sees everything

  bool operator==(const CacheShape&) const = default;
};

class Cache {
 public:
  explicit Cache(std::shared_ptr<const CacheShape> shape);
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  bool has_shape(const CacheShape* shape) const { return shape_.get() == shape; }
  int length() const { return length_; }
  int shallow() const { return static_cast<int>(positions_.size()) - length_; }
  int shallow_layers() const { return shallow_layers_; }
  std::size_t bytes() const;

  // Where the keys of an entry's page start: panels of 16 entries, [page / 16][head_dim][16], and the values
  // [page][head_dim].
  float* keys(int layer, int entry, int head) { return page(layer, entry) + offset(head); }
  float* values(int layer, int entry, int head) { return page(layer, entry) + half_page() + offset(head); }
  void write(int layer, int entry, int head, const float* key, const float* value);

  // Drops what lies behind entry `before` and makes room for entries whose places in the text are `positions`.
  void extend(int before, const std::vector<int>& positions, int layers);
  // All entries went through every layer; pages that no window can reach are freed. `before` is the length before the
  // call.
  void commit(int before);
  // The last entries went through `layers` layers; `states` [entries][hidden] is where they stand.
  void add_shallow(int layers, const std::vector<float>& states);
  const float* shallow_state(int entry) const {
    return &states_[static_cast<std::size_t>(entry - length_) * shape_->hidden];
  }

  int reusable(int length) const;
  void rollback(int length, const std::vector<int>& keep);

 private:
  std::size_t offset(int head) const { return static_cast<std::size_t>(head) * kPage * shape_->head_dim; }
  std::size_t half_page() const { return offset(shape_->kv_heads); }
  float* page(int layer, int entry) { return reinterpret_cast<float*>(layers_[layer].pages[entry / kPage].get()); }
  void move_entry(int layer, int from, int to);
  void check_rollback(int length, const std::vector<int>& keep) const;

  using Page = std::shared_ptr<std::uint8_t[]>;
  struct Layer {
    std::vector<Page> pages;  // empty where a window has passed
    int first = 0;            // entries below are gone
  };

  std::shared_ptr<const CacheShape> shape_;
  std::vector<Layer> layers_;
  Arena arena_{std::size_t{2} << 20};
  std::vector<Page> spare_;
  std::vector<int> positions_;
  std::vector<float> states_;
  int length_ = 0;
  int shallow_layers_ = 0;
};

}  // namespace draftproof
