#include "cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace draftproof {

Cache::Cache(std::shared_ptr<const CacheShape> shape) : shape_(std::move(shape)), layers_(shape_->windows.size()) {}

std::size_t Cache::bytes() const {
  std::size_t pages = spare_.size();
  for (const Layer& layer : layers_)
    pages += static_cast<std::size_t>(
        std::count_if(layer.pages.begin(), layer.pages.end(), [](const Page& p) { return p != nullptr; }));
  return pages * 2 * half_page() * sizeof(float) + states_.size() * sizeof(float);
}

void Cache::write(int layer, int entry, int head, const float* key, const float* value) {
  const int width = shape_->head_dim, slot = entry % kPage;
  float* panel = keys(layer, entry, head) + slot / kPanel * kPanel * width + slot % kPanel;
  for (int d = 0; d < width; ++d) panel[d * kPanel] = key[d];
  std::copy_n(value, width, values(layer, entry, head) + slot * width);
}

void Cache::extend(int before, const std::vector<int>& positions, int layers) {
  positions_.resize(static_cast<std::size_t>(before));
  positions_.insert(positions_.end(), positions.begin(), positions.end());
  const std::size_t needed = (positions_.size() + kPage - 1) / kPage;
  for (int l = 0; l < layers; ++l) {
    std::vector<Page>& pages = layers_[l].pages;
    if (pages.size() < needed) pages.resize(needed);
    for (std::size_t p = static_cast<std::size_t>(before / kPage); p < needed; ++p) {
      if (pages[p]) continue;
      if (spare_.empty()) {
        pages[p] = arena_.allocate(2 * half_page() * sizeof(float));
      } else {
        pages[p] = std::move(spare_.back());
        spare_.pop_back();
      }
    }
  }
}

void Cache::commit(int before) {
  length_ = static_cast<int>(positions_.size());
  shallow_layers_ = 0;
  states_.clear();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (shape_->windows[l] == 0) continue;
    Layer& layer = layers_[l];
    const int passed = std::max(0, before - shape_->windows[l] - kWindowSlack) / kPage;
    for (int p = layer.first / kPage; p < passed; ++p) spare_.push_back(std::move(layer.pages[p]));
    layer.first = std::max(layer.first, passed * kPage);
  }
}

void Cache::add_shallow(int layers, const std::vector<float>& states) {
  shallow_layers_ = layers;
  states_.insert(states_.end(), states.begin(), states.end());
}

// The next token at `length` sees entries from length - window + 1 on; what lies below may be gone.
int Cache::reusable(int length) const {
  length = std::min(length, length_);
  for (std::size_t l = 0; l < layers_.size(); ++l)
    if (layers_[l].first > 0 && length - shape_->windows[l] + 1 < layers_[l].first) return 0;
  return length;
}

void Cache::check_rollback(int length, const std::vector<int>& keep) const {
  if (length < 0 || length > length_)
    throw std::invalid_argument("rollback to " + std::to_string(length) + " of " + std::to_string(length_) +
                                " entries");
  if (length > 0 && reusable(length) != length)
    throw std::invalid_argument("the window has passed entry " + std::to_string(length) + "; ask `reusable` first");
  int last = length - 1, position = length;
  for (const int entry : keep) {
    if (entry <= last || entry >= length_)
      throw std::invalid_argument("`keep` must ascend between the new length and the old");
    if (positions_[entry] != position)
      throw std::invalid_argument("entry " + std::to_string(entry) + " does not continue the kept path");
    last = entry, ++position;
  }
}

void Cache::rollback(int length, const std::vector<int>& keep) {
  check_rollback(length, keep);
  for (std::size_t l = 0; l < layers_.size(); ++l)
    for (std::size_t i = 0; i < keep.size(); ++i)
      move_entry(static_cast<int>(l), keep[i], length + static_cast<int>(i));
  length_ = length + static_cast<int>(keep.size());
  positions_.resize(static_cast<std::size_t>(length_));
  for (int i = length; i < length_; ++i) positions_[i] = i;
  shallow_layers_ = 0;
  states_.clear();
  if (length_ == 0)
    for (Layer& layer : layers_) layer.first = 0;
}

void Cache::move_entry(int layer, int from, int to) {
  if (from == to) return;
  const int width = shape_->head_dim;
  std::vector<float> key(static_cast<std::size_t>(width));
  for (int head = 0; head < shape_->kv_heads; ++head) {
    const int slot = from % kPage;
    const float* panel = keys(layer, from, head) + slot / kPanel * kPanel * width + slot % kPanel;
    for (int d = 0; d < width; ++d) key[d] = panel[d * kPanel];
    write(layer, to, head, key.data(), values(layer, from, head) + slot * width);
  }
}

}  // namespace draftproof
