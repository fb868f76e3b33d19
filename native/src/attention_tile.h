// Attention of a few queries over the keys of one head. A query's scores lie by position, are taken in the order of the
// text, and meet no other query's keys: neither the block it comes in nor the layout of a tree shows in its bits.
#pragma once

#include <vector>

#include "cache.h"
#include "kernels.h"
#include "paths.h"

namespace draftproof {

// A query's keys: positions [first, path->length()) of its path.
struct Sight {
  const Path* path;
  int first;
};

// The steps, in order: open, query (each), score (all entries), soften, mix (all columns), output (each). Scoring is
// divisible by entries and mixing by columns, so that threads can share a long context.
class AttentionTile {
 public:
  void open(const Kernels& kernels, Cache& cache, int layer, int head, int width);
  void see(Sight sight, int entry);
  void close_sights();

  int queries() const { return static_cast<int>(sights_.size()); }
  int first_entry() const { return origin_; }
  int last_entry() const { return end_; }

  void set_query(int q, const float* values, float scale);
  void score(int from, int to);  // entries, multiples of the panel
  void soften();
  void mix(int first_column, int columns);
  void output(int q, float* out) const;

 private:
  float* scores(int q) { return &scores_[static_cast<std::size_t>(q) * stride_]; }
  void straighten(int q);
  struct Columns {
    int first, count;
  };
  void mix_straight(Columns columns, int q, int count, int from, int to);
  void mix_entry(Columns columns, int q, int count, int entry, int position, int positions);

  const Kernels* kernels_ = nullptr;
  Cache* cache_ = nullptr;
  int layer_ = 0, head_ = 0, width_ = 0;
  int origin_ = 0, end_ = 0, stride_ = 0;  // scores of a query start at entry `origin_`
  std::vector<Sight> sights_;
  std::vector<float> queries_;  // [width][queries]
  std::vector<float> scores_;   // [queries][stride]
  std::vector<float> sums_;
  std::vector<float> mixed_;  // [queries][width]
};

}  // namespace draftproof
