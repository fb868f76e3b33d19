// Attention of a few queries over the keys of one head, page by page. A query's scores lie by position, are taken in
// the order of the text, and meet no other query's keys: neither the block it comes in nor the layout of a tree shows
// in its bits.
#pragma once

#include <vector>

#include "cache.h"
#include "kernels.h"
#include "paths.h"

namespace draftproof {

constexpr int kMostQueries = 16;  // of a tile

// A query's keys: positions [first, path->length()) of its path.
struct Sight {
  const Path* path;
  int first;
};

// The steps, in order: open, see (each query), close_sights, set_queries, attend (each page of positions). What a query
// takes from a page is its share (kernels.h, `fold`); shares of pages are folded in ascending order, whoever made them,
// so threads can divide a long context.
class AttentionTile {
 public:
  void open(const Kernels& kernels, Cache& cache, int layer, int head, int width);
  void see(Sight sight, int entry);
  void close_sights();

  int queries() const { return static_cast<int>(sights_.size()); }
  int first_page() const { return first_page_; }
  int last_page() const { return last_page_; }  // the one behind the last
  int share_size() const { return width_ + kPanel; }

  void set_queries(const float* const* queries);
  // shares [queries][share_size]; `scores` is scratch.
  void attend(int page, std::vector<float>& scores, float* shares) const;

 private:
  // Positions [first, last) that a query sees of a page, straight ones up to `straight`.
  struct Seen {
    int first, straight, last;
  };
  struct Page {
    int from, end, stride;  // entries, of which [from, end) are scored; stride of the scores
    float* scores;          // [queries][stride], from entry `from` on
    float* shares;
    const float* next;  // keys of the next page, which memory brings meanwhile
    Seen seen[kMostQueries];
  };
  Seen seen(int q, int from) const;
  void score(const Page& page) const;
  void soften(const Page& page) const;
  void mix(const Page& page) const;
  void mix_run(const Page& page, int first, int count, int entry, int position, int positions) const;

  const Kernels* kernels_ = nullptr;
  Cache* cache_ = nullptr;
  int layer_ = 0, head_ = 0, width_ = 0;
  int first_page_ = 0, last_page_ = 0, end_ = 0;  // entries end before `end_`
  std::vector<Sight> sights_;
  std::vector<float> queries_;  // [width][queries]
};

}  // namespace draftproof
