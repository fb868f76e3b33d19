// One call of a model: its rows, their scratch memory and the phases of a layer. Internal to model.cpp and its parts.
#pragma once

#include <vector>

#include "attention_tile.h"
#include "model.h"
#include "paths.h"

namespace draftproof {

// A token being computed.
struct Row {
  int request;
  int token;        // index within the request
  int entry;        // index in the cache
  int first_layer;  // 0, or the layer from which a shallow entry is taken up
  const Path* path;
};

// Rows [first, last) of one request, whose attention is computed together.
struct Span {
  int request;
  int first, last;
};

// Input rows of a matrix, transposed into tiles, quantised if the model asks for it and the matrix is.
class PackedRows {
 public:
  PackedRows(const Kernels& kernels, bool quantise) : kernels_(kernels), quantise_(quantise) {}

  // Makes room for `rows` inputs of `w`.
  void resize(int rows, const Matrix& w);
  // Values [from, to), in whole groups, of the tile's rows, whose inputs are given.
  void pack(int tile, int from, int to, const float* const* inputs);
  int depth() const { return depth_; }
  int tiles() const { return tiles_; }
  int start(int tile) const { return static_cast<int>(static_cast<long>(tile) * rows_ / tiles_); }
  Tile tile(int t) const;

 private:
  int groups() const { return depth_ / kGroup; }

  const Kernels& kernels_;
  bool quantise_, integer_ = false, with_sums_ = false;
  int rows_ = 0, depth_ = 0, tiles_ = 1;
  std::vector<float> values_, sums_, scales_;
  std::vector<std::int8_t> quants_;
  std::vector<std::int32_t> offsets_;
};

// A batch of rows on its way through the layers. Scratch is [row][width], row by row.
class Forward {
 public:
  Forward(const Model& model, std::vector<Request>& requests, const Ask& ask, std::vector<Row> rows);
  // Runs the layers, writes logits and hidden states; the rows' states stay in `state`.
  void run();
  float* state(int row) { return &state_[static_cast<std::size_t>(row) * config_.hidden]; }

 private:
  void embed();
  void fuse();
  void write_hidden(int depth);
  void layer(int index);
  void attention(int index);
  void mlp(const Layer& layer);
  void logits();

  void select(int layer);
  void compute_angles();
  void prepare_head(int index, const Vector& norm, int row, float* head, float scale) const;
  void prepare_heads(int index);
  void attend(int index);
  struct Part;
  struct PageItem {
    int part, page;
  };
  struct Place {
    int row, head;
  };
  std::vector<Part> attention_parts() const;
  Place place(const Part& part, int q) const;
  void open_tile(AttentionTile& tile, int index, const Part& part);
  void attend_whole(int index, const std::vector<Part>& parts);
  std::vector<PageItem> page_items(const std::vector<Part>& parts) const;
  void attend_divided(int index, const std::vector<Part>& parts);
  void fold_shares(const AttentionTile& tile, float* total, const float* share) const;
  void close_tile(const AttentionTile& tile, const Part& part, const float* total);
  void normalise(const Vector& weight, const Matrix& w);
  void normalise_pair(const Vector& weight, const Matrix& w);
  void project(const Matrix& w, const Vector& bias, const Vector& norm);
  void add_to_state(const Vector& norm);

  int active() const { return static_cast<int>(active_.size()); }

  const Model& model_;
  const Config& config_;
  const Kernels& kernels_;
  Pool& pool_;
  std::vector<Request>& requests_;
  const Ask& ask_;
  std::vector<Row> rows_;
  std::vector<int> active_;  // rows that take part in the current layer, ascending
  std::vector<Span> spans_;  // the same rows by request, as indices into active_
  PackedRows packed_;
  std::vector<float> state_, normed_, qkv_, mixed_, gated_, delta_;
  std::vector<float> embedded_;  // of a trained head's tokens
  std::vector<float> angles_;  // [rope][row][cosines, sines]
  // What a worker needs for attention.
  struct Desk {
    AttentionTile tile;
    std::vector<float> scores, total, share;
  };
  std::vector<Desk> desks_;
  std::vector<AttentionTile> tiles_;  // of a context that is divided
  std::vector<float> shares_;         // of its pages
};

}  // namespace draftproof
